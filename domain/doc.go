// Package domain holds the pure values and rules of Caisson: what a turn may
// touch ([SandboxPlan]), what an agent said ([ReplyEvent]), what is to be
// spawned ([SpawnLine]), what was really enforced ([Receipt]), and how a
// conversation moves between its states ([AgentSession]).
//
// It may import only the standard library's pure parts: nothing that opens a
// file, starts a process or makes a system call, no encoding tags and no
// third-party module. A test in tests/layering enforces this.
package domain
