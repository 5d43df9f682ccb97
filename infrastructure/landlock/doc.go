// Package landlock turns a sandbox plan into a Landlock domain for one child,
// unprivileged and without a helper program. It knows what each Landlock ABI
// can guarantee, refuses what the kernel cannot do and the plan does not waive,
// and says in the receipt what was really given to the kernel.
//
// Landlock restricts the calling thread only, and what is started from it
// inherits the domain. So Apply must run on a thread that ends right after the
// child was started, and that is never handed back to the Go runtime; see
// package process for that thread. Nothing here restricts the whole process:
// go-landlock's Restrict functions do, and its BestEffort may enforce nothing
// without an error, so neither is used.
//
// Denials of the programs that the child runs are not logged by the kernel's
// audit: that is the default of landlock_restrict_self(2) since ABI 7, and it
// stays so, because an agent probes much that it may not touch and the log
// belongs to the whole host. A denial that the restricted thread itself meets,
// such as a program outside the plan, is logged.
//
// External facts come from the kernel's documentation,
// https://docs.kernel.org/userspace-api/landlock.html, and were measured by the
// tests.
//
// The package may import domain, ports, go-landlock and x/sys. On systems other
// than Linux it compiles, and refuses every plan.
package landlock
