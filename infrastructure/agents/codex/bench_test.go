package codex_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/ports"
)

// benchTurns are the recorded turns of `exec --json`: the lines that are
// shorter than 8 KiB (115 bytes on average), or those that are not.
func benchTurns(b *testing.B, long bool) (turns [][][]byte) {
	var size int64
	for _, r := range recordings(b) {
		if strings.HasPrefix(r.name, "appserver_") {
			continue
		}
		var turn [][]byte
		for _, line := range r.lines() {
			if (len(line) >= 8<<10) == long && json.Valid(line) {
				turn = append(turn, line)
				size += int64(len(line))
			}
		}
		if turn != nil {
			turns = append(turns, turn)
		}
	}
	b.SetBytes(size)
	b.ReportAllocs()
	return turns
}

// BenchmarkParser and BenchmarkMap read the same lines; their ratio counts.
func BenchmarkParser(b *testing.B) {
	for name, long := range map[string]bool{"short": false, "long": true} {
		b.Run(name, func(b *testing.B) {
			turns := benchTurns(b, long)
			for b.Loop() {
				for _, turn := range turns {
					p := codex.New().NewParser(ports.TurnRequest{})
					for _, line := range turn {
						if _, err := p.ParseEvent(line); err != nil {
							b.Fatal(err)
						}
					}
				}
			}
		})
	}
}

func BenchmarkMap(b *testing.B) {
	for name, long := range map[string]bool{"short": false, "long": true} {
		b.Run(name, func(b *testing.B) {
			turns := benchTurns(b, long)
			for b.Loop() {
				for _, turn := range turns {
					for _, line := range turn {
						var m map[string]any
						if err := json.Unmarshal(line, &m); err != nil {
							b.Fatal(err)
						}
					}
				}
			}
		})
	}
}
