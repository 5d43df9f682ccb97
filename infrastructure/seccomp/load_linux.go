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

// load is the one place in the project where memory is handed to the kernel by
// address: x/sys has no function for it.
func (p program) load() error {
	// An empty one would have no first element to point to.
	if len(p) == 0 {
		return errors.New("seccomp: an empty filter")
	}
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	// Without SECCOMP_FILTER_FLAG_TSYNC: this thread and no other.
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if e != 0 {
		return os.NewSyscallError("seccomp", e)
	}
	return nil
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
