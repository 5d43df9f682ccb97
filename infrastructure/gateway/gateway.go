package gateway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/loopback"
	"github.com/caisson-run/caisson/ports"
)

// The limits of a gateway. They bound what an agent can take of the
// orchestrator, and are far above what the agents need.
const (
	maxBody        = 64 << 20 // the APIs take 32 to 50 MB
	maxConnections = 128
	headerTimeout  = 10 * time.Second // for the head of a request
	bodyTimeout    = time.Minute      // between two pieces of a request's body
	dialTimeout    = 30 * time.Second
	tlsTimeout     = 15 * time.Second
	// Shorter than that of the APIs' servers: a POST that meets a connection
	// which the server has just closed cannot be repeated.
	upstreamIdle = 30 * time.Second
)

// Gateways implements [ports.ModelGateway].
type Gateways struct{ head, body time.Duration }

// New returns the implementation.
func New() *Gateways { return &Gateways{head: headerTimeout, body: bodyTimeout} }

// Open implements [ports.ModelGateway].
func (gs *Gateways) Open(ctx context.Context, spec ports.GatewaySpec) (ports.Gateway, error) {
	base, err := parseBase(spec.API.BaseURL)
	if err != nil {
		return nil, err
	}
	var token [32]byte
	_, _ = rand.Read(token[:]) // never fails (crypto/rand)
	g := &gateway{
		base: base, loopback: ports.IsLoopback(base.Hostname()), api: spec.API, credential: spec.Credential, token: hex.EncodeToString(token[:]),
		routes: make(map[route]*url.URL, len(spec.API.Routes)), patience: gs.body,
	}
	for _, r := range spec.API.Routes {
		to := *base
		to.User = nil
		to.Path, to.RawPath = strings.TrimSuffix(base.Path, "/")+r.Path, strings.TrimSuffix(base.EscapedPath(), "/")+r.Path
		g.routes[route{r.Method, r.Path}] = &to
	}
	g.server, err = loopback.Serve(ctx, loopback.Limits{Connections: maxConnections, Head: gs.head}, g.handler)
	if err != nil {
		return nil, fmt.Errorf("open the model gateway of session %s: %w", spec.Session, err)
	}
	return g, nil
}

// handler makes what serves the requests.
func (g *gateway) handler(lifetime context.Context) http.Handler {
	g.transport = &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		// It goes on connecting for a request that was given up.
		DialContext:         dialWithin(lifetime),
		MaxConnsPerHost:     maxConnections,
		TLSHandshakeTimeout: tlsTimeout,
		IdleConnTimeout:     upstreamIdle,
		ForceAttemptHTTP2:   true,
		// Otherwise the transport would ask for gzip, and take it off.
		DisableCompression: true,
		// The answer's head; its body has no bound.
		MaxResponseHeaderBytes: 1 << 20,
	}
	g.proxy = &httputil.ReverseProxy{
		Rewrite: g.rewrite, Transport: g.transport, FlushInterval: -1,
		ModifyResponse: g.answered, ErrorHandler: g.failed, ErrorLog: log.New(io.Discard, "", 0),
	}
	return g
}

// dialWithin connects to the API. What it has connected, or is connecting, ends with
// the gateway.
func dialWithin(lifetime context.Context) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(lifetime, cancel)
		defer stop()
		conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &upstreamConn{conn, context.AfterFunc(lifetime, func() { _ = conn.Close() })}, nil
	}
}

// upstreamConn is a connection to the API.
type upstreamConn struct {
	net.Conn
	stop func() bool // that the end of the gateway closes it
}

// Close closes the connection.
func (c *upstreamConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// parseBase checks the API's base URL. Errors do not repeat it: there may be a
// password in it.
func parseBase(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	var reason string
	switch {
	case err != nil:
		reason = "not a URL"
	case u.Scheme != "http" && u.Scheme != "https":
		reason = "neither an http nor an https URL"
	case u.Hostname() == "":
		reason = "a URL without a host"
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		reason = "a query or a fragment, but paths are appended to it"
	default:
		return u, nil
	}
	return nil, &domain.InvalidError{
		What: "base URL of the model API", Reason: reason, Remedy: "pass http(s)://HOST[:PORT][/PATH]",
	}
}

type route struct{ method, path string }

// gateway implements ports.Gateway.
type gateway struct {
	base       *url.URL
	loopback   bool // the API is on this machine
	api        ports.ModelAPI
	routes     map[route]*url.URL
	credential func() (ports.Credential, bool, error)
	token      string
	patience   time.Duration // with the body of a request

	server    *loopback.Server
	transport *http.Transport
	proxy     *httputil.ReverseProxy

	mu    sync.Mutex
	meter ports.GatewayMeter
}

// Port implements ports.Gateway.
func (g *gateway) Port() uint16 { return g.server.Port() }

// BaseURL implements ports.Gateway.
func (g *gateway) BaseURL() string { return fmt.Sprintf("http://127.0.0.1:%d", g.Port()) }

// Token implements ports.Gateway.
func (g *gateway) Token() string { return g.token }

// Meter implements ports.Gateway.
func (g *gateway) Meter() ports.GatewayMeter {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.meter
}

// count changes the meter.
func (g *gateway) count(change func(*ports.GatewayMeter)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(&g.meter)
}

// Close implements ports.Gateway.
func (g *gateway) Close(ctx context.Context) error {
	if err := g.server.Close(ctx); err != nil {
		return fmt.Errorf("close the model gateway: %w", err)
	}
	g.transport.CloseIdleConnections()
	return nil
}
