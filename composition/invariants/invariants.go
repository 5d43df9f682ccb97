package invariants

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/ports"
)

// Invariant is one of the seven.
type Invariant struct {
	Number int
	Name   string // in kebab case
	Shows  string // what holds, one sentence
	check  func(*trial)
}

// All returns the invariants in their order.
func All() []Invariant {
	return []Invariant{
		{1, "parity", "the same script gives the same events with and without the sandbox", parity},
		{2, "negative-companion", "what the sandbox denies would have worked without it", negativeCompanion},
		{3, "fail-closed", "an enforcer that fails means that no child ever existed", failClosed},
		{4, "native-no-op", "without a sandbox nothing of its machinery shows", nativeNoOp},
		{5, "irreversibility-confined", "what a turn's sandbox takes away is taken from that turn alone", irreversibilityConfined},
		{6, "timeout-kills-the-tree", "a turn that is timed out leaves no process, whatever it did to get away", timeoutKillsTheTree},
		{7, "resume-preserved", "a later turn continues the conversation under the same plan, or is refused", resumePreserved},
	}
}

// Config is what the checks need.
type Config struct {
	// Program is the path of a program that calls fakecli.Host.
	Program string
	// Dir is an empty directory, absolute and without symbolic links, that no
	// plan grants. What is made there is the caller's to remove.
	Dir string
	// Enforcer is what is checked; nil is the default enforcer.
	Enforcer ports.SandboxEnforcer
	// Waivers are what the plans do without.
	Waivers []domain.Property
}

// Agents are the agents whose formats the scripted agent speaks.
func Agents() []domain.AgentKind { return []domain.AgentKind{domain.AgentClaude, domain.AgentCodex} }

// Check checks the invariant with one agent. The error says what does not hold.
// It leaves no process behind.
func (i Invariant) Check(ctx context.Context, config Config, agent domain.AgentKind) (err error) {
	if config.Enforcer == nil {
		config.Enforcer = composition.DefaultEnforcer()
	}
	t := &trial{ctx: ctx, config: config, agent: agent}
	defer func() {
		failed := recover()
		for _, s := range slices.Backward(t.stages) {
			err = errors.Join(err, s.Close(context.WithoutCancel(ctx)))
		}
		switch failed := failed.(type) {
		case nil:
		case failure:
			err = errors.Join(fmt.Errorf("invariant %d, %s, with %s: %w", i.Number, i.Name, agent, failed.error), err)
		default:
			panic(failed)
		}
	}()
	i.check(t)
	return nil
}

// failure ends a check from wherever it is, as a failed requirement ends a test.
type failure struct{ error }

// trial is one check with one agent.
type trial struct {
	ctx    context.Context // of the one call of Check that it lives for
	config Config
	agent  domain.AgentKind
	stages []*stage
}

// require ends the check if something does not hold.
func (t *trial) require(holds bool, format string, args ...any) {
	if !holds {
		panic(failure{fmt.Errorf(format, args...)})
	}
}

// must ends the check with an error.
func (t *trial) must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// stage is a host for one check: a state root, a workspace and a directory that
// no plan grants.
type stage struct {
	*composition.Caisson
	*trial
	root, workspace, outside string
	options                  []composition.Option
}

// off is the absence of a sandbox.
var off = application.SandboxOff("the companion of a check")

// stage makes one; the trial closes it.
func (t *trial) stage(options ...composition.Option) *stage {
	s := &stage{trial: t}
	base, err := os.MkdirTemp(t.config.Dir, "stage-")
	t.must(err)
	for _, d := range []struct {
		path *string
		name string
	}{{&s.root, "state"}, {&s.workspace, "workspace"}, {&s.outside, "outside"}} {
		*d.path = filepath.Join(base, d.name)
		t.must(os.Mkdir(*d.path, 0o700))
	}
	env := map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
	s.options = append([]composition.Option{
		composition.WithStateRoot(s.root),
		composition.WithAgentAdapter(fakecli.NewAdapter(claude.New(), t.config.Program)),
		composition.WithAgentAdapter(fakecli.NewAdapter(codex.New(), t.config.Program)),
		composition.WithEnviron(func(name string) (string, bool) { v, ok := env[name]; return v, ok }),
	}, options...)
	s.Caisson, err = composition.New(t.ctx, s.options...)
	t.must(err)
	t.stages = append(t.stages, s)
	return s
}

// confined makes a stage with the enforcer that is checked.
func (t *trial) confined(options ...composition.Option) *stage {
	return t.stage(append([]composition.Option{composition.WithSandboxEnforcer(t.config.Enforcer)}, options...)...)
}

