package egress

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/publicsuffix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/loopback"
	"github.com/caisson-run/caisson/ports"
)

// The limits of a proxy. They bound what a confined program can take of the
// orchestrator.
const (
	maxConnections = 256
	headerTimeout  = 10 * time.Second // for the head of a request
	resolveTimeout = 10 * time.Second
	dialTimeout    = 10 * time.Second // for each address
	answerTimeout  = 5 * time.Minute  // for the head of an answer to a plain request
	linger         = 5 * time.Second  // for a client, after the host has closed
)

// Proxies implements [ports.EgressProxy].
type Proxies struct {
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	own     func() ([]netip.Addr, error)
	head    time.Duration
}

// Option changes the proxies.
type Option func(*Proxies)

// WithResolver replaces the host's own resolver. It is called from many goroutines.
// Its answers are checked as the resolver's are.
func WithResolver(resolve func(ctx context.Context, host string) ([]netip.Addr, error)) Option {
	return func(p *Proxies) { p.resolve = resolve }
}

// WithOwnAddresses replaces asking the host for the addresses that it has itself. It
// is called from many goroutines, for each connection.
func WithOwnAddresses(own func() ([]netip.Addr, error)) Option {
	return func(p *Proxies) { p.own = own }
}

// New returns the implementation.
func New(opts ...Option) *Proxies {
	p := &Proxies{head: headerTimeout, own: ownAddresses, resolve: func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}}
	for _, o := range opts {
		o(p)
	}
	return p
}

// Check implements [ports.EgressProxy]: a wildcard must not stand for what is
// given out to everybody, such as *.co.uk and *.github.io.
func (ps *Proxies) Check(domains []domain.EgressDomain) error {
	for _, d := range domains {
		base, ok := d.Wildcard()
		if !ok {
			continue
		}
		// Of a top-level domain that it does not know the list says that it is one.
		suffix, known := publicsuffix.PublicSuffix(base)
		if suffix == base && (known || strings.Contains(suffix, ".")) {
			return &domain.InvalidError{
				What: "domain", Value: d.String(), Reason: "everybody can have a host below the public suffix " + suffix,
				Remedy: "name the domain below it",
			}
		}
	}
	return nil
}

// Open implements [ports.EgressProxy].
func (ps *Proxies) Open(ctx context.Context, spec ports.EgressSpec) (ports.Egress, error) {
	if err := ps.Check(spec.Domains); err != nil {
		return nil, err
	}
	var token [32]byte
	_, _ = rand.Read(token[:]) // never fails (crypto/rand)
	p := &proxy{
		resolve: ps.resolve, own: ps.own, domains: slices.Clone(spec.Domains), decided: spec.Decided, token: hex.EncodeToString(token[:]),
	}
	p.forward = &httputil.ReverseProxy{
		Rewrite: p.rewrite, FlushInterval: -1, ErrorHandler: p.failed, ErrorLog: log.New(io.Discard, "", 0),
		Transport: &http.Transport{
			DialContext:            made,
			DisableKeepAlives:      true, // each request is decided about by itself
			DisableCompression:     true,
			MaxResponseHeaderBytes: 1 << 20,
			ResponseHeaderTimeout:  answerTimeout,
		},
	}
	server, err := loopback.Serve(ctx, loopback.Limits{Connections: maxConnections, Head: ps.head}, func(lifetime context.Context) http.Handler {
		p.lifetime = lifetime
		return p
	})
	if err != nil {
		return nil, fmt.Errorf("open the egress proxy of session %s: %w", spec.Session, err)
	}
	p.server = server
	return p, nil
}

// proxy implements ports.Egress.
type proxy struct {
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)
	own     func() ([]netip.Addr, error)
	domains []domain.EgressDomain
	decided func(domain.EgressDecision)
	token   string

	server   *loopback.Server
	forward  *httputil.ReverseProxy
	lifetime context.Context

	allowed, refused, broken, unauthorized, sent, received atomic.Int64
}

// Port implements ports.Egress.
func (p *proxy) Port() uint16 { return p.server.Port() }

// URL implements ports.Egress.
func (p *proxy) URL() string {
	u := url.URL{Scheme: "http", User: url.UserPassword("caisson", p.token), Host: fmt.Sprintf("127.0.0.1:%d", p.Port())}
	return u.String()
}

// Meter implements ports.Egress.
func (p *proxy) Meter() ports.EgressMeter {
	return ports.EgressMeter{
		Allowed: p.allowed.Load(), Refused: p.refused.Load(), Failed: p.broken.Load(), Unauthorized: p.unauthorized.Load(),
		Sent: p.sent.Load(), Received: p.received.Load(),
	}
}

