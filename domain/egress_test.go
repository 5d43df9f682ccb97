package domain_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestParseEgressDomain(t *testing.T) {
	for in, want := range map[string]string{
		"example.com": "example.com", "EXAMPLE.Com.": "example.com", "*.Example.COM": "*.example.com",
		"example.com:8443": "example.com:8443", "*.example.com:22": "*.example.com:22", "xn--bcher-kva.example": "xn--bcher-kva.example",
		"db": "db", "my_host.internal:1=10.1.2.3": "my_host.internal:1=10.1.2.3", "a.internal=fd00::/8,10.0.0.0/8,10.0.0.0/8": "a.internal=10.0.0.0/8,fd00::/8",
		"a.internal=10.1.2.3/32": "a.internal=10.1.2.3", "1.example.com": "1.example.com", "a.0xg": "a.0xg",
	} {
		d, err := domain.ParseEgressDomain(in)
		require.NoError(t, err, in)
		require.Equal(t, want, d.String())
		again, err := domain.ParseEgressDomain(d.String())
		require.NoError(t, err)
		require.Equal(t, d, again)
	}
	for in, reason := range map[string]string{
		"": "no name", "*": "every host", "*:443": "every host", "*.com": "top-level", "*.": "no name", "a.*.com": "no name", "*a.com": "no name",
		"example.com:": "no port", "example.com:0": "no port", "example.com:0443": "no port", "example.com:+1": "no port", "example.com:65536": "no port", "example.com:x": "no port",
		"a:1:2": "not a name with a port", "::1": "not a name with a port", "[::1]:443": "not a name with a port", "10.0.0.1": "an address", "10.0.0.1:80": "an address",
		"127.1": "odd notation", "2130706433": "odd notation", "0x7f.1": "odd notation", "a.0x7f": "odd notation", "0x": "odd notation", "1.2.3.04": "odd notation",
		"a..b": "no name", ".a": "no name", "a..": "no name", "-a.b": "no name", "a-.b": "no name", "a b": "no name", "a/b": "no name", "http://a": "a URL", "user@a": "no name",
		"bücher.example": "xn--", "a\x00b": "no name", strings.Repeat("a", 64) + ".b": "no name", strings.Repeat("a.", 127) + "b": "no name",
		"a=": "no address", "a=private": "no address", "a=10.0.0.1/8": "no address", "a=::ffff:10.0.0.1": "no address", "a=fe80::1%eth0": "no address", "a=10.0.0.0/8,": "no address",
		"localhost": "this machine", "LocalHost.:80=127.0.0.1": "this machine", "a.localhost": "this machine", "*.localhost": "this machine",
	} {
		_, err := domain.ParseEgressDomain(in)
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid, "%q", in)
		require.Contains(t, invalid.Reason, reason, "%q", in)
		require.NotEmpty(t, invalid.Remedy)
	}
	require.Equal(t, []uint16{80, 443}, testkit.EgressDomains("a.b")[0].Ports())
	require.Equal(t, []uint16{8}, testkit.EgressDomains("a.b:8")[0].Ports())
	base, wildcard := testkit.EgressDomains("*.a.b")[0].Wildcard()
	require.Equal(t, "a.b", base)
	require.True(t, wildcard)
	d, err := domain.EgressHost("a.b", 8)
	require.NoError(t, err)
	require.Equal(t, testkit.EgressDomains("a.b:8")[0], d)
}

func FuzzParseEgressDomain(f *testing.F) {
	for _, s := range []string{"example.com", "*.example.com:443", "a.b=10.0.0.0/8,fd00::1", "127.1", "bücher.example", "*", "[::1]:80", "a.b:0=,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := domain.ParseEgressDomain(s)
		if err != nil {
			return
		}
		again, err := domain.ParseEgressDomain(d.String())
		if err != nil || again.String() != d.String() {
			t.Fatalf("%q is %q, and that is %q (%v)", s, d, again, err)
		}
		if base, _ := d.Wildcard(); strings.ToLower(base) != base || strings.HasSuffix(base, ".") {
			t.Fatalf("%q has the host %q", s, base)
		}
		if _, err := netip.ParseAddr(strings.TrimPrefix(s, "*.")); err == nil {
			t.Fatalf("%q is an address", s)
		}
	})
}

