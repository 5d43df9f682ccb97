package crash

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
	"github.com/caisson-run/caisson/tests/testkit"
)

// orchestrator is the argument that makes the test binary an orchestrator.
const orchestrator = "__orchestrate"

func TestMain(m *testing.M) {
	if len(os.Args) == 7 && os.Args[1] == orchestrator {
		fmt.Fprintln(os.Stderr, orchestrate(os.Args[2], os.Args[3], os.Args[4], domain.AgentKind(os.Args[5]), os.Args[6]))
		os.Exit(1)
	}
	fakecli.Host() // where the fake cannot be built, the test binary is it
	testkit.MainWithFake(m)
}

func compose(ctx context.Context, fake, root string, native bool) (*composition.Caisson, error) {
	env := map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
	opts := []composition.Option{
		composition.WithStateRoot(root),
		composition.WithAgentAdapter(fakecli.NewAdapter(claude.New(), fake)),
		composition.WithAgentAdapter(fakecli.NewAdapter(codex.New(), fake)),
		composition.WithEnviron(func(name string) (string, bool) { v, ok := env[name]; return v, ok }),
	}
	if native {
		opts = append(opts, composition.WithAllowNative())
	}
	return composition.New(ctx, opts...)
}

// script is a turn with something at every moment: text, tools, a process that
// runs away, waits, and a burst.
func script() string {
	return fakecli.Script("say begin", "sh setsid sleep 1000 & echo tool", "sleep 5ms", "lines 50", "sleep 10ms", "bytes 100000", "say end")
}

// orchestrate runs turn after turn in one session, and prints every event when
// it gets it, until it is killed.
func orchestrate(fake, root, workspace string, agent domain.AgentKind, mode string) error {
	ctx := context.Background()
	c, err := compose(ctx, fake, root, mode == "native")
	if err != nil {
		return err
	}
	session, err := c.Orchestrator.Open(ctx, application.OpenRequest{Agent: agent, Workspace: workspace})
	if err != nil {
		return err
	}
	var line []byte
	for {
		turn, err := session.Send(ctx, script())
		if err != nil {
			return err
		}
		for e, err := range turn.Events() {
			if err != nil {
				return err
			}
			line = jsonl.AppendEvent(line[:0], e)
			if _, err := os.Stdout.Write(line); err != nil {
				return err
			}
		}
	}
}

var kills = flag.Int("kills", 20, "how many orchestrators are killed")

func TestKilledOrchestratorsLeaveNothingAndLoseNothing(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	exe, err := os.Executable()
	require.NoError(t, err)
	agents := []domain.AgentKind{domain.AgentClaude, domain.AgentCodex}
	stats := map[string]int{}
	for i := range *kills {
		agent, mode := agents[i%2], []string{"confined", "native"}[i/2%2]
		// Some begin to count at the first event: a slow host may take all the time
		// for the opening.
		killed(t, exe, agent, mode, time.Duration(rand.Int64N(int64(600*time.Millisecond))), i%5 == 4, stats)
		if t.Failed() {
			t.Logf("in round %d: %s, %s", i, agent, mode)
			break
		}
	}
	for _, what := range slices.Sorted(maps.Keys(stats)) {
		t.Logf("%s: %d", what, stats[what])
	}
	if *kills >= 20 && !t.Failed() {
		require.NotZero(t, stats["killed in a turn"], "nothing was interrupted")
	}
}

