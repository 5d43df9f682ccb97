//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package store

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the lock of the open file (flock(2)), which excludes every
// other opening of it. It does not wait.
func tryLock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errLocked
		default:
			return os.NewSyscallError("flock", err)
		}
	}
}

func releaseLock(f *os.File) error {
	return os.NewSyscallError("flock", syscall.Flock(int(f.Fd()), syscall.LOCK_UN))
}
