package egress

import (
	"bufio"
	"context"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"time"
)

func asRefusal(err error, r **refusal) bool { return errors.As(err, r) }

// ServeHTTP takes one request of a confined program's.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.authorized(r.Header) {
		p.unauthorized.Add(1)
		// Not every client sends its secret before it is asked (git does not).
		w.Header().Set("Proxy-Authenticate", `Basic realm="Caisson's egress proxy"`)
		answer(w, http.StatusProxyAuthRequired, "Caisson's egress proxy is its session's alone; the secret is in HTTPS_PROXY.")
		return
	}
	switch {
	case r.Method == http.MethodConnect:
		p.tunnel(w, r)
	case r.URL.Scheme != "http" || r.URL.Host == "" || r.URL.Opaque != "":
		w.Header().Set("Connection", "close")
		answer(w, http.StatusBadRequest, "This is Caisson's egress proxy: it takes CONNECT, and the absolute URI of an http request.")
	case len(r.Header["Upgrade"]) > 0:
		w.Header().Set("Connection", "close")
		answer(w, http.StatusNotImplemented, "Caisson's egress proxy passes no upgrade of a plain request on: use CONNECT.")
	default:
		p.plain(w, r)
	}
}

// plain serves a plain request. It connects by itself, and not when http.Transport
// asks: that goes on connecting for a client that has left, and for a proxy that is
// closed, so that nothing would bound how many connections are being made.
func (p *proxy) plain(w http.ResponseWriter, r *http.Request) {
	host, err := p.reach(r.Context(), r.URL.Host, defaultPort)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	defer func() { _ = host.Close() }() // the transport may have closed it
	var once atomic.Pointer[net.Conn]
	once.Store(&host)
	p.forward.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), reached{}, &once)))
}

// reached is the key of the connection that a plain request goes on.
type reached struct{}

// made gives out the connection of a plain request, to the first who asks.
func made(ctx context.Context, _, _ string) (net.Conn, error) {
	if once, ok := ctx.Value(reached{}).(*atomic.Pointer[net.Conn]); ok {
		if conn := once.Swap(nil); conn != nil {
			return *conn, nil
		}
	}
	return nil, errors.New("the connection of the request is used up")
}

// authorized reports whether a request has the secret. The comparison takes the same
// time for every secret.
func (p *proxy) authorized(h http.Header) bool {
	scheme, encoded, _ := strings.Cut(h.Get("Proxy-Authorization"), " ")
	text, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	_, token, _ := strings.Cut(string(text), ":")
	return err == nil && strings.EqualFold(scheme, "Basic") && subtle.ConstantTimeCompare([]byte(token), []byte(p.token)) == 1
}

// rewrite makes the request to the host. The headers that belong to a connection are
// gone already, the proxy's secret among them.
func (p *proxy) rewrite(r *httputil.ProxyRequest) {
	r.Out.Host = "" // the target's
	r.Out.URL.User = nil
	host, port, _ := target(r.Out.URL.Host, defaultPort) // it was allowed
	r.Out.URL.Host = host
	if port != defaultPort {
		r.Out.URL.Host = fmt.Sprintf("%s:%d", host, port)
	}
	r.Out.Header.Del("Expect") // the server has answered it itself
}

const defaultPort = 80

// failed answers a plain request that got no answer.
func (p *proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // nobody waits for an answer
	}
	status, text := p.explain(err)
	w.Header().Set("Connection", "close") // what is left of the request is not read
	answer(w, status, text)
}

// explain says to a program why it gets nothing.
func (p *proxy) explain(err error) (status int, text string) {
	refused := (*refusal)(nil)
	if !asRefusal(err, &refused) {
		return http.StatusBadGateway, fmt.Sprintf("Caisson's egress proxy cannot reach the host: %v", err)
	}
	names := make([]string, 0, len(p.domains))
	for _, d := range p.domains {
		names = append(names, d.String())
	}
	return http.StatusForbidden, fmt.Sprintf("Caisson refused a connection to %v. The policy allows %s. Whoever runs Caisson can allow more with --allow-domain HOST:PORT, or network.domains in a policy file; the private addresses of a host are named behind it: HOST:PORT=ADDRESS.",
		refused, strings.Join(names, ", "))
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", fmt.Sprint(len(text)+1))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // fails only if the client is gone
}

// tunnel serves CONNECT.
func (p *proxy) tunnel(w http.ResponseWriter, r *http.Request) {
	host, err := p.reach(r.Context(), r.RequestURI, 0)
	taken, ok := w.(http.Hijacker)
	if !ok {
		panic("egress: a connection that cannot be taken over") // HTTP/1 alone is served
	}
	client, buffered, hijacked := taken.Hijack()
	if hijacked != nil {
		if host != nil {
			_ = host.Close()
		}
		return // the client is gone
	}
	defer func() { _ = client.Close() }() // nobody is left to tell
	if err != nil {
		status, text := p.explain(err)
		// By hand: what most clients show of a refused tunnel is the reason phrase.
		phrase := http.StatusText(status)
		if refused := (*refusal)(nil); asRefusal(err, &refused) {
			phrase = fmt.Sprintf("Caisson refused %v", refused)
		}
		_, _ = fmt.Fprintf(client, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n",
			status, phrase, len(text)+1, text)
		_ = closeWrite(client)
		_ = client.SetReadDeadline(time.Now().Add(linger))
		_, _ = io.Copy(io.Discard, client) // else the answer could be lost with the connection
		return
	}
	defer func() { _ = host.Close() }()
	stop := context.AfterFunc(p.lifetime, func() { _ = host.Close() })
	defer stop()
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	name, port, _ := target(r.RequestURI, 0) // it was allowed
	p.join(client, buffered.Reader, host, name, port)
}

// join passes on what the two say, until the host has closed, or the client's TLS
// names another host.
func (p *proxy) join(client net.Conn, from *bufio.Reader, host net.Conn, name string, port uint16) {
	up := make(chan struct{})
	go func() {
		defer close(up)
		first, sni, err := peek(p.lifetime, from)
		switch {
		case errors.Is(err, errUnreadable):
			err = p.refuse(name, port, err.Error())
			_, _ = client.Write(accessDenied)
		case err == nil && sni != "" && sni != name:
			err = p.refuse(sni, port, "the name in the TLS of a connection that was allowed to "+name)
			_, _ = client.Write(accessDenied)
		case err == nil:
			_, err = io.Copy(host, io.MultiReader(first, from))
		}
		if err == nil {
			err = closeWrite(host)
		}
		if err != nil {
			_ = host.Close()
		}
	}()
	_, _ = io.Copy(client, host) // either of them may leave at any time
	_ = closeWrite(client)
	over := time.Now().Add(linger)
	_ = client.SetReadDeadline(over)
	_ = host.SetWriteDeadline(over) // a host that reads no more holds nobody
	<-up
}

// accessDenied is a fatal alert of TLS of that name (RFC 8446, section 6).
var accessDenied = []byte{21, 3, 1, 0, 2, 2, 49}
