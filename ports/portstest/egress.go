package portstest

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Resolve looks up the addresses of a host.
type Resolve = func(ctx context.Context, host string) ([]netip.Addr, error)

// AssertEgressProxyContract checks what ports.EgressProxy promises: who gets
// through, where to, by which address, and what is told of it. newProxy makes a
// proxy that resolves names as it is told; the hosts are servers of the kit's own on
// the loopback interface.
func AssertEgressProxyContract(t *testing.T, newProxy func(Resolve) ports.EgressProxy) {
	t.Helper()
	runCases(t, []contractCase[func(Resolve) ports.EgressProxy]{
		{"allowed", "What the policy allows gets through, by CONNECT and by a plain request, and comes back as it is.", egressAllowed},
		{"names", "A host is allowed by its name and port alone: what only looks like it goes nowhere, and is not even resolved.", egressNames},
		{"addresses", "An allowed name that leads to an address which is not allowed goes nowhere: else a name would open the private network.", egressAddresses},
		{"one resolution", "The addresses that were checked are those that are connected to: a second answer of an attacker's DNS has no say.", egressOnce},
		{"secrets", "Only the proxy's own secret opens it: a sibling session, or any other program of this machine, has no use of it.", egressSecrets},
		{"headers", "The host gets what the program says to it, and nothing of what it says to the proxy; the target is the Host.", egressHeaders},
		{"decisions", "Every decision is told, with its reason, and counted: they are the facts beside what a program claims.", egressDecisions},
		{"close", "Close ends what is in flight and closes the port, and can be repeated: nothing of a session outlives it.", egressClose},
		{"wildcards", "A wildcard that stands for everybody's hosts is refused when the session opens.", egressWildcards},
	}, newProxy)
}

// egressStage is a proxy with a host behind it.
type egressStage struct {
	testing.TB
	host  *httptest.Server
	port  string // of the host
	proxy ports.Egress

	mu        sync.Mutex
	seen      []*http.Request
	asked     []string
	decisions []domain.EgressDecision
}

// newEgressStage opens a proxy for the domains, in which PORT is the host's. Every
// name that ends in .test is at the addresses; others do not exist.
func newEgressStage(tb testing.TB, newProxy func(Resolve) ports.EgressProxy, domains string, addresses ...string) *egressStage {
	tb.Helper()
	s := &egressStage{TB: tb}
	s.host = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, r)
		s.mu.Unlock()
		w.Header().Set("X-Of-The-Host", "yes")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprint(w, "from the host")
	}))
	tb.Cleanup(s.host.Close)
	_, s.port, _ = net.SplitHostPort(s.host.Listener.Addr().String())
	s.proxy = s.open(newProxy, domains, addresses...)
	return s
}

func (s *egressStage) open(newProxy func(Resolve) ports.EgressProxy, domains string, addresses ...string) ports.Egress {
	s.Helper()
	var list []domain.EgressDomain
	for text := range strings.FieldsSeq(strings.ReplaceAll(domains, "PORT", s.port)) {
		d, err := domain.ParseEgressDomain(text)
		require.NoError(s, err)
		list = append(list, d)
	}
	proxy, err := newProxy(func(_ context.Context, host string) ([]netip.Addr, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked = append(s.asked, host)
		if !strings.HasSuffix(host, ".test") {
			return nil, errors.New("no such host")
		}
		at := addresses[min(len(s.asked)-1, len(addresses)-1)]
		var all []netip.Addr
		for a := range strings.FieldsSeq(at) {
			all = append(all, netip.MustParseAddr(a))
		}
		return all, nil
	}).Open(s.Context(), ports.EgressSpec{Session: "kit", Domains: list, Decided: func(d domain.EgressDecision) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.decisions = append(s.decisions, d)
	}})
	require.NoError(s, err)
	s.Cleanup(func() { require.NoError(s, proxy.Close(context.WithoutCancel(s.Context()))) })
	return proxy
}

func (s *egressStage) requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

func (s *egressStage) told() (asked []string, decisions []domain.EgressDecision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked), slices.Clone(s.decisions)
}

// secret is the proxy's, as a header has it.
func secret(tb testing.TB, proxy ports.Egress) string {
	tb.Helper()
	u, err := url.Parse(proxy.URL())
	require.NoError(tb, err)
	require.Equal(tb, fmt.Sprintf("127.0.0.1:%d", proxy.Port()), u.Host)
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.String()))
}

