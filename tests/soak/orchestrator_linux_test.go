package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// orchestrator is the argument that makes the test binary an orchestrator; the
// next one is its config.
const orchestrator = "__orchestrate"

// config is what an orchestrator is told.
type config struct {
	Fake, Base      string
	Sessions, Turns int
	Seed            uint64
	// First is set for the first life, which measures what sessions cost.
	First bool
	// Alone is how many turns the last life runs one at a time at its end.
	Alone int
}

func (c config) root() string { return filepath.Join(c.Base, "state") }

func (c config) workspace(slot int) string { return filepath.Join(c.Base, fmt.Sprintf("w-%04d", slot)) }

func slotOf(workspace string) (int, error) {
	return strconv.Atoi(strings.TrimPrefix(filepath.Base(workspace), "w-"))
}

func (c config) compose(ctx context.Context) (*composition.Caisson, error) {
	env := map[string]string{"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
	return composition.New(ctx,
		composition.WithStateRoot(c.root()),
		composition.WithAgentAdapter(fakecli.NewAdapter(claude.New(), c.Fake)),
		composition.WithAgentAdapter(fakecli.NewAdapter(codex.New(), c.Fake)),
		composition.WithEnviron(func(name string) (string, bool) { v, ok := env[name]; return v, ok }),
		// Agents that do not listen are part of the soak; waiting for them is not.
		composition.WithGraces(process.Graces{Interrupt: 500 * time.Millisecond, Terminate: 200 * time.Millisecond}),
	)
}

// cost is what the first life measures, in bytes.
type cost struct {
	Base, Idle, Running, Stacks uint64
	Threads, Goroutines         int // while a turn of every session runs
}

// report is what a life that ends by itself tells at its end.
type report struct {
	PeakHeap, PeakRSS uint64
	PeakThreads       int
	// Left is what should not be there any more.
	Left []string
}

// life is one run of an orchestrator.
type life struct {
	config
	*composition.Caisson
	mu sync.Mutex // of standard output
	// idle and running are passed by every session of the first life.
	idle, running *barrier
}

// tell prints one line for the test: a word and its arguments.
func (l *life) tell(format string, args ...any) {
	line := fmt.Appendf(nil, format+"\n", args...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := os.Stdout.Write(line); err != nil {
		panic(err) // the test is gone
	}
}

// orchestrate brings every session to its number of turns, all at once, and tells
// what it sees.
func orchestrate(cfg config) error {
	ctx := context.Background()
	peaks := watch()
	fds, goroutines := testkit.OpenFDs(), runtime.NumGoroutine()
	l := &life{config: cfg}
	var err error
	if l.Caisson, err = cfg.compose(ctx); err != nil {
		return err
	}
	slots, err := l.slots(ctx)
	if err != nil {
		return err
	}
	base := liveHeap()
	if cfg.First {
		l.idle, l.running = newBarrier(cfg.Sessions), newBarrier(cfg.Sessions)
	}
	done := 0
	for _, s := range slots {
		done += s.turns
	}
	l.tell("ready %d", done)
	var all sync.WaitGroup
	for n := range cfg.Sessions {
		all.Go(func() {
			if err := l.soak(ctx, n, slots[n]); err != nil {
				l.tell("wrong slot %d: %v", n, err)
				if cfg.First {
					os.Exit(1) // the others may wait for this one
				}
			}
		})
	}
	if cfg.First {
		l.measure(base)
	}
	all.Wait()
	l.tell("over")
	if err := l.alone(ctx); err != nil {
		return err
	}
	if err := l.Close(ctx); err != nil {
		return err
	}
	r := peaks()
	r.Left = leftovers(fds, goroutines)
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	l.tell("report %s", text)
	return nil
}

// slot is what an earlier life made of a session: how many turns were run, and
// what to go on with.
type slot struct {
	turns  int
	resume domain.SessionID
}

// slots settles what earlier lives left. A session that was killed before its
// agent named a conversation cannot be resumed, so its place gets a new one.
func (l *life) slots(ctx context.Context) (map[int]slot, error) {
	slots := map[int]slot{}
	infos, err := l.Orchestrator.Sessions(ctx)
	running := func() bool {
		for _, i := range infos {
			if i.Running {
				return true
			}
		}
		return false
	}
	// A child that was just being started has the lock until it is killed.
	for deadline := time.Now().Add(time.Minute); err == nil && running() && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
		infos, err = l.Orchestrator.Sessions(ctx)
	}
	if err != nil {
		return nil, err
	}
	for _, i := range infos {
		n, err := slotOf(i.Workspace)
		if err != nil || i.Running {
			return nil, errors.Join(err, fmt.Errorf("session %s in %s, running: %t", i.ID, i.Workspace, i.Running))
		}
		s := slots[n]
		s.turns += i.Turns
		if i.ConversationID != "" {
			s.resume = i.ID
		}
		slots[n] = s
	}
	return slots, nil
}

// soak runs one session's turns.
func (l *life) soak(ctx context.Context, n int, s slot) error {
	open := func() (*application.Session, error) {
		if s.resume != "" {
			return l.Orchestrator.Open(ctx, application.OpenRequest{Resume: s.resume})
		}
		return l.Orchestrator.Open(ctx, application.OpenRequest{Agent: agents[n%len(agents)], Workspace: l.workspace(n)})
	}
	session, err := open()
	if err != nil {
		return err
	}
	conversation := session.ConversationID()
	for t := s.turns; t < l.Turns; t++ {
		random := rand.New(rand.NewPCG(l.Seed, uint64(n)<<16|uint64(t)))
		k := pick(random)
		if l.First && t == 0 {
			l.idle.pass()
			k = held
		}
		if err := l.turn(ctx, session, n, t, k, random); err != nil {
			return fmt.Errorf("turn %d (%s): %w", t, k.name, err)
		}
		if conversation == "" {
			conversation = session.ConversationID()
		}
		if is := session.ConversationID(); is != conversation {
			return fmt.Errorf("turn %d: the conversation was %q and is %q", t, conversation, is)
		}
		if conversation == "" || random.IntN(20) > 0 {
			continue
		}
		if err := session.Close(ctx); err != nil {
			return err
		}
		s.resume = session.ID()
		if session, err = open(); err != nil {
			return err
		}
	}
	return session.Close(ctx)
}

// turn runs one turn of a kind and compares how it ended.
func (l *life) turn(ctx context.Context, session *application.Session, n, t int, k kind, random *rand.Rand) error {
	lines := 5 + random.IntN(36)
	wait := time.Duration(random.IntN(50)) * time.Millisecond
	if k.deadline {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 500*time.Millisecond+10*wait)
		defer cancel()
	}
	begun := time.Now()
	turn, err := session.Send(ctx, k.prompt(n, t, lines))
	if k.deadline && errors.Is(err, context.DeadlineExceeded) {
		l.tell("refused") // it came to an end before there was a turn
		return l.turn(context.WithoutCancel(ctx), session, n, t, plain, random)
	}
	if err != nil {
		return err
	}
	l.tell("turn %s %d", session.ID(), turn.Number())
	var final domain.Final
	events := 0
	for e, err := range turn.Events() {
		if err != nil {
			return err
		}
		l.tell("event %s %d %08x", e.Session, e.Seq, crc32.ChecksumIEEE(jsonl.AppendEvent(nil, e)))
		if events++; events == 1 {
			if k.act != nil {
				// Not in this flow, since the turn may say nothing more.
				timer := time.AfterFunc(wait, func() { k.act(turn) })
				defer timer.Stop()
			}
			if k.stall {
				if err := l.untilOver(ctx, session.ID()); err != nil {
					return err
				}
			}
		}
		if text, ok := e.Reply.(domain.Text); ok && k.name == held.name && text.Text == lastLine(lines) {
			l.running.pass()
			turn.Cancel(nil)
		}
		if k.leave && events == 3 {
			break
		}
		final, _ = e.Reply.(domain.Final)
	}
	if k.leave {
		// The log has it, like the final.
		info, err := l.Orchestrator.Session(ctx, session.ID())
		if err == nil && info.Live != nil {
			err = errors.New("the turn still runs after its reader left")
		}
		return err
	}
	l.tell("final %s %d %s %s %d", session.ID(), turn.Number(), final.Outcome, k.name, time.Since(begun).Microseconds())
	if final.Outcome != k.outcome {
		return fmt.Errorf("the outcome is %s and not %s: %+v", final.Outcome, k.outcome, final)
	}
	return nil
}

