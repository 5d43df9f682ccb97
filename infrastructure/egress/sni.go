package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"github.com/caisson-run/caisson/domain"
)

// A record of TLS begins with its type: of a change of the cipher, an alert, a
// handshake, data or a heartbeat (iana.org, "TLS ContentType"). Servers pass over a
// warning that comes before the handshake, so TLS can begin with others too.
const firstType, lastType = 20, 26

var errUnreadable = errors.New("the beginning of its TLS cannot be read")

// peek reads the beginning of what a client says. If it is TLS, it returns the name
// of the host in it, "" if it has none. first is all that was read, for the host.
func peek(ctx context.Context, from *bufio.Reader) (first io.Reader, sni string, err error) {
	head, err := from.Peek(1)
	switch {
	case errors.Is(err, io.EOF):
		return new(bytes.Reader), "", nil // the host may still speak
	case err != nil:
		return nil, "", err
	case head[0] < firstType || head[0] > lastType:
		return new(bytes.Reader), "", nil
	}
	read := new(bytes.Buffer)
	// The standard library's reader of TLS stops where its configuration is chosen.
	heard := errors.New("heard")
	conn := &listening{from: io.TeeReader(from, read)}
	server := tls.Server(conn, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			sni = hello.ServerName
			return nil, heard
		},
	})
	switch err := server.HandshakeContext(ctx); {
	case errors.Is(err, heard):
	case conn.err != nil:
		return nil, "", conn.err // the client has left in the middle of it
	default:
		return nil, "", errUnreadable
	}
	if sni != "" {
		name, reason := domain.ParseHostName(sni)
		if reason != "" {
			name = sni // and so none that was allowed
		}
		sni = name
	}
	return read, sni, nil
}

// listening is a connection on which nothing is said.
type listening struct {
	from io.Reader
	err  error // of the last reading
}

var _ net.Conn = (*listening)(nil)

func (l *listening) Read(b []byte) (n int, err error) {
	n, err = l.from.Read(b)
	l.err = err
	return n, err
}

func (*listening) Write(b []byte) (int, error)      { return len(b), nil }
func (*listening) Close() error                     { return nil }
func (*listening) LocalAddr() net.Addr              { return nil }
func (*listening) RemoteAddr() net.Addr             { return nil }
func (*listening) SetDeadline(time.Time) error      { return nil }
func (*listening) SetReadDeadline(time.Time) error  { return nil }
func (*listening) SetWriteDeadline(time.Time) error { return nil }
