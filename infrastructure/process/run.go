package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Graces are the waits of the stop ladder and of the end of a turn. Zero means
// the default.
type Graces struct {
	// Interrupt is the time between the interrupt (the protocol's own, or
	// SIGINT) and SIGTERM. Default 3 s.
	Interrupt time.Duration
	// Terminate is the time between SIGTERM and SIGKILL. Default 2 s.
	Terminate time.Duration
	// Result is how long an agent that gave its final may take to exit.
	// Default 10 s.
	Result time.Duration
	// Drain is how long output is still read after the whole tree was killed.
	// Default 2 s. It bounds the wait for a pipe that somebody outside the tree
	// holds open.
	Drain time.Duration
}

func (g Graces) withDefaults() Graces {
	set := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	set(&g.Interrupt, 3*time.Second)
	set(&g.Terminate, 2*time.Second)
	set(&g.Result, 10*time.Second)
	set(&g.Drain, DefaultDrain)
	return g
}

// The defaults of a turn's bounds.
const (
	DefaultOutputLimit int64 = 2 << 30
	DefaultLineLimit         = 64 << 20
)

// DefaultDrain is how long output is read after its writers should be gone.
const DefaultDrain = 2 * time.Second

// threadLook is how often a running child is looked at for dead threads that
// only the orchestrator can reap.
const threadLook = time.Second

// stderrTail is how much of the end of stderr a turn keeps.
const stderrTail = 16 << 10

// TurnSpec is one turn's process.
type TurnSpec struct {
	// Line is what to start. Its sandbox's limits bound the turn.
	Line domain.SpawnLine
	// SpoolDir is where the output is spooled, in a file without a name. It
	// must not be writable by the child.
	SpoolDir string
	// Mark is put into the environment of the processes; "" stands for a new one.
	Mark string
	// Interrupt is what to write to the child's stdin to interrupt it; nil means
	// SIGINT.
	Interrupt []byte
	// OutputLimit bounds stdout and stderr together, in bytes. Zero means
	// DefaultOutputLimit.
	OutputLimit int64
	// LineLimit bounds one line, in bytes. Zero means DefaultLineLimit.
	LineLimit int
	// Graces are the waits at the end.
	Graces Graces
}

// Line is one line of a turn's output.
type Line struct {
	// Stderr is true for a line of stderr.
	Stderr bool
	// Text is the line without its newline; valid until the next one is read.
	Text []byte
	// Oversize is set instead of Text for a line over the limit.
	Oversize *domain.Oversize
	// Partial is true for a last line that no newline ended.
	Partial bool
}

// Run is a running turn: one process, its tree, and its output.
type Run struct {
	spec    TurnSpec
	child   *child
	spool   *spool
	stdin   *stdinWriter // nil for /dev/null
	started time.Time
	process domain.ProcessIdentity
	outputs [2]*os.File
	drains  sync.WaitGroup
	tail    tail
	tools   atomic.Int32

	exited   chan struct{} // the main process has ended
	ended    chan struct{} // the whole turn has
	stop     chan ending   // the first cause to end the turn
	result   chan struct{} // the agent gave its final
	giveOnce sync.Once
	kill     chan struct{} // closed to end it without a grace
	killing  sync.Once
	detach   func() bool // from the context

	end   domain.TurnEnd
	fault error
}

// ending is why a turn is being ended.
type ending struct {
	cause  domain.EndCause
	detail string
}

