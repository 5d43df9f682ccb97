package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// NoLeaks checks at the end of the test that it left no child process (zombies
// included), no descriptor and no goroutine, and that no thread of the process
// is restricted. Threads of the Go runtime come and go by themselves, so their
// number is checked with a margin. Call it first in a test that does not run
// in parallel.
func NoLeaks(tb testing.TB) {
	tb.Helper()
	fds, children, threads := OpenFDs(), Children(), len(Threads())
	ignore := goleak.IgnoreCurrent()
	tb.Cleanup(func() {
		var left string
		// What was ended a moment ago may still be on its way out.
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			left = leftovers(fds, children, threads, ignore)
			if left == "" || time.Now().After(deadline) {
				break
			}
		}
		if left != "" {
			tb.Errorf("left behind:%s", left)
		}
	})
}

func leftovers(fds map[int]string, children []int, threads int, ignore goleak.Option) string {
	var b strings.Builder
	for fd, target := range OpenFDs() {
		// The runtime's own poller descriptors appear at first use.
		if was, ok := fds[fd]; (!ok || was != target) && !strings.HasPrefix(target, "anon_inode:[event") {
			fmt.Fprintf(&b, "\n  fd %d → %s", fd, target)
		}
	}
	for _, pid := range Children() {
		if !slices.Contains(children, pid) {
			fmt.Fprintf(&b, "\n  child %d (%s)", pid, Comm(pid))
		}
	}
	if n := len(Threads()); n > threads+24 {
		fmt.Fprintf(&b, "\n  %d threads, %d before", n, threads)
	}
	for _, tid := range RestrictedThreads() {
		fmt.Fprintf(&b, "\n  thread %d has no_new_privs", tid)
	}
	if err := goleak.Find(ignore); err != nil {
		fmt.Fprintf(&b, "\n  %v", err)
	}
	return b.String()
}

// OpenFDs returns the descriptors of this process and what they point to.
func OpenFDs() map[int]string {
	fds := map[int]string{}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// The directory that is being read is gone by now, and so fails here.
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			fds[fd] = target
		}
	}
	return fds
}

// Children returns the pids of this process's children, zombies included.
func Children() []int {
	var pids []int
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range files {
		data, _ := os.ReadFile(f)
		for _, s := range strings.Fields(string(data)) {
			pid, _ := strconv.Atoi(s)
			pids = append(pids, pid)
		}
	}
	return pids
}

// Threads returns the thread ids of this process.
func Threads() []int {
	var tids []int
	entries, _ := os.ReadDir("/proc/self/task")
	for _, e := range entries {
		tid, _ := strconv.Atoi(e.Name())
		tids = append(tids, tid)
	}
	return tids
}

// RestrictedThreads returns the threads of this process that have
// no_new_privs, which only a restricted thread has (unless the process itself
// was started so, and then none is reported).
func RestrictedThreads() []int {
	if hasNoNewPrivs("/proc/self/status") {
		return nil
	}
	var tids []int
	for _, tid := range Threads() {
		if hasNoNewPrivs(fmt.Sprintf("/proc/self/task/%d/status", tid)) {
			tids = append(tids, tid)
		}
	}
	return tids
}

func hasNoNewPrivs(status string) bool {
	data, _ := os.ReadFile(status)
	return strings.Contains(string(data), "NoNewPrivs:\t1")
}

// Comm returns the name of a process, "" if it is gone.
func Comm(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(data))
}

// Alive reports whether a process exists and is no zombie.
func Alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
	fields := strings.Fields(rest)
	return len(fields) > 0 && fields[0] != "Z" && fields[0] != "X"
}
