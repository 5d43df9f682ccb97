package process

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
)

// killTree ends every process of the child's tree but the child itself, which
// its owner reaps, and returns when they are gone. The child must be dead or
// about to be: killTree kills it too.
func (c *child) killTree() error {
	if c.keeper != nil {
		err := c.killByKeeper()
		if left := (*TreeLeftError)(nil); err == nil || errors.As(err, &left) {
			return err // the keeper knows exactly
		}
		// The keeper itself was killed, by the host or for lack of memory. The
		// walk finds what does not hide.
		if rest := c.killWithoutKeeper(); rest != nil {
			return errors.Join(err, rest)
		}
		return nil
	}
	return c.killWithoutKeeper()
}

// killWithoutKeeper kills the child's group, which has everything, or what the
// walk finds.
func (c *child) killWithoutKeeper() error {
	if c.group == nil {
		return c.killByWalk()
	}
	left, err := c.group.Kill()
	if err != nil {
		return errors.Join(err, c.killByWalk())
	}
	if left = without(left, c.proc.Pid); len(left) > 0 {
		return &TreeLeftError{Pids: left}
	}
	return nil
}

func (c *child) killByKeeper() error {
	if err := c.keeper.kill(); err != nil {
		return err
	}
	for deadline := time.Now().Add(treeGoneLimit); ; time.Sleep(treePause) {
		left, err := c.keeper.left(c.proc.Pid)
		if err != nil {
			return err
		}
		left = without(left, c.proc.Pid)
		switch {
		case len(left) == 0:
			return nil
		case time.Now().After(deadline):
			return &TreeLeftError{Pids: left}
		}
	}
}

// killByWalk searches /proc for the child's descendants by parent, process
// group, session and mark, and kills them, until two searches in a row find
// none. It cannot prove that there is none: a process that has shed all four
// is not found.
func (c *child) killByWalk() error {
	root := c.proc.Pid
	t := tree{root: root, mark: c.mark}
	deadline := time.Now().Add(treeGoneLimit)
	for over := (emptiness{}); !over.proven(); {
		c.reapThreads() // a root that only we can reap is no longer alive then
		members, vanished := t.find()
		if over.search(len(members), vanished); len(members) == 0 {
			continue
		}
		left := make([]int, 0, len(members))
		for _, m := range members {
			m.kill(func() bool { return t.has(m.pid) })
			left = append(left, m.pid)
		}
		if time.Now().After(deadline) {
			if left = without(left, root); len(left) > 0 {
				return &TreeLeftError{Pids: left}
			}
			return nil // the root alone, whose owner waits for it
		}
		time.Sleep(treePause)
	}
	return nil
}

// emptiness is what speaks for a tree's end: two empty searches in a row. One in
// which a process ended between its listing and the look at it does not count:
// it may have been of a chain, in which each starts the next and ends, and the
// next is not on the list. On a host that is never quiet, many empty searches
// count after all: a chain shows itself in most.
type emptiness struct {
	empty, quiet int // searches in a row
}

const unquietSearches = 25

// search takes the result of a search.
func (e *emptiness) search(found int, vanished bool) {
	e.empty++
	e.quiet++
	if found > 0 {
		e.empty, e.quiet = 0, 0
	} else if vanished {
		e.quiet = 0
	}
}

func (e *emptiness) proven() bool { return e.quiet >= 2 || e.empty >= unquietSearches }

// member is a process that belongs to a tree.
type member struct {
	pid   int
	start uint64 // in clock ticks after boot
}

// kill sends SIGKILL through a pidfd, if the process is still the same one and
// still a member: pids are reused.
func (m member) kill(stillMember func() bool) {
	fd, err := unix.PidfdOpen(m.pid, 0)
	if err != nil {
		return // gone
	}
	defer unix.Close(fd)
	if st, ok := readStat(m.pid); !ok || st.start != m.start || !stillMember() {
		return
	}
	// It may die of itself just now.
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// identity returns what tells the child from every other process.
func (c *child) identity() domain.ProcessIdentity {
	// The child is not reaped yet, so it is the one with this pid.
	st, _ := readStat(c.proc.Pid)
	return domain.ProcessIdentity{Pid: c.proc.Pid, Start: st.start, Boot: bootID(), Mark: c.mark}
}

// bootID tells this boot from every other one (random(4)); "" if it cannot be
// told, and then nothing is ever taken for a leftover.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(bytes.TrimSpace(id))
}

// EndLeftover ends what is still alive of a turn whose orchestrator died, as
// ports.StructuredSessionFactory says. It knows the turn's process by pid and
// start time, and the others by their descent from it and by the turn's mark. The
// keeper, where there was one, has been faster; without one, a process that shed
// its mark and was adopted by init is not found.
func (s *Spawner) EndLeftover(ctx context.Context, left domain.ProcessIdentity) error {
	if left.Boot != "" && left.Boot != bootID() || left.Boot == "" && left.Pid != 0 || left == (domain.ProcessIdentity{}) {
		return nil
	}
	deadline := time.Now().Add(treeGoneLimit)
	for over := (emptiness{}); !over.proven(); time.Sleep(treePause) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		t := tree{root: noRoot, mark: left.Mark}
		// With the pid taken by somebody else, its number says nothing: neither do
		// groups and sessions of that number.
		if st, ok := readStat(left.Pid); left.Pid > 1 && ok && st.start == left.Start {
			t.root = left.Pid
		}
		members, vanished := t.find()
		if over.search(len(members), vanished); len(members) == 0 {
			continue
		}
		pids := make([]int, 0, len(members))
		for _, m := range members {
			m.kill(func() bool { return t.has(m.pid) })
			pids = append(pids, m.pid)
		}
		if time.Now().After(deadline) {
			return &TreeLeftError{Pids: pids}
		}
	}
	return nil
}

