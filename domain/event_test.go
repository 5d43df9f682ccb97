package domain_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

// everyReply has one event of each type, in the order of the design.
var everyReply = []domain.ReplyEvent{
	domain.SandboxApplied{}, domain.ConversationStarted{}, domain.Text{}, domain.TextDelta{}, domain.Thinking{},
	domain.ToolCall{}, domain.ToolUpdate{}, domain.ToolResult{}, domain.FileChange{}, domain.Todo{}, domain.Permission{},
	domain.UsageReport{}, domain.Notice{}, domain.Tripwires{}, domain.Log{}, domain.Raw{}, domain.Oversize{}, domain.Final{},
}

const designedTypes = "sandbox session text text_delta thinking tool_call tool_update tool_result file_change todo " +
	"permission usage notice tripwires log raw oversize final"

func TestEventTypesAreThoseOfTheDesign(t *testing.T) {
	var names []string
	for _, e := range everyReply {
		names = append(names, e.EventType())
	}
	require.Equal(t, strings.Fields(designedTypes), names)
}

// The sources say which types implement the sealed interface, so that a new
// one cannot be forgotten here.
func TestEveryReplyEventIsKnownHere(t *testing.T) {
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	sealed := map[string]bool{}
	for _, source := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), source, nil, 0)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Recv == nil || f.Name.Name != "reply" {
				continue
			}
			name, ok := f.Recv.List[0].Type.(*ast.Ident)
			require.True(t, ok, "%s: reply has a pointer receiver, so the value is no event", source)
			sealed[name.Name] = true
		}
	}
	known, names := map[string]bool{}, map[string]bool{}
	for _, e := range everyReply {
		known[reflect.TypeOf(e).Name()] = true
		require.NotEmpty(t, e.EventType())
		require.False(t, names[e.EventType()], "two types are called %s", e.EventType())
		names[e.EventType()] = true
	}
	require.Equal(t, sealed, known)
}

// Names on the wire belong to the adapters.
func TestNoEventHasEncodingTags(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(typ.Elem())
		case reflect.Struct:
			if seen[typ] {
				return
			}
			seen[typ] = true
			for i := range typ.NumField() {
				require.Empty(t, typ.Field(i).Tag, "%s.%s", typ, typ.Field(i).Name)
				walk(typ.Field(i).Type)
			}
		}
	}
	for _, e := range everyReply {
		walk(reflect.TypeOf(e))
	}
	require.True(t, seen[reflect.TypeFor[domain.PropertyStatus]()], "the walk goes down")
}
