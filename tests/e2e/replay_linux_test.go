package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/testkit"
)

// TestReplay plays every recording of the real CLIs to the caisson program, as
// an agent that prints the recorded bytes and ends as recorded, and compares
// the events with a plain reading of the recording.
func TestReplay(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	program := buildCaisson(t)
	outcomes := map[domain.Outcome]int{}
	recordings := append(loadRecordings(t, domain.AgentClaude, 138, 20), loadRecordings(t, domain.AgentCodex, 132, 120)...)
	for _, r := range recordings {
		want := r.read(t)
		outcomes[want.outcome]++
		t.Run(string(r.agent)+"/"+r.name, func(t *testing.T) {
			t.Parallel()
			replay(t, program, r, want)
		})
	}
	// The recordings have all of these, or the test proves little.
	for _, o := range []domain.Outcome{
		domain.OutcomeCompleted, domain.OutcomeFailed, domain.OutcomeDenied, domain.OutcomeExited, domain.OutcomeProtocolError,
	} {
		require.Positive(t, outcomes[o], o)
	}
}

// buildCaisson builds the program as it is shipped.
func buildCaisson(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Skip("root has run this: a copy of the package alone, such as tools/as-user.sh makes, has neither the program's source nor the recordings")
	}
	program := filepath.Join(t.TempDir(), "caisson")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, "./cmd/caisson")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// wireLine is one line of `caisson run --output json`, as far as it is checked.
type wireLine struct {
	Type    string
	Seq     int
	Session string
	Turn    int
	Time    time.Time
	Agent   domain.AgentKind

	Receipt *struct {
		Unconfined bool
		Enforcer   string
		Preset     string
	}

	Text   string
	Parent *string
	ID     string
	Name   string
	Kind   string
	Input  any
	Stream string
	Line   string

	Outcome domain.Outcome
	Exit    *struct {
		Code   *int
		Signal string
	}
	Error *struct {
		Class      string
		Message    string
		StderrTail string `json:"stderr_tail"`
	}
}

func (l wireLine) parent() string {
	if l.Parent == nil {
		return ""
	}
	return *l.Parent
}

// replay runs the recording through the program.
func replay(t *testing.T, program string, r recorded, want reading) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	dir := func(name string) string {
		d := filepath.Join(base, name)
		require.NoError(t, os.Mkdir(d, 0o700))
		return d
	}
	agent, err := fakecli.WriteReplay(dir("agent"), r.stdout, r.stderr, max(r.exit, 0), r.signal())
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, program, "run", "--agent", string(r.agent), "--agent-bin", agent, "--timeout", "50s", "--output", "json", "hi")
	run.Dir = dir("workspace")
	run.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir("home"), "XDG_STATE_HOME=" + dir("state"), "LANG=C.UTF-8",
		// Without any a session is refused.
		"ANTHROPIC_API_KEY=not-a-key", "OPENAI_API_KEY=not-a-key"}
	var stdout, stderr bytes.Buffer
	run.Stdout, run.Stderr = &stdout, &stderr
	err = run.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	require.Empty(t, stderr.String(), "Caisson itself has nothing to say")
	require.Equal(t, exitCodeFor(want.outcome), run.ProcessState.ExitCode(), "for outcome %s", want.outcome)

	lines := wireLines(t, stdout.Bytes())
	checkFrame(t, r.agent, lines)

	var texts []said
	var calls []called
	var logged []string // from stderr
	for _, l := range lines {
		switch {
		case l.Type == "text":
			texts = append(texts, said{l.Text, l.parent()})
		case l.Type == "tool_call":
			require.NotEmpty(t, l.Kind)
			calls = append(calls, called{l.ID, l.Name, l.Input, l.parent()})
		case l.Type == "log" && l.Stream == "stderr":
			logged = append(logged, l.Line)
		}
	}
	require.Equal(t, want.texts, texts)
	require.Equal(t, want.calls, calls)
	require.Equal(t, strings.Join(linesOf(r.stderr), "\n"), strings.Join(logged, "\n"))

	final := lines[len(lines)-1]
	require.Equal(t, want.outcome, final.Outcome)
	if want.ended {
		require.Equal(t, want.final, final.Text)
	}
	require.NotNil(t, final.Exit, "how the process ended is a fact")
	if s := r.signal(); s != "" {
		require.Equal(t, "SIG"+s, final.Exit.Signal)
	} else {
		require.NotNil(t, final.Exit.Code)
		require.Equal(t, r.exit, *final.Exit.Code)
	}
	if want.outcome == domain.OutcomeCompleted {
		require.Nil(t, final.Error)
		return
	}
	require.NotNil(t, final.Error)
	require.NotEmpty(t, final.Error.Class)
	require.NotEmpty(t, final.Error.Message)
	require.Equal(t, strings.TrimSpace(string(r.stderr)), strings.TrimSpace(final.Error.StderrTail))
}

// exitCodeFor is how the program says an outcome.
func exitCodeFor(o domain.Outcome) int {
	switch o {
	case domain.OutcomeCompleted:
		return 0
	case domain.OutcomeFailed, domain.OutcomeDenied, domain.OutcomeExited:
		return 1
	case domain.OutcomeProtocolError:
		return 5
	}
	return -1
}

// wireLines reads what the program printed: every line is a JSON object.
func wireLines(t *testing.T, out []byte) []wireLine {
	t.Helper()
	require.True(t, bytes.HasSuffix(out, []byte("\n")), "the last line is whole")
	var lines []wireLine
	for _, line := range bytes.Split(bytes.TrimSuffix(out, []byte("\n")), []byte("\n")) {
		var l wireLine
		require.NoError(t, json.Unmarshal(line, &l), "%.200s", line)
		lines = append(lines, l)
	}
	return lines
}

// checkFrame checks what holds for the events of every turn.
func checkFrame(t *testing.T, agent domain.AgentKind, lines []wireLine) {
	t.Helper()
	require.GreaterOrEqual(t, len(lines), 2)
	_, err := domain.ParseSessionID(lines[0].Session)
	require.NoError(t, err)
	of := map[string]int{}
	for i, l := range lines {
		of[l.Type]++
		require.Equal(t, i+1, l.Seq)
		require.Equal(t, 1, l.Turn)
		require.Equal(t, lines[0].Session, l.Session)
		require.Equal(t, agent, l.Agent)
		require.False(t, l.Time.IsZero())
	}
	require.Equal(t, "sandbox", lines[0].Type)
	require.Equal(t, 1, of["sandbox"])
	require.NotNil(t, lines[0].Receipt)
	require.False(t, lines[0].Receipt.Unconfined)
	require.Equal(t, "landlock+seccomp", lines[0].Receipt.Enforcer)
	require.Equal(t, "coding", lines[0].Receipt.Preset)
	require.Equal(t, "final", lines[len(lines)-1].Type)
	require.Equal(t, 1, of["final"])
}
