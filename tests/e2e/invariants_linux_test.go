package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/ports/portstest"
	"github.com/caisson-run/caisson/tests/testkit"
)

// The invariants hold for every agent; the fakes stand in for both, as real
// child processes under the default plan and the default enforcer.
var agents = []domain.AgentKind{domain.AgentClaude, domain.AgentCodex}

// stage is a host for one test: a state root, a workspace and a directory that
// no plan grants.
type stage struct {
	*composition.Caisson
	agent                    domain.AgentKind
	root, workspace, outside string
	options                  []composition.Option
	off                      application.SandboxMode
}

// forEachAgent runs the test once per agent, each with its own stage and with
// the check that nothing is left behind.
func forEachAgent(t *testing.T, test func(t *testing.T, s *stage), options ...composition.Option) {
	testkit.RequireLandlock(t, 6)
	for _, agent := range agents {
		t.Run(string(agent), func(t *testing.T) {
			testkit.NoLeaks(t)
			test(t, newStage(t, agent, options...))
		})
	}
}

func newStage(t *testing.T, agent domain.AgentKind, options ...composition.Option) *stage {
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	s := &stage{agent: agent, off: application.SandboxOff("the companion of a test")}
	for _, d := range []struct {
		path *string
		name string
	}{{&s.root, "state"}, {&s.workspace, "workspace"}, {&s.outside, "outside"}} {
		*d.path = filepath.Join(base, d.name)
		require.NoError(t, os.Mkdir(*d.path, 0o700))
	}
	fake := testkit.FakeProgram()
	env := map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
	s.options = append([]composition.Option{
		composition.WithStateRoot(s.root),
		composition.WithAgentAdapter(fakecli.NewAdapter(claude.New(), fake)),
		composition.WithAgentAdapter(fakecli.NewAdapter(codex.New(), fake)),
		composition.WithEnviron(func(name string) (string, bool) { v, ok := env[name]; return v, ok }),
	}, options...)
	s.Caisson, err = composition.New(t.Context(), s.options...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
	return s
}

// open opens a session; a request that is left empty gets the stage's agent
// and workspace.
func (s *stage) open(t *testing.T, r application.OpenRequest) *application.Session {
	t.Helper()
	if r.Resume == "" {
		r.Agent, r.Workspace = s.agent, s.workspace
	}
	session, err := s.Orchestrator.Open(t.Context(), r)
	require.NoError(t, err)
	return session
}

// run runs one turn to its end and checks what holds for every turn.
func (s *stage) run(t *testing.T, session *application.Session, script ...string) []domain.Event {
	t.Helper()
	turn, err := session.Send(t.Context(), fakecli.Script(script...))
	require.NoError(t, err)
	return s.read(t, session, turn, nil)
}

func (s *stage) read(t *testing.T, session *application.Session, turn *application.Turn, each func(domain.Event)) []domain.Event {
	t.Helper()
	var events []domain.Event
	for e, err := range turn.Events() {
		require.NoError(t, err)
		if each != nil {
			each(e)
		}
		events = append(events, e)
	}
	require.NotEmpty(t, events)
	require.IsType(t, domain.SandboxApplied{}, events[0].Reply, "the receipt comes first")
	for i, e := range events {
		require.Equal(t, events[0].Seq+uint64(i), e.Seq, "sequence numbers have no gaps")
		require.Equal(t, session.ID(), e.Session)
		require.Equal(t, turn.Number(), e.Turn)
		require.Equal(t, s.agent, e.Agent)
		_, final := e.Reply.(domain.Final)
		require.Equal(t, i == len(events)-1, final, "exactly one final, last; event %d is %T", i, e.Reply)
	}
	return events
}

func receiptOf(events []domain.Event) domain.Receipt {
	return events[0].Reply.(domain.SandboxApplied).Receipt
}

func finalOf(events []domain.Event) domain.Final {
	return events[len(events)-1].Reply.(domain.Final)
}

func textOf(events []domain.Event) string {
	var b strings.Builder
	for _, e := range events {
		if text, ok := e.Reply.(domain.Text); ok {
			b.WriteString(text.Text + "\n")
		}
	}
	return b.String()
}

func resultsOf(events []domain.Event) (results []domain.ToolResult) {
	for _, e := range events {
		if r, ok := e.Reply.(domain.ToolResult); ok {
			results = append(results, r)
		}
	}
	return results
}

// shape is an event without what differs between two runs of one script.
func shape(e domain.Event) string {
	switch r := e.Reply.(type) {
	case domain.SandboxApplied:
		return "sandbox"
	case domain.ConversationStarted:
		return "session " + r.Model
	case domain.Final:
		return fmt.Sprintf("final %s %q %+v %v", r.Outcome, r.Text, r.Usage, r.Exit)
	case domain.ToolCall:
		return fmt.Sprintf("call %s %s %s", r.Name, r.Kind, r.Input)
	case domain.ToolResult:
		return fmt.Sprintf("result %s %q %v", r.Status, r.Output, r.ExitCode == nil || *r.ExitCode == 0)
	case domain.FileChange:
		return fmt.Sprintf("file_change %s %v", r.Status, r.Changes)
	}
	return fmt.Sprintf("%s %+v", e.Reply.EventType(), e.Reply)
}

// Invariant 1, parity: the sandbox changes what an agent may do, and nothing of
// how it works. The same script gives the same events with and without it.
func TestInvariant1Parity(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		script := []string{
			"think about it", "say starting", "sh echo out; echo err >&2; exit 3", "write made.txt content", "read made.txt",
			"sh mkdir -p a b && touch a/f && mv a/f b/g && ls b", "todo +one|two", "lines 50", "bytes 100000", "say done",
		}
		shapes := func(mode application.SandboxMode) (lines []string, receipt domain.Receipt) {
			session := s.open(t, application.OpenRequest{Sandbox: mode})
			events := s.run(t, session, script...)
			require.NoError(t, session.Close(t.Context()))
			require.NoError(t, os.RemoveAll(filepath.Join(s.workspace, "made.txt")))
			for _, dir := range []string{"a", "b"} {
				require.NoError(t, os.RemoveAll(filepath.Join(s.workspace, dir)))
			}
			for _, e := range events {
				lines = append(lines, shape(e))
			}
			return lines, receiptOf(events)
		}
		confined, receipt := shapes(application.SandboxMode{})
		require.False(t, receipt.Unconfined)
		native, receipt := shapes(s.off)
		require.True(t, receipt.Unconfined)
		require.Equal(t, native, confined)
		require.Contains(t, confined[len(confined)-1], "final completed")
	})
}

