package claude_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/ports"
)

const (
	conversationA = "3fa85f64-5717-4562-b3fc-2c963f66afa6"
	conversationB = "9b2d7c11-0e4b-4a39-8f5d-6d1f0c7f2b10"
)

// recording is a run of the real CLI against a loopback model server.
type recording struct {
	name   string
	stdout []byte
	argv   []string
	exit   int
}

func recordings(tb testing.TB) []recording {
	tb.Helper()
	metas, err := filepath.Glob("testdata/recordings/*.meta.json")
	require.NoError(tb, err)
	require.Greater(tb, len(metas), 100)
	var all []recording
	for _, file := range metas {
		name := strings.TrimSuffix(filepath.Base(file), ".meta.json")
		data, err := os.ReadFile(file)
		require.NoError(tb, err)
		var meta struct {
			Argv []string
			Exit int
		}
		require.NoError(tb, json.Unmarshal(data, &meta))
		all = append(all, recording{name, stdout(tb, name), meta.Argv, meta.Exit})
	}
	return all
}

func stdout(tb testing.TB, name string) []byte {
	tb.Helper()
	path := "testdata/recordings/" + name + ".stdout.jsonl"
	if data, err := os.ReadFile(path); err == nil {
		return data
	}
	f, err := os.Open(path + ".gz")
	require.NoError(tb, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(tb, err)
	data, err := io.ReadAll(z)
	require.NoError(tb, err)
	return data
}

// lines splits as the process machinery does.
func lines(data []byte) [][]byte {
	return bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
}

// turn is the request that belongs to the recording's command line.
func (r recording) turn() ports.TurnRequest {
	turn := ports.TurnRequest{ConversationID: conversationA}
	for i, a := range r.argv[:len(r.argv)-1] {
		if a == "--resume" {
			turn.ConversationID, turn.Resume = r.argv[i+1], true
		}
	}
	return turn
}

func (r recording) exitStatus() domain.ExitStatus {
	if r.exit < 0 {
		return domain.ExitStatus{Known: true, Code: -1, Signal: "SIGKILL", SignalNumber: -r.exit}
	}
	return domain.ExitStatus{Known: true, Code: r.exit}
}

// parsed is all that a parser made of a stream.
type parsed struct {
	events []domain.ReplyEvent
	write  string
	closed int // how often stdin was closed
	done   bool
	claim  *domain.Final
}

// run feeds lines to a new parser and finishes it. The events do not hold the
// claim.
func run(tb testing.TB, turn ports.TurnRequest, exit domain.ExitStatus, lines ...[]byte) parsed {
	tb.Helper()
	var all parsed
	p := claude.New().NewParser(turn)
	for _, line := range lines {
		// The line is only valid during the call: whatever is kept must be a copy.
		line := bytes.Clone(line)
		out, err := p.ParseEvent(line)
		require.NoError(tb, err)
		for i := range line {
			line[i] = 'x'
		}
		all.events = append(all.events, out.Events...)
		all.write += string(out.Write)
		if out.CloseStdin {
			all.closed++
		}
		all.done = all.done || out.Done
	}
	for _, e := range all.events {
		_, final := e.(domain.Final)
		require.False(tb, final, "a claim is given at the end alone")
	}
	if end := p.Finish(exit); len(end) > 0 {
		claim, ok := end[len(end)-1].(domain.Final)
		require.True(tb, ok, "the claim comes last")
		all.claim = &claim
		all.events = append(all.events, end[:len(end)-1]...)
	}
	return all
}

// events is run for a new conversation that ends well.
func events(tb testing.TB, lines ...string) parsed {
	tb.Helper()
	return run(tb, ports.TurnRequest{ConversationID: conversationA}, domain.ExitStatus{Known: true}, byteLines(lines)...)
}

func resumed(tb testing.TB, id string, lines ...string) parsed {
	tb.Helper()
	return run(tb, ports.TurnRequest{ConversationID: id, Resume: true}, domain.ExitStatus{Known: true}, byteLines(lines)...)
}

func byteLines(lines []string) [][]byte {
	b := make([][]byte, len(lines))
	for i, l := range lines {
		b[i] = []byte(l)
	}
	return b
}

// of picks the events of one type.
func of[T domain.ReplyEvent](events []domain.ReplyEvent) []T {
	var some []T
	for _, e := range events {
		if t, ok := e.(T); ok {
			some = append(some, t)
		}
	}
	return some
}

// only returns the one event of a parse.
func only[T domain.ReplyEvent](tb testing.TB, p parsed) T {
	tb.Helper()
	require.Len(tb, p.events, 1)
	e, ok := p.events[0].(T)
	require.True(tb, ok, "%#v", p.events[0])
	return e
}

func ptr[T any](v T) *T { return &v }
