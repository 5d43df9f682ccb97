package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// reserve takes space on the file system, without making the file longer. Where
// the file system cannot, there is none kept.
func reserve(f *os.File, from, size int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, from, size)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return nil
		default:
			return os.NewSyscallError("fallocate", err)
		}
	}
}