func TestEgressByName(t *testing.T) {
	policy := testkit.EgressDomains("example.com", "*.example.org", "deep.example.net:8443", "*.example.net:22")
	for asked, want := range map[string]string{
		"example.com:443": "", "example.com:80": "", "example.com:8443": "on other ports", "example.com:22": "on other ports",
		"www.example.com:443": "does not allow", "notexample.com:443": "does not allow", "example.com.evil.test:443": "does not allow",
		"example.org:443": "does not allow", "a.example.org:443": "", "a.b.example.org:80": "", "aexample.org:443": "does not allow",
		"deep.example.net:8443": "", "deep.example.net:22": "", "deep.example.net:443": "on other ports", "x.example.net:8443": "on other ports",
		"com:443": "does not allow", ":443": "does not allow",
	} {
		host, port, _ := strings.Cut(asked, ":")
		n := map[string]uint16{"443": 443, "80": 80, "8443": 8443, "22": 22}[port]
		allowed, reason := domain.EgressByName(policy, host, n)
		if want == "" {
			require.Len(t, allowed, 1, asked)
			require.Empty(t, reason)
			continue
		}
		require.Empty(t, allowed, asked)
		require.Contains(t, reason, want, asked)
	}
	_, reason := domain.EgressByName([]domain.EgressDomain{{}}, "", 443)
	require.NotEmpty(t, reason, "the zero value allows nothing")
}

func TestEgressByAddress(t *testing.T) {
	const public, public6 = "93.184.216.34", "2606:2800:220:1::1"
	const own, own6 = "93.184.216.35", "2606:2800:220:1::2"
	ownAddresses := []netip.Addr{netip.MustParseAddr(own), netip.MustParseAddr(own6)}
	for _, c := range []struct{ policy, leadsTo, reason string }{
		{"a.test", public, ""},
		{"a.test", public6, ""},
		{"a.test", public + " " + public6, ""},
		{"a.test", "::ffff:" + public, ""},
		{"a.test", "", "no address"},
		{"a.test", "127.0.0.1", "this machine"},
		{"a.test", "127.9.9.9", "this machine"},
		{"a.test", "::1", "this machine"},
		{"a.test", "0.0.0.0", "no host"},
		{"a.test", "0.1.2.3", "this machine"},
		{"a.test", "::", "no host"},
		{"a.test", "10.0.0.1", "private"},
		{"a.test", "172.31.255.255", "private"},
		{"a.test", "172.32.0.1", ""},
		{"a.test", "192.168.1.1", "private"},
		{"a.test", "fd12::1", "private"},
		{"a.test", "169.254.1.1", "link-local"},
		{"a.test", "fe80::1", "link-local"},
		{"a.test", "fe80::1%eth0", "no public"},
		{"a.test", public6 + "%eth0", "no public"},
		{"a.test", "100.64.0.1", "NAT"},
		{"a.test", "100.128.0.1", ""},
		{"a.test", "64:ff9b::7f00:1", "NAT64"},
		{"a.test", "64:ff9b::" + public, "NAT64"},
		{"a.test", "64:ff9b:1::1", "NAT64"},
		{"a.test", "2002:7f00:1::", "6to4"},
		{"a.test", "2001:0:7f00:1::", "Teredo"},
		{"a.test", "2001:2::1", "protocols"},
		{"a.test", "2001:db8::1", "examples"},
		{"a.test", "3fff::1", "examples"},
		{"a.test", "192.0.0.8", "protocols"},
		{"a.test", "192.88.99.1", "6to4"},
		{"a.test", "198.18.0.1", "measurements"},
		{"a.test", "203.0.113.1", "examples"},
		{"a.test", "224.0.0.1", "no host"},
		{"a.test", "ff02::1", "no host"},
		{"a.test", "255.255.255.255", "no host"},
		{"a.test", "240.0.0.1", "reserved"},
		{"a.test", "::ffff:127.0.0.1", "this machine"},
		{"a.test", "::7f00:1", "no public"},
		{"a.test", "4000::1", "no public"},
		{"a.test", "169.254.169.254", "credentials"},
		{"a.test", "fd00:ec2::254", "credentials"},
		{"a.test", "100.100.100.200", "credentials"},
		{"a.test", "168.63.129.16", "credentials"},
		{"a.test=169.254.0.0/16", "169.254.170.2", "this very address"},
		{"a.test=169.254.0.0/16", "169.254.170.23", "this very address"},
		{"a.test=fd00::/8", "fd00:ec2::23", "this very address"},
		{"a.test", own, "this machine"},
		{"a.test", "::ffff:" + own, "this machine"},
		{"a.test", own6, "this machine"},
		{"a.test", public + " " + own, "this machine"},
		{"a.test=" + own, own, ""},
		{"a.test", public + " 10.0.0.1", "private"},
		{"a.test", "10.0.0.1 " + public, "private"},
		{"a.test=10.0.0.0/8", "10.0.0.1", ""},
		{"a.test=10.0.0.0/8", "::ffff:10.0.0.1", ""},
		{"a.test=10.0.0.0/8", "11.0.0.1", "none of the addresses"},
		{"a.test=10.0.0.0/8", "10.0.0.1 11.0.0.1", "none of the addresses"},
		{"a.test=10.0.0.0/8", public, "none of the addresses"},
		{"a.test=10.0.0.0/8,fd00::/8", "10.0.0.1 fd00::1", ""},
		{"a.test=fd00::/8", "fd00:ec2::254", "this very address"},
		{"a.test=169.254.0.0/16", "169.254.169.254", "this very address"},
		{"a.test=169.254.169.254", "169.254.169.254", ""},
		{"a.test=127.0.0.1", "127.0.0.1", ""},
		{"a.test=127.0.0.1", "127.0.0.2", "none of the addresses"},
		{"a.test=0.0.0.0/0", "0.0.0.0", "no host"},
		{"a.test=0.0.0.0/0", "255.255.255.255", "no host"},
		{"a.test=ff00::/8", "ff02::1", "no host"},
		// One of several must allow all.
		{"a.test a.test=10.0.0.0/8", public, ""},
		{"a.test a.test=10.0.0.0/8", "10.0.0.1", ""},
		{"a.test a.test=10.0.0.0/8", public + " 10.0.0.1", "none of the addresses"},
		{"", public, "does not allow"},
	} {
		var addresses []netip.Addr
		for s := range strings.FieldsSeq(c.leadsTo) {
			addresses = append(addresses, netip.MustParseAddr(s))
		}
		reason := domain.EgressByAddress(testkit.EgressDomains(strings.Fields(c.policy)...), addresses, ownAddresses)
		if c.reason == "" {
			require.Empty(t, reason, "%+v", c)
			continue
		}
		require.Contains(t, reason, c.reason, "%+v", c)
	}
}

