package gateway_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/gateway"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
	"github.com/caisson-run/caisson/tests/testkit"
)

// upstream is a model API that remembers what it was asked.
type upstream struct {
	*httptest.Server
	mu   sync.Mutex
	seen []*http.Request
	body []string
}

// newUpstream answers with answer, or with "ok".
func newUpstream(t *testing.T, answer http.HandlerFunc) *upstream {
	t.Helper()
	u := &upstream{}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // of a client that has gone
		u.mu.Lock()
		u.seen, u.body = append(u.seen, r), append(u.body, string(body))
		u.mu.Unlock()
		if answer == nil {
			fmt.Fprint(w, "ok")
			return
		}
		answer(w, r)
	}))
	t.Cleanup(u.Close)
	return u
}

func (u *upstream) requests() ([]*http.Request, []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seen, u.body
}

const realKey = "the-real-key"

func specFor(base string) ports.GatewaySpec {
	return ports.GatewaySpec{
		Session: "s", API: ports.ModelAPI{
			BaseURL: base, Dialect: ports.DialectAnthropic,
			Routes: []ports.APIRoute{{Method: "POST", Path: "/v1/messages"}, {Method: "HEAD", Path: "/"}, {Method: "GET", Path: "/v1/models"}},
			Credentials: []ports.APICredential{
				{Env: "A", Header: "X-Api-Key"}, {Env: "B", Header: "Authorization", Scheme: "Bearer"}, {Env: "C", Header: "Authorization", Scheme: "Bearer"},
			},
		},
		Credential: func() (ports.Credential, bool, error) {
			return ports.Credential{Header: "X-Api-Key", Secret: realKey}, true, nil
		},
	}
}

func open(t *testing.T, spec ports.GatewaySpec) ports.Gateway {
	t.Helper()
	g, err := gateway.New().Open(t.Context(), spec)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		require.NoError(t, g.Close(ctx))
		require.NoError(t, g.Close(ctx), "closing twice is no error")
		_, err := (&net.Dialer{}).DialContext(ctx, "tcp", address(g))
		require.Error(t, err, "the port is closed")
	})
	return g
}

func address(g ports.Gateway) string { return fmt.Sprintf("127.0.0.1:%d", g.Port()) }

// client is a client like the agents': it follows no redirect, and keeps no
// connection that would count as a leak.
func client(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func request(t *testing.T, g ports.Gateway, method, path string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, g.BaseURL()+path, body)
	require.NoError(t, err)
	r.Header.Set("X-Api-Key", g.Token())
	return r
}

func do(t *testing.T, r *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := client(t).Do(r)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
}

// raw sends bytes as they stand and returns the first answer's status and the
// rest of what came.
func raw(t *testing.T, g ports.Gateway, text string) (status int, rest string) {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address(g))
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Second)))
	_, err = io.WriteString(c, text)
	require.NoError(t, err)
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	require.NoError(t, err)
	fields := strings.Fields(line)
	require.GreaterOrEqual(t, len(fields), 2, line)
	status, err = strconv.Atoi(fields[1])
	require.NoError(t, err)
	data, _ := io.ReadAll(in) // to the end, or the deadline
	return status, string(data)
}

