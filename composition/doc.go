// Package composition puts Caisson together: it is the place where ports meet
// their adapters, and with cmd the only one that knows the fx framework.
//
// Most embedders call [New] with options and use the Orchestrator of the handle
// that it returns. A host that runs fx itself puts [Module] into its app and
// depends on *application.Orchestrator; to swap an adapter it passes an option
// to Module, or decorates the port's type at its root.
//
// The default composition confines: it has the enforcer of [DefaultEnforcer],
// and a plan that cannot be enforced is refused. Turns with a plan run natively
// only after [WithAllowNative], and a single turn only with an explicit
// domain.Unconfined.
//
// The package may import everything but cmd.
package composition
