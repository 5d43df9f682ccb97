package egress_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/egress"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestContract(t *testing.T) {
	testkit.NoLeaks(t)
	portstest.AssertEgressProxyContract(t, func(resolve portstest.Resolve) ports.EgressProxy {
		return egress.New(egress.WithResolver(resolve))
	})
}

// journal has what a proxy decided.
type journal struct {
	mu   sync.Mutex
	list []domain.EgressDecision
}

func (j *journal) note(d domain.EgressDecision) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.list = append(j.list, d)
}

func (j *journal) all() []domain.EgressDecision {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.list
}

func toLoopback(context.Context, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

func open(t testing.TB, domains ...string) (ports.Egress, *journal) {
	t.Helper()
	j := &journal{}
	p, err := egress.New(egress.WithResolver(toLoopback)).Open(t.Context(), ports.EgressSpec{Session: "s", Domains: testkit.EgressDomains(domains...), Decided: j.note})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(context.WithoutCancel(t.Context()))) })
	return p, j
}

// client is an HTTP client that goes through the proxy, as Go programs do.
func client(t *testing.T, p ports.Egress, roots *tls.Config) *http.Client {
	t.Helper()
	through, err := url.Parse(p.URL())
	require.NoError(t, err)
	transport := &http.Transport{Proxy: http.ProxyURL(through), TLSClientConfig: roots, DisableKeepAlives: true}
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

func get(t *testing.T, c *http.Client, address string) (int, string, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	require.NoError(t, err)
	resp, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, string(body), nil
}

// TLS goes through unopened, and its name must be the one that was asked for.
func TestTLS(t *testing.T) {
	testkit.NoLeaks(t)
	host := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "secret words") }))
	t.Cleanup(host.Close)
	_, port, _ := net.SplitHostPort(host.Listener.Addr().String())
	p, j := open(t, "example.com:"+port+"=127.0.0.1")
	trust := &tls.Config{RootCAs: host.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs} //nolint:forcetypeassert // httptest's
	status, body, err := get(t, client(t, p, trust), "https://example.com:"+port+"/")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "secret words", body)

	fronting := trust.Clone()
	fronting.ServerName = "fronted.example.com"
	_, _, err = get(t, client(t, p, fronting), "https://example.com:"+port+"/")
	require.ErrorContains(t, err, "access denied")
	decisions := j.all()
	require.Equal(t, "fronted.example.com", decisions[len(decisions)-1].Host)
	require.False(t, decisions[len(decisions)-1].Allowed)

	_, _, err = get(t, client(t, p, trust), "https://example.org:"+port+"/")
	require.ErrorContains(t, err, "Caisson refused", "Go's clients show the reason phrase")
}

// A host is tried at each of its addresses; one that cannot be reached is a failure and
// no refusal, and says why in the same words each time.
func TestHostsThatCannotBeReached(t *testing.T) {
	testkit.NoLeaks(t)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") }))
	t.Cleanup(host.Close)
	_, port, _ := net.SplitHostPort(host.Listener.Addr().String())
	elsewhere, here := netip.MustParseAddr("127.0.0.9"), netip.MustParseAddr("127.0.0.1")
	dns := map[string]error{
		"none.test": &net.DNSError{Err: "x", IsNotFound: true}, "slow.test": &net.DNSError{Err: "read udp 127.0.0.1:4321: i/o timeout", IsTimeout: true},
		"broken.test": &net.DNSError{Err: "read udp 127.0.0.1:4322: refused"}, "odd.test": errors.New("odd"),
	}
	var list []domain.EgressDomain
	for _, name := range []string{"second", "gone", "none", "slow", "broken", "odd", "hangs"} {
		d, err := domain.ParseEgressDomain(name + ".test:" + port + "=127.0.0.0/8")
		require.NoError(t, err)
		list = append(list, d)
	}
	j := &journal{}
	asked := make(chan struct{})
	p, err := egress.New(egress.WithResolver(func(ctx context.Context, name string) ([]netip.Addr, error) {
		switch name {
		case "second.test":
			return []netip.Addr{elsewhere, here}, nil
		case "gone.test":
			return []netip.Addr{elsewhere}, nil
		case "hangs.test":
			close(asked)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, dns[name]
	})).Open(t.Context(), ports.EgressSpec{Session: "s", Domains: list, Decided: j.note})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(context.WithoutCancel(t.Context()))) })
	c := client(t, p, nil)
	status, body, err := get(t, c, "http://second.test:"+port+"/")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "here", body)
	reasons := map[string]string{
		"gone": "connection refused", "none": "no such host", "slow": "no answer in time", "broken": "the host's resolver fails", "odd": "odd",
	}
	for name, reason := range reasons {
		status, body, err = get(t, c, "http://"+name+".test:"+port+"/")
		require.NoError(t, err)
		require.Equal(t, http.StatusBadGateway, status)
		require.Contains(t, body, reason)
		require.NotContains(t, body, "432")
		_, _, err = get(t, c, "https://"+name+".test:"+port+"/")
		require.ErrorContains(t, err, "Bad Gateway")
		all := j.all()
		require.True(t, all[len(all)-1].Allowed)
		require.Contains(t, all[len(all)-1].Reason, reason)
		require.Equal(t, all[len(all)-2], all[len(all)-1], "the same decision")
	}
	require.Equal(t, int64(2*len(reasons)), p.Meter().Failed)

	// Close does not wait for a resolver.
	conn := ask(t, p, "hangs.test:"+port)
	<-asked
	over, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no time"))
	if err := p.Close(over); err != nil { // if something still runs
		require.ErrorContains(t, err, "no time")
	}
	require.NoError(t, p.Close(t.Context()))
	_, _ = io.Copy(io.Discard, conn) // until its end
}