// StartTurn starts a turn: confined, with a keeper where the host allows one,
// or natively where the line says so. ctx governs the whole turn. After an
// error there is no process, no thread, no descriptor and no goroutine left.
func (s *Spawner) StartTurn(ctx context.Context, spec TurnSpec) (_ *Run, err error) {
	if spec.OutputLimit == 0 {
		spec.OutputLimit = DefaultOutputLimit
	}
	if spec.LineLimit == 0 {
		spec.LineLimit = DefaultLineLimit
	}
	spec.Graces = spec.Graces.withDefaults()
	if spec.Line.Sandbox.IsZero() {
		return nil, domain.ErrNoSandbox
	}

	r := &Run{
		spec: spec, exited: make(chan struct{}), ended: make(chan struct{}),
		stop: make(chan ending, 1), result: make(chan struct{}), kill: make(chan struct{}),
	}
	var files stdio
	var stdinPipe *os.File
	defer func() {
		for i := range files {
			err = errors.Join(err, closeFile(files[i]))
		}
		if err != nil {
			for _, f := range []*os.File{stdinPipe, r.outputs[0], r.outputs[1]} {
				err = errors.Join(err, closeFile(f))
			}
			if r.spool != nil {
				err = errors.Join(err, r.spool.close())
			}
		}
	}()
	stdioError := func(err error) error {
		return &domain.SpawnError{Step: "stdio", Argv0: spec.Line.Path, Err: err}
	}
	if r.spool, err = newSpool(spec.SpoolDir, spec.OutputLimit); err != nil {
		return nil, stdioError(err)
	}
	if spec.Line.Stdin == nil && !spec.Line.KeepStdinOpen {
		files[0], err = os.Open(os.DevNull)
	} else {
		files[0], stdinPipe, err = os.Pipe()
	}
	if err != nil {
		return nil, stdioError(err)
	}
	for i := range r.outputs {
		if r.outputs[i], files[i+1], err = os.Pipe(); err != nil {
			return nil, stdioError(err)
		}
	}
	r.child, err = s.start(ctx, spec.Line, files, startOptions{keeper: true, mark: spec.Mark})
	if err != nil {
		return nil, err
	}
	r.started = time.Now()
	r.process = r.child.identity()
	if err := r.child.resume(); err != nil {
		return nil, errors.Join(err, r.child.destroy())
	}

	if stdinPipe != nil {
		r.stdin = newStdinWriter(stdinPipe)
		if len(spec.Line.Stdin) > 0 {
			r.stdin.write(spec.Line.Stdin)
		}
		if !spec.Line.KeepStdinOpen {
			r.stdin.close()
		}
	}
	r.drains.Add(2)
	go r.drain(r.outputs[0], fromStdout)
	go r.drain(r.outputs[1], fromStderr)
	go func() {
		defer close(r.exited)
		// The only error is that the watch was closed, at the turn's end.
		_ = r.child.awaitExit()
	}()
	r.detach = context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			r.endFor(ending{domain.EndWallClock, cause.Error()})
			return
		}
		r.Cancel(cause)
	})
	go r.supervise()
	return r, nil
}

// Receipt says what was enforced.
func (r *Run) Receipt() domain.Receipt { return r.child.receipt }

// Refused lists what the tree was refused so far, see [ports.Supervisor].
func (r *Run) Refused() []domain.Refusal { return r.child.supervision.refused() }

// Process identifies the main process, also when it is gone.
func (r *Run) Process() domain.ProcessIdentity { return r.process }

// Write queues bytes for the child's stdin. It never waits. A child that does
// not read what it asks for is ended.
func (r *Run) Write(b []byte) {
	if r.stdin == nil || len(b) == 0 {
		return
	}
	if r.stdin.write(b); r.stdin.waiting() > stdinLimit {
		r.endFor(ending{domain.EndOutputLimit, fmt.Sprintf("the agent does not read its input: more than %d bytes are waiting", stdinLimit)})
	}
}

// CloseStdin closes the child's stdin behind what is queued.
func (r *Run) CloseStdin() {
	if r.stdin != nil {
		r.stdin.close()
	}
}

// ToolsInFlight tells how many tool calls are running; while there is one, the
// idle limit rests.
func (r *Run) ToolsInFlight(n int) {
	if r.tools.Swap(int32(n)) > 0 && n == 0 {
		r.spool.touch() // the idle time starts with the end of the last tool
	}
}

// ResultGiven tells that the agent gave its final: it has a grace to exit.
func (r *Run) ResultGiven() { r.giveOnce.Do(func() { close(r.result) }) }

// Cancel ends the turn. It returns at once; Wait tells when the turn is over.
// The first cause counts.
func (r *Run) Cancel(cause error) {
	e := ending{cause: domain.EndCancelled}
	if cause != nil {
		e.detail = cause.Error()
	}
	r.endFor(e)
}

