package cgroup

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// fake is a cgroup file system that behaves as cgroup-v2.rst says, as far as
// this package uses it. Processes are numbers in it: nothing runs. It is for
// hosts without delegated controllers, which tests mostly run on; what the real
// kernel does where it is at hand is in kernel_linux_test.go.
type fake struct {
	mu        sync.Mutex
	root      string
	groups    map[string]*fakeGroup
	delegated map[string]bool
	alive     map[int]bool
	// headless are processes that cgroup.kill misses: their main thread has ended.
	headless map[int]bool
	forks    int               // how many more times members fork when they are killed by the group
	next     int               // pid
	fail     map[string]error  // by base name of what is written, made or removed
	writes   map[string]string // the last by path
}

type fakeGroup struct {
	controllers, subtree []string
	procs                []int
}

func newFake(root string, controllers ...string) *fake {
	f := &fake{
		root: root, groups: map[string]*fakeGroup{root: {controllers: controllers}}, delegated: map[string]bool{root: true},
		alive: map[int]bool{}, headless: map[int]bool{}, next: 1000, fail: map[string]error{}, writes: map[string]string{},
	}
	return f
}

func pathError(op, path string, err error) error { return &fs.PathError{Op: op, Path: path, Err: err} }

// failure takes the failure that is set for a name.
func (f *fake) failure(op, path string) error {
	for name, err := range f.fail {
		if strings.HasPrefix(filepath.Base(path), name) {
			return pathError(op, path, err)
		}
	}
	return nil
}

func (f *fake) Mkdir(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.failure("mkdir", path); err != nil {
		return err
	}
	parent, ok := f.groups[filepath.Dir(path)]
	switch {
	case !ok:
		return pathError("mkdir", path, syscall.ENOENT)
	case !f.delegated[filepath.Dir(path)]:
		return pathError("mkdir", path, syscall.EACCES)
	case f.groups[path] != nil:
		return pathError("mkdir", path, syscall.EEXIST)
	}
	f.groups[path] = &fakeGroup{controllers: slices.Clone(parent.subtree)}
	f.delegated[path] = true
	return nil
}

func (f *fake) Remove(path string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.failure("rmdir", path); err != nil {
		return err
	}
	g, ok := f.groups[path]
	switch {
	case !ok:
		return pathError("rmdir", path, syscall.ENOENT)
	case len(g.procs) > 0:
		return pathError("rmdir", path, syscall.EBUSY)
	}
	delete(f.groups, path)
	return nil
}

func (f *fake) List(path string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for p := range f.groups {
		if filepath.Dir(p) == path && p != path {
			names = append(names, filepath.Base(p))
		}
	}
	return names, nil
}

func (f *fake) Delegated(path string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.delegated[path]
}

func (f *fake) Alive(pid int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alive[pid]
}

func (f *fake) Read(path string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, ok := f.groups[filepath.Dir(path)]
	if !ok {
		return "", pathError("open", path, syscall.ENOENT)
	}
	switch filepath.Base(path) {
	case "cgroup.type":
		if filepath.Dir(path) != f.root {
			return "domain\n", nil
		}
	case "cgroup.controllers":
		return strings.Join(g.controllers, " ") + "\n", nil
	case "cgroup.subtree_control":
		return strings.Join(g.subtree, " ") + "\n", nil
	case "cgroup.procs":
		var b strings.Builder
		for _, pid := range g.procs {
			b.WriteString(strconv.Itoa(pid) + "\n")
		}
		return b.String(), nil
	case "cgroup.events":
		return "populated " + map[bool]string{true: "1", false: "0"}[len(g.procs) > 0] + "\nfrozen 0\n", nil
	}
	return "", pathError("open", path, syscall.ENOENT)
}

func (f *fake) Write(path, text string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.failure("write", path); err != nil {
		return err
	}
	dir, file := filepath.Dir(path), filepath.Base(path)
	g, ok := f.groups[dir]
	if !ok {
		return pathError("open", path, syscall.ENOENT)
	}
	f.writes[path] = text
	switch controller, _, _ := strings.Cut(file, "."); {
	case file == "cgroup.subtree_control":
		name := strings.TrimPrefix(text, "+")
		switch {
		case !slices.Contains(g.controllers, name):
			return pathError("write", path, syscall.ENOENT)
		case len(g.procs) > 0 && dir != f.root: // No Internal Process Constraint
			return pathError("write", path, syscall.EBUSY)
		}
		g.subtree = append(g.subtree, name)
	case file == "cgroup.procs":
		pid, _ := strconv.Atoi(text)
		if !f.alive[pid] {
			return pathError("write", path, syscall.ESRCH)
		}
		if len(g.subtree) > 0 {
			return pathError("write", path, syscall.EBUSY)
		}
		for _, other := range f.groups {
			other.procs = slices.DeleteFunc(other.procs, func(p int) bool { return p == pid })
		}
		g.procs = append(g.procs, pid)
	case file == "cgroup.kill":
		for _, pid := range slices.Clone(g.procs) {
			if !f.headless[pid] {
				f.end(pid)
			}
		}
		if f.forks > 0 {
			f.forks--
			f.next++
			f.alive[f.next] = true
			g.procs = append(g.procs, f.next)
		}
	case !slices.Contains(g.controllers, controller):
		return pathError("open", path, syscall.ENOENT)
	}
	return nil
}

func (f *fake) Kill(pid int, member func() bool) {
	if !member() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.end(pid)
}

func (f *fake) end(pid int) {
	delete(f.alive, pid)
	for _, g := range f.groups {
		g.procs = slices.DeleteFunc(g.procs, func(p int) bool { return p == pid })
	}
}

// start starts a process in a group.
func (f *fake) start(dir string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	f.alive[f.next] = true
	f.groups[dir].procs = append(f.groups[dir].procs, f.next)
	return f.next
}
