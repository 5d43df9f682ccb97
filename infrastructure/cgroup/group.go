package cgroup

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/ports"
)

var _ ports.ResourceGroup = (*group)(nil)

// group implements ports.ResourceGroup.
type group struct {
	files files
	dir   string
}

func newName() string { return strings.ToLower(rand.Text()[:12]) }

// Add implements ports.ResourceGroup.
func (g *group) Add(pid int) error {
	if err := g.files.Write(g.path("cgroup.procs"), strconv.Itoa(pid)); err != nil {
		return fmt.Errorf("move process %d into its cgroup: %w", pid, err)
	}
	return nil
}

const (
	// goneLimit bounds the wait for killed members and for the removal. A process
	// in uninterruptible sleep dies late.
	goneLimit = 5 * time.Second
	gonePause = 2 * time.Millisecond
)

// Kill implements ports.ResourceGroup. The kernel kills all members at once, but
// for a process whose main thread has ended while others run on: it is listed,
// and killed by its pid.
func (g *group) Kill() (left []int, err error) {
	for deadline := time.Now().Add(goneLimit); ; time.Sleep(gonePause) { //nolint:forbidigo // the events file tells of changes only to who polls it, which takes longer
		// Linux before 5.14 has no such file: then the list does it alone.
		if err := g.files.Write(g.path("cgroup.kill"), "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("kill the cgroup: %w", err)
		}
		populated, err := g.populated()
		if err != nil || !populated {
			return nil, err
		}
		members, err := g.members()
		if err != nil {
			return nil, err
		}
		for _, pid := range members {
			g.files.Kill(pid, func() bool {
				now, err := g.members()
				return err == nil && slices.Contains(now, pid)
			})
		}
		if time.Now().After(deadline) {
			return members, nil
		}
	}
}

// populated reports whether the group or one below it has a process that is not
// dead.
func (g *group) populated() (bool, error) {
	text, err := g.files.Read(g.path("cgroup.events"))
	if err != nil {
		return false, fmt.Errorf("look into the cgroup: %w", err)
	}
	return !strings.Contains("\n"+text, "\npopulated 0\n"), nil
}

func (g *group) members() ([]int, error) {
	text, err := g.files.Read(g.path("cgroup.procs"))
	if err != nil {
		return nil, fmt.Errorf("look into the cgroup: %w", err)
	}
	var pids []int
	for _, s := range strings.Fields(text) {
		if pid, err := strconv.Atoi(s); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Close implements ports.ResourceGroup. The last member may be on its way out
// still.
func (g *group) Close() error {
	for deadline := time.Now().Add(goneLimit); ; time.Sleep(gonePause) { //nolint:forbidigo // as in Kill
		err := g.files.Remove(g.dir)
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
			return nil
		case !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline):
			return fmt.Errorf("remove the cgroup: %w", err)
		}
	}
}

func (g *group) path(file string) string { return filepath.Join(g.dir, file) }
