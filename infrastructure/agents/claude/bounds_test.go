package claude

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Memory is bounded whatever the ids are; the calls themselves are passed on.
func TestRememberedCallsAreBounded(t *testing.T) {
	p := newParser(ports.TurnRequest{})
	calls := 0
	call := func(id string) {
		parsed, err := p.ParseEvent(fmt.Appendf(nil, `{"type":"assistant","message":{"id":"m","model":"x","content":[{"type":"tool_use","id":%q,"name":"Bash","input":{}}]}}`, id))
		require.NoError(t, err)
		for _, e := range parsed.Events {
			if _, ok := e.(domain.ToolCall); ok {
				calls++
			}
		}
	}
	call(strings.Repeat("x", maxCall+1))
	require.Empty(t, p.tools)
	for i := range maxCalls + 10 {
		call(fmt.Sprint(i))
	}
	require.Len(t, p.tools, maxCalls)
	require.Equal(t, maxCalls+11, calls)
}
