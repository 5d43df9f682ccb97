// Package escape is the escape suite: attempts by a real child process to get
// out of its sandbox, which anyone can run against an enforcer of their own.
// "caisson verify", the conformance kit of package portstest and the project's
// end-to-end tests run the same attempts.
//
// An [Attempt] makes real system calls in a child of its own, and is made twice.
// The unconfined companion must get through: it proves that the attempt is real
// on this host. Then the confined child must be denied. Wherever it can, the host
// looks at the effect itself (the file changed, the bytes arrived, the victim
// died) and does not rely on what the child says. An attempt whose companion
// cannot get through here is reported as not provable, and never as held. There
// are also attempts at ordinary work, which must succeed under the sandbox.
//
// The child is the program that calls [Host], started with [Subcommand] as its
// first argument. Nothing is chosen by environment variables.
//
// A suite needs no Go toolchain, no network beyond loopback and no privileges;
// as root it proves more. It makes files below one directory that it is given,
// and listens on loopback addresses.
//
// External facts: the man pages of section 2 for each call; io_uring_setup(2);
// the ELF and System V ABI specifications for the programs that are made by
// hand.
package escape
