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
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/ports"
)

// Parity: the sandbox changes what an agent may do, and nothing of how it works.
func parity(t *trial) {
	s := t.confined()
	script := []string{
		"think about it", "say starting", "sh echo out; echo err >&2; exit 3", "write made.txt content", "read made.txt",
		"sh mkdir -p a b && touch a/f && mv a/f b/g && ls b", "todo +one|two", "lines 50", "bytes 100000", "say done",
	}
	shapes := func(mode application.SandboxMode) (lines []string, receipt domain.Receipt) {
		session := s.open(application.OpenRequest{Sandbox: mode})
		got := s.run(session, script...)
		s.close(session)
		for _, made := range []string{"made.txt", "a", "b"} {
			s.must(os.RemoveAll(filepath.Join(s.workspace, made)))
		}
		for _, e := range got {
			lines = append(lines, shape(e))
		}
		return lines, got.receipt()
	}
	confined, receipt := shapes(application.SandboxMode{})
	s.require(!receipt.Unconfined, "the receipt says unconfined")
	native, receipt := shapes(off)
	s.require(receipt.Unconfined, "the companion's receipt says confined")
	for i := range min(len(confined), len(native)) {
		s.require(confined[i] == native[i], "event %d is %q confined and %q without a sandbox", i, confined[i], native[i])
	}
	s.require(len(confined) == len(native), "%d events confined and %d without a sandbox", len(confined), len(native))
	s.require(strings.Contains(confined[len(confined)-1], "final completed"), "the turn ends with %s", confined[len(confined)-1])
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
	default:
		return fmt.Sprintf("%s %+v", e.Reply.EventType(), e.Reply)
	}
}

// The negative companion: the kernel denies it, not the agent.
func negativeCompanion(t *trial) {
	s := t.confined()
	for _, attempt := range []struct{ name, file, command string }{
		{"the write tool", "tool", "write %s x"},
		{"a shell", "shell", "sh echo x > %s"},
		{"a grandchild", "grandchild", "sh setsid sh -c 'sh -c \"echo x > %s\"'"},
		{"a rename out of the workspace", "rename", "sh echo x > here && mv here %s"},
		{"a link", "link", "sh ln -sf %s way && echo x > way"},
	} {
		file := filepath.Join(s.outside, attempt.file)
		command := fmt.Sprintf(attempt.command, file)
		got := s.completed(s.run(s.open(application.OpenRequest{}), command, "say the agent goes on"))
		s.require(!got.receipt().Unconfined && got.receipt().Enforcer != "", "the receipt says unconfined")
		s.there(file, false, attempt.name)
		s.require(strings.Contains(got.text(), "the agent goes on"), "%s: the agent did not go on", attempt.name)
		s.toolsWere(got, domain.ToolFailed)

		got = s.run(s.open(application.OpenRequest{Sandbox: off}), command)
		s.there(file, true, "the companion must work: "+attempt.name)
		s.toolsWere(got, domain.ToolCompleted)
	}
}

// errBroken is what an enforcer fails with that is made to.
var errBroken = errors.New("the enforcer is broken")

// faulty is an enforcer that fails after a number of good preparations.
type faulty struct {
	ports.SandboxEnforcer
	good    atomic.Int32
	prepare error // what Prepare fails with, nil to go on
	apply   func() error
}

func (f *faulty) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	if f.good.Add(-1) >= 0 {
		return f.SandboxEnforcer.Prepare(ctx, plan, line)
	}
	if f.prepare != nil {
		return nil, f.prepare
	}
	c, err := f.SandboxEnforcer.Prepare(ctx, plan, line)
	if err != nil {
		return nil, err
	}
	return faultyConfinement{c, f.apply}, nil
}

type faultyConfinement struct {
	ports.Confinement
	apply func() error
}

func (c faultyConfinement) Apply() error { return c.apply() }

