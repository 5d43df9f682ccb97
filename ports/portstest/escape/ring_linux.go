//go:build amd64 || arm64

package escape

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// What of io_uring(7) is used here (linux/io_uring.h).
const (
	ringNoMmap    = 1 << 14 // IORING_SETUP_NO_MMAP: the rings are memory of the caller's
	ringNoSQArray = 1 << 16 // IORING_SETUP_NO_SQARRAY
	ringGetEvents = 1       // IORING_ENTER_GETEVENTS
	ringOpConnect = 16      // IORING_OP_CONNECT
	ringOpOpenat  = 18      // IORING_OP_OPENAT
	ringOpSocket  = 45      // IORING_OP_SOCKET
)

// ringSubmit makes a ring, submits one operation and returns its result. The
// arguments are the fields of struct io_uring_sqe.
func ringSubmit(c *child, op byte, fd int, addr uintptr, off uint64, length, flags uint32) (int, error) {
	m, err := c.mem()
	if err != nil {
		return 0, err
	}
	entries, err := m.page()
	if err != nil {
		return 0, err
	}
	rings, err := m.page()
	if err != nil {
		return 0, err
	}
	// struct io_uring_params: flags at 8, sq_off at 40, cq_off at 80, with the
	// caller's memory in the last field of each.
	params := make([]byte, 120)
	binary.NativeEndian.PutUint32(params[8:], ringNoMmap|ringNoSQArray)
	binary.NativeEndian.PutUint64(params[72:], uint64(entries))
	binary.NativeEndian.PutUint64(params[112:], uint64(rings))
	at, err := m.put(params)
	if err != nil {
		return 0, err
	}
	ring, err := raw(unix.SYS_IO_URING_SETUP, 4, at)
	if err != nil {
		return 0, err
	}
	if params, err = m.get(at, len(params)); err != nil {
		return 0, err
	}
	tail, completions := binary.NativeEndian.Uint32(params[44:]), binary.NativeEndian.Uint32(params[100:])
	entry := make([]byte, 64)
	entry[0] = op
	binary.NativeEndian.PutUint32(entry[4:], uint32(fd))
	binary.NativeEndian.PutUint64(entry[8:], off)
	binary.NativeEndian.PutUint64(entry[16:], uint64(addr))
	binary.NativeEndian.PutUint32(entry[24:], length)
	binary.NativeEndian.PutUint32(entry[28:], flags)
	if err := m.set(entries, entry); err != nil {
		return 0, err
	}
	if err := m.set(rings+uintptr(tail), binary.NativeEndian.AppendUint32(nil, 1)); err != nil {
		return 0, err
	}
	if _, err := raw(unix.SYS_IO_URING_ENTER, ring, 1, 1, ringGetEvents, 0, 0); err != nil {
		return 0, err
	}
	done, err := m.get(rings+uintptr(completions), 16)
	if err != nil {
		return 0, err
	}
	result := int32(binary.NativeEndian.Uint32(done[8:]))
	if result < 0 {
		return 0, unix.Errno(-result)
	}
	return int(result), nil
}

func ringOpen(c *child, path string) (int, error) {
	m, err := c.mem()
	if err != nil {
		return 0, err
	}
	at, err := m.put(append([]byte(path), 0))
	if err != nil {
		return 0, err
	}
	return ringSubmit(c, ringOpOpenat, unix.AT_FDCWD, at, 0, 0, unix.O_RDONLY|unix.O_CLOEXEC)
}

func ringConnect(c *child, fd int, to []byte) error {
	m, err := c.mem()
	if err != nil {
		return err
	}
	at, err := m.put(to)
	if err != nil {
		return err
	}
	if _, err := ringSubmit(c, ringOpConnect, fd, at, uint64(len(to)), 0, 0); err != nil {
		return fmt.Errorf("io_uring: %w", err)
	}
	return nil
}
