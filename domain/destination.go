package domain

import (
	"net/netip"
	"path"
	"strconv"
	"strings"
)

// ParseDestination returns the addresses that ADDRESS:PORT stands for, as flags
// and policy files write it: localhost is 127.0.0.1 and ::1, and another name is
// refused, because it would have to be resolved now, and might lead elsewhere when
// it is used. What is not one host's gives an *[InvalidError].
func ParseDestination(s string) ([]netip.AddrPort, error) {
	texts := []string{s}
	if port, ok := strings.CutPrefix(s, "localhost:"); ok {
		texts = []string{"127.0.0.1:" + port, "[::1]:" + port}
	}
	list := make([]netip.AddrPort, 0, len(texts))
	for _, text := range texts {
		d, err := netip.ParseAddrPort(text)
		if err != nil && isHostName(text) {
			return nil, &InvalidError{
				What: "destination", Value: s, Reason: "a host's name, which may lead elsewhere later",
				Remedy: "allow the name with --allow-domain, or its address with --connect ADDRESS:PORT, for example 127.0.0.1:8080 or [::1]:8080",
			}
		}
		if err != nil || !isDestination(d) || !strings.HasSuffix(text, ":"+strconv.Itoa(int(d.Port()))) { // :080 is none
			return nil, notADestination(s)
		}
		list = append(list, netip.AddrPortFrom(d.Addr().Unmap(), d.Port()))
	}
	return list, nil
}

// ParseUnixDestination returns the path of unix:PATH, as flags and policy files write
// a unix socket that may be connected to; ok is false for what does not begin like
// that. A path that is not absolute, or not as short as it can be, gives an
// *[InvalidError].
func ParseUnixDestination(s string) (path string, ok bool, err error) {
	path, ok = strings.CutPrefix(s, "unix:")
	if ok && !isSocketPath(path) {
		return "", true, notASocketPath(path)
	}
	return path, ok, nil
}

// UnixDestinationGrant is the line of a unix destination in [SandboxPlan.Grants], by
// which [SandboxPlan.WithOrigins] names it.
func UnixDestinationGrant(path string) string { return "unix connect " + word(path) }

// isSocketPath reports whether a path can be that of one socket, wherever one stands.
func isSocketPath(s string) bool {
	return path.IsAbs(s) && path.Clean(s) == s && s != "/" && !strings.ContainsRune(s, 0)
}

func notASocketPath(s string) *InvalidError {
	return &InvalidError{
		What: "unix destination", Value: s, Reason: "not the absolute, clean path of a socket",
		Remedy: "for example unix:/run/user/1000/agent.sock; a socket without a path cannot be named",
	}
}

// isHostName reports whether an address begins with what can only be a name.
func isHostName(s string) bool {
	host, _, found := strings.Cut(s, ":")
	return found && strings.ContainsFunc(host, func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }) &&
		!strings.ContainsAny(host, "[]/@ ") && strings.Count(s, ":") == 1
}

// isDestination reports whether an address is that of one host. A link-local one of
// IPv6 is one host's on every link.
func isDestination(d netip.AddrPort) bool {
	at := d.Addr()
	return d.IsValid() && d.Port() != 0 && at.Zone() == "" &&
		!at.IsUnspecified() && !at.IsMulticast() && !(at.Is6() && at.IsLinkLocalUnicast())
}

func notADestination(s string) *InvalidError {
	return &InvalidError{
		What: "destination", Value: s, Reason: "not the address of one host, with a port",
		Remedy: "for example 127.0.0.1:8080, [::1]:8080 or localhost:8080; a name may lead elsewhere later, so resolve it yourself",
	}
}