// Invariant 2, the negative companion: what the sandbox denies would have
// worked without it. The kernel denies it, not the agent.
func TestInvariant2NegativeCompanion(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		for _, attempt := range []struct{ name, file, command string }{
			{"the write tool", "tool", "write %s x"},
			{"a shell", "shell", "sh echo x > %s"},
			{"a grandchild", "grandchild", "sh setsid sh -c 'sh -c \"echo x > %s\"'"},
			{"a rename out of the workspace", "rename", "sh echo x > here && mv here %s"},
			{"a link", "link", "sh ln -sf %s way && echo x > way"},
		} {
			file := filepath.Join(s.outside, attempt.file)
			command := fmt.Sprintf(attempt.command, file)
			confined := s.open(t, application.OpenRequest{})
			events := s.run(t, confined, command, "say the agent goes on")
			require.Equal(t, "landlock+seccomp", receiptOf(events).Enforcer)
			require.NoFileExists(t, file, attempt.name)
			require.Contains(t, textOf(events), "the agent goes on")
			require.Equal(t, domain.OutcomeCompleted, finalOf(events).Outcome)
			results := resultsOf(events)
			require.Len(t, results, 1)
			require.Equal(t, domain.ToolFailed, results[0].Status, attempt.name)

			native := s.open(t, application.OpenRequest{Sandbox: s.off})
			events = s.run(t, native, command)
			require.FileExists(t, file, "the companion must work: %s", attempt.name)
			require.Equal(t, domain.ToolCompleted, resultsOf(events)[0].Status)
		}
	})
}

