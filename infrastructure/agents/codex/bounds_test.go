package codex

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Memory is bounded whatever the ids are; what is beyond it is passed on.
func TestCallsAreBounded(t *testing.T) {
	p := New().NewParser(ports.TurnRequest{})
	raw, calls := 0, 0
	for i := range maxCalls + 10 {
		parsed, err := p.ParseEvent(fmt.Appendf(nil, `{"type":"item.started","item":{"id":"item_%d","type":"command_execution","command":"x","status":"in_progress"}}`, i))
		require.NoError(t, err)
		for _, e := range parsed.Events {
			switch e.(type) {
			case domain.ToolCall:
				calls++
			case domain.Raw:
				raw++
			}
		}
	}
	require.Equal(t, maxCalls, calls)
	require.Equal(t, 10, raw)
}
