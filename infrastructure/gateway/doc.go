// Package gateway implements ports.ModelGateway: a reverse proxy on the
// loopback interface, one per session, between a confined agent and the API of
// its model. The agent is given the proxy's address and a token; the API's
// credential stays with the orchestrator.
//
// What the agent sends is hostile. It cannot choose where a request goes: the
// API's address is fixed when the gateway is opened, and a request must have the
// method and, byte for byte, the path of one of the agent's routes. There is
// nothing to decode, so neither "..", nor "%2f", nor "//", nor an absolute URI
// leads anywhere. Headers that authenticate are taken out of every request, and
// protocol upgrades, CONNECT and anything without the token are refused.
//
// Requests and answers stream through in small pieces, and answers are flushed
// at once. The gateway asks the API for uncompressed answers: a compressed
// stream of events arrives in lumps, and what is passed on unchanged could not
// be metered. An answer that is compressed nevertheless passes unchanged, and
// its tokens are not counted.
//
// Tokens are counted in a copy of the answer as it passes, by a scanner with a
// fixed size that keeps nothing of the text. Redirects are not followed but
// handed back, like every other answer, errors included.
//
// The API is reached as Go programs do it: certificates are checked against the
// system's roots, and HTTPS_PROXY, HTTP_PROXY and NO_PROXY of the orchestrator's
// own environment count.
//
// The package may import domain, ports and the standard library.
package gateway
