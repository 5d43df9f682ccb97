// Package application is the core of Caisson: the [Orchestrator] opens
// sessions, runs their turns one at a time, and runs single commands, all under
// a sandbox plan that it computes. What it promises to callers is decided here
// once and not in the adapters: which steps an opening has and how they are
// taken back, what a plan must never grant, that events are numbered without
// gaps and that every turn ends with exactly one final.
//
// It starts no process and makes no system call of its own; it reads the file
// system to make paths canonical and to recognize a linked git worktree or a
// submodule. It may import domain, ports, the standard library and google/uuid.
package application