// noRoot is the root of a tree whose root is gone. It is nobody's pid, group or
// session.
const noRoot = -1

// tree is a turn's processes: its root, those that descend from it, and those
// that have the mark.
type tree struct {
	root int
	mark string // "" for none
}

// find returns the living processes that belong to the tree, the root included,
// youngest first: a parent that is killed before its child makes the child
// harder to find. It also tells whether a process vanished during the search.
func (t tree) find() (members []member, vanished bool) {
	root := t.root
	pids := allPids()
	stats := make(map[int]procStat, len(pids))
	for _, pid := range pids {
		st, ok := readStat(pid)
		if !ok {
			vanished = true
			continue
		}
		stats[pid] = st
	}
	in := map[int]bool{}
	var belongs func(pid int, depth int) bool
	belongs = func(pid, depth int) bool {
		if known, ok := in[pid]; ok {
			return known
		}
		st, ok := stats[pid]
		if !ok || pid <= 1 || depth > len(stats) {
			return false
		}
		yes := pid == root || st.session == root || st.pgrp == root || belongs(st.ppid, depth+1)
		if !yes {
			var between bool
			yes, between = t.marks(pid)
			vanished = vanished || between && st.ppid != kthreadd
		}
		in[pid] = yes
		return yes
	}
	for i := len(pids) - 1; i >= 0; i-- {
		pid := pids[i]
		st := stats[pid]
		switch {
		case pid == os.Getpid():
		case st.alive() && belongs(pid, 0):
			members = append(members, member{pid: pid, start: st.start})
		case st.state == 'Z' && pid != root && st.ppid == os.Getpid() && (st.session == root || st.pgrp == root):
			// Started with CLONE_PARENT, so it became our own child. Nobody else
			// reaps it.
			_, _ = unix.Wait4(pid, nil, unix.WALL|unix.WNOHANG, nil)
		}
	}
	return members, vanished
}

// has repeats for one process what find found.
func (t tree) has(pid int) bool {
	for st, ok := readStat(pid); ok && pid > 1; st, ok = readStat(pid) {
		if marked, _ := t.marks(pid); marked || pid == t.root || st.session == t.root || st.pgrp == t.root {
			return true
		}
		pid = st.ppid
	}
	return false
}

// marks reports whether a process has the mark, or whether it is between two
// programs, in the middle of execve(2), where it shows neither environment nor
// arguments. So do the kernel's threads, always.
func (t tree) marks(pid int) (yes, between bool) {
	if t.mark == "" {
		return false, false
	}
	dir := "/proc/" + strconv.Itoa(pid)
	// An environment that is empty while there are arguments may have been looked
	// at just before they came: it is empty only if it stays so.
	for range 3 {
		env, err := os.ReadFile(dir + "/environ")
		if err != nil {
			return false, errors.Is(err, unix.ESRCH) // it is on its way out
		}
		if len(env) > 0 {
			return bytes.Contains(env, []byte(markName+"="+t.mark)), false
		}
		if args, err := os.ReadFile(dir + "/cmdline"); err == nil && len(args) == 0 {
			return false, true
		}
	}
	return false, false
}

// kthreadd is the parent of the kernel's threads.
const kthreadd = 2

// allPids returns all process ids, in ascending order as /proc lists them.
func allPids() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// procStat is the part of /proc/<pid>/stat that the walk needs (proc(5)).
type procStat struct {
	state         byte
	ppid          int
	pgrp, session int
	threads       int
	start         uint64
}

// alive reports whether the process can still do something. With other threads
// running on, a process whose main thread has exited shows state Z.
func (s procStat) alive() bool {
	switch s.state {
	case 0, 'X':
		return false
	case 'Z':
		return s.threads > 1
	}
	return true
}

func readStat(pid int) (procStat, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	// The name stands in parentheses and may hold anything, also ")".
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return procStat{}, false
	}
	fields := bytes.Fields(data[end+1:])
	if len(fields) < 20 {
		return procStat{}, false
	}
	num := func(i int) int {
		n, _ := strconv.Atoi(string(fields[i]))
		return n
	}
	start, _ := strconv.ParseUint(string(fields[19]), 10, 64)
	return procStat{
		state: fields[0][0], ppid: num(1), pgrp: num(2), session: num(3),
		threads: num(17), start: start,
	}, true
}

func without(pids []int, pid int) []int {
	rest := pids[:0]
	for _, p := range pids {
		if p != pid {
			rest = append(rest, p)
		}
	}
	return rest
}