func TestEgressDecisionInALine(t *testing.T) {
	require.Equal(t, "allowed a.test:443", domain.EgressDecision{Host: "a.test", Port: 443, Allowed: true}.String())
	require.Equal(t, `refused "a\nb":1: why`, domain.EgressDecision{Host: "a\nb", Port: 1, Reason: "why"}.String())
}

func TestPlanWithDomains(t *testing.T) {
	a, b := testkit.EgressDomains("b.test:8=10.0.0.1", "a.test", "a.test"), testkit.EgressDomains("c.test")
	plan := domain.NewSandboxPlan("p")
	require.False(t, plan.Requests(domain.PropertyDestinations))
	with := domain.Policy{Domains: a}.With(domain.Policy{Domains: b}).Apply(plan).WithOrigins(map[string]string{"domain a.test": "--allow-domain"})
	require.NoError(t, with.Validate())
	require.True(t, with.Requests(domain.PropertyDestinations))
	require.Equal(t, testkit.EgressDomains("a.test", "b.test:8=10.0.0.1", "c.test"), with.EgressDomains(), "sorted, each once")
	require.NotEqual(t, plan.Digest(), with.Digest())
	require.Equal(t, with.Digest(), plan.WithEgressDomains(b...).WithEgressDomains(a...).Digest())
	require.NotEqual(t, with.Digest(), with.WithEgressDomains(testkit.EgressDomains("d.test")...).Digest())
	require.Contains(t, with.String(), "  domains          a.test b.test:8=10.0.0.1 c.test  # a.test: --allow-domain\n")
	require.Equal(t, []string{"domain a.test", "domain b.test:8=10.0.0.1", "domain c.test"}, with.Grants())

	rule := domain.EnvRule{Name: "HTTPS_PROXY", Value: "http://secret@", Literal: true, Secret: true, Why: "egress proxy"}
	open := with.WithEgressProxy(4444, rule)
	require.Equal(t, uint16(4444), open.EgressPort())
	require.Equal(t, []domain.EnvRule{rule}, open.EgressEnv())
	require.Equal(t, with.Digest(), open.Digest(), "port and secret are others each time")
	require.Contains(t, open.String(), "HTTPS_PROXY  # egress proxy")
	require.NotContains(t, open.String(), "secret@")
	require.Equal(t, []string{"HTTPS_PROXY=http://secret@"}, open.Environ(nil))
	require.Equal(t, []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:4444")}, open.ReachableDestinations())
	require.Len(t, open.WithModelGateway(5555).ReachableDestinations(), 2)
	none := open.WithoutDestinations()
	require.Empty(t, none.EgressDomains())
	require.Empty(t, none.ReachableDestinations())
	require.False(t, none.Requests(domain.PropertyDestinations))

	require.Error(t, domain.Unconfined("why").WithEgressDomains(b...).Validate(), "nothing would enforce them")
	require.Error(t, plan.WithEgressDomains(domain.EgressDomain{}).Validate())
	require.Contains(t, domain.Receipt{Enforcer: "e", Domains: plan.WithEgressDomains(a...).EgressNames()}.String(), "domains a.test b.test:8=10.0.0.1")
	change := domain.Change{Domains: b}
	require.False(t, change.IsZero())
	require.Equal(t, "the domain c.test", change.String())
}
