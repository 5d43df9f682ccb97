package seccomp

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// program is what the kernel takes.
type program []unix.SockFilter

func loadable(raw []bpf.RawInstruction) program {
	p := make(program, 0, len(raw))
	for _, i := range raw {
		p = append(p, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	return p
}

// This file is the one place in the project where memory is handed to the kernel
// by address: x/sys has no functions for it.

// load loads the program. If it asks, the descriptor is where.
func (p program) load(asks bool) (listener int, err error) {
	// An empty one would have no first element to point to.
	if len(p) == 0 {
		return -1, errors.New("seccomp: an empty filter")
	}
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	// Without SECCOMP_FILTER_FLAG_TSYNC: this thread and no other.
	var flags uintptr
	if asks {
		flags = listening()
	}
	fd, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	switch {
	case e != 0:
		return -1, os.NewSyscallError("seccomp", e)
	case !asks:
		return -1, nil
	}
	return int(fd), nil
}

// listening are the flags of a filter that asks. With the second one, which came
// with Linux 5.19, a call that is being answered is interrupted by fatal signals
// only: a program that gets many others would repeat its call for ever.
var listening = sync.OnceValue(func() uintptr {
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	// A filter at address 0 gives EFAULT if the flags are known.
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, 0); e == unix.EFAULT {
		return flags
	}
	return unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
})

// notification is a system call that waits for an answer (struct seccomp_notif).
type notification struct {
	id     uint64
	tid    uint32
	_      uint32 // flags
	number int32
	_      uint32 // arch
	_      uint64 // instruction pointer
	args   [6]uint64
	// The kernel's struct may grow, its ioctl's number then names another size.
	_ [64]byte
}

// response is the answer to it (struct seccomp_notif_resp).
type response struct {
	id    uint64
	value int64
	error int32
	flags uint32
}

// receive takes the next notification. It waits for one.
func (n *notification) receive(listener uintptr) error {
	*n = notification{} // the kernel wants zeros
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(n))); e != 0 {
		return os.NewSyscallError("ioctl(SECCOMP_IOCTL_NOTIF_RECV)", e)
	}
	return nil
}

// send gives the answer; ENOENT says that nobody waits for it.
func (r response) send(listener uintptr) error {
	for {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&r)))
		switch e {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return os.NewSyscallError("ioctl(SECCOMP_IOCTL_NOTIF_SEND)", e)
	}
}

// connectAs connects a socket to an address as it stands. x/sys knows none of the
// family AF_UNSPEC.
func connectAs(fd int, address []byte) error {
	if len(address) == 0 {
		return unix.EINVAL
	}
	_, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&address[0])), uintptr(len(address)))
	if e != 0 {
		return e
	}
	return nil
}

// valid returns nil while the caller waits.
func (n *notification) valid(listener uintptr) error {
	for {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, uintptr(unsafe.Pointer(&n.id)))
		switch e {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return os.NewSyscallError("ioctl(SECCOMP_IOCTL_NOTIF_ID_VALID)", e)
	}
}

var missing = sync.OnceValue(func() string {
	if _, err := architectureOf(runtime.GOARCH); err != nil {
		return err.Error()
	}
	// seccomp(2): with filters in the kernel, a filter at address 0 gives EFAULT.
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, 0)
	if e == unix.EFAULT {
		return ""
	}
	return fmt.Sprintf("the kernel answers %q when asked for seccomp filters; needs Linux 4.14 or newer, built with CONFIG_SECCOMP_FILTER=y, and a container that lets seccomp through", e)
})
