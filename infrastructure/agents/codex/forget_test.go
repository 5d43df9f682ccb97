package codex_test

import (
	"bytes"
	"runtime"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/ports"
)

// A line is a part of a large buffer, so neither the parser nor an event may keep
// any of it.
func TestNothingOfALineIsKept(t *testing.T) {
	for _, r := range recordings(t) {
		p := codex.New().NewParser(ports.TurnRequest{})
		var events []domain.ReplyEvent
		for _, line := range r.lines() {
			line = bytes.Clone(line)
			if len(line) < 32 {
				continue // the runtime puts the smallest ones together with others
			}
			is := weak.Make(&line[0])
			parsed, err := p.ParseEvent(line)
			require.NoError(t, err)
			events = append(events, parsed.Events...)
			if len(events)%8 == 0 { // collecting takes its time
				runtime.GC() //nolint:revive // what it finds is the question
				require.Nil(t, is.Value(), "of %s, after %d events", r.name, len(events))
			}
		}
		runtime.KeepAlive(p)
		runtime.KeepAlive(events)
	}
}