// Close implements ports.Egress.
func (p *proxy) Close(ctx context.Context) error {
	if err := p.server.Close(ctx); err != nil {
		return fmt.Errorf("close the egress proxy: %w", err)
	}
	return nil
}

// maxShown is how much of what is no name of a host is repeated.
const maxShown = 255

// refusal is why a connection is not made.
type refusal struct {
	host   string
	port   uint16
	reason string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("%+q on port %d: %s", r.host, r.port, r.reason)
}

func (p *proxy) refuse(host string, port uint16, reason string) error {
	p.refused.Add(1)
	host = host[:min(len(host), maxShown)]
	p.tell(domain.EgressDecision{Host: host, Port: port, Reason: reason})
	return &refusal{host: host, port: port, reason: reason}
}

func (p *proxy) tell(d domain.EgressDecision) {
	if p.decided != nil {
		p.decided(d)
	}
}

// target is where a connection is to go: HOST:PORT, or HOST where a port is implied.
func target(s string, implied uint16) (host string, port uint16, reason string) {
	port = implied
	host = s
	if i := strings.LastIndexByte(s, ':'); i >= 0 && !strings.HasSuffix(s, "]") {
		host = s[:i]
		if port = portNumber(s[i+1:]); port == 0 {
			return host, 0, "not a port"
		}
	}
	if port == 0 {
		return host, 0, "no port"
	}
	name, reason := domain.ParseHostName(host)
	if reason != "" {
		return host, port, reason
	}
	return name, port, ""
}

// portNumber reads a port, 0 for what is none.
func portNumber(s string) uint16 {
	n := 0
	for _, r := range s {
		if r < '0' || r > '9' || n > 65535 {
			return 0
		}
		n = n*10 + int(r-'0')
	}
	if n > 65535 || strings.HasPrefix(s, "0") {
		return 0
	}
	return uint16(n)
}

// reach connects to a host, if it is allowed: a *refusal if it is not. The caller
// closes the connection.
func (p *proxy) reach(ctx context.Context, asked string, implied uint16) (net.Conn, error) {
	host, port, reason := target(asked, implied)
	if reason != "" {
		return nil, p.refuse(host, port, reason)
	}
	allowed, reason := domain.EgressByName(p.domains, host, port)
	if reason != "" {
		return nil, p.refuse(host, port, reason)
	}
	conn, err := p.connect(ctx, host, port, allowed)
	if refused := (*refusal)(nil); !asRefusal(err, &refused) {
		d := domain.EgressDecision{Host: host, Port: port, Allowed: true}
		p.allowed.Add(1)
		if err != nil {
			p.broken.Add(1)
			d.Reason = err.Error()
		}
		p.tell(d)
	}
	return conn, err
}

// connect resolves the host, once, and connects to one of the addresses that it has
// found.
func (p *proxy) connect(ctx context.Context, host string, port uint16, allowed []domain.EgressDomain) (net.Conn, error) {
	resolving, cancel := context.WithTimeout(ctx, resolveTimeout)
	addresses, err := p.resolve(resolving, host)
	cancel()
	if err != nil {
		return nil, fmt.Errorf("the name cannot be resolved: %w", unresolved(err))
	}
	own, err := p.own()
	if err != nil {
		return nil, fmt.Errorf("the addresses of this machine are not known: %w", err)
	}
	if reason := domain.EgressByAddress(allowed, addresses, own); reason != "" {
		return nil, p.refuse(host, port, reason)
	}
	var first error
	for _, at := range addresses {
		dialer := net.Dialer{Timeout: dialTimeout}
		conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(at.Unmap(), port).String())
		if err == nil {
			return &counted{Conn: conn, of: p}, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// ownAddresses returns the addresses of this machine's interfaces.
func ownAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	own := make([]netip.Addr, 0, len(list))
	for _, a := range list {
		if at, ok := a.(*net.IPNet); ok {
			addr, _ := netip.AddrFromSlice(at.IP) // of none there is the zero value, which no name leads to
			own = append(own, addr.Unmap())
		}
	}
	return own, err
}

// unresolved is why, without the addresses and ports of the asking, which are others
// each time: a decision that comes again is to be known for the same.
func unresolved(err error) error {
	dns := (*net.DNSError)(nil)
	switch {
	case !errors.As(err, &dns):
		return err
	case dns.IsNotFound:
		return errors.New("no such host")
	case dns.IsTimeout:
		return errors.New("no answer in time")
	}
	return errors.New("the host's resolver fails")
}

// counted counts what passes.
type counted struct {
	net.Conn
	of *proxy
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.of.received.Add(int64(n))
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.of.sent.Add(int64(n))
	return n, err
}

// CloseWrite closes the connection for writing alone.
func (c *counted) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil // all of them are of TCP
}