func TestAnAllowedRequestGoesUpstreamWithTheRealKey(t *testing.T) {
	testkit.NoLeaks(t)
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Upstream", "yes")
		fmt.Fprint(w, "ok")
	})
	g := open(t, specFor(u.URL+"/base/"))
	for i, set := range []func(http.Header){
		func(h http.Header) { h.Set("X-Api-Key", g.Token()) },
		func(h http.Header) { h.Set("Authorization", "Bearer "+g.Token()) },
		func(h http.Header) { h.Set("Authorization", "bearer "+g.Token()) },
	} {
		r := request(t, g, "POST", "/v1/messages?beta=true", strings.NewReader("hello"))
		r.Header = http.Header{}
		set(r.Header)
		for name, value := range map[string]string{
			"Cookie": "a=b", "Api-Key": "x", "Proxy-Authorization": "x", "X-Forwarded-For": "1.2.3.4", "Forwarded": "for=1.2.3.4",
			"Accept-Encoding": "gzip", "Connection": "X-Hop", "X-Hop": "x", "Anthropic-Version": "2023-06-01",
		} {
			r.Header.Set(name, value)
		}
		r.Host = "evil.example"
		resp, body := do(t, r)
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, "ok", body)
		require.Equal(t, "yes", resp.Header.Get("X-Upstream"))
		requests, bodies := u.requests()
		require.Len(t, requests, i+1)
		got := requests[i]
		require.Equal(t, "hello", bodies[i])
		require.Equal(t, "/base/v1/messages?beta=true", got.RequestURI)
		require.Equal(t, strings.TrimPrefix(u.URL, "http://"), got.Host, "the agent's Host changes nothing")
		require.Equal(t, realKey, got.Header.Get("X-Api-Key"))
		require.Equal(t, "2023-06-01", got.Header.Get("Anthropic-Version"))
		for _, name := range []string{
			"Authorization", "Cookie", "Api-Key", "Proxy-Authorization", "X-Forwarded-For", "X-Forwarded-Host",
			"X-Forwarded-Proto", "Forwarded", "Via", "Accept-Encoding", "X-Hop", "Connection",
		} {
			require.Empty(t, got.Header.Values(name), name)
		}
		require.NotContains(t, fmt.Sprint(got.Header), g.Token())
	}
	require.Equal(t, domain.GatewayTraffic{Requests: 3}, g.Meter().Traffic)
}

