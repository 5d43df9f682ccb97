// Package ports holds the driven interfaces of the hexagon: what the
// application needs from the kernel, from processes, from agents and from
// storage, in the domain's terms. (Some codebases call inbound handlers
// "ports"; here they are outbound.) Each contract stands in the interface's
// comment, and portstest has kits that check it.
//
// No signature mentions a thread, a descriptor, an exec.Cmd or a type of
// x/sys. The package may import domain and the standard library's pure parts.
package ports
