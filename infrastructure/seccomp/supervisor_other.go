//go:build !linux

package seccomp

import (
	"context"
	"errors"
	"net/netip"

	"github.com/caisson-run/caisson/domain"
)

// Supervisor answers the connect(2) of a tree under a filter that asks, on Linux.
type Supervisor struct{}

// NewSupervisor fails: nothing asks here.
func NewSupervisor(int, Grants) (*Supervisor, error) { return nil, errors.New(missing()) }

// Grants is what a supervisor knows of a plan.
type Grants struct {
	Destinations []netip.AddrPort
	Sockets      []*Socket
	All          bool
	Denied       func(port uint16) bool
}

// Socket is a unix socket that a plan grants.
type Socket struct{}

// OpenSocket fails.
func OpenSocket(string) (*Socket, error) { return nil, errors.New(missing()) }

// Close does nothing.
func (*Socket) Close() error { return nil }

// Refused returns nothing.
func (*Supervisor) Refused() []domain.Refusal { return nil }

// Run fails.
func (*Supervisor) Run(context.Context) error { return errors.New(missing()) }

// Close does nothing.
func (*Supervisor) Close() error { return nil }

// CloseListener does nothing.
func CloseListener(int) error { return nil }
