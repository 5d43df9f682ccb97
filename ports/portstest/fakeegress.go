package portstest

import (
	"context"
	"fmt"
	"sync"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// FakeEgressProxy is a ports.EgressProxy that opens no port. Its proxies decide
// about names alone, when a test asks. The zero value works.
type FakeEgressProxy struct {
	// Refuse is what Check returns, nil to take every domain. Fail is what Open
	// returns, nil to open.
	Refuse, Fail error

	opener opener[FakeEgress]
}

var _ ports.EgressProxy = (*FakeEgressProxy)(nil)

// Check implements ports.EgressProxy.
func (f *FakeEgressProxy) Check([]domain.EgressDomain) error { return f.Refuse }

// Open implements ports.EgressProxy.
func (f *FakeEgressProxy) Open(ctx context.Context, spec ports.EgressSpec) (ports.Egress, error) {
	e, err := f.opener.open(ctx, f.Fail, func(number int) *FakeEgress { return &FakeEgress{Spec: spec, number: number} })
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return e, nil
}

// Opened returns the proxies so far, oldest first.
func (f *FakeEgressProxy) Opened() []*FakeEgress { return f.opener.all() }

// FakeEgress is a proxy of FakeEgressProxy. Its port and secret are of no other
// one.
type FakeEgress struct {
	Spec ports.EgressSpec

	number int
	mu     sync.Mutex
	closed bool
}

// Port implements ports.Egress.
func (e *FakeEgress) Port() uint16 { return uint16(50000 + e.number) }

// URL implements ports.Egress.
func (e *FakeEgress) URL() string {
	return fmt.Sprintf("http://caisson:secret-number-%d@127.0.0.1:%d", e.number, e.Port())
}

// Ask decides about a host, as if a program had asked.
func (e *FakeEgress) Ask(host string, port uint16) {
	_, reason := domain.EgressByName(e.Spec.Domains, host, port)
	e.Spec.Decided(domain.EgressDecision{Host: host, Port: port, Allowed: reason == "", Reason: reason})
}

// Meter implements ports.Egress.
func (*FakeEgress) Meter() ports.EgressMeter { return ports.EgressMeter{} }

// Close implements ports.Egress.
func (e *FakeEgress) Close(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	return nil
}

// Closed reports whether Close was called.
func (e *FakeEgress) Closed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}
