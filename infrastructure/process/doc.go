// Package process is the process machinery: it starts a child under a sandbox
// plan, or natively where that is said explicitly, keeps its output flowing,
// ends it when it must end, and leaves nothing behind.
//
// # The throwaway thread
//
// Landlock, seccomp, no_new_privs and capabilities belong to a thread, and
// children inherit them. So a confinement is applied on an OS thread that
// serves for this one spawn: a goroutine locks it and never unlocks it, and the
// runtime destroys the thread when the goroutine returns (package runtime,
// LockOSThread). It is never the main thread, which the runtime cannot end. All
// that can fail or needs a file is done before, on an ordinary goroutine.
//
// The child is born stopped (PTRACE_TRACEME, then a SIGSTOP that waits for it) and
// is continued only when the spawning thread is gone. A thread that lives in the
// domain in which an agent runs is a hole: the agent may signal it, trace it, and
// read the orchestrator's memory through it.
//
// # What the host must not do
//
// While a spawn is under way, one thread of the process is restricted. A host
// that changes process-wide credentials at that moment (syscall.Setuid,
// Setgroups and the like, which act on all threads and compare the results)
// crashes: drop privileges before the first session. Between spawns no thread is
// restricted and such a change goes well; a turn that runs then keeps the
// credentials that it was started with, and only its keeper can end it.
// SysProcAttr.Pdeathsig is never used: it is tied to the thread, which dies at
// once (golang/go#27505).
//
// The package may import domain, ports, the standard library and x/sys.
package process