// Fail-closed: at whichever step it fails.
func failClosed(t *trial) {
	faults := []struct {
		name    string
		prepare error
		apply   func() error
	}{
		{"preparing", errBroken, nil},
		{"applying", nil, func() error { return errBroken }},
	}
	with := func(good int32, prepare error, apply func() error) composition.Option {
		f := &faulty{SandboxEnforcer: t.config.Enforcer, prepare: prepare, apply: apply}
		f.good.Store(good)
		return composition.WithSandboxEnforcer(f)
	}
	for _, fault := range faults {
		// A session opens with a probe, which must succeed here.
		s := t.stage(with(1, fault.prepare, fault.apply))
		marker := filepath.Join(s.workspace, "ran")
		session := s.open(application.OpenRequest{})
		before := children()
		_, err := session.Send(s.ctx, fakecli.Script("write "+marker+" x"))
		s.require(errors.Is(err, errBroken), "%s fails, and the turn gives %v", fault.name, err)
		s.require(slices.Equal(before, children()), "%s fails, and there is a child", fault.name)
		s.there(marker, false, fault.name+" fails")
		// The companion: the marker is what a child would leave.
		s.completed(s.run(s.open(application.OpenRequest{Sandbox: off}), "write "+marker+" x"))
		s.there(marker, true, "the companion must work")
	}
	for _, fault := range faults {
		s := t.stage(with(0, fault.prepare, fault.apply))
		err := s.notOpened(application.OpenRequest{})
		s.require(errors.Is(err, errBroken), "%s fails, and opening gives %v", fault.name, err)
	}
	s := t.stage(with(0, nil, func() error { return nil }))
	var probe *domain.ProbeError
	err := s.notOpened(application.OpenRequest{})
	s.require(errors.As(err, &probe), "the enforcer does nothing, and opening gives %v", err)

	// Whether the host can keep limits is not the question.
	s = t.stage(composition.WithSandboxEnforcer(lacking{t.config.Enforcer, domain.PropertyMemory}))
	s.config.Waivers = slices.DeleteFunc(slices.Clone(s.config.Waivers), func(p domain.Property) bool { return p == domain.PropertyMemory })
	var strict *domain.StrictnessError
	err = s.notOpened(application.OpenRequest{Policy: application.Policy{Limits: domain.Limits{MemoryBytes: 1 << 30}}})
	s.require(errors.As(err, &strict) && strings.Contains(err.Error(), "--waive memory-limit"), "a limit that nothing enforces gives %v", err)
}

// lacking is an enforcer that cannot enforce one property.
type lacking struct {
	ports.SandboxEnforcer
	property domain.Property
}

func (l lacking) Supports(plan domain.SandboxPlan) []domain.PropertyStatus {
	list := slices.Clone(l.SandboxEnforcer.Supports(plan))
	for i, s := range list {
		if s.Property == l.property && plan.Requests(s.Property) {
			list[i] = domain.PropertyStatus{Property: s.Property, State: domain.StateUnenforceable, Detail: "left out for a check"}
		}
	}
	return list
}

// notOpened opens a session, which must fail and leave nothing.
func (s *stage) notOpened(r application.OpenRequest) error {
	before := children()
	_, err := s.Orchestrator.Open(s.ctx, s.request(r))
	s.require(err != nil, "the session opens")
	s.require(slices.Equal(before, children()), "there is a child")
	sessions, listed := os.ReadDir(filepath.Join(s.root, "sessions"))
	s.require(errors.Is(listed, os.ErrNotExist) || listed == nil && len(sessions) == 0, "a session is half-opened: %v", listed)
	return err
}

// Native no-op: no restriction in the child, and an honest receipt.
func nativeNoOp(t *trial) {
	native := func(s *stage, mode application.SandboxMode, why string) {
		mine, err := os.ReadFile("/proc/self/status")
		s.must(err)
		free := filepath.Join(s.outside, "free")
		got := s.run(s.open(application.OpenRequest{Sandbox: mode}), "sh grep -E 'NoNewPrivs|Seccomp:' /proc/self/status", "write "+free+" x")
		receipt := got.receipt()
		s.require(receipt.Unconfined && strings.Contains(receipt.Why, why), "the receipt says %s", receipt)
		s.require(len(receipt.Properties)+len(receipt.Layers) == 0, "the receipt of an unconfined turn has layers or properties")
		s.toolsWere(got, domain.ToolCompleted, domain.ToolCompleted)
		for line := range strings.Lines(got.results()[0].Output) {
			s.require(strings.Contains(string(mine), strings.TrimSpace(line)), "the child differs from its parent: %s", line)
		}
		s.there(free, true, "nothing is restricted")
	}
	native(t.confined(), off, "the companion of a check")
	s := t.stage(composition.WithAllowNative())
	s.config.Waivers = nil // there is nothing to waive
	native(s, application.SandboxMode{}, "native")
}

// Irreversibility confined: the orchestrator, its threads, its other children and
// the next turn under another plan are free.
func irreversibilityConfined(t *trial) {
	s := t.confined()
	free := func() {
		s.must(os.WriteFile(filepath.Join(s.outside, "host"), []byte("x"), 0o600))
		s.require(len(restrictedThreads()) == 0, "threads %v of the orchestrator are restricted", restrictedThreads())
	}
	grant := application.Policy{Rules: []domain.PathRule{{Path: s.outside, Access: domain.AccessReadWrite}}}
	narrow, wide := s.open(application.OpenRequest{}), s.open(application.OpenRequest{Policy: grant})
	for i := range 3 {
		denied, allowed := filepath.Join(s.outside, fmt.Sprint("narrow", i)), filepath.Join(s.outside, fmt.Sprint("wide", i))
		s.toolsWere(s.run(narrow, "sh echo x > "+denied), domain.ToolFailed)
		free()
		s.toolsWere(s.run(wide, "sh echo x > "+allowed), domain.ToolCompleted)
		free()
		s.there(denied, false, "the narrow plan")
		s.there(allowed, true, "the wide plan")
	}
	// And while a confined turn is running.
	turn, err := narrow.Send(s.ctx, fakecli.Script("say up", "sleep 50ms", "say over"))
	s.must(err)
	s.read(narrow, turn, func(domain.Event) { free() })
}

