package process

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// readChunk reads once from a pipe and hands the bytes to take, in a borrowed
// buffer with room for a frame's head before them. While there is nothing to
// read it holds no buffer. It returns io.EOF at the end.
func readChunk(file *os.File, take func(buf *[frameHead + chunkSize]byte, n int)) error {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = conn.Read(func(fd uintptr) bool {
		buf := chunks.Get().(*[frameHead + chunkSize]byte)
		defer chunks.Put(buf)
		for {
			n, err := unix.Read(int(fd), buf[frameHead:])
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EAGAIN):
				return false
			case err != nil:
				result = os.NewSyscallError("read", err)
			case n == 0:
				result = io.EOF
			default:
				take(buf, n)
			}
			return true
		}
	})
	if err != nil {
		return err
	}
	return result
}

// unnamedFile makes a file that never has a name, so that nothing is left of it
// whenever the process is killed. Not every file system can (open(2), O_TMPFILE).
func unnamedFile(dir string) (*os.File, error) {
	file, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o600)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EISDIR) {
		return unlinkedFile(dir)
	}
	return file, err
}
