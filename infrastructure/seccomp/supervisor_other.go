//go:build !linux

package seccomp

import (
	"context"
	"errors"
	"net/netip"
)

// Supervisor answers the connect(2) of a tree under a filter that asks, on Linux.
type Supervisor struct{}

// NewSupervisor fails: nothing asks here.
func NewSupervisor(int, []netip.AddrPort) (*Supervisor, error) { return nil, errors.New(missing()) }

// Run fails.
func (*Supervisor) Run(context.Context) error { return errors.New(missing()) }

// Close does nothing.
func (*Supervisor) Close() error { return nil }

// CloseListener does nothing.
func CloseListener(int) error { return nil }