// request is one with the stage's agent and workspace, unless it resumes.
func (s *stage) request(r application.OpenRequest) application.OpenRequest {
	if r.Resume == "" {
		r.Agent, r.Workspace = s.agent, s.workspace
	}
	if r.Sandbox == (application.SandboxMode{}) {
		r.Policy.Waivers = append(r.Policy.Waivers, s.config.Waivers...)
	}
	return r
}

func (s *stage) open(r application.OpenRequest) *application.Session {
	session, err := s.Orchestrator.Open(s.ctx, s.request(r))
	s.must(err)
	return session
}

func (s *stage) close(session *application.Session) { s.must(session.Close(s.ctx)) }

// run runs one turn to its end and checks what holds for every turn.
func (s *stage) run(session *application.Session, script ...string) events {
	turn, err := session.Send(s.ctx, fakecli.Script(script...))
	s.must(err)
	return s.read(session, turn, nil)
}

func (s *stage) read(session *application.Session, turn *application.Turn, each func(domain.Event)) (got events) {
	for e, err := range turn.Events() {
		s.must(err)
		if each != nil {
			each(e)
		}
		got = append(got, e)
	}
	s.require(len(got) > 0, "a turn without events")
	_, receipt := got[0].Reply.(domain.SandboxApplied)
	s.require(receipt, "the first event is %T and not the receipt", got[0].Reply)
	for i, e := range got {
		s.require(e.Seq == got[0].Seq+uint64(i), "sequence numbers have a gap before %d", e.Seq)
		s.require(e.Session == session.ID() && e.Turn == turn.Number() && e.Agent == s.agent, "event %d is of another turn", e.Seq)
		_, final := e.Reply.(domain.Final)
		s.require(final == (i == len(got)-1), "exactly one final, last: event %d is %T", e.Seq, e.Reply)
	}
	return got
}

// events are those of one turn.
type events []domain.Event

func (es events) receipt() domain.Receipt {
	applied, _ := es[0].Reply.(domain.SandboxApplied)
	return applied.Receipt
}

func (es events) final() domain.Final {
	final, _ := es[len(es)-1].Reply.(domain.Final)
	return final
}

func (es events) text() string {
	var b strings.Builder
	for _, e := range es {
		if text, ok := e.Reply.(domain.Text); ok {
			b.WriteString(text.Text + "\n")
		}
	}
	return b.String()
}

func (es events) results() (results []domain.ToolResult) {
	for _, e := range es {
		if r, ok := e.Reply.(domain.ToolResult); ok {
			results = append(results, r)
		}
	}
	return results
}

// completed requires that the turn was.
func (s *stage) completed(es events) events {
	s.require(es.final().Outcome == domain.OutcomeCompleted, "the turn is %s: %+v", es.final().Outcome, es.final().Error)
	return es
}

// toolsWere requires the ends of the turn's tools.
func (s *stage) toolsWere(es events, want ...domain.ToolStatus) {
	var got []domain.ToolStatus
	for _, r := range es.results() {
		got = append(got, r.Status)
	}
	s.require(slices.Equal(got, want), "the tools ended as %v, want %v", got, want)
}

// there requires that a file is there, or that it is not.
func (s *stage) there(path string, want bool, why string) {
	_, err := os.Lstat(path)
	s.require(err == nil || errors.Is(err, os.ErrNotExist), "%w", err)
	s.require((err == nil) == want, "%s: the file %s: it is there is %v", why, filepath.Base(path), err == nil)
}

// children returns the children of this process, zombies included.
func children() (pids []string) {
	files, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is good
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err == nil { // a thread may be gone
			pids = append(pids, strings.Fields(string(data))...)
		}
	}
	slices.Sort(pids)
	return pids
}

// restrictedThreads returns the threads of this process that have no_new_privs,
// unless the process itself was started so.
func restrictedThreads() (restricted []string) {
	if hasNoNewPrivs("/proc/self") {
		return nil
	}
	threads, _ := filepath.Glob("/proc/self/task/*") // the pattern is good
	for _, thread := range threads {
		if hasNoNewPrivs(thread) {
			restricted = append(restricted, filepath.Base(thread))
		}
	}
	return restricted
}

func hasNoNewPrivs(process string) bool {
	data, err := os.ReadFile(filepath.Join(process, "status"))
	return err == nil && strings.Contains(string(data), "NoNewPrivs:\t1")
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The name stands in parentheses and may hold anything (proc_pid_stat(5)).
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	return len(fields) > 0 && fields[0] != "Z" && fields[0] != "X"
}