// Nothing but the agent's own requests, with its own session's token, reaches
// the API, and nothing at all reaches anything else.
func TestAttacks(t *testing.T) {
	testkit.NoLeaks(t)
	u, elsewhere := newUpstream(t, nil), newUpstream(t, nil)
	g, sibling := open(t, specFor(u.URL)), open(t, specFor(u.URL))
	head := "Host: x\r\nX-Api-Key: " + g.Token() + "\r\nConnection: close\r\n"
	empty := head + "Content-Length: 0\r\n\r\n"
	host := strings.TrimPrefix(elsewhere.URL, "http://")
	for name, c := range map[string]struct {
		text   string
		status int
	}{
		"no token":              {"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 401},
		"an empty token":        {"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: \r\nAuthorization: Bearer \r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 401},
		"a sibling's token":     {"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + sibling.Token() + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 401},
		"the real key":          {"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + realKey + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 401},
		"a part of the token":   {"POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + g.Token()[:60] + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 401},
		"basic authentication":  {"POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Basic " + g.Token() + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 401},
		"another path":          {"POST /v1/files HTTP/1.1\r\n" + empty, 403},
		"another method":        {"GET /v1/messages HTTP/1.1\r\n" + empty, 403},
		"another's method":      {"DELETE /v1/models HTTP/1.1\r\n" + empty, 403},
		"a longer path":         {"POST /v1/messages/batches HTTP/1.1\r\n" + empty, 403},
		"a trailing slash":      {"POST /v1/messages/ HTTP/1.1\r\n" + empty, 403},
		"dots":                  {"POST /v1/messages/../files HTTP/1.1\r\n" + empty, 403},
		"dots back":             {"POST /v1/files/../messages HTTP/1.1\r\n" + empty, 403},
		"escaped dots":          {"POST /v1/messages/%2e%2e/files HTTP/1.1\r\n" + empty, 403},
		"an escaped slash":      {"POST /v1%2fmessages HTTP/1.1\r\n" + empty, 403},
		"an escaped letter":     {"POST /v1/message%73 HTTP/1.1\r\n" + empty, 403},
		"two slashes":           {"POST //v1/messages HTTP/1.1\r\n" + empty, 403},
		"two slashes inside":    {"POST /v1//messages HTTP/1.1\r\n" + empty, 403},
		"a backslash":           {"POST /v1\\messages HTTP/1.1\r\n" + empty, 403},
		"a parameter":           {"POST /v1/messages;x HTTP/1.1\r\n" + empty, 403},
		"an authority":          {"POST //" + host + "/v1/messages HTTP/1.1\r\n" + empty, 403},
		"an absolute URI":       {"POST http://" + host + "/v1/messages HTTP/1.1\r\n" + empty, 403},
		"its own absolute URI":  {"POST " + g.BaseURL() + "/v1/messages HTTP/1.1\r\n" + empty, 403},
		"a URI with a password": {"POST http://u:p@" + host + "/v1/messages HTTP/1.1\r\n" + empty, 403},
		"CONNECT":               {"CONNECT " + host + " HTTP/1.1\r\n" + head + "\r\n", 403},
		"OPTIONS *":             {"OPTIONS * HTTP/1.1\r\n" + empty, 403},
		"TRACE":                 {"TRACE /v1/messages HTTP/1.1\r\n" + empty, 403},
		"a method in lower":     {"post /v1/messages HTTP/1.1\r\n" + empty, 403},
		"a websocket":           {"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + g.Token() + "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n", 403},
		"HTTP/2 by upgrade":     {"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + g.Token() + "\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n\r\n", 403},
		"HTTP/2 at once":        {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 401},
		"no host":               {"POST /v1/messages HTTP/1.1\r\nX-Api-Key: " + g.Token() + "\r\n\r\n", 400},
		"two lengths":           {"POST /v1/messages HTTP/1.1\r\n" + head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
		"an odd encoding":       {"POST /v1/messages HTTP/1.1\r\n" + head + "Transfer-Encoding: xchunked\r\n\r\n", 501},
		"a huge header":         {"POST /v1/messages HTTP/1.1\r\n" + head + "X-Big: " + strings.Repeat("x", 1<<17) + "\r\n\r\n", 431},
		"a huge body":           {"POST /v1/messages HTTP/1.1\r\n" + head + "Content-Length: 99999999999\r\n\r\n", 413},
		"a header in a header":  {"POST /v1/messages HTTP/1.1\r\n" + head + "X-A: b\x00c\r\n\r\n", 400},
		"a space in a name":     {"POST /v1/messages HTTP/1.1\r\n" + head + "Transfer-Encoding : chunked\r\n\r\n", 400},
	} {
		t.Run(name, func(t *testing.T) {
			before := g.Meter().Traffic
			status, rest := raw(t, g, c.text)
			require.Equal(t, c.status, status, rest)
			require.NotContains(t, rest, realKey)
			requests, _ := u.requests()
			require.Empty(t, requests, "nothing reaches the API")
			requests, _ = elsewhere.requests()
			require.Empty(t, requests, "nor anybody else")
			is := g.Meter().Traffic
			require.Zero(t, is.Requests)
			if strings.Contains(rest, "Caisson's model gateway refused") {
				require.Equal(t, before.Refused+1, is.Refused)
				require.Contains(t, rest, `"type":"error"`)
				require.Contains(t, rest, "X-Should-Retry: false")
				require.NotEmpty(t, g.Meter().LastRefusal)
			} else {
				require.GreaterOrEqual(t, c.status, 400, "the server's own refusal")
			}
		})
	}
	// The companion: the same request, well formed, does.
	status, rest := raw(t, g, "POST /v1/messages HTTP/1.1\r\n"+empty)
	require.Equal(t, 200, status, rest)
	requests, _ := u.requests()
	require.Len(t, requests, 1)
}

// Of a request with two framings one side could see one request and the other
// side two. The API sees at most one, framed by the gateway.
func TestSmuggling(t *testing.T) {
	testkit.NoLeaks(t)
	u := newUpstream(t, nil)
	g := open(t, specFor(u.URL))
	head := "POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + g.Token() + "\r\nConnection: close\r\n"
	hidden := "POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
	raw(t, g, head+"Content-Length: "+strconv.Itoa(5+len(hidden))+"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+hidden)
	raw(t, g, head+"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n"+strconv.FormatInt(int64(len(hidden)), 16)+"\r\n"+hidden+"\r\n0\r\n\r\n")
	raw(t, g, head+"Content-Length: 1\r\n\r\na"+hidden)
	// A trailer is no header.
	raw(t, g, head+"Transfer-Encoding: chunked\r\nTrailer: X-Api-Key, X-Late\r\n\r\n1\r\na\r\n0\r\nX-Late: x\r\nX-Api-Key: x\r\n\r\n")
	requests, _ := u.requests()
	require.NotEmpty(t, requests)
	for _, r := range requests {
		require.Equal(t, "/v1/messages", r.RequestURI)
		require.Equal(t, []string{realKey}, r.Header.Values("X-Api-Key"))
		require.Empty(t, r.Trailer)
	}
}

func TestAnAnswerComesPieceByPiece(t *testing.T) {
	testkit.NoLeaks(t)
	next := make(chan struct{})
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: {\"n\":%d}\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	})
	g := open(t, specFor(u.URL))
	resp, err := client(t).Do(request(t, g, "POST", "/v1/messages", nil))
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	in := bufio.NewReader(resp.Body)
	for i := range 3 {
		// The API waits until the piece has been read.
		line, err := in.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("data: {\"n\":%d}\n", i), line)
		_, err = in.ReadString('\n')
		require.NoError(t, err)
		next <- struct{}{}
	}
	_, err = in.ReadByte()
	require.ErrorIs(t, err, io.EOF)
}

// A request goes up as it comes, too.
func TestARequestGoesUpPieceByPiece(t *testing.T) {
	testkit.NoLeaks(t)
	got := make(chan string)
	u := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		piece := make([]byte, 5)
		for range 2 {
			_, err := io.ReadFull(r.Body, piece)
			got <- fmt.Sprint(string(piece), err)
		}
	}))
	t.Cleanup(u.Close)
	g := open(t, specFor(u.URL))
	in, out := io.Pipe()
	done := make(chan error, 1)
	c, r := client(t), request(t, g, "POST", "/v1/messages", in)
	go func() {
		resp, err := c.Do(r)
		if err == nil {
			err = resp.Body.Close()
		}
		done <- err
	}()
	for range 2 {
		_, err := io.WriteString(out, "piece")
		require.NoError(t, err)
		require.Equal(t, "piece<nil>", <-got)
	}
	require.NoError(t, out.Close())
	require.NoError(t, <-done)
}

func TestErrorsOfTheAPIPassUnchanged(t *testing.T) {
	testkit.NoLeaks(t)
	for _, status := range []int{301, 307, 400, 401, 403, 404, 429, 500, 503, 529} {
		u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.Header().Set("Request-Id", "req_1")
			w.Header().Set("Location", "https://evil.example/v1/messages")
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			fmt.Fprint(w, `{"type":"error","n":1 }`)
		})
		g := open(t, specFor(u.URL))
		resp, body := do(t, request(t, g, "POST", "/v1/messages", nil))
		require.Equal(t, status, resp.StatusCode)
		require.Equal(t, `{"type":"error","n":1 }`, body)
		require.Equal(t, "7", resp.Header.Get("Retry-After"))
		require.Equal(t, "req_1", resp.Header.Get("Request-Id"))
		require.Equal(t, "https://evil.example/v1/messages", resp.Header.Get("Location"), "it is not followed")
		want := domain.GatewayTraffic{Requests: 1}
		if status >= 400 {
			want.Failed = 1
		}
		require.Equal(t, want, g.Meter().Traffic)
	}
}

func TestAnAPIThatCannotBeReached(t *testing.T) {
	testkit.NoLeaks(t)
	u := newUpstream(t, nil)
	u.Close()
	spec := specFor(u.URL)
	g := open(t, spec)
	resp, body := do(t, request(t, g, "POST", "/v1/messages", nil))
	require.Equal(t, 502, resp.StatusCode)
	require.Contains(t, body, `"type":"error"`)
	require.Contains(t, body, "cannot reach the model API at "+u.URL)
	require.Equal(t, domain.GatewayTraffic{Requests: 1, Failed: 1}, g.Meter().Traffic)

	spec.API.Dialect = ports.DialectOpenAI
	_, body = do(t, request(t, open(t, spec), "POST", "/v1/messages", nil))
	require.Contains(t, body, `{"error":{"code":"api_error"`)
}

// A server whose certificate the system does not know gets nothing.
func TestACertificateIsChecked(t *testing.T) {
	testkit.NoLeaks(t)
	asked := false
	u := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	u.Config.ErrorLog = log.New(io.Discard, "", 0)
	u.StartTLS()
	g := open(t, specFor(u.URL))
	resp, body := do(t, request(t, g, "POST", "/v1/messages", strings.NewReader("secret")))
	require.Equal(t, 502, resp.StatusCode)
	require.Contains(t, body, "certificate")
	u.Close()
	require.False(t, asked)
}

// An answer that breaks off does so for the agent, too.
func TestAnAnswerThatBreaksOff(t *testing.T) {
	testkit.NoLeaks(t)
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	g := open(t, specFor(u.URL))
	resp, err := client(t).Do(request(t, g, "POST", "/v1/messages", nil))
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, "half", string(body))
}

func TestACancelReachesTheAPI(t *testing.T) {
	testkit.NoLeaks(t)
	asked, gone := make(chan struct{}, 2), make(chan struct{}, 2)
	u := newUpstream(t, func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	g := open(t, specFor(u.URL))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	c := client(t)
	ask := func(r *http.Request) {
		resp, err := c.Do(r)
		if err == nil {
			err = errors.Join(errors.New("an answer"), resp.Body.Close())
		}
		done <- err
	}
	first, second := request(t, g, "POST", "/v1/messages", strings.NewReader("x")), request(t, g, "POST", "/v1/messages", strings.NewReader("x"))
	go ask(first.WithContext(ctx))
	<-asked
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	within(t, gone)

	// Closing the gateway ends what is in flight.
	go ask(second)
	<-asked
	require.NoError(t, g.Close(t.Context()))
	require.Error(t, <-done)
	within(t, gone)
	require.Equal(t, domain.GatewayTraffic{Requests: 2}, g.Meter().Traffic, "the API did not fail")
}

func within(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(5 * time.Second):
		t.Fatal("it did not happen")
	}
}

// Clients that are slow, silent or too many hold nothing once the gateway is
// closed, and keep nobody out who comes when they have gone.
func TestClientsThatHang(t *testing.T) {
	testkit.NoLeaks(t)
	u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 64<<20)) // fails when the client has gone
	})
	g := open(t, specFor(u.URL))
	head := "POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + g.Token() + "\r\n"
	var held []net.Conn
	for i := range 200 {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address(g))
		require.NoError(t, err)
		held = append(held, c)
		// A head that does not end, a body that does not come, an answer that
		// nobody reads; beyond the limit it may be refused.
		_, _ = io.WriteString(c, []string{head[:30], head + "Content-Length: 10\r\n\r\nabc", head + "Content-Length: 0\r\n\r\n"}[i%3])
	}
	refused := 0
	for _, c := range held[128:] {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(5*time.Second)))
		if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			refused++
		}
	}
	require.Equal(t, len(held)-128, refused, "the connections are bounded")
	for _, c := range held[:64] {
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool {
		resp, err := client(t).Do(request(t, g, "HEAD", "/", nil))
		return err == nil && resp.Body.Close() == nil
	}, 5*time.Second, 20*time.Millisecond, "there is a place again")
	start := time.Now()
	require.NoError(t, g.Close(t.Context()))
	require.Less(t, time.Since(start), 2*time.Second)
	for _, c := range held {
		_ = c.Close()
	}
}

