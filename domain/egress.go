package domain

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// EgressDomain lets a session's egress proxy connect to hosts by their name: one
// host, or with a wildcard the subdomains of one, on one port, or on 443 and 80.
// It is an immutable value, made by [ParseEgressDomain]; the zero value allows
// nothing.
type EgressDomain struct {
	host     string // lower case; of a wildcard what follows "*."
	wildcard bool
	port     uint16 // 0 for 443 and 80
	// within is where the name must lead, if not to public addresses.
	within []netip.Prefix
}

// ParseEgressDomain reads HOST[:PORT][=ADDRESS[,ADDRESS…]], as flags and policy
// files write it. *.example.com are all subdomains of example.com, at any depth,
// and not example.com itself. Without a port it is 443 and 80. An ADDRESS, which
// may be one of a network (10.0.0.0/8), says that the name leads there and nowhere
// else, which is how a host in a private network is allowed; without it, the name
// must lead to public addresses. Upper case and one dot at the end do not count.
// What would allow another thing than it seems to gives an *[InvalidError].
func ParseEgressDomain(s string) (EgressDomain, error) {
	bad := func(reason, remedy string) (EgressDomain, error) {
		return EgressDomain{}, &InvalidError{What: "domain", Value: s, Reason: reason, Remedy: remedy}
	}
	var d EgressDomain
	name, within, named := strings.Cut(s, "=")
	if host, port, ok := strings.Cut(name, ":"); ok {
		if strings.HasPrefix(port, "//") {
			return bad("a URL, and no host", "name the host alone: example.com or example.com:8443")
		}
		if strings.Contains(port, ":") {
			return bad("not a name with a port", "an address goes into connect: [::1]:8080")
		}
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || strconv.FormatUint(n, 10) != port {
			return bad("no port number behind its colon", "1 to 65535; without a port it is 443 and 80")
		}
		name, d.port = host, uint16(n)
	}
	if name == "*" {
		return bad("it would allow every host", "name the domains, or grant ports with connect-tcp")
	}
	base, wildcard := strings.CutPrefix(name, "*.")
	host, reason := ParseHostName(base)
	if reason != "" {
		return bad(reason, "for example example.com, *.example.com:8443 or db.internal.example:5432=10.0.0.0/8")
	}
	switch {
	case host == "localhost" || strings.HasSuffix(host, ".localhost"):
		return bad("most programs reach this machine without a proxy, whatever they are told", "use connect: localhost:8080")
	case wildcard && !strings.Contains(host, "."):
		return bad("it would allow everybody's hosts below a top-level domain", "name the domains")
	}
	d.host, d.wildcard = host, wildcard
	if !named {
		return d, nil
	}
	for text := range strings.SplitSeq(within, ",") {
		prefix, err := netip.ParsePrefix(text)
		if address, isAddress := netip.ParseAddr(text); isAddress == nil && address.Zone() == "" {
			prefix, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil || prefix.Addr().Is4In6() || prefix != prefix.Masked() {
			return bad(quote(text)+" is no address and no network", "for example 10.1.2.3, 10.0.0.0/8 or fd00::/8")
		}
		d.within = append(d.within, prefix)
	}
	slices.SortFunc(d.within, netip.Prefix.Compare)
	d.within = slices.Compact(d.within)
	return d, nil
}

// Limits of DNS (RFC 1035, section 2.3.4).
const (
	maxHostName = 253
	maxLabel    = 63
)

// ParseHostName returns a host's name in the one form in which names are compared:
// lower case, without a dot at the end; otherwise why it is none. An address is
// none, in whatever notation a system's resolver would take it.
func ParseHostName(s string) (host, reason string) {
	host = strings.ToLower(strings.TrimSuffix(s, "."))
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return "", "an address and no name, so it is for connect: ADDRESS:PORT"
	}
	if host == "" || len(host) > maxHostName {
		return "", "no name of a host"
	}
	last := ""
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > maxLabel || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return "", "no name of a host"
		}
		for _, r := range label {
			switch {
			case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			case r > '~':
				return "", "not in the form of DNS: write the letters beyond ASCII as xn--…"
			default:
				return "", "no name of a host"
			}
		}
		last = label
	}
	// What ends in a number is read as an address of IPv4, by inet_aton(3) and by
	// browsers (url.spec.whatwg.org, "ends in a number").
	if digits, hex := strings.CutPrefix(last, "0x"); strings.Trim(last, "0123456789") == "" || hex && strings.Trim(digits, "0123456789abcdef") == "" {
		return "", "an address in an odd notation, and no name"
	}
	return host, ""
}

