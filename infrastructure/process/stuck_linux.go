package process

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// errStuck: a start took longer than it may.
var errStuck = errors.New("it did not get to its program in time, and was killed")

// starts are those of this process.
var starts = &startWatch{limit: 30 * time.Second}

// startWatch ends starts that take too long. From its fork to its exec a child
// shares the orchestrator's memory, and whoever starts it, and everybody else who
// wants to start something, waits: for as long as a file system lets it, or
// somebody who has stopped it.
//
// One timer serves all, and is set when there is none, because setting one wakes a
// thread, which a start would pay for. So a start may last for up to two limits.
type startWatch struct {
	limit time.Duration

	mu       sync.Mutex
	underWay map[int]*watchedStart // by the thread
	armed    bool
}

type watchedStart struct {
	begun   time.Time
	earlier []*os.Process // children that the thread had already
	killed  bool
}

// start starts a process from the calling thread, a throwaway one, all of whose
// children are its own; earlier are those that it has. A child that does not get
// to its exec in time is killed; where the kernel does not tell a thread's children
// (CONFIG_PROC_CHILDREN) it is waited for.
func (w *startWatch) start(path string, argv []string, attr *os.ProcAttr, earlier ...*os.Process) (*os.Process, error) {
	tid, this := unix.Gettid(), &watchedStart{begun: time.Now(), earlier: earlier}
	w.mu.Lock()
	if w.underWay == nil {
		w.underWay = map[int]*watchedStart{}
	}
	w.underWay[tid] = this
	if !w.armed {
		w.armed = true
		time.AfterFunc(w.limit, w.look)
	}
	w.mu.Unlock()

	proc, err := os.StartProcess(path, argv, attr)

	w.mu.Lock()
	delete(w.underWay, tid)
	w.mu.Unlock()
	if !this.killed {
		return proc, err
	}
	if proc != nil {
		discard(proc)
	}
	return nil, errors.Join(errStuck, err)
}

// look ends the starts that have lasted too long. It holds the lock meanwhile, so
// that no child that it kills is one that has got to its program and may be
// reaped.
func (w *startWatch) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for tid, s := range w.underWay {
		if time.Since(s.begun) >= w.limit {
			s.killed = killChildren(tid, s.earlier)
		}
	}
	if w.armed = len(w.underWay) > 0; w.armed {
		time.AfterFunc(w.limit, w.look)
	}
}

// killChildren kills the children of a thread but those that it is to spare, and
// reports whether there were any.
func killChildren(tid int, spare []*os.Process) (killed bool) {
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", unix.Getpid(), tid))
	if err != nil {
		return false
	}
	spared := map[int]bool{}
	for _, p := range spare {
		spared[p.Pid] = true
	}
	for text := range strings.FieldsSeq(string(list)) {
		if pid, err := strconv.Atoi(text); err == nil && !spared[pid] {
			killed = unix.Kill(pid, unix.SIGKILL) == nil || killed
		}
	}
	return killed
}
