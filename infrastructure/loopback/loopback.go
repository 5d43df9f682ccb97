// Package loopback is how the orchestrator serves a confined process over HTTP: on the
// loopback interface, with bounds on what it takes, and with an end after which
// nothing runs any more.
//
// The package may import the standard library.
package loopback

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// The limits of every server, beside those of [Limits].
const (
	maxHeader   = 64 << 10
	idleTimeout = 2 * time.Minute // between two requests on a connection
)

// Limits bound what a process can take of the orchestrator.
type Limits struct {
	Connections int           // that are open at once
	Head        time.Duration // for the head of a request
}

// Server serves HTTP/1 on a free TCP port of 127.0.0.1. Its methods are safe for
// concurrent use.
type Server struct {
	listener *listener
	server   *http.Server
	cancel   context.CancelFunc
	done     chan struct{} // closed when nothing runs any more
}

// Serve begins to serve with the handler that it is given: for the lifetime of the
// server, which is that of every request's context. ctx bounds the opening alone. The
// caller closes the server.
func Serve(ctx context.Context, limits Limits, handler func(lifetime context.Context) http.Handler) (*Server, error) {
	var listen net.ListenConfig
	inner, err := listen.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	lifetime, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Server{
		listener: &listener{Listener: inner, limit: limits.Connections, open: map[*conn]struct{}{}},
		cancel:   cancel, done: make(chan struct{}),
	}
	serve := handler(lifetime)
	// What runs: connections, until they are closed or taken over, and requests.
	var running sync.WaitGroup
	// It speaks no TLS, so HTTP/2 would only take memory.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	s.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1) // beside its connection, so never from zero on
			defer running.Done()
			serve.ServeHTTP(w, r)
		}),
		Protocols: protocols, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: limits.Head, IdleTimeout: idleTimeout,
		ErrorLog:    log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return lifetime },
		// "OPTIONS *" is the handler's like everything else.
		DisableGeneralOptionsHandler: true,
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				running.Add(1)
			case http.StateClosed, http.StateHijacked:
				running.Done()
			case http.StateActive, http.StateIdle:
			}
		},
	}
	go func() {
		defer close(s.done)
		_ = s.server.Serve(s.listener) // always an error, at the latest that of Close
		running.Wait()
	}()
	return s, nil
}

// Port is the TCP port.
func (s *Server) Port() uint16 {
	addr, ok := s.listener.Addr().(*net.TCPAddr)
	if !ok {
		return 0 // the listener is of TCP
	}
	return uint16(addr.Port)
}

// Close closes the port and every connection, ends the lifetime, and returns when no
// request is served any more, or when ctx ends, with its error; then it can be called
// again. Closing twice is no error.
func (s *Server) Close(ctx context.Context) error {
	s.cancel()
	s.listener.closeAll()
	_ = s.server.Close() // what can fail is closing the listener, which is closed
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// listener bounds the connections that are open at once, and closes all of them:
// http.Server forgets one that it accepts while it is closed.
type listener struct {
	net.Listener
	limit int

	mu     sync.Mutex
	closed bool
	open   map[*conn]struct{}
}

// Accept waits for a connection. One for which there is no place is closed at
// once: the server finds it so, and lets go of it.
func (l *listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: inner, of: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.open) >= l.limit {
		_ = inner.Close()
		return c, nil
	}
	l.open[c] = struct{}{}
	return c, nil
}

func (l *listener) closeAll() {
	_ = l.Close()
	l.mu.Lock()
	l.closed = true
	open := make([]*conn, 0, len(l.open))
	for c := range l.open {
		open = append(open, c)
	}
	l.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

type conn struct {
	net.Conn
	of *listener
}

// Close frees the connection's place.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite closes the connection for writing alone.
func (c *conn) CloseWrite() error {
	if inner, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return inner.CloseWrite()
	}
	return nil // the listener is of TCP
}
