//go:build unix

package application

import (
	"io/fs"
	"syscall"
)

// noWait keeps the opening of a file from waiting, should it be a pipe by then.
const noWait = syscall.O_NONBLOCK

// sameOwner reports whether one user owns all the files.
func sameOwner(infos ...fs.FileInfo) bool {
	owners := map[uint32]bool{}
	for _, info := range infos {
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return false
		}
		owners[stat.Uid] = true
	}
	return len(owners) == 1
}