// killed kills an orchestrator some time after its start, or after its first event,
// and looks at what it left.
func killed(t *testing.T, exe string, agent domain.AgentKind, mode string, after time.Duration, fromFirst bool, stats map[string]int) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	root, workspace := filepath.Join(base, "state"), filepath.Join(base, "workspace")
	require.NoError(t, os.Mkdir(workspace, 0o700))
	fake := testkit.FakeProgram()
	cmd := exec.Command(exe, orchestrator, fake, root, workspace, string(agent), mode)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	timer := time.AfterFunc(time.Hour, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	if !fromFirst {
		timer.Reset(after)
	}
	var seen [][]byte
	for r := bufio.NewReader(out); ; {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break // what it did not finish saying it did not say
		}
		require.NoError(t, err)
		if seen = append(seen, line); fromFirst && len(seen) == 1 {
			timer.Reset(after)
		}
	}
	var killed *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &killed)
	require.Equal(t, -1, killed.ExitCode(), "it ended by itself")

	c, err := compose(t.Context(), fake, root, mode == "native")
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close(context.Background())) }()
	o := c.Orchestrator
	infos, err := o.Sessions(t.Context())
	// A child that was just being started has the lock until it executes its
	// program.
	for deadline := time.Now().Add(10 * time.Second); len(infos) == 1 && infos[0].Running && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
		infos, err = o.Sessions(t.Context())
	}
	require.NoError(t, err)
	left := runners(root)
	if mode == "confined" {
		// A keeper does it by itself, and needs a moment.
		for deadline := time.Now().Add(10 * time.Second); len(left) > 0 && time.Now().Before(deadline); left = runners(root) {
			time.Sleep(time.Millisecond)
		}
	}
	require.Empty(t, left, "what the agent started is left, %s", mode)
	if len(infos) == 0 {
		require.Empty(t, seen)
		stats["killed before the session was open"]++
		return
	}
	require.Len(t, infos, 1)
	info := infos[0]
	require.False(t, info.Running)

	var stored []domain.Event
	var lines [][]byte
	for e, err := range o.Replay(t.Context(), info.ID, 1, false) {
		require.NoError(t, err)
		stored = append(stored, e)
		lines = append(lines, jsonl.AppendEvent(nil, e))
	}
	checkLog(t, stored)
	require.LessOrEqual(t, len(seen), len(lines), "an event that was given out is not in the log")
	for i := range seen {
		// What the log's encoding does not carry is not in the line either.
		require.Equal(t, string(seen[i]), string(lines[i]))
	}
	require.Equal(t, uint64(len(stored)), info.LastSeq)
	for _, e := range stored {
		if f, ok := e.Reply.(domain.Final); ok && f.Error != nil {
			require.Equal(t, domain.ErrorClassOrphaned, f.Error.Class)
			require.Equal(t, stored[len(stored)-1].Seq, e.Seq, "only the last turn was cut short")
			stats["killed in a turn"]++
		}
	}
	if info.ConversationID == "" {
		_, err := o.Open(t.Context(), application.OpenRequest{Resume: info.ID})
		require.ErrorContains(t, err, "never named a conversation")
		stats["killed before there was a conversation"]++
		return
	}
	session, err := o.Open(t.Context(), application.OpenRequest{Resume: info.ID})
	require.NoError(t, err)
	final, err := session.SendBlocking(t.Context(), fakecli.Script("recall"))
	require.NoError(t, err)
	require.Equal(t, domain.OutcomeCompleted, final.Outcome, "%+v", final.Error)
	require.Contains(t, final.Text, "say begin", "it is the same conversation")
	require.NoError(t, session.Close(t.Context()))
	stats["went on"]++
}

// checkLog checks that the numbers have no gap and every turn has one final, last.
func checkLog(t *testing.T, events []domain.Event) {
	t.Helper()
	turn, over := 0, true
	for i, e := range events {
		require.Equal(t, uint64(i+1), e.Seq)
		if over {
			turn++
		}
		require.Equal(t, turn, e.Turn)
		_, over = e.Reply.(domain.Final)
	}
	require.True(t, over, "turn %d has no final", turn)
}

// runners returns the processes whose environment names the directory: those of
// turns have their home in it.
func runners(dir string) (procs []string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err == nil && bytes.Contains(env, []byte(dir)) {
			line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
			procs = append(procs, fmt.Sprintf("%s %q", e.Name(), bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return procs
}