// tunnel makes a tunnel by hand.
func tunnel(t testing.TB, p ports.Egress, authority string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn := ask(t, p, authority)
	in := bufio.NewReader(conn)
	for line := ""; line != "\r\n"; {
		var err error
		line, err = in.ReadString('\n')
		require.NoError(t, err)
	}
	return conn, in
}

// ask asks for a tunnel.
func ask(t testing.TB, p ports.Egress, authority string) net.Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", p.Port()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // most have been closed by then
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	u, err := url.Parse(p.URL())
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nProxy-Authorization: Basic %s\r\n\r\n", authority, base64.StdEncoding.EncodeToString([]byte(u.User.String())))
	require.NoError(t, err)
	return conn
}

// What looks like TLS and cannot be read does not reach the host; what is something
// else does, also where the host speaks first.
func TestWhatIsNoTLS(t *testing.T) {
	testkit.NoLeaks(t)
	var listen net.ListenConfig
	host, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	heard := make(chan string, 3)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := host.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "220 welcome\n")
			said, _ := io.ReadAll(conn)
			heard <- string(said)
			_, _ = io.WriteString(conn, "bye\n")
			_ = conn.Close()
		}
	})
	t.Cleanup(func() { _ = host.Close(); served.Wait() })
	at := host.Addr().String()
	p, j := open(t, "mail.test:"+at[strings.LastIndex(at, ":")+1:]+"=127.0.0.1")
	authority := "mail.test" + at[strings.LastIndex(at, ":"):]

	conn, in := tunnel(t, p, authority)
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "220 welcome\n", line)
	_, err = io.WriteString(conn, "HELO")
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite()) //nolint:forcetypeassert // it is of TCP
	line, err = in.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "bye\n", line, "a half that is closed leaves the other one open")
	require.Equal(t, "HELO", <-heard)

	conn, in = tunnel(t, p, authority)
	_, err = conn.Write(append([]byte{22, 3, 1, 0, 5}, "\x01\x00\x00\x01x"...))
	require.NoError(t, err)
	rest, _ := io.ReadAll(in)
	require.True(t, strings.HasSuffix(string(rest), "\x15\x03\x01\x00\x02\x02\x31"), "%q", rest)
	require.Empty(t, <-heard)
	decisions := j.all()
	require.Contains(t, decisions[len(decisions)-1].Reason, "cannot be read")

	conn, _ = tunnel(t, p, authority)
	_, err = conn.Write([]byte{22, 3, 1, 1})
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Empty(t, <-heard, "a client that leaves in the middle of it")
	require.Len(t, j.all(), len(decisions)+1, "is no decision")
}

