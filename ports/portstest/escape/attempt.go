package escape

import (
	"syscall"

	"github.com/caisson-run/caisson/domain"
)

// Subcommand is the first argument of a process that makes an attempt, see
// [Host].
const Subcommand = "__attempt"

// Class groups attempts by what they reach for.
type Class string

// The classes.
const (
	ClassFiles       Class = "files"
	ClassProc        Class = "proc"
	ClassDescriptors Class = "descriptors"
	ClassNetwork     Class = "network"
	ClassUnixSockets Class = "unix sockets"
	ClassSignals     Class = "signals"
	ClassProcesses   Class = "other processes"
	ClassIPC         Class = "ipc"
	ClassNamespaces  Class = "namespaces"
	ClassPrivileges  Class = "privileges"
	ClassKernel      Class = "kernel"
	ClassEntry       Class = "calling conventions"
	ClassWork        Class = "ordinary work"
)

// Classes returns every class, in the order of reports.
func Classes() []Class {
	return []Class{
		ClassFiles, ClassProc, ClassDescriptors, ClassNetwork, ClassUnixSockets, ClassSignals, ClassProcesses,
		ClassIPC, ClassNamespaces, ClassPrivileges, ClassKernel, ClassEntry, ClassWork,
	}
}

// Layer is a part of the default enforcer, by the name that "caisson verify
// --layers" takes.
type Layer string

// The layers. What starts the child is not one that can be taken away.
const (
	Landlock   Layer = "landlock"
	Seccomp    Layer = "seccomp"
	Privileges Layer = "privileges" // no_new_privs and empty capability sets
	Spawner    Layer = "spawner"    // the session, the descriptors, the environment
)

// Attempt is one thing that a confined child tries.
type Attempt struct {
	// Name is stable, in kebab case.
	Name  string
	Class Class
	// Property is the one of domain.Properties that the attempt is about, "" if
	// there is none.
	Property domain.Property
	// Alone lists the layers each of which stops the attempt without the others.
	Alone []Layer
	// Limit says why the attempt gets through as stated in SECURITY.md; "" for an
	// attempt that must be denied.
	Limit string
	// Works says that the attempt is ordinary work, which must succeed.
	Works bool

	try func(*child) error
	// reads: the proof is the stage's secret, as the child read it.
	reads bool
	// sends: the proof is what arrives at the stage's sockets.
	sends bool
	// victim: there must be one alive; kills: its death is the proof.
	victim, kills bool
	// silent: the kernel does not tell the child whether it got through.
	silent bool
	// effect looks whether the attempt did what it says; nil where the host can
	// see nothing.
	effect func(*Stage) (bool, error)
	// arrange adds to what every run finds.
	arrange func(*Stage) error
	// granted says whether the plan grants what the attempt reaches for; nil if
	// none can.
	granted func(domain.SandboxPlan, *Stage) bool
	// denials are errnos that mean a denial beside the usual ones.
	denials []syscall.Errno
}

// Attempts returns all attempts, ordered by class.
func Attempts() []Attempt { return attempts() }

// UnixDestinationAttempts returns attempts for a plan that has [Stage.UnixDestination]
// as a destination beside what [Stage.Plan] has: ways to it, which must work, and ways
// from there to other sockets. The other attempts are for such a plan too.
func UnixDestinationAttempts() []Attempt { return unixDestinationAttempts() }