// Requests that are given up leave no more connections to the API than there may be
// at once, and none behind Close: else one session could take all descriptors.
func TestGivenUpRequestsLeaveNothing(t *testing.T) {
	testkit.NoLeaks(t)
	var listen net.ListenConfig
	silent, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var accepted, ended atomic.Int64
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			all.Go(func() {
				_, _ = io.Copy(io.Discard, c) // it never answers the TLS
				_ = c.Close()
				ended.Add(1)
			})
		}
	})
	t.Cleanup(func() { _ = silent.Close(); all.Wait() })
	g := open(t, specFor("https://"+silent.Addr().String()))
	for range 300 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		resp, err := client(t).Do(request(t, g, http.MethodGet, "/v1/models", nil).WithContext(ctx))
		cancel()
		require.Error(t, err)
		require.Nil(t, resp)
	}
	require.NotZero(t, accepted.Load())
	require.LessOrEqual(t, accepted.Load(), int64(128))
	require.NoError(t, g.Close(t.Context()))
	require.Eventually(t, func() bool { return ended.Load() == accepted.Load() }, 5*time.Second, time.Millisecond) // TLS has 15 s
}

func TestABodyWithoutALengthIsBounded(t *testing.T) {
	testkit.NoLeaks(t)
	u := newUpstream(t, nil)
	g := open(t, specFor(u.URL))
	// A reader without a length is sent in chunks.
	r := request(t, g, "POST", "/v1/messages", io.MultiReader(io.LimitReader(zeros{}, 65<<20)))
	resp, err := client(t).Do(r)
	if err != nil {
		return // the gateway has hung up while the client was still sending
	}
	require.Equal(t, 413, resp.StatusCode)
	require.NoError(t, resp.Body.Close())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestCredentials(t *testing.T) {
	testkit.NoLeaks(t)
	u := newUpstream(t, nil)
	spec := specFor(u.URL)
	none := func() (ports.Credential, bool, error) { return ports.Credential{}, false, nil }
	spec.Credential = none
	resp, _ := do(t, request(t, open(t, spec), "POST", "/v1/messages", nil))
	require.Equal(t, 200, resp.StatusCode, "an API on this machine may need none")
	requests, _ := u.requests()
	require.Empty(t, requests[0].Header.Get("X-Api-Key"))

	spec.API.BaseURL = "https://192.0.2.1/" // nowhere (RFC 5737)
	g := open(t, spec)
	resp, body := do(t, request(t, g, "POST", "/v1/messages", nil))
	require.Equal(t, 401, resp.StatusCode)
	require.Contains(t, body, "no credential for the model API at https://192.0.2.1: set A, B or C in Caisson's environment, or pass --credential-file NAME=PATH")
	require.Equal(t, domain.GatewayTraffic{Refused: 1}, g.Meter().Traffic)

	spec.API.BaseURL = u.URL
	spec.Credential = func() (ports.Credential, bool, error) {
		return ports.Credential{}, false, errors.New("the file is gone")
	}
	resp, body = do(t, request(t, open(t, spec), "POST", "/v1/messages", nil))
	require.Equal(t, 401, resp.StatusCode)
	require.Contains(t, body, "the file is gone")

	spec.Credential = func() (ports.Credential, bool, error) {
		return ports.Credential{Header: "Authorization", Scheme: "Bearer", Secret: "tk"}, true, nil
	}
	do(t, request(t, open(t, spec), "POST", "/v1/messages", nil))
	requests, _ = u.requests()
	require.Equal(t, "Bearer tk", requests[1].Header.Get("Authorization"))
	require.Empty(t, requests[1].Header.Get("X-Api-Key"))

	spec.Credential = none
	spec.API.BaseURL = strings.Replace(u.URL, "://", "://user:pass@", 1)
	do(t, request(t, open(t, spec), "POST", "/v1/messages", nil))
	requests, _ = u.requests()
	user, password, _ := requests[2].BasicAuth()
	require.Equal(t, "user:pass", user+":"+password)
}

func TestBaseURLs(t *testing.T) {
	for base, want := range map[string]string{
		"ftp://h": "neither an http", "http://": "without a host", "http://h?x=1": "a query", "http://h/#x": "a query", "http://user:geheim@h:x": "not a URL",
	} {
		_, err := gateway.New().Open(t.Context(), specFor(base))
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid, base)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "geheim")
	}
	u := newUpstream(t, nil)
	do(t, request(t, open(t, specFor(u.URL+"/a%20b%2fc")), "POST", "/v1/messages", nil))
	requests, _ := u.requests()
	require.Equal(t, "/a%20b%2fc/v1/messages", requests[0].RequestURI)
}