// Servers of TLS pass over a warning that comes before the handshake, so what comes
// behind it is looked at too.
func TestAWarningBeforeTLS(t *testing.T) {
	testkit.NoLeaks(t)
	host := httptest.NewUnstartedServer(http.NotFoundHandler())
	host.Config.ErrorLog = log.New(io.Discard, "", 0) // a client that leaves after the handshake
	host.StartTLS()
	t.Cleanup(host.Close)
	_, port, _ := net.SplitHostPort(host.Listener.Addr().String())
	p, j := open(t, "example.com:"+port+"=127.0.0.1")
	for name, want := range map[string]string{"example.com": "", "other.example.com": "access denied"} {
		conn, _ := tunnel(t, p, "example.com:"+port)
		_, err := conn.Write([]byte{21, 3, 1, 0, 2, 1, 90}) // user_canceled
		require.NoError(t, err)
		err = tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true}).HandshakeContext(t.Context())
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, want)
		require.True(t, slices.ContainsFunc(j.all(), func(d domain.EgressDecision) bool { return d.Host == name && !d.Allowed }))
	}
}

// A name leads to this machine also where it leads to an address of its own that is
// public, behind which services are that trust who comes from there.
func TestThisMachinesOwnAddresses(t *testing.T) {
	testkit.NoLeaks(t)
	own, unknown := []netip.Addr{netip.MustParseAddr("93.184.216.34")}, error(nil)
	d, err := domain.ParseEgressDomain("example.com")
	require.NoError(t, err)
	p, err := egress.New(
		egress.WithResolver(func(context.Context, string) ([]netip.Addr, error) { return own, nil }),
		egress.WithOwnAddresses(func() ([]netip.Addr, error) { return own, unknown }),
	).Open(t.Context(), ports.EgressSpec{Session: "s", Domains: []domain.EgressDomain{d}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(context.WithoutCancel(t.Context()))) })
	status, body, err := get(t, client(t, p, nil), "http://example.com/")
	require.NoError(t, err)
	require.Equal(t, http.StatusForbidden, status)
	require.Contains(t, body, "it leads to 93.184.216.34, an address of this machine")

	unknown = errors.New("no netlink")
	status, body, err = get(t, client(t, p, nil), "http://example.com/")
	require.NoError(t, err)
	require.Equal(t, http.StatusBadGateway, status)
	require.Contains(t, body, "not known: no netlink")
}

// A client that leaves ends what is done for it, and Close what is done for any: else
// nothing would bound how much of it there is.
func TestNothingIsDoneForAClientThatLeft(t *testing.T) {
	testkit.NoLeaks(t)
	d, err := domain.ParseEgressDomain("example.com")
	require.NoError(t, err)
	var doing atomic.Int64
	begun := make(chan struct{}, 1)
	p, err := egress.New(egress.WithResolver(func(ctx context.Context, _ string) ([]netip.Addr, error) {
		doing.Add(1)
		defer doing.Add(-1)
		begun <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	})).Open(t.Context(), ports.EgressSpec{Session: "s", Domains: []domain.EgressDomain{d}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(context.WithoutCancel(t.Context()))) })
	u, err := url.Parse(p.URL())
	require.NoError(t, err)
	auth := base64.StdEncoding.EncodeToString([]byte(u.User.String()))
	ask := func(line string) net.Conn {
		var dialer net.Dialer
		conn, err := dialer.DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", p.Port()))
		require.NoError(t, err)
		_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic %s\r\n\r\n", line, auth)
		require.NoError(t, err)
		<-begun
		return conn
	}
	lines := []string{"GET http://example.com/", "CONNECT example.com:443"}
	for _, line := range lines {
		require.NoError(t, ask(line).Close())
		require.Eventually(t, func() bool { return doing.Load() == 0 }, 5*time.Second, time.Millisecond, line) // a resolver has 10 s
	}
	for _, line := range lines {
		conn := ask(line)
		t.Cleanup(func() { _ = conn.Close() }) // Close of the proxy has closed it
	}
	require.NoError(t, p.Close(t.Context()))
	require.Zero(t, doing.Load())
}

