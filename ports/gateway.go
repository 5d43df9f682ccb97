package ports

import (
	"context"
	"net/netip"
	"net/url"
	"strings"

	"github.com/caisson-run/caisson/domain"
)

// ModelGateway opens gateways: each stands between one session's agent and its
// model API, so that the agent needs neither the network nor the API's
// credential. It is safe for concurrent use.
type ModelGateway interface {
	// Open opens a gateway on a TCP port of the loopback interface. It contacts
	// nobody. ctx bounds the opening alone. An API that cannot be stood in for
	// is a *domain.InvalidError. The caller closes the gateway.
	Open(ctx context.Context, spec GatewaySpec) (Gateway, error)
}

// GatewaySpec says whose gateway it is, and to what.
type GatewaySpec struct {
	Session domain.SessionID
	API     ModelAPI
	// Credential returns what authenticates a request at the API. It is asked
	// anew for every request and from many goroutines, so that no secret waits
	// in memory and one that is replaced counts at once. ok is false if there is
	// none, and the request then goes on without.
	//
	// An error is what the agent is told in place of an answer: it says what is
	// missing and how to help, and holds no secret.
	Credential func() (c Credential, ok bool, err error)
}

// Credential authenticates a request: Header: Scheme Secret.
type Credential struct {
	Header string // "X-Api-Key", "Authorization"
	Scheme string // "Bearer", or "" for the bare secret
	Secret string
}

// Gateway is an open gateway. It takes requests of the methods and paths in
// its API, with its token where the agent's key would be (X-Api-Key, or
// Authorization as a bearer token), and sends them to the API and nowhere else,
// with the credential in the token's place. Everything else it refuses. What
// the API answers, errors included, goes back as it is and as it comes.
//
// A gateway that fails makes requests fail, nothing else. Its methods are safe
// for concurrent use.
type Gateway interface {
	// Port is the TCP port, on 127.0.0.1.
	Port() uint16
	// BaseURL is what the agent is to use in place of the API's base URL.
	BaseURL() string
	// Token is the secret of this gateway: no other one accepts it.
	Token() string
	// Meter returns what has passed so far, also after Close.
	Meter() GatewayMeter
	// Close closes the port, ends the requests in flight, at the API too, and
	// returns when nothing of the gateway runs any more, or when ctx ends, with
	// its error; then it can be called again. Closing twice is no error.
	Close(ctx context.Context) error
}

// GatewayMeter is what has passed through a gateway since it was opened.
type GatewayMeter struct {
	Traffic domain.GatewayTraffic
	// Usage is the sum of the tokens that the API's answers report. An answer
	// that cannot be understood adds nothing.
	Usage domain.Usage
	// LastRefusal says what was refused last, "" if nothing was.
	LastRefusal string
}

// ModelAPI is the API of an agent's model, as far as a gateway has to know it.
type ModelAPI struct {
	// BaseURL is where it is: an http or https URL without query and fragment,
	// as the agent itself would use it. A user name and password in it go
	// upstream as basic authentication if there is no other credential.
	BaseURL string
	Dialect APIDialect
	// Routes are the requests that the agent makes; there are no others.
	Routes []APIRoute
	// Credentials are the ways to authenticate, by precedence, at least one.
	Credentials []APICredential
	// BaseURLEnv names the variable that leads the agent to another base URL;
	// "" if it is told on its command line, from AgentInstall.BaseURL.
	BaseURLEnv string
	// NoCredential says that the agent goes to no API, so that it needs no
	// credential: a fake does.
	NoCredential bool
	// Direct is what the agent needs beside to reach the API by itself, without
	// a gateway: the port, name resolution, variables with the credential.
	Direct PlanFragment
	// ByName takes the place of Direct where hosts can be reached by name, through
	// an egress proxy; nil is for Direct in any case.
	ByName *PlanFragment
}

// Address returns the base URL as it can be shown: without user name and
// password.
func (a ModelAPI) Address() string {
	scheme, rest, ok := strings.Cut(a.BaseURL, "://")
	if !ok {
		return "" // no base URL
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	return scheme + "://" + rest[strings.LastIndexByte(rest[:end], '@')+1:]
}

// NeedsCredential reports whether the API is sure to refuse a request without a
// credential, as far as it can be told from here: one on this machine may take
// it, and one whose base URL has a user name has a credential.
func (a ModelAPI) NeedsCredential() bool {
	base, err := url.Parse(a.BaseURL)
	// What is no URL is refused as that.
	return err == nil && !a.NoCredential && base.User == nil && !IsLoopback(base.Hostname())
}

// IsLoopback reports whether the host of a URL is this machine, as far as it can
// be told without asking anybody.
func IsLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}

// APIRoute is one kind of request. Path is what follows the base URL, as it
// stands in the request, without the query: "/v1/messages".
type APIRoute struct {
	Method string
	Path   string
}

// APICredential is one way to authenticate. Env names the variable with the
// secret, in the orchestrator's environment, and the variable in the agent's
// where the gateway's token stands instead.
type APICredential struct {
	Env    string
	Header string
	Scheme string
}

// APIDialect is the form of an API's errors and of its reports of tokens.
type APIDialect string

// The dialects. Of another one only requests are counted.
const (
	// DialectAnthropic is the Messages API (docs.anthropic.com/en/api/messages).
	DialectAnthropic APIDialect = "anthropic"
	// DialectOpenAI is the Responses API (platform.openai.com/docs/api-reference/responses).
	DialectOpenAI APIDialect = "openai"
)