// raw makes a request by hand and returns the answer and its body.
func (s *egressStage) raw(head string) (*http.Response, string) {
	s.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(s.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", s.proxy.Port()))
	require.NoError(s, err)
	defer func() { require.NoError(s, conn.Close()) }()
	require.NoError(s, conn.SetDeadline(time.Now().Add(20*time.Second)))
	head = strings.NewReplacer("PORT", s.port, "AUTH", "Proxy-Authorization: "+secret(s, s.proxy)).Replace(head)
	_, err = io.WriteString(conn, head)
	require.NoError(s, err)
	in := bufio.NewReader(conn)
	method, _, _ := strings.Cut(head, " ")
	resp, err := http.ReadResponse(in, &http.Request{Method: method})
	require.NoError(s, err, head)
	if method == http.MethodConnect && resp.StatusCode == http.StatusOK {
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: inner.test\r\nConnection: close\r\n\r\n")
		require.NoError(s, err)
		resp, err = http.ReadResponse(in, nil)
		require.NoError(s, err)
	}
	body, err := io.ReadAll(resp.Body)
	require.NoError(s, err)
	return resp, string(body)
}

func connectTo(authority string) string {
	return "CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\nAUTH\r\n\r\n"
}

func plainTo(authority string) string {
	return "GET http://" + authority + "/path?query HTTP/1.1\r\nHost: " + authority + "\r\nAUTH\r\nConnection: close\r\n\r\n"
}

func egressAllowed(tb testing.TB, newProxy func(Resolve) ports.EgressProxy) {
	s := newEgressStage(tb, newProxy, "a.test:PORT=127.0.0.1 *.sub.test:PORT=127.0.0.1", "127.0.0.1")
	for _, head := range []string{
		connectTo("a.test:PORT"), plainTo("a.test:PORT"), connectTo("A.Test.:PORT"), plainTo("A.TEST.:PORT"), connectTo("x.y.sub.test:PORT"), plainTo("x.sub.test:PORT"),
	} {
		resp, body := s.raw(head)
		require.Equal(tb, http.StatusTeapot, resp.StatusCode, "%s\n%s", head, body)
		require.Equal(tb, "from the host", body)
		require.Equal(tb, "yes", resp.Header.Get("X-Of-The-Host"))
	}
	require.Len(tb, s.requests(), 6)
}

func egressNames(tb testing.TB, newProxy func(Resolve) ports.EgressProxy) {
	s := newEgressStage(tb, newProxy, "a.test:PORT=127.0.0.1 *.sub.test:PORT=127.0.0.1 b.test=127.0.0.1", "127.0.0.1")
	for _, authority := range []string{
		"c.test:PORT", "www.a.test:PORT", "sub.test:PORT", "xsub.test:PORT", "a.test.evil.test:PORT", "a.test:1", "b.test:PORT",
		"127.0.0.1:PORT", "127.1:PORT", "2130706433:PORT", "0x7f000001:PORT", "localhost:PORT", "[::1]:PORT", "[::ffff:127.0.0.1]:PORT",
		"a.test:0", "a..test:PORT", ".a.test:PORT",
	} {
		resp, body := s.raw(connectTo(authority))
		require.Equal(tb, http.StatusForbidden, resp.StatusCode, "CONNECT %s: %s", authority, body)
		require.Contains(tb, body, "--allow-domain", "what would allow it")
		require.Contains(tb, resp.Status, "Caisson", "what most clients show of a refused tunnel")
	}
	for _, authority := range []string{"c.test:PORT", "www.a.test:PORT", "a.test", "127.0.0.1:PORT", "[::1]:PORT", "2130706433:PORT", "localhost:PORT"} {
		resp, body := s.raw(plainTo(authority))
		require.Equal(tb, http.StatusForbidden, resp.StatusCode, "%s: %s", authority, body)
		require.Contains(tb, body, "--allow-domain")
	}
	asked, _ := s.told()
	require.Empty(tb, asked, "a name is a message to whoever resolves it")
	require.Empty(tb, s.requests())
	for head, status := range map[string]int{
		"GET / HTTP/1.1\r\nHost: a.test:PORT\r\nAUTH\r\n\r\n":                                              http.StatusBadRequest,
		"GET https://a.test:PORT/ HTTP/1.1\r\nHost: a.test:PORT\r\nAUTH\r\n\r\n":                           http.StatusBadRequest,
		"GET ftp://a.test:PORT/ HTTP/1.1\r\nHost: a.test:PORT\r\nAUTH\r\n\r\n":                             http.StatusBadRequest,
		"GET http://a.test:PORT/ HTTP/1.1\r\nHost: a\r\nAUTH\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n": http.StatusNotImplemented,
	} {
		resp, _ := s.raw(head)
		require.Equal(tb, status, resp.StatusCode, head)
	}
	require.Empty(tb, s.requests())
}

func egressAddresses(tb testing.TB, newProxy func(Resolve) ports.EgressProxy) {
	for domains, addresses := range map[string]string{
		"a.test:PORT": "127.0.0.1", "a.test:PORT=10.0.0.0/8": "127.0.0.1", "a.test:PORT=127.0.0.2": "127.0.0.1",
		"a.test:PORT=127.0.0.1": "127.0.0.1 93.184.216.34", "*.test:PORT": "127.0.0.1",
	} {
		s := newEgressStage(tb, newProxy, strings.ReplaceAll(domains, "*.test", "*.a.test")+" x.test:PORT", addresses)
		name := "a.test:PORT"
		if strings.HasPrefix(domains, "*") {
			name = "b." + name
		}
		for _, head := range []string{connectTo(name), plainTo(name)} {
			resp, body := s.raw(head)
			require.Equal(tb, http.StatusForbidden, resp.StatusCode, "%s at %s: %s", domains, addresses, body)
			require.Contains(tb, body, "it leads to ")
		}
		require.Empty(tb, s.requests())
	}
}

func egressOnce(tb testing.TB, newProxy func(Resolve) ports.EgressProxy) {
	// The first answer is good, all later ones lead to nothing that listens: whoever
	// asks twice fails. And the other way around.
	s := newEgressStage(tb, newProxy, "a.test:PORT=127.0.0.0/8", "127.0.0.1", "127.0.0.9")
	resp, _ := s.raw(plainTo("a.test:PORT"))
	require.Equal(tb, http.StatusTeapot, resp.StatusCode)
	asked, _ := s.told()
	require.Equal(tb, []string{"a.test"}, asked)
	s = newEgressStage(tb, newProxy, "a.test:PORT=10.0.0.0/8", "10.255.255.1 127.0.0.1", "127.0.0.1")
	for range 2 {
		resp, _ = s.raw(connectTo("a.test:PORT"))
		require.Equal(tb, http.StatusForbidden, resp.StatusCode, "no answer that was refused is remembered as a good one")
	}
	require.Empty(tb, s.requests())
}

func egressSecrets(tb testing.TB, newProxy func(Resolve) ports.EgressProxy) {
	s := newEgressStage(tb, newProxy, "a.test:PORT=127.0.0.1", "127.0.0.1")
	sibling := s.open(newProxy, "a.test:PORT=127.0.0.1", "127.0.0.1")
	require.NotEqual(tb, s.proxy.Port(), sibling.Port())
	basic := func(text string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)) }
	for name, header := range map[string]string{
		"none": "", "a sibling's": secret(tb, sibling), "an empty one": basic("caisson:"), "no base64": "Basic ?", "another scheme": "Bearer " + strings.TrimPrefix(secret(tb, s.proxy), "Basic "),
	} {
		for _, head := range []string{connectTo("a.test:PORT"), plainTo("a.test:PORT"), connectTo("c.test:PORT")} {
			resp, _ := s.raw(strings.ReplaceAll(head, "AUTH\r\n", "Proxy-Authorization: "+header+"\r\n"))
			require.Equal(tb, http.StatusProxyAuthRequired, resp.StatusCode, name)
			require.Contains(tb, resp.Header.Get("Proxy-Authenticate"), "Basic", "some clients wait to be asked")
		}
	}
	require.Empty(tb, s.requests())
	_, decisions := s.told()
	require.Empty(tb, decisions, "what has no secret is not decided about")
	require.Equal(tb, int64(15), s.proxy.Meter().Unauthorized)
}

