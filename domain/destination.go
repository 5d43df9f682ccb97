package domain

import (
	"net/netip"
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
		if err != nil || !isDestination(d) || !strings.HasSuffix(text, ":"+strconv.Itoa(int(d.Port()))) { // :080 is none
			return nil, notADestination(s)
		}
		list = append(list, netip.AddrPortFrom(d.Addr().Unmap(), d.Port()))
	}
	return list, nil
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
