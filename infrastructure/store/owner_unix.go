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
