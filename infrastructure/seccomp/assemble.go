package seccomp

import (
	"math"
	"slices"

	"golang.org/x/net/bpf"
)

// Where struct seccomp_data has its fields (linux/seccomp.h). Both
// architectures are little-endian.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// allBits looks at a whole word.
const allBits = math.MaxUint32

// decision is what becomes of a system call: an action, or a test of an
// argument that leads to one.
type decision interface {
	// assemble returns where the decision's code is, which may have been there.
	assemble(a *assembler) label
}

// action is a return value of the filter.
type action uint32

// test asks whether a word of an argument, under a mask, has one of the values.
type test struct {
	arg     int
	high    bool // the upper half of the argument instead of the lower one
	mask    uint32
	values  []uint32
	yes, no decision
}

// entry is a range of system call numbers with one decision.
type entry struct {
	first, last uint32
	then        decision
}

// label is a place in the program: how many instructions stand behind it.
type label int

// farthest is how far a conditional jump reaches (8 bits).
const farthest = math.MaxUint8

// leaf is how many entries are compared one after the other at a leaf of the
// search tree. Installing a filter costs time by its size (the kernel compiles
// it) and by its depth (the kernel runs it once for every call number, to
// remember those that are always allowed); four is about the least of both.
const leaf = 4

// assembler builds a program from its end, so that every jump's target is known.
type assembler struct {
	code    []bpf.Instruction // in reverse
	actions map[action]label  // the latest copy
	tests   map[*test]label
}

// assemble returns the program: calls of another architecture are killed, calls
// in an entry get its decision, and all others are allowed. The entries are
// sorted and do not overlap.
func assemble(auditArch uint32, entries []entry) []bpf.Instruction {
	a := &assembler{actions: map[action]label{}, tests: map[*test]label{}}
	a.search(merged(entries))
	known := a.push(bpf.LoadAbsolute{Off: offNumber, Size: 4})
	a.jump(bpf.JumpEqual, auditArch, known, kill.assemble(a))
	a.push(bpf.LoadAbsolute{Off: offArch, Size: 4})
	slices.Reverse(a.code)
	return a.code
}

// merged joins neighbours with the same decision.
func merged(entries []entry) []entry {
	var out []entry
	for _, e := range entries {
		if n := len(out); n > 0 && out[n-1].then == e.then && out[n-1].last+1 == e.first {
			out[n-1].last = e.last
		} else {
			out = append(out, e)
		}
	}
	return out
}

func (a *assembler) push(i bpf.Instruction) label {
	a.code = append(a.code, i)
	return label(len(a.code) - 1)
}

// skip is how many instructions the next one to be pushed has to jump over.
func (a *assembler) skip(to label) int { return len(a.code) - 1 - int(to) }

// near returns a place that leads to the label and that a conditional jump
// still reaches after one more instruction.
func (a *assembler) near(to label) label {
	if a.skip(to) < farthest {
		return to
	}
	return a.push(bpf.Jump{Skip: uint32(a.skip(to))})
}

// jump pushes a comparison of the accumulator with a value.
func (a *assembler) jump(cond bpf.JumpTest, value uint32, yes, no label) label {
	yes = a.near(yes)
	no = a.near(no)
	return a.push(bpf.JumpIf{Cond: cond, Val: value, SkipTrue: uint8(a.skip(yes)), SkipFalse: uint8(a.skip(no))})
}

// assemble returns a copy of the return that is in reach, so that there are few
// jumps over jumps.
func (v action) assemble(a *assembler) label {
	l, ok := a.actions[v]
	if !ok || a.skip(l) > farthest/2 {
		l = a.push(bpf.RetConstant{Val: uint32(v)})
		a.actions[v] = l
	}
	return l
}

func (t *test) assemble(a *assembler) label {
	if l, ok := a.tests[t]; ok {
		return l
	}
	no := t.no.assemble(a)
	yes := t.yes.assemble(a)
	for _, v := range t.values {
		no = a.jump(bpf.JumpEqual, v, yes, no)
	}
	if t.mask != allBits {
		a.push(bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: t.mask})
	}
	off := offArgs + 8*t.arg
	if t.high {
		off += 4
	}
	l := a.push(bpf.LoadAbsolute{Off: uint32(off), Size: 4})
	a.tests[t] = l
	return l
}

// search pushes a search tree over the entries, with the call number in the
// accumulator. Its first instruction is the last one pushed.
func (a *assembler) search(entries []entry) label {
	if len(entries) > leaf {
		middle := len(entries) / 2
		right := a.search(entries[middle:])
		left := a.search(entries[:middle])
		return a.jump(bpf.JumpGreaterOrEqual, entries[middle].first, right, left)
	}
	// The code of the decisions comes first: between it and the comparisons
	// nothing may be pushed that the flow would run into.
	targets := make([]label, 0, len(entries))
	for _, e := range entries {
		targets = append(targets, e.then.assemble(a))
	}
	next := allow.assemble(a)
	for i, e := range slices.Backward(entries) {
		switch {
		case e.first == e.last:
			next = a.jump(bpf.JumpEqual, e.first, targets[i], next)
		case e.last == math.MaxUint32:
			next = a.jump(bpf.JumpGreaterOrEqual, e.first, targets[i], next)
		default:
			below := a.jump(bpf.JumpGreaterThan, e.last, next, targets[i])
			next = a.jump(bpf.JumpGreaterOrEqual, e.first, below, next)
		}
	}
	return next
}
