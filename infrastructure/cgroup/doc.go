// Package cgroup puts confined trees into control groups of their own (cgroup
// v2), where the host delegates a part of the hierarchy: for limits on memory,
// processes and processors of the whole tree, and to end it where no keeper can.
//
// [Limit] wraps an enforcer: it answers for the three limits, and leaves
// everything else to the one inside. Nothing is made before a turn needs it, and
// a host without delegation is left alone: there the limits stay unenforceable.
//
// # What counts as delegated
//
// The kernel lets a user make groups below a directory that is theirs, and move
// processes between groups whose common ancestor is (cgroup-v2.rst, "Delegation
// Containment"). For root every directory is writable, so what the service
// manager says counts: the attribute user.delegate or trusted.delegate of a
// unit with Delegate=yes (systemd.resource-control(5)), or that the orchestrator
// is in the root of its hierarchy, as in a container.
//
// Controllers are for groups without processes of their own ("No Internal
// Process Constraint"), so limits take a delegated directory in which the
// orchestrator itself is not: the one above it, as systemd's DelegateSubgroup=
// makes it. To kill, a group beside other processes does.
//
// The child is moved while it is still stopped at its birth, so there is no
// moment in which it is outside. A plan does not grant the cgroup file system
// for writing; one that does lets the child leave its group.
//
// The package may import domain, ports, the standard library and x/sys.
package cgroup
