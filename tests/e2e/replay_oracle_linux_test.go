package e2e

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

// recorded is one run of a real CLI.
type recorded struct {
	agent  domain.AgentKind
	name   string
	stdout []byte
	stderr []byte
	exit   int // as Python's subprocess has it: negative for a signal
}

// signal is the name of the signal that ended the run, "" if none did.
func (r recorded) signal() string {
	return map[int]string{-1: "HUP", -9: "KILL", -15: "TERM"}[min(r.exit, 0)]
}

// loadRecordings reads the agent's recordings from where its adapter has them:
// so many, of which so many wrote to stderr.
func loadRecordings(t *testing.T, agent domain.AgentKind, count, noisy int) []recorded {
	t.Helper()
	dir := filepath.Join("../../infrastructure/agents", string(agent), "testdata/recordings")
	metas, err := filepath.Glob(filepath.Join(dir, "*.meta.json"))
	require.NoError(t, err)
	require.Len(t, metas, count, "no recording is lost")
	var all []recorded
	for _, file := range metas {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		var meta struct{ Exit *int }
		require.NoError(t, json.Unmarshal(data, &meta), file)
		require.NotNil(t, meta.Exit, file)
		base := strings.TrimSuffix(file, ".meta.json")
		r := recorded{agent: agent, name: filepath.Base(base), stdout: readRecording(t, base+".stdout.jsonl"), exit: *meta.Exit}
		if r.exit < 0 {
			require.NotEmpty(t, r.signal(), "%s: exit %d", r.name, r.exit)
		}
		// Only what was not empty was kept.
		if r.stderr, err = os.ReadFile(base + ".stderr.txt"); !errors.Is(err, fs.ErrNotExist) {
			require.NoError(t, err)
		}
		if len(r.stderr) > 0 {
			noisy--
		}
		all = append(all, r)
	}
	require.Zero(t, noisy, "what was written to stderr is kept")
	return all
}

// readRecording reads a file, or the gzip file in its place.
func readRecording(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		return data
	}
	require.ErrorIs(t, err, fs.ErrNotExist)
	f, err := os.Open(path + ".gz")
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	data, err = io.ReadAll(z)
	require.NoError(t, err)
	return data
}

// reading is what a recording says, found out in the simplest way there is:
// every line into a map.
type reading struct {
	texts   []said
	calls   []called
	outcome domain.Outcome
	ended   bool   // the agent itself said how
	final   string // its last word then
}

type said struct{ text, parent string }

type called struct {
	id, name string
	input    any
	parent   string
}

type object = map[string]any

func linesOf(data []byte) []string {
	if len(data) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

func (r recorded) read(t *testing.T) reading {
	t.Helper()
	var o reading
	// What the agent itself said about the turn's end; the last word counts.
	var end domain.Outcome
	seen := map[string]bool{}
	for _, line := range linesOf(r.stdout) {
		var event object
		if json.Unmarshal([]byte(line), &event) != nil {
			continue // no event
		}
		switch r.agent {
		case domain.AgentClaude:
			o.claude(event, &end)
		case domain.AgentCodex:
			o.codex(line, event, seen, &end)
		}
	}
	switch {
	case end != "":
		o.outcome, o.ended = end, true
	case r.exit != 0:
		o.outcome = domain.OutcomeExited
	default:
		o.outcome = domain.OutcomeProtocolError
	}
	return o
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func (o *reading) claude(event object, end *domain.Outcome) {
	switch event["type"] {
	case "assistant":
		parent := text(event["parent_tool_use_id"])
		message, _ := event["message"].(object)
		blocks, _ := message["content"].([]any)
		for _, b := range blocks {
			switch b, _ := b.(object); b["type"] {
			case "text":
				o.texts = append(o.texts, said{text(b["text"]), parent})
			case "tool_use":
				o.calls = append(o.calls, called{text(b["id"]), text(b["name"]), b["input"], parent})
			}
		}
	case "result":
		denials, _ := event["permission_denials"].([]any)
		switch {
		// is_error beats the subtype: an API error is a "success" with it.
		case event["is_error"] == false && event["subtype"] == "success":
			*end = domain.OutcomeCompleted
		// The turn was aborted among its tools, and one of them was denied.
		case event["terminal_reason"] == "aborted_tools" && len(denials) > 0:
			*end = domain.OutcomeDenied
		default:
			*end = domain.OutcomeFailed
		}
		if result, ok := event["result"].(string); ok {
			o.final = result
			return
		}
		o.final = ""
		for _, s := range o.texts {
			if s.parent == "" {
				o.final = s.text
			}
		}
	}
}

// itemID finds an item's own id: a web search has a second one, and of two a
// map keeps the last.
var itemID = regexp.MustCompile(`"item":\{"id":"(item_\d+)"`)

func (o *reading) codex(line string, event object, seen map[string]bool, end *domain.Outcome) {
	item, _ := event["item"].(object)
	var c called
	switch item["type"] {
	case "agent_message":
		if event["type"] == "item.completed" {
			o.texts = append(o.texts, said{text: text(item["text"])})
			o.final = text(item["text"])
		}
	case "command_execution":
		c = called{name: "shell", input: pick(item, "command")}
	case "file_change":
		c = called{name: "apply_patch", input: pick(item, "changes")}
	case "web_search":
		c = called{name: "web_search", input: pick(item, "query", "action")}
	case "collab_tool_call":
		c = called{name: text(item["tool"]), input: pick(item, "prompt", "receiver_thread_ids")}
	case "mcp_tool_call":
		c = called{name: "mcp__" + text(item["server"]) + "__" + text(item["tool"]), input: item["arguments"]}
	}
	// Every item once, as it was when it came first.
	if c.name != "" {
		if c.id = itemID.FindStringSubmatch(line)[1]; !seen[c.id] {
			seen[c.id] = true
			o.calls = append(o.calls, c)
		}
	}
	switch event["type"] {
	case "turn.completed":
		*end = domain.OutcomeCompleted
	case "turn.failed":
		*end = domain.OutcomeFailed
	}
}

// pick returns an object's members of those names that are not null.
func pick(from object, names ...string) object {
	some := object{}
	for _, n := range names {
		if from[n] != nil {
			some[n] = from[n]
		}
	}
	return some
}