// The default resolver is the host's.
func TestTheHostsResolver(t *testing.T) {
	testkit.NoLeaks(t)
	name, at := inHosts(t)
	var listen net.ListenConfig
	listener, err := listen.Listen(t.Context(), "tcp", net.JoinHostPort(at, "0"))
	if err != nil {
		t.Skipf("%s of /etc/hosts is not this machine: %v", at, err)
	}
	host := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") })}}
	host.Start()
	t.Cleanup(host.Close)
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	d, err := domain.ParseEgressDomain(name + ":" + port + "=" + at)
	require.NoError(t, err)
	p, err := egress.New().Open(t.Context(), ports.EgressSpec{Session: "s", Domains: []domain.EgressDomain{d}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(context.WithoutCancel(t.Context()))) })
	through, err := url.Parse(p.URL())
	require.NoError(t, err)
	transport := &http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return through, nil }, DisableKeepAlives: true}
	status, body, err := get(t, &http.Client{Transport: transport}, "http://"+name+":"+port+"/")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, "here", body)
}

// inHosts returns a name of /etc/hosts that has one address, and that a policy can
// allow.
func inHosts(t *testing.T) (name, at string) {
	t.Helper()
	text, err := os.ReadFile("/etc/hosts")
	require.NoError(t, err)
	addresses := map[string][]string{}
	var names []string
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		for _, n := range fields[min(1, len(fields)):] {
			addresses[n], names = append(addresses[n], fields[0]), append(names, n)
		}
	}
	for _, n := range names {
		if _, err := domain.ParseEgressDomain(n + "=" + addresses[n][0]); err == nil && len(addresses[n]) == 1 {
			return n, addresses[n][0]
		}
	}
	t.Skip("/etc/hosts has no name but localhost")
	return "", ""
}

// Many at once, more than there are places for: nothing mixes, nothing is left, and
// one that finds no place is closed.
func TestManyConnections(t *testing.T) {
	testkit.NoLeaks(t)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) }))
	t.Cleanup(host.Close)
	_, port, _ := net.SplitHostPort(host.Listener.Addr().String())
	p, j := open(t, "many.test:"+port+"=127.0.0.1")
	c := client(t, p, nil)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() {
			path := fmt.Sprintf("/%d", i)
			status, body, err := get(t, c, "http://many.test:"+port+path)
			if err != nil || status != http.StatusOK || body != path {
				t.Errorf("%s: %d %q %v", path, status, body, err)
			}
		})
	}
	all.Wait()
	require.Len(t, j.all(), 100)
	for range 300 {
		var dialer net.Dialer
		conn, err := dialer.DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", p.Port()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() }) // the proxy closes some of them
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", p.Port()))
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it has a place")
	require.NoError(t, conn.Close())
}

// Whatever a program sends, nothing gets to a host that the policy does not allow.
func FuzzRequests(f *testing.F) {
	for _, s := range []string{
		"CONNECT a.test:443 HTTP/1.1\r\n\r\n", "GET http://a.test/ HTTP/1.1\r\nHost: b.test\r\n\r\n", "CONNECT b.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n",
		"GET http://a.test@b.test/ HTTP/1.1\r\n\r\n", "GET http://b.test#a.test/ HTTP/1.0\r\n\r\n", "CONNECT /a.test HTTP/1.1\r\n\r\n", "CONNECT a.test:443@b.test:443 HTTP/1.1\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n", "GET http://a.test:80:80/ HTTP/1.1\r\nHost: x\r\n\r\n", "GET http:a.test HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01",
	} {
		f.Add(s)
	}
	var mu sync.Mutex
	asked := map[string]bool{}
	d, err := domain.ParseEgressDomain("a.test")
	require.NoError(f, err)
	p, err := egress.New(egress.WithResolver(func(_ context.Context, host string) ([]netip.Addr, error) {
		mu.Lock()
		defer mu.Unlock()
		asked[host] = true
		return nil, errors.New("no network in a test")
	})).Open(f.Context(), ports.EgressSpec{Session: "s", Domains: []domain.EgressDomain{d}})
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, p.Close(context.WithoutCancel(f.Context()))) })
	u, err := url.Parse(p.URL())
	require.NoError(f, err)
	auth := "\r\nProxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(u.User.String())) + "\r\n"
	f.Fuzz(func(t *testing.T, request string) {
		var dialer net.Dialer
		conn, err := dialer.DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", p.Port()))
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		_, _ = io.WriteString(conn, strings.Replace(request, "\r\n", auth, 1)) // the proxy may have seen enough
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())                   //nolint:forcetypeassert // it is of TCP
		_, _ = io.Copy(io.Discard, conn)
		mu.Lock()
		defer mu.Unlock()
		delete(asked, "a.test")
		require.Empty(t, asked, "%q", request)
	})
}