// EgressHost allows one host on one port.
func EgressHost(host string, port uint16) (EgressDomain, error) {
	return ParseEgressDomain(host + ":" + strconv.Itoa(int(port)))
}

// String is the canonical form, which [ParseEgressDomain] reads.
func (d EgressDomain) String() string {
	s := d.host
	if d.wildcard {
		s = "*." + s
	}
	if d.port != 0 {
		s += ":" + strconv.Itoa(int(d.port))
	}
	for i, p := range d.within {
		text := p.String()
		if p.IsSingleIP() {
			text = p.Addr().String()
		}
		s += string("=,"[min(i, 1)]) + text
	}
	return s
}

// Wildcard returns the domain whose subdomains are allowed, if it is about such.
func (d EgressDomain) Wildcard() (base string, ok bool) { return d.host, d.wildcard }

// Ports returns the ports.
func (d EgressDomain) Ports() []uint16 {
	if d.port == 0 {
		return []uint16{80, 443}
	}
	return []uint16{d.port}
}

// names reports whether it is about the host.
func (d EgressDomain) names(host string) bool {
	if d.wildcard {
		return strings.HasSuffix(host, "."+d.host)
	}
	return d.host != "" && host == d.host
}

// refuses says why the name must not lead to the address, "" if it may.
func (d EgressDomain) refuses(at netip.Addr) string {
	if at.IsUnspecified() || at.IsMulticast() || at == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return "the address of no host"
	}
	if d.within == nil {
		return NotPublic(at)
	}
	metadata := slices.Contains(metadataAddresses, at)
	for _, p := range d.within {
		if p.Contains(at) && (!metadata || p.IsSingleIP()) {
			return ""
		}
	}
	if metadata {
		return "where a cloud gives out its credentials, which only a policy allows that names this very address"
	}
	return "none of the addresses that the policy has for it"
}

// EgressByName returns those of the domains that allow to connect to the host on the
// port, as far as the name says; otherwise why none does. The host's name is
// in the form of [ParseHostName].
func EgressByName(domains []EgressDomain, host string, port uint16) (allowed []EgressDomain, reason string) {
	named := false
	for _, d := range domains {
		if !d.names(host) {
			continue
		}
		named = true
		if slices.Contains(d.Ports(), port) {
			allowed = append(allowed, d)
		}
	}
	switch {
	case len(allowed) > 0:
		return allowed, ""
	case named:
		return nil, fmt.Sprintf("the policy allows this domain on other ports than %d", port)
	}
	return nil, "the policy does not allow this domain"
}

// EgressByAddress says why a host with these addresses is refused, "" if it is not.
// One of the domains, which allow it by its name, must allow all of the
// addresses: a name that leads to a good and to a bad one is what an attack looks
// like. An IPv4 address that is mapped into IPv6 counts as itself. own are the
// addresses of this machine: what listens there may take who connects for one of
// its own, so they count as public ones no more than loopback does.
func EgressByAddress(allowed []EgressDomain, addresses, own []netip.Addr) (reason string) {
	if len(addresses) == 0 {
		return "it has no address"
	}
	reason = "the policy does not allow this domain"
	for _, d := range allowed {
		reason = ""
		for _, at := range addresses {
			why := d.refuses(at.Unmap())
			if why == "" && d.within == nil && slices.Contains(own, at.Unmap()) {
				why = "an address of this machine"
			}
			if why != "" && reason == "" {
				reason = fmt.Sprintf("it leads to %s, %s", at.Unmap(), why)
			}
		}
		if reason == "" {
			return ""
		}
	}
	return reason
}

