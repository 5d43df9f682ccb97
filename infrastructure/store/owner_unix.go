//go:build unix

package store

import (
	"io/fs"
	"os"
	"syscall"
)

// ours reports whether the user that runs this process owns the file.
func ours(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// othersCanWrite reports whether the mode lets anybody else write.
func othersCanWrite(info fs.FileInfo) bool { return info.Mode().Perm()&0o022 != 0 }

// othersCanUse reports whether the mode lets anybody else do anything.
func othersCanUse(info fs.FileInfo) bool { return info.Mode().Perm()&0o077 != 0 }

// soleName reports whether the file has no other name.
func soleName(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink == 1
}

// openPlain makes the opening of a file follow no link, and wait for nobody at
// the other end of a pipe.
const openPlain = syscall.O_NOFOLLOW | syscall.O_NONBLOCK