func egressHeaders(tb testing.TB, newProxy func(Resolve) ports.EgressProxy) {
	s := newEgressStage(tb, newProxy, "a.test:PORT=127.0.0.1", "127.0.0.1")
	_, _ = s.raw("POST http://user:password@A.test:PORT/p%2fq?x=1 HTTP/1.1\r\nHost: other.test\r\nAUTH\r\nProxy-Connection: keep-alive\r\n" +
		"Connection: close, X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\nContent-Length: 4\r\n\r\nbody")
	seen := s.requests()
	require.Len(tb, seen, 1)
	r := seen[0]
	require.Equal(tb, "a.test:"+s.port, r.Host)
	require.Equal(tb, "/p%2fq?x=1", r.RequestURI)
	require.Equal(tb, "2", r.Header.Get("X-End"))
	for _, name := range []string{"Proxy-Authorization", "Proxy-Connection", "X-Hop", "Authorization", "X-Forwarded-For", "Forwarded", "Via"} {
		require.Empty(tb, r.Header.Values(name), name)
	}
}

func egressDecisions(tb testing.TB, newProxy func(Resolve) ports.EgressProxy) {
	s := newEgressStage(tb, newProxy, "a.test:PORT=127.0.0.1 a.test:1=127.0.0.1 gone.example:PORT", "127.0.0.1", "10.0.0.1")
	require.Zero(tb, s.proxy.Meter())
	for _, head := range []string{connectTo("a.test:PORT"), plainTo("a.test:PORT"), connectTo("c.test:PORT"), connectTo("gone.example:PORT")} {
		s.raw(head)
	}
	_, decisions := s.told()
	require.Len(tb, decisions, 4)
	port, wants := decisions[0].Port, []struct {
		host    string
		allowed bool
		reason  string
	}{{"a.test", true, ""}, {"a.test", false, "it leads to 10.0.0.1"}, {"c.test", false, "does not allow"}, {"gone.example", true, "no such host"}}
	require.NotZero(tb, port)
	for i, want := range wants {
		require.Equal(tb, want.host, decisions[i].Host)
		require.Equal(tb, port, decisions[i].Port)
		require.Equal(tb, want.allowed, decisions[i].Allowed)
		require.Contains(tb, decisions[i].Reason, want.reason)
	}
	require.NoError(tb, s.proxy.Close(tb.Context()))
	m := s.proxy.Meter()
	require.NotZero(tb, m.Sent)
	require.NotZero(tb, m.Received)
	m.Sent, m.Received = 0, 0
	require.Equal(tb, ports.EgressMeter{Allowed: 2, Refused: 2, Failed: 1}, m)
}

