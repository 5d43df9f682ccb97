// Package egress implements ports.EgressProxy: a forward proxy on the loopback
// interface, one per session, between confined programs and the hosts that the
// session's plan allows by name.
//
// What the programs send is hostile. A host's name is brought into one form and held
// against the plan; then it is resolved once, and every address that it leads to
// must be allowed: public, or among those that the plan has for it. The connection
// is made to one of those very addresses, so there is no second resolution that an
// attacker's server could answer otherwise (rebinding). Which names mean what is in
// domain, as one table.
//
// TLS is not opened, so what is said to an allowed host, and to which of the sites
// behind its address, stays the program's and the host's. But the name in the
// clear at the beginning of TLS (SNI) must be the one that was asked for.
//
// Plain requests go on one connection each, with the headers of the connection
// taken out, and the host of the request's target as their Host: the one that the
// program sends does not count (RFC 9112, section 3.2.2). Protocol upgrades are
// refused; a websocket goes through CONNECT.
//
// The hosts are reached directly: the orchestrator's own HTTPS_PROXY does not
// count.
//
// The package may import domain, ports, loopback, x/net/publicsuffix and the
// standard library.
package egress