// metadataAddresses are where clouds give out credentials: AWS, Azure, Google and
// others at the first; AWS by IPv6; Google by IPv6; Alibaba; Azure's other one,
// which looks public; AWS to containers (ECS) and to pods (EKS).
var metadataAddresses = []netip.Addr{
	netip.AddrFrom4([4]byte{169, 254, 169, 254}), netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"),
	netip.AddrFrom4([4]byte{100, 100, 100, 200}), netip.AddrFrom4([4]byte{168, 63, 129, 16}),
	netip.AddrFrom4([4]byte{169, 254, 170, 2}), netip.AddrFrom4([4]byte{169, 254, 170, 23}), netip.MustParseAddr("fd00:ec2::23"),
}

// special are the addresses that lead to no host of the public internet, or to one
// of another family that nobody has looked at (iana.org, "Special-Purpose
// Address Registry" of IPv4 and IPv6). Of IPv6 only 2000::/3 is given out at all.
var special = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("127.0.0.0/8"), "an address of this machine"},
	{netip.MustParsePrefix("::1/128"), "an address of this machine"},
	{netip.MustParsePrefix("0.0.0.0/8"), "an address of this machine"},
	{netip.MustParsePrefix("10.0.0.0/8"), "a private address"},
	{netip.MustParsePrefix("172.16.0.0/12"), "a private address"},
	{netip.MustParsePrefix("192.168.0.0/16"), "a private address"},
	{netip.MustParsePrefix("fc00::/7"), "a private address"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("100.64.0.0/10"), "an address behind a provider's NAT"},
	{netip.MustParsePrefix("64:ff9b::/96"), "an IPv4 address in another form (NAT64)"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "an IPv4 address in another form (NAT64)"},
	{netip.MustParsePrefix("2002::/16"), "an IPv4 address in another form (6to4)"},
	{netip.MustParsePrefix("192.88.99.0/24"), "a relay of 6to4"},
	{netip.MustParsePrefix("2001::/32"), "an IPv4 address in another form (Teredo)"},
	{netip.MustParsePrefix("2001::/23"), "an address for protocols"},
	{netip.MustParsePrefix("192.0.0.0/24"), "an address for protocols"},
	{netip.MustParsePrefix("198.18.0.0/15"), "an address for measurements"},
	{netip.MustParsePrefix("192.0.2.0/24"), "an address for examples"},
	{netip.MustParsePrefix("198.51.100.0/24"), "an address for examples"},
	{netip.MustParsePrefix("203.0.113.0/24"), "an address for examples"},
	{netip.MustParsePrefix("2001:db8::/32"), "an address for examples"},
	{netip.MustParsePrefix("3fff::/20"), "an address for examples"},
	{netip.MustParsePrefix("224.0.0.0/4"), "the address of no host"},
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved address"},
}

var globalIPv6 = netip.MustParsePrefix("2000::/3")

// NotPublic says what an address is, if it is not the one of a host of the public
// internet; "" if it is. An IPv4 address that is mapped into IPv6 counts as itself.
func NotPublic(at netip.Addr) string {
	at = at.Unmap()
	if slices.Contains(metadataAddresses, at) {
		return "where a cloud gives out its credentials"
	}
	for _, s := range special {
		if s.prefix.Contains(at) {
			return s.what
		}
	}
	// A zone is a link of this machine.
	if at.Is6() && (at.Zone() != "" || !globalIPv6.Contains(at)) {
		return "no public address"
	}
	return ""
}

// EgressDecision is what became of one wish to connect.
type EgressDecision struct {
	// Host is as it was asked for: the name in its canonical form, or what is none.
	Host    string
	Port    uint16
	Allowed bool
	// Reason says why it was refused, or, of an allowed one that failed, what
	// failed.
	Reason string
}

// String says it in one line.
func (d EgressDecision) String() string {
	verb := "allowed"
	if !d.Allowed {
		verb = "refused"
	}
	s := fmt.Sprintf("%s %s:%d", verb, printable(d.Host), d.Port)
	if d.Reason != "" {
		s += ": " + printable(d.Reason)
	}
	return s
}
