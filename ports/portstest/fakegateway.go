package portstest

import (
	"context"
	"fmt"
	"sync"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// FakeModelGateway is a ports.ModelGateway that opens no port. It remembers what
// it was asked for, and its gateways count what a test tells them. The zero
// value works.
type FakeModelGateway struct {
	// Fail is what Open returns, nil to open.
	Fail error

	opener opener[FakeGateway]
}

var _ ports.ModelGateway = (*FakeModelGateway)(nil)

// Open implements ports.ModelGateway.
func (f *FakeModelGateway) Open(ctx context.Context, spec ports.GatewaySpec) (ports.Gateway, error) {
	g, err := f.opener.open(ctx, f.Fail, func(number int) *FakeGateway { return &FakeGateway{Spec: spec, number: number} })
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return g, nil
}

// Opened returns the gateways so far, oldest first.
func (f *FakeModelGateway) Opened() []*FakeGateway { return f.opener.all() }

// FakeGateway is a gateway of FakeModelGateway. Its port and token are of no
// other one.
type FakeGateway struct {
	Spec ports.GatewaySpec

	number int
	mu     sync.Mutex
	meter  ports.GatewayMeter
	closed int
}

// Port implements ports.Gateway.
func (g *FakeGateway) Port() uint16 { return uint16(40000 + g.number) }

// BaseURL implements ports.Gateway.
func (g *FakeGateway) BaseURL() string { return fmt.Sprintf("http://127.0.0.1:%d", g.Port()) }

// Token implements ports.Gateway.
func (g *FakeGateway) Token() string { return fmt.Sprintf("token-%d", g.number) }

// Pass counts requests and tokens, as if an agent had made them.
func (g *FakeGateway) Pass(t domain.GatewayTraffic, u domain.Usage, refusal string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := &g.meter
	m.Traffic.Requests += t.Requests
	m.Traffic.Refused += t.Refused
	m.Traffic.Failed += t.Failed
	m.Usage = m.Usage.Add(u)
	if refusal != "" {
		m.LastRefusal = refusal
	}
}

// Meter implements ports.Gateway.
func (g *FakeGateway) Meter() ports.GatewayMeter {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.meter
}

// Close implements ports.Gateway.
func (g *FakeGateway) Close(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed++
	return nil
}

// Closed reports whether Close was called.
func (g *FakeGateway) Closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed > 0
}