// Invariant 3, fail-closed: an enforcer that fails means that no child ever
// existed, at whichever step it fails.
func TestInvariant3FailClosed(t *testing.T) {
	broken := errors.New("the enforcer is broken")
	for name, enforcer := range map[string]portstest.DenyingEnforcer{
		"prepare": {PrepareErr: broken},
		"apply":   {ApplyErr: broken},
	} {
		t.Run("a turn's "+name, func(t *testing.T) {
			forEachAgent(t, func(t *testing.T, native *stage) {
				s := newStage(t, native.agent, composition.WithSandboxEnforcer(&lapsing{
					SandboxEnforcer: composition.DefaultEnforcer(), then: enforcer,
				}))
				marker := filepath.Join(s.workspace, "ran")
				session := s.open(t, application.OpenRequest{})
				before := testkit.Children()
				_, err := session.Send(t.Context(), fakecli.Script("write "+marker+" x"))
				require.ErrorIs(t, err, broken)
				require.Equal(t, before, testkit.Children())
				require.NoFileExists(t, marker)
				_, err = session.SendBlocking(t.Context(), fakecli.Script("write "+marker+" x"))
				require.ErrorIs(t, err, broken)
				require.NoFileExists(t, marker)

				// The companion: the marker is what a child would leave.
				events := s.run(t, s.open(t, application.OpenRequest{Sandbox: s.off}), "write "+marker+" x")
				require.Equal(t, domain.OutcomeCompleted, finalOf(events).Outcome)
				require.FileExists(t, marker)
			})
		})
		t.Run("the opening's "+name, func(t *testing.T) {
			forEachAgent(t, func(t *testing.T, s *stage) {
				requireNotOpened(t, s, func(err error) { require.ErrorIs(t, err, broken) })
			}, composition.WithSandboxEnforcer(enforcer))
		})
	}
	t.Run("an enforcer that does not enforce", func(t *testing.T) {
		forEachAgent(t, func(t *testing.T, s *stage) {
			requireNotOpened(t, s, func(err error) {
				var probe *domain.ProbeError
				require.ErrorAs(t, err, &probe)
				require.Equal(t, domain.ProbeDeniedRead, probe.Attempt)
			})
		}, composition.WithSandboxEnforcer(toothless{composition.DefaultEnforcer()}))
	})
	t.Run("a property that cannot be enforced", func(t *testing.T) {
		forEachAgent(t, func(t *testing.T, s *stage) {
			_, err := s.Orchestrator.Open(t.Context(), application.OpenRequest{
				Agent: s.agent, Workspace: s.workspace, Policy: application.Policy{Limits: domain.Limits{MemoryBytes: 1 << 30}},
			})
			var strict *domain.StrictnessError
			require.ErrorAs(t, err, &strict)
			require.Contains(t, err.Error(), "--waive memory-limit")
			requireNoSession(t, s)
		})
	})
}

// requireNotOpened opens a session, which must fail and leave nothing.
func requireNotOpened(t *testing.T, s *stage, check func(error)) {
	t.Helper()
	before := testkit.Children()
	_, err := s.Orchestrator.Open(t.Context(), application.OpenRequest{Agent: s.agent, Workspace: s.workspace})
	require.Error(t, err)
	check(err)
	require.Equal(t, before, testkit.Children())
	requireNoSession(t, s)
}

func requireNoSession(t *testing.T, s *stage) {
	t.Helper()
	sessions, err := os.ReadDir(filepath.Join(s.root, "sessions"))
	if !errors.Is(err, os.ErrNotExist) {
		require.NoError(t, err)
	}
	require.Empty(t, sessions, "nothing is half-opened")
}

// Invariant 4, native no-op: without a sandbox nothing of the machinery shows:
// no restriction in the child, and an honest receipt.
func TestInvariant4NativeNoOp(t *testing.T) {
	const status = "sh grep -E 'NoNewPrivs|Seccomp:' /proc/self/status"
	native := func(t *testing.T, s *stage, mode application.SandboxMode, why string) {
		mine, err := os.ReadFile("/proc/self/status")
		require.NoError(t, err)
		session := s.open(t, application.OpenRequest{Sandbox: mode})
		events := s.run(t, session, status, "write "+filepath.Join(s.outside, "free")+" x")
		receipt := receiptOf(events)
		require.True(t, receipt.Unconfined)
		require.Contains(t, receipt.Why, why)
		require.Empty(t, receipt.Properties)
		require.Empty(t, receipt.Layers)
		for line := range strings.Lines(resultsOf(events)[0].Output) {
			require.Contains(t, string(mine), strings.TrimSpace(line), "the child differs from its parent")
		}
		require.FileExists(t, filepath.Join(s.outside, "free"))
	}
	t.Run("said off", func(t *testing.T) {
		forEachAgent(t, func(t *testing.T, s *stage) { native(t, s, s.off, "the companion of a test") })
	})
	t.Run("allowed without an enforcer", func(t *testing.T) {
		forEachAgent(t, func(t *testing.T, s *stage) { native(t, s, application.SandboxMode{}, "native") }, composition.WithAllowNative())
	})
}

