//go:build linux

package codex_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/clis"
	"github.com/caisson-run/caisson/tests/testkit"
)

// responses is the model: it asks for one command, and says "done" when it has
// the command's output.
type responses struct {
	*httptest.Server
	command string

	mu   sync.Mutex
	auth []string
}

func newResponses(t *testing.T, command string) *responses {
	m := &responses{command: command}
	m.Server = httptest.NewServer(m)
	t.Cleanup(m.Close)
	return m
}

// keys returns the Authorization of every request so far.
func (m *responses) keys() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.auth)
}

func (m *responses) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Input []struct{ Type, Role string }
	}
	if r.URL.Path != "/v1/responses" || json.NewDecoder(r.Body).Decode(&body) != nil || len(body.Input) == 0 {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	m.mu.Lock()
	m.auth = append(m.auth, r.Header.Get("Authorization"))
	m.mu.Unlock()
	item := map[string]any{
		"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
		"content": []any{map[string]any{"type": "output_text", "text": "done", "annotations": []any{}}},
	}
	if body.Input[len(body.Input)-1].Type != "function_call_output" {
		args, _ := json.Marshal(map[string]any{"cmd": m.command})
		item = map[string]any{
			"type": "function_call", "id": "fc_1", "call_id": fmt.Sprintf("call_%d", len(body.Input)),
			"name": "exec_command", "arguments": string(args), "status": "completed",
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, ev := range []map[string]any{
		{"type": "response.created", "response": map[string]any{"id": "resp_1", "status": "in_progress"}},
		{"type": "response.output_item.done", "output_index": 0, "item": item},
		{"type": "response.completed", "response": map[string]any{"id": "resp_1", "status": "completed", "usage": map[string]any{
			"input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050,
		}}},
	} {
		data, _ := json.Marshal(ev)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", ev["type"], data)
	}
}

// The whole of it with the real program, without a sandbox: the command line is
// accepted, the key arrives at the API and not at tools, tools have no network,
// what was planted in the configuration does not run, and the turn after
// resumes the conversation.
func TestRealCodex(t *testing.T) {
	program := clis.Codex(t)
	testkit.NoLeaks(t)
	dir := canonicalTemp(t)
	dirs := ports.SessionDirs{State: filepath.Join(dir, "state"), Home: filepath.Join(dir, "home"), Temp: filepath.Join(dir, "temp")}
	workspace := filepath.Join(dir, "ws")
	for _, d := range []string{dirs.State, dirs.Home, dirs.Temp, workspace} {
		require.NoError(t, os.MkdirAll(d, 0o700))
	}
	planted := filepath.Join(dir, "planted")
	plant := "notify=[\"/usr/bin/touch\",\"" + planted + "\"]\n[mcp_servers.x]\ncommand=\"/usr/bin/touch\"\nargs=[\"" + planted + "\"]\n"
	write(t, filepath.Join(dirs.State, "config.toml"), plant+"[model_providers.caisson]\nbase_url=\"http://127.0.0.1:9/v1\"\n[projects.\""+workspace+"\"]\ntrust_level=\"trusted\"\n", 0o600)
	write(t, filepath.Join(workspace, ".codex", "config.toml"), plant, 0o600)

	model := newResponses(t, `env; echo written > out.txt; (exec 3<>/dev/tcp/127.0.0.1/9) 2>&1; exit 0`)
	install, err := codex.New().Resolve(program, hostWith(map[string]string{"OPENAI_BASE_URL": model.URL + "/v1", "OPENAI_API_KEY": "set"}))
	require.NoError(t, err)
	require.NotEmpty(t, install.Version)
	modules := program[:strings.LastIndex(program, "/@openai/")]
	launcher, err := codex.New().Resolve(filepath.Join(modules, ".bin", "codex"), ports.Host{})
	require.NoError(t, err)
	require.Equal(t, install.Path, launcher.Path)
	require.Equal(t, install.Dirs, launcher.Dirs)

	turn := ports.TurnRequest{
		Prompt: ports.Prompt{Text: "go"}, Install: install, Dirs: dirs, Workspace: workspace, Model: "gpt-5.5", Confined: true,
	}
	ask := func() parsed {
		line, err := codex.New().Command(turn)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, line.Path, line.Argv[1:]...)
		cmd.Dir, cmd.Stdin = line.Dir, bytes.NewReader(line.Stdin)
		cmd.Env = append([]string{
			"PATH=/usr/bin:/bin", "HOME=" + dirs.Home, "TMPDIR=" + dirs.Temp,
			"OPENAI_API_KEY=sk-secret-1", "CODEX_API_KEY=sk-secret-2",
		}, line.Env...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoError(t, err, "%s\n%s", out, stderr.Bytes())
		got := run(t, turn, domain.ExitStatus{Known: true}, bytes.Split(bytes.TrimSpace(out), []byte("\n"))...)
		require.NotNil(t, got.claim, "%s", out)
		require.Equal(t, domain.OutcomeCompleted, got.claim.Outcome, "%s", out)
		require.Equal(t, "done", got.claim.Text)
		require.Equal(t, domain.Usage{InputTokens: 2000, OutputTokens: 100}, got.claim.Usage)
		for _, ev := range got.events {
			require.NotContains(t, []string{"raw", "log"}, ev.EventType(), "%v", ev)
		}
		return got
	}

	first := ask()
	var output string
	for _, ev := range first.events {
		if r, ok := ev.(domain.ToolResult); ok {
			output = r.Output
		}
	}
	require.Contains(t, output, "CODEX_PERMISSION_PROFILE=ext", "%+v", first.events)
	require.Contains(t, output, "TMPDIR="+dirs.Temp)
	require.NotContains(t, output, "sk-secret")
	require.Contains(t, output, "Operation not permitted", "tools have no network")
	require.FileExists(t, filepath.Join(workspace, "out.txt"))
	require.NoFileExists(t, planted)
	require.Equal(t, []string{"Bearer sk-secret-1", "Bearer sk-secret-1"}, model.keys())

	turn.Resume, turn.ConversationID, turn.UsageBefore = true, first.claim.ConversationID, *first.claim.TotalUsage
	second := ask()
	require.Equal(t, first.claim.ConversationID, second.claim.ConversationID)
	require.Equal(t, int64(4000), second.claim.TotalUsage.InputTokens)

	// The limit that the package comment states. It hangs on how fast the
	// command is, so a busy machine gets several tries. Should all of them have
	// a call, the limit may be gone, and so may the comment and the note.
	model.command = `echo "x: Permission denied"; echo ran > denied.txt; exit 1`
	last, lost := second, false
	for range 10 {
		turn.UsageBefore = *last.claim.TotalUsage
		last = ask()
		if lost = !slices.ContainsFunc(last.events, func(ev domain.ReplyEvent) bool { return ev.EventType() == "tool_call" }); lost {
			break
		}
	}
	require.True(t, lost, "every command has an event now")
	require.FileExists(t, filepath.Join(workspace, "denied.txt"))
	model.command = "echo written > out.txt"

	// Codex's own sandbox stays where ours is not: it is read-only.
	turn.Resume, turn.UsageBefore, turn.Confined = false, domain.Usage{}, false
	require.NoError(t, os.Remove(filepath.Join(workspace, "out.txt")))
	ask()
	require.NoFileExists(t, filepath.Join(workspace, "out.txt"))

	// The plant is a real one: without our flags it runs.
	line, err := codex.New().Command(turn)
	require.NoError(t, err)
	argv := strings.Split(strings.Replace(strings.Join(line.Argv[1:], "\x00"), "--ignore-user-config\x00", "", 1), "\x00")
	cmd := exec.CommandContext(t.Context(), line.Path, argv...)
	cmd.Dir, cmd.Stdin = line.Dir, bytes.NewReader(line.Stdin)
	cmd.Env = append([]string{"PATH=/usr/bin:/bin", "HOME=" + dirs.Home, "TMPDIR=" + dirs.Temp, "OPENAI_API_KEY=x"}, line.Env...)
	require.NoError(t, cmd.Run())
	require.Eventually(t, func() bool { _, err := os.Stat(planted); return err == nil }, 10*time.Second, 20*time.Millisecond)
}
