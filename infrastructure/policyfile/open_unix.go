//go:build unix

package policyfile

import (
	"io/fs"
	"os"
	"syscall"
)

// open opens a file for reading, and waits for nobody: what looks like a policy may
// be a pipe. Without follow a symbolic link is an error.
func open(path string, follow bool) (*os.File, error) {
	flags := os.O_RDONLY | syscall.O_NONBLOCK
	if !follow {
		flags |= syscall.O_NOFOLLOW
	}
	return os.OpenFile(path, flags, 0)
}

// othersCanWrite reports whether somebody else than this user and root can change
// a file.
func othersCanWrite(info fs.FileInfo) bool {
	if info.Mode().Perm()&0o022 != 0 {
		return true
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid()
}
