// Package loopback has the listener of what the orchestrator serves to a confined
// process: on the loopback interface, with a bound on the connections, and closed
// with all of them.
//
// The package may import the standard library.
package loopback

import (
	"context"
	"net"
	"sync"
)

// Listener bounds the connections that are open at once, and closes all of
// them: http.Server forgets one that it accepts while it is closed. Its methods are
// safe for concurrent use.
type Listener struct {
	net.Listener
	limit int

	mu     sync.Mutex
	closed bool
	open   map[*conn]struct{}
}

// Listen listens on a free TCP port of 127.0.0.1, for at most limit connections at a
// time. The caller closes it with CloseAll.
func Listen(ctx context.Context, limit int) (*Listener, error) {
	var listen net.ListenConfig
	inner, err := listen.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return &Listener{Listener: inner, limit: limit, open: map[*conn]struct{}{}}, nil
}

// Port is the TCP port.
func (l *Listener) Port() uint16 {
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return 0 // the listener is of TCP
	}
	return uint16(addr.Port)
}

// Accept waits for a connection. One for which there is no place is closed at
// once: the server finds it so, and lets go of it.
func (l *Listener) Accept() (net.Conn, error) {
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

// CloseAll closes the listener and every connection that is open. It can be called
// again.
func (l *Listener) CloseAll() {
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
	of *Listener
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