// Invariant 5, irreversibility confined between turns: what a turn's sandbox
// takes away for good is taken from that turn alone. The orchestrator, its
// threads, its other children and the next turn under another plan are free.
func TestInvariant5IrreversibilityConfined(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		hostWrites := func(name string) {
			require.NoError(t, os.WriteFile(filepath.Join(s.outside, name), []byte("x"), 0o600))
			require.Empty(t, testkit.RestrictedThreads())
		}
		grant := application.Policy{Rules: []domain.PathRule{{Path: s.outside, Access: domain.AccessReadWrite}}}
		attempt := func(file string) string { return "sh echo x > " + filepath.Join(s.outside, file) }

		narrow, wide := s.open(t, application.OpenRequest{}), s.open(t, application.OpenRequest{Policy: grant})
		for i := range 3 {
			events := s.run(t, narrow, attempt(fmt.Sprint("narrow", i)))
			require.Equal(t, domain.ToolFailed, resultsOf(events)[0].Status)
			hostWrites("host")
			events = s.run(t, wide, attempt(fmt.Sprint("wide", i)))
			require.Equal(t, domain.ToolCompleted, resultsOf(events)[0].Status)
			require.FileExists(t, filepath.Join(s.outside, fmt.Sprint("wide", i)))
			require.NoFileExists(t, filepath.Join(s.outside, fmt.Sprint("narrow", i)))
			hostWrites("host")
		}
		// And while a confined turn is running.
		turn, err := narrow.Send(t.Context(), fakecli.Script("say up", "sleep 50ms", "say over"))
		require.NoError(t, err)
		s.read(t, narrow, turn, func(e domain.Event) { hostWrites("during") })
	})
}

// Invariant 6, timeout means killed, drained, reaped, and nothing left: no
// process of the tree, whatever it did to get away, no zombie, no descriptor,
// no goroutine.
func TestInvariant6TimeoutKillsTheTree(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		for _, limit := range []domain.Limits{{WallClock: 1500 * time.Millisecond}, {Idle: 1500 * time.Millisecond}} {
			pidfile := filepath.Join(s.workspace, "daemon")
			_ = os.Remove(pidfile)
			session := s.open(t, application.OpenRequest{Policy: application.Policy{Limits: limit}})
			turn, err := session.Send(t.Context(), fakecli.Script("say up", "fork 3", "daemon "+pidfile, "holdstdout 1h", "trap", "hang"))
			require.NoError(t, err)
			var pids []int
			begun := time.Now()
			events := s.read(t, session, turn, func(e domain.Event) {
				if r, ok := e.Reply.(domain.ToolResult); ok {
					for _, word := range strings.Fields(r.Output) {
						if pid, err := strconv.Atoi(word); err == nil {
							pids = append(pids, pid)
						}
					}
				}
			})
			daemon, err := os.ReadFile(pidfile)
			require.NoError(t, err, "the daemon must have been started")
			pid, err := strconv.Atoi(strings.TrimSpace(string(daemon)))
			require.NoError(t, err)
			pids = append(pids, pid)
			require.GreaterOrEqual(t, len(pids), 4)
			for _, pid := range pids {
				require.False(t, testkit.Alive(pid), "process %d (%s) is left after %s", pid, testkit.Comm(pid), limit)
			}
			final := finalOf(events)
			require.Equal(t, domain.OutcomeTimedOut, final.Outcome)
			require.Contains(t, final.Error.Message, "1.5s")
			require.Equal(t, "SIGKILL", final.Exit.Signal, "it ignored everything else")
			require.Equal(t, domain.TreeKeeper, receiptOf(events).Tree)
			require.Less(t, time.Since(begun), 30*time.Second)

			// The session goes on.
			require.Equal(t, domain.OutcomeCompleted, finalOf(s.run(t, session, "say well")).Outcome)
			require.NoError(t, session.Close(t.Context()))
		}
	}, composition.WithGraces(process.Graces{Interrupt: 100 * time.Millisecond, Terminate: 100 * time.Millisecond}))
}

