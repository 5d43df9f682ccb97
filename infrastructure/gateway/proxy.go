package gateway

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/ports"
)

// ServeHTTP takes one request of the agent's.
func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	to, known := g.routes[route{r.Method, path}]
	switch {
	case !g.authorized(r.Header):
		g.refuse(w, r, http.StatusUnauthorized, "authentication_error", "it has no token of this session's")
		return
	case !known:
		g.refuse(w, r, http.StatusForbidden, "permission_error", "it is none of the requests to the model that this agent makes")
		return
	case len(r.Header["Upgrade"]) > 0:
		g.refuse(w, r, http.StatusForbidden, "permission_error", "it asks for another protocol")
		return
	case r.ContentLength > maxBody:
		g.refuse(w, r, http.StatusRequestEntityTooLarge, "request_too_large", tooLarge)
		return
	}
	c, ok, err := g.credential()
	if err == nil && !ok && !g.loopback && g.base.User == nil {
		err = fmt.Errorf("there is no credential for the model API at %s://%s: set %s in Caisson's environment, or pass --credential-file NAME=PATH",
			g.base.Scheme, g.base.Host, g.credentialNames())
	}
	if err != nil {
		g.refuse(w, r, http.StatusUnauthorized, "authentication_error", err.Error())
		return
	}
	out := destination{url: to}
	if ok {
		out.header, out.value = c.Header, strings.TrimPrefix(c.Scheme+" "+c.Secret, " ")
	}
	if r.Body != http.NoBody {
		r.Body = &patience{Reader: http.MaxBytesReader(w, r.Body, maxBody), Closer: r.Body, conn: http.NewResponseController(w), limit: g.patience}
	}
	g.count(func(m *ports.GatewayMeter) { m.Traffic.Requests++ })
	g.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), destinationKey{}, out)))
}

const tooLarge = "its body is larger than 64 MiB"

// destination is where a request goes, and what authenticates it there. It
// travels in the request's context.
type destination struct {
	url           *url.URL
	header, value string
}

type destinationKey struct{}

// credentialNames lists the variables: "A, B or C".
func (g *gateway) credentialNames() string {
	list := ""
	for i, c := range g.api.Credentials {
		switch {
		case i == 0:
		case i == len(g.api.Credentials)-1:
			list += " or "
		default:
			list += ", "
		}
		list += c.Env
	}
	return list
}

// authorized reports whether the token stands where an agent puts its key. The
// comparison takes the same time for every token.
func (g *gateway) authorized(h http.Header) bool {
	is := func(token string) bool { return subtle.ConstantTimeCompare([]byte(token), []byte(g.token)) == 1 }
	scheme, bearer, _ := strings.Cut(h.Get("Authorization"), " ")
	return is(h.Get("X-Api-Key")) || strings.EqualFold(scheme, "Bearer") && is(bearer)
}

// private are the headers that authenticate, or that say of whom a request is.
// The agent's have no business upstream.
var private = []string{"Authorization", "X-Api-Key", "Api-Key", "Cookie", "Proxy-Authorization", "Proxy-Connection"}

// rewrite makes the request to the API. The headers that belong to a connection,
// and those that a proxy adds, are gone already.
func (g *gateway) rewrite(p *httputil.ProxyRequest) {
	to, _ := p.In.Context().Value(destinationKey{}).(destination)
	query := p.Out.URL.RawQuery
	address := *to.url
	p.Out.URL, p.Out.Host = &address, ""
	p.Out.URL.RawQuery = query
	p.Out.Trailer = nil
	for _, name := range private {
		p.Out.Header.Del(name)
	}
	// The server has answered it itself.
	p.Out.Header.Del("Expect")
	// See the package comment.
	p.Out.Header.Del("Accept-Encoding")
	if to.header != "" {
		p.Out.Header.Set(to.header, to.value)
	} else if u := g.base.User; u != nil {
		password, _ := u.Password()
		p.Out.SetBasicAuth(u.Username(), password)
	}
}

// answered looks at an answer of the API before it goes back.
func (g *gateway) answered(r *http.Response) error {
	if r.StatusCode >= http.StatusBadRequest {
		g.count(func(m *ports.GatewayMeter) { m.Traffic.Failed++ })
	}
	if s := newMeterOf(g, r); s != nil {
		r.Body = &metered{ReadCloser: r.Body, meter: s}
	}
	return nil
}

// failed answers a request that got no answer from the API.
func (g *gateway) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // nobody waits for an answer
	}
	g.count(func(m *ports.GatewayMeter) { m.Traffic.Failed++ })
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		g.fail(w, http.StatusRequestEntityTooLarge, "request_too_large", "Caisson's model gateway ended this request: "+tooLarge)
		return
	}
	g.fail(w, http.StatusBadGateway, "api_error",
		fmt.Sprintf("Caisson's model gateway cannot reach the model API at %s://%s: %v", g.base.Scheme, g.base.Host, err))
}

// refuse answers a request that goes nowhere.
func (g *gateway) refuse(w http.ResponseWriter, r *http.Request, status int, kind, why string) {
	what := fmt.Sprintf("%.20q %.200q", r.Method, r.RequestURI)
	g.count(func(m *ports.GatewayMeter) {
		m.Traffic.Refused++
		m.LastRefusal = what + ": " + why
	})
	// The agents repeat what might go better the next time; this does not.
	w.Header().Set("X-Should-Retry", "false")
	g.fail(w, status, kind, "Caisson's model gateway refused this request: "+why)
}

// fail answers in the form of the API's own errors.
func (g *gateway) fail(w http.ResponseWriter, status int, kind, message string) {
	type object = map[string]any
	body := object{"type": "error", "error": object{"type": kind, "message": message}}
	if g.api.Dialect == ports.DialectOpenAI {
		body = object{"error": object{"type": kind, "message": message, "param": nil, "code": kind}}
	}
	text, _ := json.Marshal(body) // strings alone, so it cannot fail
	w.Header().Set("Content-Type", "application/json")
	// What is left of the request is not read.
	w.Header().Set("Connection", "close")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // fails only if the client is gone
}

// patience is a request's body that must not stop coming: a read that takes too
// long fails, and the server then gives up the connection.
type patience struct {
	io.Reader
	io.Closer
	conn  *http.ResponseController
	limit time.Duration
	over  atomic.Bool
}

// deadline gives the next read until then; errors mean that the connection is
// closed, which the read will find out.
func (p *patience) deadline(t time.Time) { _ = p.conn.SetReadDeadline(t) }

// Read reads with a deadline of its own. At the end the deadline is taken away:
// the server reads on to see the client leave, and that would end the answer.
func (p *patience) Read(b []byte) (int, error) {
	p.deadline(time.Now().Add(p.limit))
	n, err := p.Reader.Read(b)
	if errors.Is(err, io.EOF) {
		p.over.Store(true)
		p.deadline(time.Time{})
	}
	return n, err
}

// Close reads on for a while, as the server does, and no longer than Read.
func (p *patience) Close() error {
	if p.over.Swap(true) {
		return p.Closer.Close()
	}
	p.deadline(time.Now().Add(p.limit))
	err := p.Closer.Close()
	if err == nil {
		p.deadline(time.Time{})
	}
	return err
}
