package claude_test

import (
	"encoding/json"
	"testing"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/ports"
)

// benchmarkLines are the event lines of all recordings of an ordinary turn: no
// line of more than 16 KiB, so that a few large files do not decide.
func benchmarkLines(b *testing.B) (all [][]byte, size int64) {
	b.Helper()
	for _, r := range recordings(b) {
		for _, line := range lines(r.stdout) {
			if len(line) > 0 && len(line) <= 16<<10 && json.Valid(line) {
				all = append(all, line)
				size += int64(len(line))
			}
		}
	}
	return all, size
}

func BenchmarkParse(b *testing.B) {
	all, size := benchmarkLines(b)
	b.Run("parser", func(b *testing.B) {
		b.SetBytes(size)
		b.ReportAllocs()
		for b.Loop() {
			p := claude.New().NewParser(ports.TurnRequest{ConversationID: conversationA})
			for _, line := range all {
				if _, err := p.ParseEvent(line); err != nil {
					b.Fatal(err)
				}
			}
			p.Finish(domain.ExitStatus{Known: true})
		}
		b.ReportMetric(float64(len(all)), "lines/op")
	})
	b.Run("map", func(b *testing.B) {
		b.SetBytes(size)
		b.ReportAllocs()
		for b.Loop() {
			for _, line := range all {
				var m map[string]any
				// The array of --output-format json is no event; the parser
				// passes it on as a line of text.
				if err := json.Unmarshal(line, &m); err != nil && line[0] == '{' {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(len(all)), "lines/op")
	})
}
