package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/composition/invariants"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/ports"
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

// The seven invariants are checked as "caisson verify" checks them, with each
// agent, and besides nothing may be left behind.

func TestInvariant1Parity(t *testing.T)                  { holds(t, 1) }
func TestInvariant2NegativeCompanion(t *testing.T)       { holds(t, 2) }
func TestInvariant3FailClosed(t *testing.T)              { holds(t, 3) }
func TestInvariant4NativeNoOp(t *testing.T)              { holds(t, 4) }
func TestInvariant5IrreversibilityConfined(t *testing.T) { holds(t, 5) }
func TestInvariant6TimeoutKillsTheTree(t *testing.T)     { holds(t, 6) }
func TestInvariant7ResumePreserved(t *testing.T)         { holds(t, 7) }

func holds(t *testing.T, number int) {
	t.Helper()
	testkit.RequireLandlock(t, 6)
	invariant := invariants.All()[number-1]
	require.Equal(t, number, invariant.Number)
	require.Equal(t, agents, invariants.Agents())
	for _, agent := range invariants.Agents() {
		t.Run(string(agent), func(t *testing.T) {
			testkit.NoLeaks(t)
			require.NoError(t, invariant.Check(t.Context(), invariantsConfig(t), agent))
		})
	}
}

func invariantsConfig(t *testing.T) invariants.Config {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	return invariants.Config{Program: testkit.FakeProgram(), Dir: dir}
}

// The checks find what they are there for.
func TestTheInvariantsFindFaults(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	all := invariants.All()
	for name, c := range map[string]struct {
		invariant int
		enforcer  ports.SandboxEnforcer
		says      string
	}{
		// Whether it denies is what the opening asks; from then on it does nothing.
		"nothing is denied":   {2, &lapsing{SandboxEnforcer: composition.DefaultEnforcer(), then: toothless{composition.DefaultEnforcer()}}, "the write tool"},
		"everything is":       {1, portstest.DenyingEnforcer{}, "the denying enforcer"},
		"the tree is left":    {6, groupless{composition.DefaultEnforcer()}, "is left"},
		"the plan is another": {7, digestless{composition.DefaultEnforcer()}, "plan"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			config := invariantsConfig(t)
			config.Enforcer = c.enforcer
			err := all[c.invariant-1].Check(t.Context(), config, domain.AgentClaude)
			require.Error(t, err)
			require.Contains(t, err.Error(), c.says)
			require.Contains(t, err.Error(), fmt.Sprintf("invariant %d", c.invariant))
		})
	}
}

// A host that can keep what most cannot breaks no invariant.
func TestTheInvariantsHoldWhereMemoryCanBeLimited(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	config := invariantsConfig(t)
	config.Enforcer = limiting{composition.DefaultEnforcer()}
	require.NoError(t, invariants.All()[2].Check(t.Context(), config, domain.AgentClaude))
}

// limiting says that it keeps a limit on memory.
type limiting struct{ ports.SandboxEnforcer }

func (e limiting) Supports(plan domain.SandboxPlan) []domain.PropertyStatus {
	list := e.SandboxEnforcer.Supports(plan)
	for i, s := range list {
		if s.Property == domain.PropertyMemory && plan.Requests(s.Property) {
			list[i] = domain.PropertyStatus{Property: s.Property, State: domain.StateEnforced, Mechanism: "a test"}
		}
	}
	return list
}

func (e limiting) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	return e.SandboxEnforcer.Prepare(ctx, plan.WithWaivers(domain.PropertyMemory), line)
}

// groupless has no kill groups.
type groupless struct{ ports.SandboxEnforcer }

func (e groupless) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	c, err := e.SandboxEnforcer.Prepare(ctx, plan, line)
	if err != nil {
		return nil, err
	}
	return struct{ ports.Confinement }{c}, nil
}

// digestless does not say which plan it enforces.
type digestless struct{ ports.SandboxEnforcer }

func (e digestless) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	c, err := e.SandboxEnforcer.Prepare(ctx, plan, line)
	if err != nil {
		return nil, err
	}
	return digestlessConfinement{c}, nil
}

type digestlessConfinement struct{ ports.Confinement }

func (c digestlessConfinement) Receipt() domain.Receipt {
	r := c.Confinement.Receipt()
	r.PlanDigest = ""
	return r
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