func egressClose(tb testing.TB, newProxy func(Resolve) ports.EgressProxy) {
	s := newEgressStage(tb, newProxy, "a.test:PORT=127.0.0.1", "127.0.0.1")
	var dialer net.Dialer
	conn, err := dialer.DialContext(tb.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", s.proxy.Port()))
	require.NoError(tb, err)
	defer func() { require.NoError(tb, conn.Close()) }()
	_, err = io.WriteString(conn, strings.NewReplacer("PORT", s.port, "AUTH", "Proxy-Authorization: "+secret(tb, s.proxy)).Replace(connectTo("a.test:PORT")))
	require.NoError(tb, err)
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	require.NoError(tb, err)
	require.Contains(tb, line, "200")
	require.NoError(tb, s.proxy.Close(tb.Context()))
	require.NoError(tb, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = io.Copy(io.Discard, in)
	require.NotErrorIs(tb, err, context.DeadlineExceeded)
	var timeout net.Error
	require.False(tb, errors.As(err, &timeout) && timeout.Timeout(), "the tunnel is still open")
	again, err := dialer.DialContext(tb.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", s.proxy.Port()))
	if err == nil {
		_ = again.Close()
	}
	require.Error(tb, err, "the port is closed")
	require.NoError(tb, s.proxy.Close(tb.Context()), "closing twice is no error")
}

func egressWildcards(tb testing.TB, newProxy func(Resolve) ports.EgressProxy) {
	proxies := newProxy(func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("nobody is asked") })
	for text, ok := range map[string]bool{
		"*.co.uk": false, "*.github.io": false, "*.s3.amazonaws.com": false, "*.example.co.uk": true, "*.example.com": true, "*.svc.internal": true, "co.uk": true,
	} {
		d, err := domain.ParseEgressDomain(text)
		require.NoError(tb, err)
		err = proxies.Check([]domain.EgressDomain{d})
		if ok {
			require.NoError(tb, err, text)
			continue
		}
		var invalid *domain.InvalidError
		require.ErrorAs(tb, err, &invalid, text)
		_, err = proxies.Open(tb.Context(), ports.EgressSpec{Session: "kit", Domains: []domain.EgressDomain{d}})
		require.ErrorAs(tb, err, &invalid, text)
	}
}