func TestTokens(t *testing.T) {
	testkit.NoLeaks(t)
	const anthropic = "event: message_start\r\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":10,\"cache_creation_input_tokens\":3,\"cache_read_input_tokens\":100,\"output_tokens\":1,\"cache_creation\":{\"input_tokens\":9999}}}}\r\n\r\n" +
		": a comment\n\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"\\\"usage\\\":{\\\"output_tokens\\\":9999}\"}}\n\n" +
		"data: not json {\"usage\":{\n\n" +
		"data:{\"type\":\"message_delta\",\"usage\":{\"output_tokens\":42,\"iterations\":[{\"output_tokens\":9999}],\ndata: \"output_tokens_details\":{\"thinking_tokens\":7}}}\n\n"
	const openai = "data: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n" +
		"data: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"usage\":{\"input_tokens\":9999}}],\"usage\":{\"input_tokens\":50,\"input_tokens_details\":{\"cached_tokens\":20},\"output_tokens\":5,\"output_tokens_details\":{\"reasoning_tokens\":2},\"total_tokens\":55}}}\n\n"
	for name, c := range map[string]struct {
		dialect        ports.APIDialect
		kind, encoding string
		status         int
		body           string
		want           domain.Usage
	}{
		"a stream of messages":  {ports.DialectAnthropic, "text/event-stream; charset=utf-8", "", 200, anthropic, domain.Usage{InputTokens: 113, CachedInputTokens: 100, CacheWriteTokens: 3, OutputTokens: 42, ReasoningTokens: 7}},
		"a message":             {ports.DialectAnthropic, "application/json", "", 200, `{"usage":{"input_tokens":10,"output_tokens":2}}`, domain.Usage{InputTokens: 10, OutputTokens: 2}},
		"a count":               {ports.DialectAnthropic, "application/json", "", 200, `{"input_tokens":10}`, domain.Usage{}},
		"a stream of responses": {ports.DialectOpenAI, "text/event-stream", "", 200, openai, domain.Usage{InputTokens: 50, CachedInputTokens: 20, OutputTokens: 5, ReasoningTokens: 2}},
		"a response":            {ports.DialectOpenAI, "application/json", "", 200, `{"usage":{"input_tokens":10,"output_tokens":2}}`, domain.Usage{InputTokens: 10, OutputTokens: 2}},
		"an error":              {ports.DialectOpenAI, "application/json", "", 400, `{"usage":{"input_tokens":10,"output_tokens":2}}`, domain.Usage{}},
		"another kind":          {ports.DialectOpenAI, "text/plain", "", 200, `{"usage":{"input_tokens":10,"output_tokens":2}}`, domain.Usage{}},
		"another dialect":       {"other", "application/json", "", 200, `{"usage":{"input_tokens":10,"output_tokens":2}}`, domain.Usage{}},
		"compressed":            {ports.DialectOpenAI, "application/json", "gzip", 200, `{"usage":{"input_tokens":10,"output_tokens":2}}`, domain.Usage{}},
		"odd numbers":           {ports.DialectOpenAI, "application/json", "", 200, `{"usage":{"input_tokens":-5,"output_tokens":1e9,"output_tokens":1.5,"input_tokens":99999999999999999999999}}`, domain.Usage{}},
	} {
		t.Run(name, func(t *testing.T) {
			sent := []byte(c.body)
			if c.encoding != "" {
				var b bytes.Buffer
				z := gzip.NewWriter(&b)
				_, err := z.Write(sent)
				require.NoError(t, errors.Join(err, z.Close()))
				sent = b.Bytes()
			}
			u := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.kind)
				if c.encoding != "" {
					w.Header().Set("Content-Encoding", c.encoding)
				}
				w.WriteHeader(c.status)
				for _, b := range sent {
					_, _ = w.Write([]byte{b})
				}
			})
			spec := specFor(u.URL)
			spec.API.Dialect = c.dialect
			g := open(t, spec)
			for n := range int64(2) {
				_, body := do(t, request(t, g, "POST", "/v1/messages", nil))
				require.Equal(t, string(sent), body, "what is metered passes unchanged")
				want := c.want
				if n == 1 {
					want = want.Add(c.want)
				}
				require.Equal(t, want, g.Meter().Usage)
			}
		})
	}
}

