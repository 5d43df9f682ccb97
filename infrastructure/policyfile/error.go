package policyfile

import (
	"errors"
	"fmt"
	"strings"
)

// Error is a fault of a policy, with its place.
type Error struct {
	File   string
	Line   int // from 1; 0 for the file as a whole
	Column int // in characters, from 1
	Key    string
	Reason string
	Remedy string
	Err    error // what the system said, if it did
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", e.Line, e.Column)
	}
	b.WriteString(": ")
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	b.WriteString(e.Reason)
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// maxErrors is how many faults of a policy are told at once.
const maxErrors = 20

// faults collects what is wrong.
type faults struct {
	list []error
	more int
}

func (f *faults) add(err error) {
	if len(f.list) == maxErrors {
		f.more++
		return
	}
	f.list = append(f.list, err)
}

func (f *faults) err() error {
	if f.more > 0 {
		return errors.Join(append(f.list[:len(f.list):len(f.list)], fmt.Errorf("… and %d more", f.more))...)
	}
	return errors.Join(f.list...)
}