// untilOver returns when nothing of the session runs.
func (l *life) untilOver(ctx context.Context, id domain.SessionID) error {
	for {
		info, err := l.Orchestrator.Session(ctx, id)
		if err != nil || info.Live == nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// kind is a kind of turn.
type kind struct {
	name     string
	script   []string // after the first line and the numbered ones
	outcome  domain.Outcome
	act      func(*application.Turn) // some time after the first event
	deadline bool                    // of the context
	stall    bool                    // the reader waits after the first event, until the turn is over
	leave    bool                    // the reader leaves
	long     bool                    // says twenty times as much
}

// The turns of the soak. All but held are picked at random; plain several times.
var (
	plain = kind{name: "plain", script: []string{"sh echo tool", "say end"}, outcome: domain.OutcomeCompleted}
	held  = kind{name: "held", script: []string{"hang"}, outcome: domain.OutcomeCancelled}
	kinds = []kind{
		plain, plain, plain, plain, plain, plain,
		{name: "stall", script: []string{"say end"}, outcome: domain.OutcomeCompleted, stall: true, long: true},
		{name: "tree", outcome: domain.OutcomeCompleted, script: []string{
			"sh setsid env -i /bin/sleep 1000 >/dev/null 2>&1 & echo started", "fork 2", "daemon daemon.pid", "say end",
		}},
		{name: "cancel", script: []string{"hang"}, outcome: domain.OutcomeCancelled, act: func(t *application.Turn) { t.Cancel(nil) }},
		{name: "deaf", script: []string{"trap", "hang"}, outcome: domain.OutcomeCancelled, act: func(t *application.Turn) { t.Cancel(nil) }},
		{name: "kill", script: []string{"sh sleep 1000 & echo started", "hang"}, outcome: domain.OutcomeCancelled, act: func(t *application.Turn) { t.Kill(nil) }},
		{name: "leave", script: []string{"hang"}, outcome: domain.OutcomeCancelled, leave: true},
		{name: "deadline", script: []string{"hang"}, outcome: domain.OutcomeTimedOut, deadline: true},
		{name: "dies", script: []string{"kill KILL"}, outcome: domain.OutcomeExited},
		{name: "exits", script: []string{"exit 3"}, outcome: domain.OutcomeExited},
		{name: "cut", script: []string{`partial {"type":`}, outcome: domain.OutcomeProtocolError},
		{name: "error", script: []string{"error rate_limit too much of it"}, outcome: domain.OutcomeFailed},
	}
)

func pick(random *rand.Rand) kind { return kinds[random.IntN(len(kinds))] }

// prompt is a script whose first text says what must follow.
func (k kind) prompt(slot, turn, lines int) string {
	if k.long {
		lines *= 20
	}
	end := 0
	if k.outcome == domain.OutcomeCompleted {
		end = 1
	}
	return fakecli.Script(append([]string{
		fmt.Sprintf("say soak %d %d %s %d %d", slot, turn, k.name, lines, end), "lines " + strconv.Itoa(lines),
	}, k.script...)...)
}

func lastLine(lines int) string { return fmt.Sprintf("line %d", lines) }

// measure tells what the sessions cost when all are open, and when all run.
func (l *life) measure(base uint64) {
	c := cost{Base: base}
	l.idle.wait()
	c.Idle = liveHeap()
	l.idle.open()
	l.running.wait()
	c.Running = liveHeap()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	c.Stacks, c.Threads, c.Goroutines = m.StackInuse, len(testkit.Threads()), runtime.NumGoroutine()
	text, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	l.tell("cost %s", text)
	l.running.open()
}

// liveHeap is the size of what is reachable.
func liveHeap() uint64 {
	for range 2 { // a pool lets go in the second
		runtime.GC() //nolint:revive // what is left after it is the question
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// alone runs turns one after the other with nothing beside them, each next to a
// plain run of the same program with the same prompt.
func (l *life) alone(ctx context.Context) (err error) {
	if l.Alone == 0 {
		return nil
	}
	session, err := l.Orchestrator.Open(ctx, application.OpenRequest{Agent: domain.AgentCodex, Workspace: l.workspace(l.Sessions)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close(ctx)) }()
	prompt := plain.prompt(l.Sessions, 0, 20)
	home := filepath.Join(l.Base, "home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return err
	}
	adapter := fakecli.NewAdapter(codex.New(), l.Fake)
	install, err := adapter.Resolve("", ports.Host{})
	if err != nil {
		return err
	}
	dirs := ports.SessionDirs{State: home, Home: home, Temp: home, Spool: home}
	threads := 0
	for i := range l.Alone {
		line, err := adapter.Command(ports.TurnRequest{
			Prompt: ports.Prompt{Text: prompt}, Install: install, Dirs: dirs, Workspace: l.workspace(l.Sessions),
		})
		if err != nil {
			return err
		}
		begun := time.Now()
		cmd := exec.Command(line.Path, line.Argv[1:]...)
		cmd.Dir, cmd.Stdin = line.Dir, bytes.NewReader(line.Stdin)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + home, "CODEX_HOME=" + home}
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("line 20")) {
			return fmt.Errorf("a plain run: %w: %s", err, out)
		}
		middle := time.Now()
		final, err := session.SendBlocking(ctx, prompt)
		if err != nil || final.Outcome != domain.OutcomeCompleted {
			return errors.Join(err, fmt.Errorf("a turn alone: %+v", final))
		}
		l.tell("alone %d %d", middle.Sub(begun).Microseconds(), time.Since(middle).Microseconds())
		if i == 0 {
			threads = len(testkit.Threads())
		}
	}
	if now := len(testkit.Threads()); now > threads+8 {
		return fmt.Errorf("%d turns, one at a time, left %d threads", l.Alone, now-threads)
	}
	return nil
}

// leftovers is what is there in the orchestrator and was not before.
func leftovers(fds map[int]string, goroutines int) (left []string) {
	// What was ended a moment ago may still be on its way out.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left = nil
		for fd, target := range testkit.OpenFDs() {
			// The runtime's own poller descriptors appear at first use.
			if was, ok := fds[fd]; (!ok || was != target) && !strings.HasPrefix(target, "anon_inode:[event") {
				left = append(left, fmt.Sprintf("descriptor %d of %s", fd, target))
			}
		}
		for _, pid := range testkit.Children() {
			left = append(left, fmt.Sprintf("child %d (%s)", pid, testkit.Comm(pid)))
		}
		for _, tid := range testkit.RestrictedThreads() {
			left = append(left, fmt.Sprintf("restricted thread %d", tid))
		}
		if n := runtime.NumGoroutine(); n > goroutines {
			left = append(left, fmt.Sprintf("%d goroutines", n-goroutines))
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
	}
}

// watch looks at the process from time to time until the result is called.
func watch() func() report {
	var r report
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	stop, stopped := make(chan struct{}), make(chan struct{})
	look := func() {
		metrics.Read(sample)
		r.PeakHeap = max(r.PeakHeap, sample[0].Value.Uint64())
		r.PeakRSS = max(r.PeakRSS, statusField("VmHWM")<<10)
		r.PeakThreads = max(r.PeakThreads, int(statusField("Threads")))
	}
	go func() {
		defer close(stopped)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			look()
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	return func() report {
		close(stop)
		<-stopped
		look()
		return r
	}
}

// statusField is a number of /proc/self/status.
func statusField(name string) uint64 {
	data, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(data), "\n"+name+":")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.ParseUint(fields[0], 10, 64)
	return n
}

// barrier is where all sessions wait for each other, and for what is measured
// then. A nil one lets everybody pass.
type barrier struct {
	missing sync.WaitGroup
	gate    chan struct{}
}

func newBarrier(n int) *barrier {
	b := &barrier{gate: make(chan struct{})}
	b.missing.Add(n)
	return b
}

func (b *barrier) pass() {
	if b != nil {
		b.missing.Done()
		<-b.gate
	}
}

func (b *barrier) wait() { b.missing.Wait() }

func (b *barrier) open() { close(b.gate) }
