// Package session is the structured session machinery: a factory that routes
// by agent kind, and sessions whose every turn is one run of the agent's CLI,
// resumed by conversation id. What an agent's command line and output look like
// is its adapter's business, how a process is started and ended that of package
// process; here they are put together, and the plan of the session goes into
// every spawn line.
//
// The package may import domain, ports, the standard library, google/uuid, and
// infrastructure/process (a listed exception to the rule that adapters do not
// import each other: a session is a use of the process machinery, and a port
// between the two would have this one user).
package session