// A head or a body that comes too slowly ends the connection.
func TestSlowRequests(t *testing.T) {
	testkit.NoLeaks(t)
	u := newUpstream(t, nil)
	g, err := gateway.Impatient(100*time.Millisecond, 100*time.Millisecond).Open(t.Context(), specFor(u.URL))
	require.NoError(t, err)
	head := "POST /v1/messages HTTP/1.1\r\nHost: x\r\nX-Api-Key: " + g.Token() + "\r\n"
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address(g))
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Second)))
	_, err = io.WriteString(c, head+"Content-Length: 10\r\n\r\nabc")
	require.NoError(t, err)
	_, err = io.ReadAll(c)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it was hung up on")
	require.NoError(t, c.Close())

	c, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", address(g))
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Second)))
	for err == nil {
		_, err = io.WriteString(c, "X")
		time.Sleep(20 * time.Millisecond)
	}
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it was hung up on")
	require.NoError(t, c.Close())

	// A slow answer is another matter: the wait for a body must not end it.
	slow := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(600 * time.Millisecond)
		fmt.Fprint(w, "late")
	})
	// A busy host may be slow with the head, which is not the question.
	late, err := gateway.Impatient(10*time.Second, 200*time.Millisecond).Open(t.Context(), specFor(slow.URL))
	require.NoError(t, err)
	resp, body := do(t, request(t, late, "POST", "/v1/messages", strings.NewReader("hello")))
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "late", body)
	require.NoError(t, errors.Join(g.Close(t.Context()), late.Close(t.Context())))
}

func TestTheContract(t *testing.T) {
	testkit.NoLeaks(t)
	portstest.AssertModelGatewayContract(t, gateway.New())
}
