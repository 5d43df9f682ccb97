//go:build linux

package fakecli_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/infrastructure/fakecli"
)

// The fake is only worth something if it speaks like the real programs. Every
// line it prints is held against the recorded lines of its class: it has no
// member that no recorded line has, none of another type, and it lacks none
// that all of them have.

// paths lists the members of a value with their JSON types.
func paths(v any) map[string]bool {
	set := map[string]bool{}
	addPaths(set, "", v)
	return set
}

func addPaths(set map[string]bool, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		set[path+" object"] = true
		for k, m := range v {
			if strings.HasSuffix(path, "sage") && strings.HasPrefix(k, "claude-") || strings.HasSuffix(path, "_since_last_result") {
				k = "MODEL"
			}
			addPaths(set, path+"."+k, m)
		}
	case []any:
		set[path+" array"] = true
		for _, m := range v {
			addPaths(set, path+"[]", m)
		}
	default:
		set[fmt.Sprintf("%s %T", path, v)] = true
	}
}

// class names the kind of a line that the comparison is made within.
func class(e event) string {
	c := fmt.Sprint(e["type"])
	if s, ok := e["subtype"].(string); ok {
		c += "/" + s
	}
	switch e["type"] {
	case "system":
		c += fmt.Sprint("/", e["state"])
	case "assistant":
		c += fmt.Sprint("/", at(e, "message", "content", 0, "type"), "/", at(e, "message", "content", 0, "name"), "/", e["error"] != nil)
	case "user":
		c += fmt.Sprint("/", at(e, "message", "content", 0, "type"), "/", strings.Join(keys(e["tool_use_result"]), ","))
		if _, ok := e["tool_use_result"].(string); ok {
			c += fmt.Sprint("string/", at(e, "tool_result_meta", 0, "non_execution_kind"))
		}
	case "result":
		c += fmt.Sprint("/", e["is_error"], "/", e["terminal_reason"])
	case "stream_event":
		c += fmt.Sprint("/", at(e, "event", "type"), "/", at(e, "event", "delta", "type"), "/", at(e, "event", "content_block", "type"))
	case "item.started", "item.completed", "item.updated":
		c += fmt.Sprint("/", at(e, "item", "type"), "/", at(e, "item", "status"))
	}
	return c
}

func keys(v any) []string {
	m, _ := v.(map[string]any)
	return slices.Sorted(maps.Keys(m))
}

type shape struct{ some, always map[string]bool }

func recorded(t *testing.T, agent string) map[string]shape {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", agent, "*.jsonl"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	shapes := map[string]shape{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		require.NoError(t, err)
		for line := range bytes.Lines(data) {
			e := decode(t, string(line))
			c, p := class(e), paths(e)
			s, ok := shapes[c]
			if !ok {
				shapes[c] = shape{maps.Clone(p), p}
				continue
			}
			maps.Copy(s.some, p)
			maps.DeleteFunc(s.always, func(k string, _ bool) bool { return !p[k] })
		}
	}
	return shapes
}

func requireRecordedShape(t *testing.T, shapes map[string]shape, events []event) {
	t.Helper()
	for _, e := range events {
		s, ok := shapes[class(e)]
		require.True(t, ok, "nothing like it was recorded: %s: %v", class(e), e)
		p := paths(e)
		for k := range p {
			// An array that is empty in the one and not in the other says nothing.
			require.True(t, s.some[k] || strings.Contains(k, "[]"), "%s: the real one has no member %q", class(e), k)
		}
		for k := range s.always {
			require.True(t, p[k] || strings.Contains(k, "[]"), "%s: member %q is missing", class(e), k)
		}
	}
}

func TestClaudeShape(t *testing.T) {
	shapes := recorded(t, "claude")
	everything := fakecli.Script(
		"think hm", "say hello", "delta a", "delta b", "sh echo out", "sh echo err >&2; exit 3",
		"write new.txt text", "read new.txt", "read missing.txt", "connect 127.0.0.1:1", "parallel echo a;;echo b",
		"fork 1", "recall", "env HOME", "cwd", "printfd", "usage 5 6", "sleep 1ms", "lines 2", "bytes 10",
	)
	for name, prompt := range map[string]string{
		"everything": everything, "plain": "hello", "error": fakecli.Script("error rate_limit slow down"),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			events, _, stderr := claudeTurn(t, p, prompt)
			killForked(t, events)
			require.Empty(t, stderr)
			requireRecordedShape(t, shapes, events)
		})
	}
	t.Run("unknown conversation", func(t *testing.T) {
		events, _, _ := claudeTurn(t, newPlace(t), "hello", "--resume", someID)
		require.NotEmpty(t, events)
		requireRecordedShape(t, shapes, events)
	})
	t.Run("interrupted", func(t *testing.T) {
		for _, script := range []string{"sh echo started; sleep 600", "hang"} {
			pr := start(t, newPlace(t), claudeArgs()...).prompt(fakecli.Script(script))
			pr.until(is("system", "init"))
			pr.write(interrupt)
			requireRecordedShape(t, shapes, pr.until(is("result", "")))
		}
	})
}

func TestCodexShape(t *testing.T) {
	shapes := recorded(t, "codex")
	for name, prompt := range map[string]string{
		"everything": fakecli.Script(
			"think hm", "say hello", "delta a", "delta b", "sh echo out", "sh echo err >&2; exit 3",
			"write new.txt text", "write new.txt/below text", "read new.txt", "read missing.txt", "connect 127.0.0.1:1",
			"parallel echo a;;echo b", "todo a|b", "todo +a|b", "multi", "recall", "env HOME", "cwd", "printfd",
			"usage 5 6", "sleep 1ms", "lines 2", "bytes 10"),
		"plain": "hello",
		"error": fakecli.Script("error rate_limit slow down"),
	} {
		t.Run(name, func(t *testing.T) {
			events, _, _ := codexTurn(t, newPlace(t), prompt)
			requireRecordedShape(t, shapes, events)
		})
	}
}
