package ports

import (
	"context"

	"github.com/caisson-run/caisson/domain"
)

// EgressProxy opens egress proxies: each lets the programs of one session reach the
// hosts that its plan allows by name, and resolves the names itself, so that the
// session needs neither the network nor DNS. It is safe for concurrent use.
type EgressProxy interface {
	// Check refuses domains that allow more than a person would expect, such as
	// everybody's hosts below a public suffix, with a *domain.InvalidError. It
	// contacts nobody.
	Check(domains []domain.EgressDomain) error
	// Open opens a proxy on a TCP port of the loopback interface. It contacts
	// nobody. ctx bounds the opening alone. What Check refuses it refuses too. The
	// caller closes the proxy.
	Open(ctx context.Context, spec EgressSpec) (Egress, error)
}

// EgressSpec says whose proxy it is, and what it lets through.
type EgressSpec struct {
	Session domain.SessionID
	Domains []domain.EgressDomain
	// Decided is told of every decision, as it is made, from many goroutines; it
	// must not block. What has not the proxy's secret is not decided about. Nil
	// tells nobody.
	Decided func(domain.EgressDecision)
}

// Egress is an open proxy. It takes CONNECT, and other requests whose target is
// an absolute URI of http, with its secret as basic authentication
// (Proxy-Authorization); without, it answers 407. A host is decided about by
// [domain.EgressByName], then resolved once, all of its addresses decided about by
// [domain.EgressByAddress], and connected to at one of these very addresses. What
// is refused gets 403, and a text that says why and what would allow it; what
// cannot be reached gets 502. What the host then says goes back as it comes.
//
// A proxy that fails makes connections fail, nothing else. Its methods are safe for
// concurrent use.
type Egress interface {
	// Port is the TCP port, on 127.0.0.1.
	Port() uint16
	// URL is the proxy's, as clients take it: with the secret in it, which no other
	// proxy accepts.
	URL() string
	// Meter returns what has passed so far, also after Close.
	Meter() EgressMeter
	// Close closes the port, ends what is in flight, and returns when nothing of the
	// proxy runs any more, or when ctx ends, with its error; then it can be called
	// again. Closing twice is no error.
	Close(ctx context.Context) error
}

// EgressMeter is what has passed through a proxy since it was opened.
type EgressMeter struct {
	Allowed      int64 // connections that were made, or tried
	Refused      int64
	Failed       int64 // of Allowed: those that could not be made
	Unauthorized int64 // requests without the proxy's secret
	Sent         int64 // bytes to the hosts
	Received     int64 // bytes from the hosts
}