// Timeout means killed, drained, reaped, and nothing left.
func timeoutKillsTheTree(t *trial) {
	s := t.confined(composition.WithGraces(process.Graces{Interrupt: 100 * time.Millisecond, Terminate: 100 * time.Millisecond}))
	for _, limit := range []domain.Limits{{WallClock: 1500 * time.Millisecond}, {Idle: 1500 * time.Millisecond}} {
		pidfile := filepath.Join(s.workspace, "daemon")
		s.must(os.RemoveAll(pidfile))
		session := s.open(application.OpenRequest{Policy: application.Policy{Limits: limit}})
		turn, err := session.Send(s.ctx, fakecli.Script("say up", "fork 3", "daemon "+pidfile, "holdstdout 1h", "trap", "hang"))
		s.must(err)
		begun := time.Now()
		got := s.read(session, turn, nil)
		s.require(time.Since(begun) < 30*time.Second, "it took %s", time.Since(begun))
		var pids []int
		for _, r := range got.results() {
			for _, word := range strings.Fields(r.Output) {
				if pid, err := strconv.Atoi(word); err == nil {
					pids = append(pids, pid)
				}
			}
		}
		daemon, err := os.ReadFile(pidfile)
		s.must(err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(daemon)))
		s.must(err)
		pids = append(pids, pid)
		s.require(len(pids) >= 4, "only %v were started", pids)
		for _, pid := range pids {
			left := alive(pid)
			if left {
				s.must(endSleeper(pid))
			}
			s.require(!left, "process %d is left", pid)
		}
		final := got.final()
		s.require(final.Outcome == domain.OutcomeTimedOut && strings.Contains(final.Error.Message, "1.5s"), "the final is %+v", final)
		s.require(final.Exit.Signal == "SIGKILL", "it ignored everything else, and ended with %s", final.Exit)
		s.require(got.receipt().Tree == domain.TreeKeeper || slices.Contains(s.config.Waivers, domain.PropertySignals),
			"the tree is ended by %s", got.receipt().Tree)
		// The session goes on.
		s.completed(s.run(session, "say well"))
		s.close(session)
	}
}

// endSleeper ends a process that a turn has left, which a check must not. The
// number was told by an agent, so it is looked at first.
func endSleeper(pid int) error {
	if name, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm"); err != nil || strings.TrimSpace(string(name)) != "sleep" {
		return err
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return errors.Join(p.Kill(), p.Release())
}

// Resume: also of a new process of Caisson's.
func resumePreserved(t *trial) {
	s := t.confined()
	session := s.open(application.OpenRequest{})
	first := s.run(session, "say the word is xylophone")
	second := s.run(session, "recall")
	remembers := func(es events, turns int) {
		s.require(strings.Contains(es.text(), fmt.Sprint(turns, " turns before")), "after %d turns it says %q", turns, es.text())
	}
	remembers(second, 1)
	s.require(strings.Contains(second.text(), "xylophone"), "it says %q", second.text())
	conversation, digest := first.final().ConversationID, first.receipt().PlanDigest
	s.require(domain.IsUUID(conversation) && digest != "", "conversation %q, plan %q", conversation, digest)
	same := func(es events) {
		s.require(es.final().ConversationID == conversation, "another conversation: %s", es.final().ConversationID)
		s.require(es.receipt().PlanDigest == digest, "another plan: %s", es.receipt().PlanDigest)
	}
	same(second)
	s.close(session)
	s.must(s.Close(s.ctx))

	again, err := composition.New(s.ctx, s.options...)
	s.must(err)
	s.Caisson = again // which the trial closes
	resumed := s.open(application.OpenRequest{Resume: session.ID(), Policy: application.Policy{}})
	outside := filepath.Join(s.outside, "x")
	third := s.run(resumed, "recall", "sh echo x > "+outside)
	remembers(third, 2)
	same(third)
	s.require(third[0].Seq == second[len(second)-1].Seq+1 && third[0].Turn == 3, "the numbers do not go on: %d, turn %d", third[0].Seq, third[0].Turn)
	s.there(outside, false, "the resumed turn")
	s.close(resumed)

	// A wider plan is another plan, and none at all is not the same either.
	for _, r := range []application.OpenRequest{
		{Resume: session.ID(), Policy: application.Policy{Rules: []domain.PathRule{{Path: s.outside, Access: domain.AccessReadWrite}}}},
		{Resume: session.ID(), Policy: application.Policy{ConnectTCP: []uint16{1}}},
		{Resume: session.ID(), Policy: application.Policy{UnixSockets: domain.UnixSocketsAllow}},
		{Resume: session.ID(), Sandbox: off},
	} {
		_, err := s.Orchestrator.Open(s.ctx, s.request(r))
		var changed *domain.PlanChangedError
		s.require(errors.As(err, &changed), "a resume under another plan gives %v", err)
	}
	// The refused attempts have not harmed the conversation.
	fourth := s.run(s.open(application.OpenRequest{Resume: session.ID()}), "recall")
	remembers(fourth, 3)
}
