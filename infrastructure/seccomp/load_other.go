//go:build !linux

package seccomp

import (
	"errors"
	"runtime"

	"golang.org/x/net/bpf"
)

type program []bpf.RawInstruction

func loadable(raw []bpf.RawInstruction) program { return raw }

func (program) load(bool) (int, error) { return -1, errors.New(missing()) }

func missing() string { return "seccomp exists on Linux only, and this is " + runtime.GOOS }
