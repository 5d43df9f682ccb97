// Package seccomp is the system call filter of the default enforcer: it closes
// what Landlock cannot tell apart or has no right for. It refuses single calls
// and arguments; everything else is allowed, and Landlock, the capabilities and
// the file modes have their say as before.
//
// The program is assembled here for every plan variant ([For]), with
// golang.org/x/net/bpf, because the libraries for it either need cgo
// (libseccomp) or let calls through by another architecture's numbers and by
// the upper halves of arguments (go-seccomp-bpf). What it is built of is one
// table, rules.go; the tests run every rule in x/net/bpf's virtual machine for
// both architectures, and the real kernel has to refuse the same.
//
// What holds for the whole program:
//
//   - The architecture is looked at first. A call by another one's numbers
//     (int 0x80, x32, AArch32) kills the process: 32-bit programs do not run.
//   - A call that is newer than the table gives ENOSYS, as on a kernel that
//     does not have it: what it can do, nobody has looked at.
//   - The kernel reads int arguments as their lower 32 bits, and so does the
//     filter. A filter sees values and no memory: a call whose meaning is behind
//     a pointer is refused or allowed as a whole, and clone3, openat2 and
//     io_uring give ENOSYS, on which programs take the older way.
//   - A refusal is EPERM.
//
// A filter belongs to the thread that loads it; what is started from there
// inherits it, and nothing takes it off again. [Filter.Load] must run on a
// thread that ends right after the child was started, see package process,
// whose way of starting a child the filter lets through.
//
// External facts: seccomp(2), the kernel's
// Documentation/userspace-api/seccomp_filter.rst, and the kernel's system call
// tables (which x/sys repeats; a test compares).
//
// The package may import domain, x/net/bpf and x/sys. On systems other than
// Linux it compiles, and [Missing] says that there is no filter.
package seccomp
