package seccomp

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/net/bpf"

	"github.com/caisson-run/caisson/domain"
)

// Filter is an assembled program. It holds no resources, and is shared and
// safe for concurrent use.
type Filter struct {
	program program
	asks    bool
}

// AnswersAll reports whether under the filter of a plan every connect(2) must be
// answered by the supervisor, see [Grants].
func AnswersAll(plan domain.SandboxPlan) bool { return variantOf(plan).named }

// variantOf says what a plan lets the filter allow. A waiver changes nothing:
// what can be refused is.
func variantOf(plan domain.SandboxPlan) variant {
	unix := plan.UnixSockets() != domain.UnixSocketsDeny
	return variant{
		udp:  plan.UDP(),
		unix: unix,
		// A filter cannot see what kind of socket listens.
		listen: unix || len(plan.BindTCP()) > 0,
		asks:   plan.Requests(domain.PropertyDestinations),
		named:  !unix && len(plan.UnixDestinations()) > 0,
	}
}

// Listens reports whether the filter of a plan lets listen(2) through. A TCP
// socket that was not bound then gets a port of the kernel's choice, which
// Landlock is not asked about.
func Listens(plan domain.SandboxPlan) bool { return variantOf(plan).listen }

// assembled keeps the filters: there are a dozen, and plans share them.
var assembled sync.Map // variant → func() (*Filter, error)

// For returns the filter of a plan. The error says that there is none for this
// architecture.
func For(plan domain.SandboxPlan) (*Filter, error) {
	v := variantOf(plan)
	once, ok := assembled.Load(v)
	if !ok {
		once, _ = assembled.LoadOrStore(v, sync.OnceValues(func() (*Filter, error) { return newFilter(v) }))
	}
	return once.(func() (*Filter, error))()
}

func newFilter(v variant) (*Filter, error) {
	arch, err := architectureOf(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	raw, err := bpf.Assemble(arch.program(v))
	if err != nil {
		return nil, fmt.Errorf("assemble the seccomp filter: %w", err)
	}
	return &Filter{loadable(raw), v.asks}, nil
}

// Load puts the calling thread under the filter, for good: the thread must have
// no_new_privs or CAP_SYS_ADMIN. It makes one system call and allocates nothing.
// Other threads of the process are not affected.
//
// If the plan names destinations, the filter asks before each connect(2): the
// listener is for [NewSupervisor], and the caller's to close. It is −1 otherwise.
func (f *Filter) Load() (listener int, err error) { return f.program.load(f.asks) }

// Missing says why there can be no filter on this host, "" if there can.
func Missing() string { return missing() }

// Refusing returns a filter that gives one system call, by its number on this
// architecture, an error, and lets every other through. It confines nothing: it
// is for trying what becomes of a start when the kernel refuses a part of it.
func Refusing(call int, with syscall.Errno) (*Filter, error) {
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 4}, // seccomp_data.nr
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(call), SkipFalse: 1},
		bpf.RetConstant{Val: uint32(errno) | uint32(uint16(with))},
		bpf.RetConstant{Val: uint32(allow)},
	})
	if err != nil {
		return nil, fmt.Errorf("assemble the seccomp filter: %w", err)
	}
	return &Filter{loadable(raw), false}, nil
}
