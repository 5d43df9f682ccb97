package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Find returns the part of the hierarchy that is delegated to this process. An
// error says why there is none. It makes nothing, and removes groups that dead
// orchestrators left empty.
func Find() (*Hierarchy, error) {
	cgroup, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("find the cgroup of this process: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find the cgroup file system: %w", err)
	}
	return find(kernel{}, string(cgroup), string(mounts))
}

// kernel is the kernel's cgroup file system.
type kernel struct{}

func (kernel) Mkdir(path string) error { return os.Mkdir(path, 0o755) }

func (kernel) Remove(path string) error { return unix.Rmdir(path) }

func (kernel) Read(path string) (string, error) {
	data, err := os.ReadFile(path)
	return string(data), err
}

// Write never makes a file: a control file that is missing is one that the
// kernel does not have.
func (kernel) Write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func (kernel) List(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

func (kernel) Delegated(path string) bool {
	for _, file := range []string{"", "cgroup.procs", "cgroup.subtree_control"} {
		if unix.Access(filepath.Join(path, file), unix.W_OK) != nil {
			return false
		}
	}
	if os.Geteuid() != 0 {
		return true
	}
	// The root of a hierarchy has no type (cgroup-v2.rst): it is nobody's
	// service.
	if _, err := os.Stat(filepath.Join(path, "cgroup.type")); errors.Is(err, os.ErrNotExist) {
		return true
	}
	for _, attr := range []string{"user.delegate", "trusted.delegate"} {
		value := make([]byte, 8)
		if n, err := unix.Getxattr(path, attr, value); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	return false
}

func (kernel) Alive(pid int) bool {
	err := unix.Kill(pid, 0)
	return err == nil || errors.Is(err, unix.EPERM)
}

// Kill sends the signal through a pidfd: pids are reused.
func (kernel) Kill(pid int, member func() bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // gone
	}
	defer unix.Close(fd)
	if member() {
		// It may die of itself just now.
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
}