// Kill ends the turn without asking: what is left of the graces is not waited
// for. It returns at once. The first cause counts.
func (r *Run) Kill(cause error) {
	// In this order, so that the ladder is not begun.
	r.killing.Do(func() { close(r.kill) })
	r.Cancel(cause)
}

func (r *Run) endFor(e ending) {
	select {
	case r.stop <- e:
	default:
	}
}

// Wait returns when the process tree is gone, all output is spooled and
// everything else is released. The error is a failure of the machinery, such
// as *TreeLeftError.
func (r *Run) Wait() (domain.TurnEnd, error) {
	<-r.ended
	return r.end, r.fault
}

// Ended is closed when Wait would return.
func (r *Run) Ended() <-chan struct{} { return r.ended }

// Close releases the spool. It is called once nobody reads lines any more,
// after Wait.
func (r *Run) Close() error {
	<-r.ended
	return r.spool.close()
}

// Lines gives every line of the output to the function, in the order in which
// it came, and returns nil when the turn is over and all lines were given. An
// error of the function ends it early and is returned. It is called once.
func (r *Run) Lines(line func(Line) error) error {
	out := assembler{limit: r.spec.LineLimit}
	errs := assembler{limit: r.spec.LineLimit}
	var failed error
	give := func(stderr, partial bool) func([]byte, *domain.Oversize) {
		return func(text []byte, over *domain.Oversize) {
			if failed == nil {
				failed = line(Line{Stderr: stderr, Text: text, Oversize: over, Partial: partial})
			}
		}
	}
	giveOut, giveErr := give(false, false), give(true, false)
	for failed == nil {
		r.spool.await()
		err := func() error {
			buf := chunks.Get().(*[frameHead + chunkSize]byte)
			defer chunks.Put(buf)
			return r.spool.next(buf, func(from stream, data []byte) {
				if from == fromStderr {
					errs.feed(data, giveErr)
				} else {
					out.feed(data, giveOut)
				}
			})
		}()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	if errs.partial() {
		errs.flush(give(true, true))
	}
	if out.partial() {
		out.flush(give(false, true))
	}
	return failed
}

// drain moves a pipe's bytes to the spool at full speed, whatever becomes of
// the spool: an agent must never wait for its reader.
func (r *Run) drain(file *os.File, from stream) {
	defer r.drains.Done()
	for {
		err := readChunk(file, func(buf *[frameHead + chunkSize]byte, n int) {
			if from == fromStderr {
				r.tail.write(buf[frameHead : frameHead+n])
			}
			if err := r.spool.append(from, buf, n); err != nil {
				r.endFor(lostOutput(err))
			}
		})
		if err != nil {
			return // the end of the output, or the end of our patience
		}
	}
}

// lostOutput is the ending of a turn whose output could not be kept.
func lostOutput(err error) ending {
	if limit := (*OutputLimitError)(nil); errors.As(err, &limit) {
		return ending{domain.EndOutputLimit, err.Error()}
	}
	return ending{domain.EndStorage, err.Error()}
}

// supervise waits for the end of the turn or brings it about, and cleans up.
func (r *Run) supervise() {
	defer close(r.ended)
	limits := r.spec.Line.Sandbox.Limits()
	wall, stopWall := after(limits.WallClock)
	defer stopWall()
	idle := time.NewTimer(orForever(limits.Idle))
	defer idle.Stop()
	grace := time.NewTimer(forever)
	defer grace.Stop()
	look := time.NewTicker(threadLook)
	defer look.Stop()
	result := r.result

running:
	for {
		var e ending
		select {
		case <-r.exited:
			break running
		case e = <-r.stop:
		case <-wall:
			e = ending{domain.EndWallClock, (&domain.TimeoutError{Limit: limits.WallClock}).Error()}
		case <-idle.C:
			rest := limits.Idle - r.spool.quiet()
			if rest <= 0 && r.tools.Load() > 0 {
				rest = limits.Idle/4 + time.Millisecond // look again
			}
			if rest > 0 {
				idle.Reset(rest)
				continue
			}
			e = ending{domain.EndIdle, (&domain.TimeoutError{Idle: true, Limit: limits.Idle}).Error()}
		case <-look.C:
			r.child.reapThreads()
			continue
		case <-result:
			result = nil
			idle.Stop() // from here on it is the grace that counts
			grace.Reset(r.spec.Graces.Result)
			continue
		case <-grace.C:
			e = ending{domain.EndResultGrace, fmt.Sprintf("it gave its final but did not exit within %s", r.spec.Graces.Result)}
		}
		r.end.Cause, r.end.Detail = e.cause, e.detail
		r.descend()
		break
	}
	r.finish()
}

// descend is the stop ladder; it returns when the main process has ended, or
// was not impressed by anything but the kill that follows.
func (r *Run) descend() {
	if isClosed(r.kill) {
		return
	}
	if r.spec.Interrupt == nil || r.stdin == nil || !r.stdin.write(r.spec.Interrupt) {
		r.child.signalMain(ports.SignalInterrupt)
	}
	if awaitOr(r.exited, r.kill, r.spec.Graces.Interrupt, r.child.reapThreads) || isClosed(r.kill) {
		return
	}
	r.child.signalGroup(ports.SignalTerminate)
	awaitOr(r.exited, r.kill, r.spec.Graces.Terminate, r.child.reapThreads)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// awaitOr waits for done to be closed, but not longer than d nor beyond hurry,
// and looks after something from time to time meanwhile.
func awaitOr(done, hurry <-chan struct{}, d time.Duration, look func()) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	every := time.NewTicker(threadLook / 10)
	defer every.Stop()
	for {
		select {
		case <-done:
			return true
		case <-every.C:
			look()
		case <-hurry:
			return false
		case <-t.C:
			return false
		}
	}
}

// finish ends the tree, takes in the last output, and releases everything but
// the spool.
func (r *Run) finish() {
	r.detach()
	errs := []error{r.child.kill()}
	if awaitOr(r.exited, nil, treeGoneLimit, r.child.reapThreads) {
		exit, err := r.child.status()
		r.end.Exit = exit
		errs = append(errs, err)
	} else {
		errs = append(errs, &TreeLeftError{Pids: []int{r.child.proc.Pid}})
	}

	waitFor(&r.drains, r.spec.Graces.Drain)
	for _, f := range r.outputs {
		errs = append(errs, f.Close()) // wakes a reader that still waits
	}
	r.drains.Wait()
	// The turn may have ended by itself before it could be ended for this.
	if err := r.spool.failure(); err != nil && r.end.Cause == domain.EndNatural {
		e := lostOutput(err)
		r.end.Cause, r.end.Detail = e.cause, e.detail
	}
	if r.stdin != nil {
		r.stdin.stop()
	}
	errs = append(errs, r.child.release())
	<-r.exited
	r.end.StderrTail = r.tail.String()
	r.end.Duration = time.Since(r.started)
	r.fault = errors.Join(errs...)
	r.spool.finish()
}

// kill ends the whole tree, the child included.
func (c *child) kill() error {
	err := c.killTree()
	// The walk may have missed a child that has shed everything, and a keeper
	// may be gone: the child itself is known.
	_ = c.proc.Kill()
	return err
}

// destroy ends a child that nobody will get, with its tree, and reaps it.
func (c *child) destroy() error {
	err := errors.Join(c.kill(), c.awaitExit())
	_, reaped := c.status()
	return errors.Join(err, reaped, c.release())
}

// release frees what the child holds in the orchestrator.
func (c *child) release() error {
	c.ready.Wait()
	err := errors.Join(c.exit.close(), c.supervision.end())
	if c.keeper != nil {
		err = errors.Join(err, c.keeper.dismiss())
	}
	if c.group != nil {
		err = errors.Join(err, c.group.Close())
	}
	return err
}

const forever = time.Duration(1<<63 - 1)

func orForever(d time.Duration) time.Duration {
	if d <= 0 {
		return forever
	}
	return d
}

// after is time.After with a stop; a zero duration never comes.
func after(d time.Duration) (<-chan time.Time, func() bool) {
	t := time.NewTimer(orForever(d))
	return t.C, t.Stop
}

func closeFile(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// tail keeps the end of a stream.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) write(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b[max(0, len(b)-stderrTail):]...)
	if over := len(t.buf) - stderrTail; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