// Invariant 7, resume preserved under the sandbox: a later turn, also of a new
// process of Caisson's, continues the conversation under the same plan, or is
// refused.
func TestInvariant7ResumePreserved(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		session := s.open(t, application.OpenRequest{})
		first := s.run(t, session, "say the word is xylophone")
		second := s.run(t, session, "recall")
		require.Contains(t, textOf(second), "1 turns before")
		require.Contains(t, textOf(second), "xylophone")
		conversation := finalOf(first).ConversationID
		require.True(t, domain.IsUUID(conversation), conversation)
		require.Equal(t, conversation, finalOf(second).ConversationID)
		digest := receiptOf(first).PlanDigest
		require.NotEmpty(t, digest)
		require.Equal(t, digest, receiptOf(second).PlanDigest)
		require.NoError(t, session.Close(t.Context()))
		require.NoError(t, s.Close(t.Context()))

		again, err := composition.New(t.Context(), s.options...)
		require.NoError(t, err)
		defer func() { require.NoError(t, again.Close(context.Background())) }()
		s.Caisson = again
		resumed := s.open(t, application.OpenRequest{Resume: session.ID()})
		third := s.run(t, resumed, "recall", "sh echo x > "+filepath.Join(s.outside, "x"))
		require.Contains(t, textOf(third), "2 turns before")
		require.Equal(t, conversation, finalOf(third).ConversationID)
		require.Equal(t, digest, receiptOf(third).PlanDigest)
		require.Equal(t, second[len(second)-1].Seq+1, third[0].Seq, "sequence numbers go on")
		require.Equal(t, 3, third[0].Turn)
		require.NoFileExists(t, filepath.Join(s.outside, "x"))
		require.NoError(t, resumed.Close(t.Context()))

		// A wider plan is another plan.
		_, err = again.Orchestrator.Open(t.Context(), application.OpenRequest{
			Resume: session.ID(), Policy: application.Policy{Rules: []domain.PathRule{{Path: s.outside, Access: domain.AccessReadWrite}}},
		})
		var changed *domain.PlanChangedError
		require.ErrorAs(t, err, &changed)
		// And none at all is not the same either.
		_, err = again.Orchestrator.Open(t.Context(), application.OpenRequest{Resume: session.ID(), Sandbox: s.off})
		require.ErrorAs(t, err, &changed)
		// The refused attempts have not harmed the conversation.
		fourth := s.run(t, s.open(t, application.OpenRequest{Resume: session.ID()}), "recall")
		require.Contains(t, textOf(fourth), "3 turns before")
	})
}

// A turn that its reader leaves still counts: its usage is not charged to the
// next turn, and its conversation goes on.
func TestLeavingATurnKeepsItsBooks(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		session := s.open(t, application.OpenRequest{})
		turn, err := session.Send(t.Context(), fakecli.Script("say one", "say two"))
		require.NoError(t, err)
		for e, err := range turn.Events() {
			require.NoError(t, err)
			if _, ok := e.Reply.(domain.UsageReport); ok {
				break // the turn is all but over
			}
		}
		require.NoError(t, session.Close(t.Context()))
		events := s.run(t, s.open(t, application.OpenRequest{Resume: session.ID()}), "recall")
		require.Contains(t, textOf(events), "1 turns before")
		fresh := s.run(t, s.open(t, application.OpenRequest{}), "say one")
		require.Equal(t, finalOf(fresh).Usage, finalOf(events).Usage)
	})
}

// What one turn plants must not widen the next: a granted directory that the
// agent has replaced by a link to a place that is not granted.
func TestAPlantedLinkGrantsNothing(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		data := filepath.Join(filepath.Dir(s.workspace), "data")
		tools := filepath.Join(data, "tools")
		require.NoError(t, os.MkdirAll(tools, 0o700))
		secret := filepath.Join(s.outside, "key")
		require.NoError(t, os.WriteFile(secret, []byte("the secret"), 0o600))
		session := s.open(t, application.OpenRequest{Policy: application.Policy{Rules: []domain.PathRule{
			{Path: data, Access: domain.AccessReadWrite}, {Path: tools, Access: domain.AccessReadExec},
		}}})
		events := s.run(t, session, "sh cat "+secret, "sh rm -r "+tools+" && ln -s "+s.outside+" "+tools)
		results := resultsOf(events)
		require.Equal(t, domain.ToolFailed, results[0].Status, "not granted")
		require.Equal(t, domain.ToolCompleted, results[1].Status, "the link must be planted")

		_, err := session.Send(t.Context(), fakecli.Script("sh cat "+filepath.Join(tools, "key")))
		var changed *domain.PlanChangedError
		require.ErrorAs(t, err, &changed)
		require.Empty(t, testkit.Children())

		// The companion: without the sandbox the link leads to the secret.
		native := s.open(t, application.OpenRequest{Sandbox: s.off})
		events = s.run(t, native, "sh cat "+filepath.Join(tools, "key"))
		require.Contains(t, resultsOf(events)[0].Output, "the secret")
	})
}
