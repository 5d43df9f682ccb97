package domain_test

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

// fullPlan has a value in every field.
func fullPlan() domain.SandboxPlan {
	return domain.NewSandboxPlan("coding").
		WithRules(
			domain.PathRule{Path: "/usr", Access: domain.AccessReadExec, Why: "preset"},
			domain.PathRule{Path: "/w", Access: domain.AccessReadWriteExec, Presence: domain.Optional, Why: "workspace"},
		).
		WithConnectTCP(443, 8080).WithBindTCP(3000).WithUDP(true).WithUnixSockets(domain.UnixSocketsOwn).
		WithDestinations(netip.MustParseAddrPort("[::1]:80"), netip.MustParseAddrPort("127.0.0.1:9")).
		WithEnv(
			domain.EnvRule{Name: "PATH"},
			domain.EnvRule{Name: "HOME", Value: "/w", Literal: true},
			domain.EnvRule{Name: "TOKEN", Value: "hunter2", Literal: true, Secret: true, Why: "flag"},
		).
		WithLimits(domain.Limits{MemoryBytes: 1 << 30, Pids: 100, CPUs: 1.5, WallClock: time.Minute, Idle: time.Second}).
		WithWaivers(domain.PropertySignals, domain.PropertyIPC)
}

// changes has each way to change a plan, with every field of every value.
var changes = map[string]func(domain.SandboxPlan) domain.SandboxPlan{
	"rules": func(p domain.SandboxPlan) domain.SandboxPlan {
		return p.WithRules(domain.PathRule{Path: "/new", Access: domain.AccessRead})
	},
	"connect": func(p domain.SandboxPlan) domain.SandboxPlan { return p.WithConnectTCP(1) },
	"destinations": func(p domain.SandboxPlan) domain.SandboxPlan {
		return p.WithDestinations(netip.MustParseAddrPort("10.0.0.1:1"))
	},
	"no destinations": func(p domain.SandboxPlan) domain.SandboxPlan { return p.WithoutDestinations() },
	"bind":            func(p domain.SandboxPlan) domain.SandboxPlan { return p.WithBindTCP(1) },
	"udp":             func(p domain.SandboxPlan) domain.SandboxPlan { return p.WithUDP(!p.UDP()) },
	"unix":            func(p domain.SandboxPlan) domain.SandboxPlan { return p.WithUnixSockets(domain.UnixSocketsAllow) },
	"env":             func(p domain.SandboxPlan) domain.SandboxPlan { return p.WithEnv(domain.EnvRule{Name: "NEW"}) },
	"env again": func(p domain.SandboxPlan) domain.SandboxPlan {
		return p.WithEnv(domain.EnvRule{Name: "PATH", Value: "/evil", Literal: true})
	},
	"limits":  func(p domain.SandboxPlan) domain.SandboxPlan { return p.WithLimits(domain.Limits{Pids: 7}) },
	"waivers": func(p domain.SandboxPlan) domain.SandboxPlan { return p.WithWaivers(domain.PropertyUDP) },
	"map": func(p domain.SandboxPlan) domain.SandboxPlan {
		p, _ = p.MapRules(func(r domain.PathRule) (domain.PathRule, error) {
			r.Path = "/mapped" + r.Path
			return r, nil
		})
		return p
	},
}

func TestPlanKinds(t *testing.T) {
	for name, c := range map[string]struct {
		plan                       domain.SandboxPlan
		zero, unconfined, confined bool
	}{
		"zero":       {domain.SandboxPlan{}, true, false, false},
		"unconfined": {domain.Unconfined("asked for"), false, true, false},
		"confined":   {domain.NewSandboxPlan("empty"), false, false, true},
		"full":       {fullPlan(), false, false, true},
	} {
		require.Equal(t, c.zero, c.plan.IsZero(), name)
		require.Equal(t, c.unconfined, c.plan.IsUnconfined(), name)
		require.Equal(t, c.confined, c.plan.IsConfined(), name)
	}
	require.Equal(t, "asked for", domain.Unconfined("asked for").Why())
	require.Empty(t, domain.Unconfined("asked for").Preset())
	require.Equal(t, "coding", fullPlan().Preset())
	require.Empty(t, fullPlan().Why())
}

func TestANewPlanDeniesEverything(t *testing.T) {
	p := domain.NewSandboxPlan("empty")
	require.NoError(t, p.Validate())
	require.Empty(t, p.Rules())
	require.Empty(t, p.ConnectTCP())
	require.Empty(t, p.BindTCP())
	require.False(t, p.UDP())
	require.Equal(t, domain.UnixSocketsDeny, p.UnixSockets())
	require.Empty(t, p.Env())
	require.Empty(t, p.Environ(func(string) (string, bool) { return "leaked", true }))
	require.Zero(t, p.Limits())
	require.Empty(t, p.Waivers())
}

func TestPlanAccessors(t *testing.T) {
	p := fullPlan()
	require.NoError(t, p.Validate())
	require.Equal(t, []domain.PathRule{
		{Path: "/usr", Access: domain.AccessReadExec, Why: "preset"},
		{Path: "/w", Access: domain.AccessReadWriteExec, Presence: domain.Optional, Why: "workspace"},
	}, p.Rules())
	require.Equal(t, []uint16{443, 8080}, p.ConnectTCP())
	require.Equal(t, []uint16{3000}, p.BindTCP())
	require.True(t, p.UDP())
	require.Equal(t, domain.UnixSocketsOwn, p.UnixSockets())
	require.Equal(t, []string{"PATH", "HOME", "TOKEN"}, envNames(p))
	require.Equal(t, domain.Limits{MemoryBytes: 1 << 30, Pids: 100, CPUs: 1.5, WallClock: time.Minute, Idle: time.Second}, p.Limits())
	require.Equal(t, []domain.Property{domain.PropertyIPC, domain.PropertySignals}, p.Waivers())
}

func envNames(p domain.SandboxPlan) []string {
	var names []string
	for _, e := range p.Env() {
		names = append(names, e.Name)
	}
	return names
}

// No way of using the zero plan makes a plan of it.
func TestTheZeroPlanIsRefusedEverywhere(t *testing.T) {
	zeros := map[string]domain.SandboxPlan{"zero": {}}
	for name, change := range changes {
		zeros[name] = change(domain.SandboxPlan{})
	}
	for name, p := range zeros {
		require.True(t, p.IsZero(), name)
		require.ErrorIs(t, p.Validate(), domain.ErrNoSandbox, name)
		require.Equal(t, "no sandbox plan (zero value)", p.String(), name)
		line := goodLine()
		line.Sandbox = p
		require.ErrorIs(t, line.Validate(), domain.ErrNoSandbox, name)
		var enforced []domain.PropertyStatus
		for _, prop := range domain.Properties() {
			require.False(t, p.Requests(prop))
			enforced = append(enforced, domain.PropertyStatus{Property: prop, State: domain.StateEnforced})
		}
		require.ErrorIs(t, domain.CheckStrictness(p, nil), domain.ErrNoSandbox, name)
		require.ErrorIs(t, domain.CheckStrictness(p, enforced), domain.ErrNoSandbox, name)
	}
	require.ErrorIs(t, domain.SpawnLine{}.Validate(), domain.ErrNoSandbox)
}

func TestAPlanIsNeverChanged(t *testing.T) {
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			for kind, p := range map[string]domain.SandboxPlan{
				"empty": domain.NewSandboxPlan("empty"), "full": fullPlan(), "unconfined": domain.Unconfined("asked for"),
			} {
				before := snapshot(p)
				changed := change(p)
				if kind == "full" {
					require.NotEqual(t, before, snapshot(changed), "the change is seen in the copy")
				}
				require.Equal(t, before, snapshot(p), "%s: the receiver was changed", kind)
			}
		})
	}
}

// snapshot is all that can be seen of a plan.
func snapshot(p domain.SandboxPlan) string {
	return fmt.Sprintf("%v %v %v %q %q %#v %v %v %v %v %#v %#v %v %s",
		p.IsZero(), p.IsConfined(), p.IsUnconfined(), p.Preset(), p.Why(), p.Rules(), p.ConnectTCP(), p.BindTCP(), p.UDP(), p.UnixSockets(),
		p.Env(), p.Limits(), p.Waivers(), p.Digest())
}

// Two plans made from one must not share spare room behind their slices.
func TestPlansOfOneAncestorAreIndependent(t *testing.T) {
	base := fullPlan()
	for i := range 9 { // so that some length is not a power of two
		rule := domain.PathRule{Path: fmt.Sprintf("/dir%d", i), Access: domain.AccessRead}
		base = base.WithRules(rule).WithConnectTCP(uint16(9000 + i)).WithBindTCP(uint16(9000 + i)).
			WithEnv(domain.EnvRule{Name: fmt.Sprintf("V%d", i)}).WithWaivers(domain.Properties()[i])
		before := snapshot(base)
		for nameA, a := range changes {
			first := a(base)
			was := snapshot(first)
			for _, b := range changes {
				b(base)
				require.Equal(t, was, snapshot(first), "%s changed by a sibling", nameA)
			}
		}
		require.Equal(t, before, snapshot(base))
	}
}

func TestReturnedSlicesAreCopies(t *testing.T) {
	p := fullPlan()
	before := snapshot(p)
	spoil := func(p domain.SandboxPlan) {
		for i := range p.Rules() {
			p.Rules()[i] = domain.PathRule{Path: "/", Access: domain.AccessReadWriteExec}
		}
		for i := range p.ConnectTCP() {
			p.ConnectTCP()[i] = 22
		}
		for i := range p.BindTCP() {
			p.BindTCP()[i] = 22
		}
		for i := range p.Env() {
			p.Env()[i] = domain.EnvRule{Name: "LD_PRELOAD", Value: "/evil", Literal: true}
		}
		for i := range p.Waivers() {
			p.Waivers()[i] = domain.PropertyFilesystem
		}
		rules := p.Rules()
		_ = append(rules[:0], domain.PathRule{Path: "/"})
		_ = append(rules, domain.PathRule{Path: "/"})
		_ = append(p.Env()[:0], domain.EnvRule{Name: "LD_PRELOAD"})
		slices.Reverse(p.ConnectTCP())
	}
	spoil(p)
	require.Equal(t, before, snapshot(p))
	// A room behind the slice that is given out must not be the plan's own.
	room := p.Rules()
	_ = append(room[:1:1], domain.PathRule{Path: "/"})
	room = slices.Grow(room, 4)
	_ = append(room, domain.PathRule{Path: "/"})
	require.Equal(t, before, snapshot(p))
}

func TestGivenSlicesAreCopied(t *testing.T) {
	for kind, base := range map[string]domain.SandboxPlan{"empty": domain.NewSandboxPlan("empty"), "full": fullPlan()} {
		rules := append(make([]domain.PathRule, 0, 8), domain.PathRule{Path: "/a", Access: domain.AccessRead})
		ports := append(make([]uint16, 0, 8), 9, 5)
		env := append(make([]domain.EnvRule, 0, 8), domain.EnvRule{Name: "A"})
		waivers := append(make([]domain.Property, 0, 8), domain.PropertyUDP, domain.PropertyCPU)
		p := base.WithRules(rules...).WithConnectTCP(ports...).WithBindTCP(ports...).WithEnv(env...).WithWaivers(waivers...)
		before := snapshot(p)
		require.Equal(t, []uint16{9, 5}, ports, "the caller's slice is not sorted")
		require.Equal(t, []domain.Property{domain.PropertyUDP, domain.PropertyCPU}, waivers)
		rules[0].Path, ports[0], env[0].Name, waivers[0] = "/", 22, "LD_PRELOAD", domain.PropertyFilesystem
		require.Equal(t, before, snapshot(p), kind)
		// And what is added later does not land behind the caller's slice.
		p.WithRules(domain.PathRule{Path: "/b"}).WithConnectTCP(7).WithEnv(domain.EnvRule{Name: "B"})
		require.Zero(t, rules[:2][1])
		require.Zero(t, ports[:3][2])
		require.Zero(t, env[:2][1])
	}
}

func TestPortsAndWaiversAreSets(t *testing.T) {
	p := domain.NewSandboxPlan("p").WithConnectTCP(443, 80, 443).WithConnectTCP(80, 22).WithBindTCP(3, 1, 2, 3).
		WithWaivers(domain.PropertyUDP, domain.PropertyIPC, domain.PropertyUDP).WithWaivers(domain.PropertyIPC)
	require.Equal(t, []uint16{22, 80, 443}, p.ConnectTCP())
	require.Equal(t, []uint16{1, 2, 3}, p.BindTCP())
	require.Equal(t, []domain.Property{domain.PropertyIPC, domain.PropertyUDP}, p.Waivers())
	require.Equal(t, snapshot(p), snapshot(p.WithConnectTCP().WithBindTCP().WithRules().WithEnv().WithWaivers()), "adding nothing changes nothing")
}

func TestDestinationsAreASet(t *testing.T) {
	at := netip.MustParseAddrPort
	p := domain.NewSandboxPlan("p").WithDestinations(at("[::1]:2"), at("127.0.0.1:2")).WithDestinations(at("127.0.0.1:1"), at("[::ffff:127.0.0.1]:1"))
	require.Equal(t, []netip.AddrPort{at("127.0.0.1:1"), at("127.0.0.1:2"), at("[::1]:2")}, p.Destinations(), "an address that is mapped into IPv6 is itself")
	require.Empty(t, p.WithoutDestinations().Destinations())
	p.Destinations()[0] = at("10.0.0.1:1")
	require.Equal(t, at("127.0.0.1:1"), p.Destinations()[0], "a caller gets a list of its own")
}

func TestALaterEnvironmentRuleReplacesAnEarlierOne(t *testing.T) {
	p := fullPlan().WithEnv(
		domain.EnvRule{Name: "PATH", Value: "/bin", Literal: true},
		domain.EnvRule{Name: "NEW", Value: "1", Literal: true},
		domain.EnvRule{Name: "NEW", Value: "2", Literal: true},
		domain.EnvRule{Name: "path"},
	)
	require.Equal(t, []string{"HOME", "TOKEN", "PATH", "NEW", "path"}, envNames(p))
	require.Equal(t, []string{"HOME=/w", "TOKEN=hunter2", "PATH=/bin", "NEW=2"}, p.Environ(nil))
}

func TestEnviron(t *testing.T) {
	host := map[string]string{"PATH": "/usr/bin", "EMPTY": "", "HOME": "/root", "SECRET_OF_THE_HOST": "x"}
	asked := []string{}
	lookup := func(name string) (string, bool) {
		asked = append(asked, name)
		value, ok := host[name]
		return value, ok
	}
	p := domain.NewSandboxPlan("p").WithEnv(
		domain.EnvRule{Name: "PATH"},
		domain.EnvRule{Name: "HOME", Value: "/w", Literal: true},
		domain.EnvRule{Name: "UNSET"},
		domain.EnvRule{Name: "EMPTY"},
		domain.EnvRule{Name: "NOTHING", Literal: true},
		domain.EnvRule{Name: "EQ", Value: "a=b=c\n", Literal: true},
	)
	require.Equal(t, []string{"PATH=/usr/bin", "HOME=/w", "EMPTY=", "NOTHING=", "EQ=a=b=c\n"}, p.Environ(lookup))
	require.Equal(t, []string{"PATH", "UNSET", "EMPTY"}, asked, "a literal value is not looked up")
	host["PATH"] = "/later"
	require.Equal(t, "PATH=/later", p.Environ(lookup)[0], "resolved now, not when the plan was made")
	require.Equal(t, []string{"HOME=/w", "NOTHING=", "EQ=a=b=c\n"}, p.Environ(nil))
	require.Equal(t, []string{"A=1"}, domain.Unconfined("why").WithEnv(domain.EnvRule{Name: "A", Value: "1", Literal: true}).Environ(nil))
	require.Empty(t, domain.SandboxPlan{}.Environ(lookup))
}

func TestMapRules(t *testing.T) {
	p := fullPlan()
	var seen []string
	got, err := p.MapRules(func(r domain.PathRule) (domain.PathRule, error) {
		seen = append(seen, r.Path)
		r.Path = "/real" + r.Path
		return r, nil
	})
	require.NoError(t, err)
	require.Equal(t, []string{"/usr", "/w"}, seen)
	want := p.Rules()
	want[0].Path, want[1].Path = "/real/usr", "/real/w"
	require.Equal(t, want, got.Rules())
	require.Equal(t, p.ConnectTCP(), got.ConnectTCP())
	require.Equal(t, p.Env(), got.Env())
	require.Equal(t, p.Limits(), got.Limits())
	require.NotEqual(t, p.Digest(), got.Digest())

	fault := errors.New("no such file")
	calls := 0
	got, err = p.MapRules(func(domain.PathRule) (domain.PathRule, error) {
		calls++
		return domain.PathRule{Path: "/"}, fault
	})
	require.ErrorIs(t, err, fault)
	require.Equal(t, 1, calls, "the first error stops it")
	require.True(t, got.IsZero(), "nothing that could be used")
}

func TestValidate(t *testing.T) {
	to := func(address string) domain.SandboxPlan {
		return domain.NewSandboxPlan("p").WithDestinations(netip.MustParseAddrPort(address))
	}
	ok := domain.PathRule{Path: "/w", Access: domain.AccessRead}
	rule := func(r domain.PathRule) domain.SandboxPlan { return domain.NewSandboxPlan("p").WithRules(ok, r) }
	path := func(s string) domain.SandboxPlan {
		return rule(domain.PathRule{Path: s, Access: domain.AccessRead})
	}
	env := func(e domain.EnvRule) domain.SandboxPlan { return domain.NewSandboxPlan("p").WithEnv(e) }
	limits := func(l domain.Limits) domain.SandboxPlan { return domain.NewSandboxPlan("p").WithLimits(l) }
	off := domain.Unconfined("asked for")
	for name, c := range map[string]struct {
		plan                        domain.SandboxPlan
		what, value, reason, remedy string
	}{
		"empty path":         {path(""), "path rule", "", "empty path", "name a file or a directory"},
		"NUL in path":        {path("/a\x00b"), "path rule", "/a\x00b", "NUL", "name a file or a directory"},
		"relative":           {path("src"), "path rule", "src", "not an absolute, clean path", `pass "/src"`},
		"dot":                {path("."), "path rule", ".", "not an absolute, clean path", `pass "/"`},
		"home":               {path("~/x"), "path rule", "~/x", "not an absolute, clean path", `pass "/~/x"`},
		"dotdot":             {path("/w/../etc"), "path rule", "/w/../etc", "not an absolute, clean path", `pass "/etc"`},
		"dotdot at the root": {path("/.."), "path rule", "/..", "not an absolute, clean path", `pass "/"`},
		"trailing slash":     {path("/w/"), "path rule", "/w/", "not an absolute, clean path", `pass "/w"`},
		"double slash":       {path("//w"), "path rule", "//w", "not an absolute, clean path", `pass "/w"`},
		"hostile":            {path(hostile[1:]), "path rule", hostile[1:], "not an absolute, clean path", `pass "/w/\x1b[31m\nfake`},
		"no access":          {rule(domain.PathRule{Path: "/x"}), "path rule", "/x", "access ∅ is no set of access rights", "name at least one right"},
		"undefined access": {
			rule(domain.PathRule{Path: "/x", Access: domain.AccessReadFile | 1<<20}),
			"path rule", "/x", "access {read_file,undefined} is no set of access rights", "name at least one right",
		},
		"presence":          {rule(domain.PathRule{Path: "/x", Access: 1, Presence: 2}), "path rule", "/x", "unknown presence", "required or optional"},
		"port 0":            {domain.NewSandboxPlan("p").WithConnectTCP(443, 0), "port", "0", "port 0 cannot be connected to", "1 to 65535"},
		"no destination":    {to("0.0.0.0:1"), "destination", "0.0.0.0:1", "not the address of one host", "for example 127.0.0.1:8080"},
		"destination port":  {to("127.0.0.1:0"), "destination", "127.0.0.1:0", "not the address of one host, with a port", "for example"},
		"destination zone":  {to("[fe80::1%eth0]:1"), "destination", "[fe80::1%eth0]:1", "not the address of one host", "for example"},
		"destination link":  {to("[fe80::1]:1"), "destination", "[fe80::1]:1", "not the address of one host", "for example"},
		"destination group": {to("224.0.0.1:1"), "destination", "224.0.0.1:1", "not the address of one host", "for example"},
		"zero destination":  {domain.NewSandboxPlan("p").WithDestinations(netip.AddrPort{}), "destination", "invalid AddrPort", "not the address of one host", "for example"},
		"unix sockets":      {domain.NewSandboxPlan("p").WithUnixSockets(3), "unix sockets", "3", "unknown choice", "deny, own or allow"},
		"no name":           {env(domain.EnvRule{}), "environment variable", "", "no name of a variable", "NAME or NAME=VALUE"},
		"= in name":         {env(domain.EnvRule{Name: "A=B"}), "environment variable", "A=B", "no name of a variable", "NAME or NAME=VALUE"},
		"NUL in name":       {env(domain.EnvRule{Name: "A\x00"}), "environment variable", "A\x00", "no name of a variable", "NAME or NAME=VALUE"},
		"NUL in value":      {env(domain.EnvRule{Name: "A", Value: "hunter2\x00", Literal: true}), "environment variable", "A", "a NUL byte in the value", "remove it"},
		"value not literal": {env(domain.EnvRule{Name: "A", Value: "hunter2"}), "environment variable", "A", "a value that is not literal", "set Literal"},
		"negative cpus":     {limits(domain.Limits{CPUs: -0.5}), "limit on cpus", "-0.5", "not zero or a positive", "zero means no limit"},
		"cpus NaN":          {limits(domain.Limits{CPUs: math.NaN()}), "limit on cpus", "NaN", "not zero or a positive", "zero means no limit"},
		"infinite cpus":     {limits(domain.Limits{CPUs: math.Inf(1)}), "limit on cpus", "+Inf", "not zero or a positive, finite", "zero means no limit"},
		"negative wall":     {limits(domain.Limits{WallClock: -time.Second}), "limit on wall clock", "-1s", "not zero or a positive", "zero means no limit"},
		"negative idle":     {limits(domain.Limits{Idle: -1}), "limit on idle time", "-1ns", "not zero or a positive", "zero means no limit"},
		"unknown waiver":    {domain.NewSandboxPlan("p").WithWaivers("everything"), "property", "everything", "no such property", "one of filesystem, truncate"},

		"unconfined with a rule":    {off.WithRules(ok), "plan", "unconfined", "nothing would enforce them", "leave the rules out"},
		"unconfined with connect":   {off.WithConnectTCP(1), "plan", "unconfined", "nothing would enforce them", "leave the rules out"},
		"unconfined with address":   {off.WithDestinations(netip.MustParseAddrPort("127.0.0.1:1")), "plan", "unconfined", "nothing would enforce them", "leave the rules out"},
		"unconfined with bind":      {off.WithBindTCP(1), "plan", "unconfined", "nothing would enforce them", "leave the rules out"},
		"unconfined with UDP":       {off.WithUDP(true), "plan", "unconfined", "nothing would enforce them", "leave the rules out"},
		"unconfined with sockets":   {off.WithUnixSockets(domain.UnixSocketsOwn), "plan", "unconfined", "nothing would enforce them", "leave the rules out"},
		"unconfined with a waiver":  {off.WithWaivers(domain.PropertyUDP), "plan", "unconfined", "nothing would enforce them", "leave the rules out"},
		"unconfined with bad env":   {off.WithEnv(domain.EnvRule{}), "environment variable", "", "no name of a variable", "NAME or NAME=VALUE"},
		"unconfined with bad limit": {off.WithLimits(domain.Limits{Idle: -1}), "limit on idle time", "-1ns", "not zero or a positive", "zero means no limit"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.plan.Validate()
			require.Error(t, err)
			requireInvalid(t, err, c.what, c.value, c.reason, c.remedy)
			require.NotContains(t, err.Error(), "hunter2", "a value may be a secret")
		})
	}
}

func TestValidateAccepts(t *testing.T) {
	rules := []domain.PathRule{
		{Path: "/", Access: domain.AccessRead},
		{Path: hostile, Access: domain.AccessReadWriteExec},
		{Path: "/a b  # c", Access: domain.AccessIoctlDev, Presence: domain.Optional},
		{Path: "/..a/...", Access: domain.AccessResolveUnix},
		{Path: "/w", Access: domain.AccessRead}, {Path: "/w", Access: domain.AccessRead},
	}
	for name, p := range map[string]domain.SandboxPlan{
		"empty":       domain.NewSandboxPlan(""),
		"full":        fullPlan(),
		"rules":       domain.NewSandboxPlan("p").WithRules(rules...),
		"bind port 0": domain.NewSandboxPlan("p").WithBindTCP(0), // the kernel chooses one
		"65535":       domain.NewSandboxPlan("p").WithConnectTCP(1, 65535),
		"all sockets": domain.NewSandboxPlan("p").WithUnixSockets(domain.UnixSocketsAllow),
		"all waived":  domain.NewSandboxPlan("p").WithWaivers(domain.Properties()...),
		"unconfined":  domain.Unconfined(""),
		"unconfined with environment and time limits": domain.Unconfined("asked for").WithEnv(domain.EnvRule{Name: "A"}).
			WithLimits(domain.Limits{WallClock: time.Second, Idle: time.Second}),
	} {
		require.NoError(t, p.Validate(), name)
	}
}

func TestValidateNamesEveryProblem(t *testing.T) {
	err := domain.NewSandboxPlan("p").
		WithRules(domain.PathRule{Path: "src"}, domain.PathRule{Path: "/x", Access: 1, Presence: 9}).
		WithConnectTCP(0).WithUnixSockets(7).
		WithEnv(domain.EnvRule{Name: "="}).WithLimits(domain.Limits{CPUs: -1, WallClock: -1, Idle: -1}).
		WithWaivers("nothing").Validate()
	require.Len(t, err.(interface{ Unwrap() []error }).Unwrap(), 10)
	for _, c := range [][4]string{
		{"path rule", "src", "not an absolute", "pass"}, {"path rule", "src", "access ∅", "name"}, {"path rule", "/x", "presence", "required"},
		{"port", "0", "", ""}, {"unix sockets", "7", "", ""}, {"environment variable", "=", "", ""},
		{"limit on cpus", "-1", "", ""}, {"limit on wall clock", "-1ns", "", ""}, {"limit on idle time", "-1ns", "", ""},
		{"property", "nothing", "", ""},
	} {
		requireInvalid(t, err, c[0], c[1], c[2], c[3])
	}
}

func TestRequests(t *testing.T) {
	optional := map[domain.Property]struct{ asking, notAsking domain.SandboxPlan }{
		domain.PropertyUDP: {domain.NewSandboxPlan("p"), domain.NewSandboxPlan("p").WithUDP(true)},
		domain.PropertyDestinations: {
			domain.NewSandboxPlan("p").WithDestinations(netip.MustParseAddrPort("127.0.0.1:1")), domain.NewSandboxPlan("p"),
		},
		domain.PropertyUnixSockets: {
			domain.NewSandboxPlan("p").WithUnixSockets(domain.UnixSocketsOwn),
			domain.NewSandboxPlan("p").WithUnixSockets(domain.UnixSocketsAllow),
		},
		domain.PropertyMemory: {domain.NewSandboxPlan("p").WithLimits(domain.Limits{MemoryBytes: 1}), domain.NewSandboxPlan("p")},
		domain.PropertyPids:   {domain.NewSandboxPlan("p").WithLimits(domain.Limits{Pids: 1}), domain.NewSandboxPlan("p")},
		domain.PropertyCPU:    {domain.NewSandboxPlan("p").WithLimits(domain.Limits{CPUs: 0.01}), domain.NewSandboxPlan("p")},
	}
	require.True(t, domain.NewSandboxPlan("p").Requests(domain.PropertyUnixSockets), "denied by default")
	everything := domain.NewSandboxPlan("p").WithRules(domain.PathRule{Path: "/", Access: domain.AccessReadWriteExec}).
		WithConnectTCP(1).WithBindTCP(1).WithUDP(true).WithUnixSockets(domain.UnixSocketsAllow).
		WithLimits(domain.Limits{WallClock: 1, Idle: 1}).WithWaivers(domain.Properties()...)
	for _, prop := range domain.Properties() {
		require.False(t, domain.Unconfined("").WithLimits(domain.Limits{MemoryBytes: 1, Pids: 1, CPUs: 1}).Requests(prop), prop)
		c, ok := optional[prop]
		if !ok {
			require.True(t, domain.NewSandboxPlan("p").Requests(prop), prop)
			require.True(t, everything.Requests(prop), "%s: a grant or a waiver is no wish to do without", prop)
			continue
		}
		require.True(t, c.asking.Requests(prop), prop)
		require.False(t, c.notAsking.Requests(prop), prop)
		require.False(t, everything.Requests(prop), prop)
	}
}

func TestWaives(t *testing.T) {
	for _, waived := range domain.Properties() {
		p := domain.NewSandboxPlan("p").WithWaivers(waived)
		for _, prop := range domain.Properties() {
			require.Equal(t, prop == waived, p.Waives(prop), "%s of %s", prop, waived)
			require.False(t, domain.NewSandboxPlan("p").Waives(prop))
		}
	}
}

// A plan is shown for review: each rule on one line of its own, whatever the
// paths and reasons are made of.
func TestPlanString(t *testing.T) {
	require.Equal(t, `plan coding
  read+exec        /usr  # preset
  read+write+exec  /w (optional)  # workspace
  tcp connect      443 8080
  tcp connect to   127.0.0.1:9 [::1]:80
  tcp bind         3000
  udp              allow
  unix sockets     own
  environment      PATH HOME
  environment      TOKEN  # flag
  limits           memory 1073741824 bytes, pids 100, cpus 1.5, wall clock 1m0s, idle 1s
  waived           ipc, signals`, fullPlan().String())

	require.Equal(t, `plan empty
  tcp connect      none
  tcp bind         none
  udp              deny
  unix sockets     deny`, domain.NewSandboxPlan("empty").String())

	require.Equal(t, `plan waiving
  tcp connect      443  (waived: not enforced where the kernel cannot)
  tcp bind         none  (waived: not enforced where the kernel cannot)
  udp              deny  (waived: not enforced where the kernel cannot)
  unix sockets     deny  (waived: not enforced where the kernel cannot)
  waived           tcp, udp, unix-sockets`, domain.NewSandboxPlan("waiving").WithConnectTCP(443).
		WithWaivers(domain.PropertyTCP, domain.PropertyUDP, domain.PropertyUnixSockets).String())
	allowing := domain.NewSandboxPlan("allowing").WithUDP(true).WithUnixSockets(domain.UnixSocketsAllow).
		WithWaivers(domain.PropertyUDP, domain.PropertyUnixSockets).String()
	require.NotContains(t, allowing, "(waived", "what is allowed is not done without")

	require.Equal(t, `plan "x\n  read  /"
  read             "/w/\x1b[31m\nfake: line\xff\u202e"  # "a\nb"
  ∅                ""
  {execute,read_file} /ünïcode/文
  read             "/a  # preset"
  read             "/a (optional)" (optional)
  read             "/a\"b\\"
  tcp connect      none
  tcp bind         none
  udp              deny
  unix sockets     allow
  environment      A "B C" "\x1b"
  waived           "a, udp", "x\n\x1b"`,
		domain.NewSandboxPlan("x\n  read  /").WithRules(
			domain.PathRule{Path: hostile, Access: domain.AccessRead, Why: "a\nb"},
			domain.PathRule{},
			domain.PathRule{Path: "/ünïcode/文", Access: domain.AccessReadFile | domain.AccessExecute},
			domain.PathRule{Path: "/a  # preset", Access: domain.AccessRead},
			domain.PathRule{Path: "/a (optional)", Access: domain.AccessRead, Presence: domain.Optional},
			domain.PathRule{Path: `/a"b\`, Access: domain.AccessRead},
		).WithUnixSockets(domain.UnixSocketsAllow).
			WithEnv(domain.EnvRule{Name: "A"}, domain.EnvRule{Name: "B C"}, domain.EnvRule{Name: "\x1b"}).
			WithWaivers("x\n\x1b", "a, udp").String())

	require.Equal(t, "unconfined: asked for", domain.Unconfined("asked for").String())
	require.Equal(t, `unconfined: "a\nplan b\x1b"`, domain.Unconfined("a\nplan b\x1b").String())
	require.Equal(t, "no sandbox plan (zero value)", domain.SandboxPlan{}.String())
}

func TestGrants(t *testing.T) {
	require.Equal(t, []string{
		"read+exec /usr  # preset", "read+write+exec /w (optional)  # workspace", "tcp connect 443", "tcp connect 8080", "tcp connect 127.0.0.1:9", "tcp connect [::1]:80", "tcp bind 3000",
		"udp allow", "unix sockets own", "variable PATH", "variable HOME", "variable TOKEN",
		"limits memory 1073741824 bytes, pids 100, cpus 1.5", "waive ipc", "waive signals",
	}, fullPlan().Grants())
	require.Empty(t, domain.NewSandboxPlan("empty").Grants())
	require.Equal(t, []string{"unconfined"}, domain.Unconfined("asked for").Grants())
	for _, line := range domain.NewSandboxPlan("x").
		WithRules(domain.PathRule{Path: hostile, Access: domain.AccessRead, Why: hostile}).
		WithEnv(domain.EnvRule{Name: hostile}).WithWaivers(hostile).Grants() {
		requireOneLine(t, line)
	}
}

// What changes the digest changes the grants too, so that an error can say what.
func TestDiffGrants(t *testing.T) {
	was := fullPlan()
	for name, change := range changes {
		is := change(was)
		added, removed := domain.DiffGrants(was.Grants(), is.Grants())
		require.Equal(t, was.Digest() != is.Digest(), len(added)+len(removed) > 0, name)
		back, forth := domain.DiffGrants(is.Grants(), was.Grants())
		require.Equal(t, added, forth, name)
		require.Equal(t, removed, back, name)
	}
	added, removed := domain.DiffGrants([]string{"read /a  # one", "read /b"}, []string{"read /b", "read /a  # another reason", "read /c  # new"})
	require.Equal(t, []string{"read /c  # new"}, added)
	require.Empty(t, removed)
}

func TestNoPrintedPlanShowsAValueOfTheEnvironment(t *testing.T) {
	for _, verb := range []string{"%s", "%v", "%+v"} {
		require.NotContains(t, fmt.Sprintf(verb, fullPlan()), "hunter2")
		require.NotContains(t, fmt.Sprintf(verb, domain.SpawnLine{Sandbox: fullPlan()}), "hunter2")
	}
}

func TestNamesOfTheChoices(t *testing.T) {
	require.Equal(t, []string{"required", "optional"}, []string{domain.Required.String(), domain.Optional.String()})
	require.Equal(t, []string{"deny", "own", "allow"},
		[]string{domain.UnixSocketsDeny.String(), domain.UnixSocketsOwn.String(), domain.UnixSocketsAllow.String()})
	require.Zero(t, domain.Required)
	require.Zero(t, domain.UnixSocketsDeny)
	require.Equal(t, "none", domain.Limits{}.String())
	require.Equal(t, "pids 3", domain.Limits{Pids: 3}.String())
	require.Equal(t, "cpus 0.5, idle 2s", domain.Limits{CPUs: 0.5, Idle: 2 * time.Second}.String())
}

func TestDigestDoesNotSeeOrderReasonsValuesAndTime(t *testing.T) {
	want := fullPlan().Digest()
	require.Regexp(t, `^[0-9a-f]{64}$`, want)
	require.Equal(t, want, fullPlan().Digest())

	rules, env := fullPlan().Rules(), fullPlan().Env()
	slices.Reverse(rules)
	slices.Reverse(env)
	for i := range rules {
		rules[i].Why = "another reason"
	}
	for i := range env {
		env[i] = domain.EnvRule{Name: env[i].Name, Why: "another reason"}
	}
	other := domain.NewSandboxPlan("another preset").
		WithWaivers(domain.PropertyIPC).WithWaivers(domain.PropertySignals).
		WithLimits(domain.Limits{MemoryBytes: 1 << 30, Pids: 100, CPUs: 1.5, WallClock: time.Hour}).
		WithEnv(env...).WithUnixSockets(domain.UnixSocketsOwn).WithUDP(true).
		WithBindTCP(3000).WithConnectTCP(8080, 443).
		WithDestinations(netip.MustParseAddrPort("127.0.0.1:9")).WithDestinations(netip.MustParseAddrPort("[::1]:80")).
		WithRules(rules...).WithRules(rules[0]) // saying it twice grants nothing more
	require.Equal(t, want, other.Digest())
	require.Equal(t, domain.Unconfined("a").Digest(), domain.Unconfined("b").Digest())
}

// Each variant confines in another way than every other.
func TestDigestSeesAllThatConfines(t *testing.T) {
	p := domain.NewSandboxPlan("p")
	rule := func(path string, access domain.Access, presence domain.Presence) domain.PathRule {
		return domain.PathRule{Path: path, Access: access, Presence: presence}
	}
	a, b := rule("/a", domain.AccessRead, domain.Required), rule("/b", domain.AccessRead, domain.Required)
	variants := map[string]domain.SandboxPlan{
		"zero": {}, "unconfined": domain.Unconfined(""), "empty": p,
		"unconfined, environment": domain.Unconfined("").WithEnv(domain.EnvRule{Name: "A"}),
		"/a":                      p.WithRules(a), "/b": p.WithRules(b), "/a /b": p.WithRules(a, b),
		"/":             p.WithRules(rule("/", domain.AccessRead, domain.Required)),
		"/a optional":   p.WithRules(rule("/a", domain.AccessRead, domain.Optional)),
		"/a both":       p.WithRules(a, rule("/a", domain.AccessRead, domain.Optional)),
		"/A":            p.WithRules(rule("/A", domain.AccessRead, domain.Required)),
		"/a composed":   p.WithRules(rule("/\u00e4", domain.AccessRead, domain.Required)),
		"/a decomposed": p.WithRules(rule("/a\u0308", domain.AccessRead, domain.Required)),
		"/a no UTF-8":   p.WithRules(rule("/a\xff", domain.AccessRead, domain.Required)),
		"/a other":      p.WithRules(rule("/a\xfe", domain.AccessRead, domain.Required)),
		"/a replaced":   p.WithRules(rule("/a\ufffd", domain.AccessRead, domain.Required)),
		"connect 1":     p.WithConnectTCP(1), "bind 1": p.WithBindTCP(1), "both 1": p.WithConnectTCP(1).WithBindTCP(1),
		"connect 12": p.WithConnectTCP(12), "connect 1 2": p.WithConnectTCP(1, 2), "connect 1, bind 2": p.WithConnectTCP(1).WithBindTCP(2),
		"connect 123": p.WithConnectTCP(123), "connect 12 3": p.WithConnectTCP(12, 3), "connect 1 23": p.WithConnectTCP(1, 23),
		"to 1": p.WithDestinations(netip.MustParseAddrPort("127.0.0.1:1")), "to 2": p.WithDestinations(netip.MustParseAddrPort("127.0.0.2:1")),
		"to 1 6": p.WithDestinations(netip.MustParseAddrPort("[::1]:1")), "to 1 1": p.WithDestinations(netip.MustParseAddrPort("127.0.0.1:11")),
		"bind 0": p.WithBindTCP(0),
		"udp":    p.WithUDP(true), "unix own": p.WithUnixSockets(domain.UnixSocketsOwn), "unix all": p.WithUnixSockets(domain.UnixSocketsAllow),
		"env A": p.WithEnv(domain.EnvRule{Name: "A"}), "env AB": p.WithEnv(domain.EnvRule{Name: "AB"}),
		"env A B": p.WithEnv(domain.EnvRule{Name: "A"}, domain.EnvRule{Name: "B"}), "env a": p.WithEnv(domain.EnvRule{Name: "a"}),
		"memory 1": p.WithLimits(domain.Limits{MemoryBytes: 1}), "pids 1": p.WithLimits(domain.Limits{Pids: 1}), "cpus 1": p.WithLimits(domain.Limits{CPUs: 1}),
		"memory 2": p.WithLimits(domain.Limits{MemoryBytes: 2}), "cpus 1.0000001": p.WithLimits(domain.Limits{CPUs: 1.0000001}),
	}
	for _, right := range everyRight {
		variants["/a "+right.name] = p.WithRules(rule("/a", right.right, domain.Required))
	}
	for _, prop := range domain.Properties() {
		variants["waived "+string(prop)] = p.WithWaivers(prop)
	}
	requireDistinct(t, variants)
}

// A separator inside a value must not make it look like two values.
func TestDigestIsProofAgainstInjection(t *testing.T) {
	p := domain.NewSandboxPlan("p")
	rules := func(paths ...string) domain.SandboxPlan {
		q := p
		for _, path := range paths {
			q = q.WithRules(domain.PathRule{Path: path, Access: domain.AccessReadFile}) // "4 0 " in the digest's text
		}
		return q
	}
	env := func(names ...string) domain.SandboxPlan {
		q := p
		for _, name := range names {
			q = q.WithEnv(domain.EnvRule{Name: name})
		}
		return q
	}
	requireDistinct(t, map[string]domain.SandboxPlan{
		"two rules":     rules("/a", "/b"),
		"one, newline":  rules("/a\n/b"),
		"one, encoded":  rules("/a\n6:4 0 /b"),
		"one, spaced":   rules("/a 4 0 /b"),
		"one, NUL":      rules("/a\x00/b"),
		"other order":   rules("/a\n6:4 0 /b", "/b"),
		"end of rules":  rules("/a\nenv 0\n"),
		"two, encoded":  rules("/a\n6:4 0 /b", "/c"),
		"three":         rules("/a", "/b", "/c"),
		"access inside": p.WithRules(domain.PathRule{Path: "0 /a", Access: domain.AccessReadFile}),
		"rule and env":  rules("/a").WithEnv(domain.EnvRule{Name: "E"}),
		"env in rule":   rules("/a\nenv 1\n1:E"),

		"env A B":           env("A", "B"),
		"env newline":       env("A\nB"),
		"env encoded":       env("A\n1:B"),
		"env spaced":        env("A B"),
		"env and a waiver":  env("A").WithWaivers(domain.PropertyUDP),
		"env with a waiver": env("A\nwaivers 1\n3:udp"),

		"waivers":         p.WithWaivers("udp", "tcp"),
		"waivers newline": p.WithWaivers("tcp\n3:udp"),
		"waivers and net": p.WithWaivers("tcp\nnet 4\n0:\n0:\n4:true\n4:deny"),
	})
}

func requireDistinct(t *testing.T, variants map[string]domain.SandboxPlan) {
	t.Helper()
	seen := map[string]string{}
	for name, p := range variants {
		digest := p.Digest()
		if other, ok := seen[digest]; ok {
			require.Fail(t, "one digest for two plans", "%q and %q", name, other)
		}
		seen[digest] = name
	}
}

// FuzzPlan makes plans of any bytes and checks that nothing panics, that the
// text stays within its lines, and that digests are equal where the plans are,
// and only there.
func FuzzPlan(f *testing.F) {
	f.Add("/a", "/b", uint32(domain.AccessRead), uint8(0), "A", "B", "v", uint16(1), uint16(2), 0.5, "udp", "why")
	f.Add("/a\n6:4 0 /b", "/b", uint32(1<<20), uint8(2), "A\n1:B", "", "\x00", uint16(0), uint16(0), -1.0, "", "a\nb")
	f.Add(hostile, "", uint32(0), uint8(1), "=", "A B", "", uint16(65535), uint16(65535), math.Inf(1), "x\n\x1b", hostile)
	f.Add("/a  # b", " ", uint32(7), uint8(7), "\u202e", "\xff", "", uint16(1), uint16(1), math.NaN(), "filesystem", "")
	f.Fuzz(func(t *testing.T, pathA, pathB string, access uint32, choice uint8, nameA, nameB, value string, portA, portB uint16, cpus float64, waiver, why string) {
		ruleA := domain.PathRule{Path: pathA, Access: domain.Access(access), Presence: domain.Presence(choice), Why: why}
		ruleB := domain.PathRule{Path: pathB, Access: domain.AccessRead}
		envA, envB := domain.EnvRule{Name: nameA, Value: value, Literal: true}, domain.EnvRule{Name: nameB}
		limits := domain.Limits{MemoryBytes: uint64(portA), CPUs: cpus}
		p := domain.NewSandboxPlan(why).WithRules(ruleA, ruleB).WithEnv(envA, envB).WithConnectTCP(portA, portB).
			WithUnixSockets(domain.UnixSockets(choice)).WithLimits(limits).WithWaivers(domain.Property(waiver))

		text := p.String()
		lines := strings.Split(text, "\n")
		wantLines := 1 + len(p.Rules()) + 4 + 1 + 1 // plan, rules, network, environment, waivers
		if limits != (domain.Limits{}) {
			wantLines++
		}
		require.Len(t, lines, wantLines, "%s", text)
		for _, line := range lines {
			requireOneLine(t, line)
		}
		requireOneLine(t, domain.Unconfined(why).String())
		requireOneLine(t, ruleA.String())
		if err := p.Validate(); err != nil {
			for _, line := range strings.Split(err.Error(), "\n") {
				requireOneLine(t, line)
			}
		} else {
			require.True(t, strings.HasPrefix(pathA, "/") && strings.HasPrefix(pathB, "/"))
			require.NotContains(t, pathA+pathB+nameA+nameB+value, "\x00")
			require.GreaterOrEqual(t, cpus, 0.0)
			require.LessOrEqual(t, choice, uint8(1), "no other presence is known")
		}

		swapped := domain.NewSandboxPlan("").WithWaivers(domain.Property(waiver)).WithLimits(limits).
			WithUnixSockets(domain.UnixSockets(choice)).WithConnectTCP(portB, portA).
			WithEnv(domain.EnvRule{Name: nameB, Value: "other", Literal: true}, domain.EnvRule{Name: nameA}).
			WithRules(ruleB, domain.PathRule{Path: pathA, Access: ruleA.Access, Presence: ruleA.Presence})
		require.Equal(t, p.Digest(), swapped.Digest())

		// Only one of two rules or names, or both in one.
		one := domain.NewSandboxPlan("")
		both := one.WithRules(ruleA, ruleB)
		same := pathA == pathB && ruleA.Access == ruleB.Access && ruleA.Presence == ruleB.Presence
		require.Equal(t, same, both.Digest() == one.WithRules(ruleA).Digest())
		require.Equal(t, same, both.Digest() == one.WithRules(ruleB).Digest())
		joined := ruleA
		joined.Path = pathA + pathB
		require.NotEqual(t, one.WithRules(ruleA, domain.PathRule{Path: pathB, Access: ^ruleA.Access}).Digest(), one.WithRules(joined).Digest())
		require.Equal(t, nameA == nameB, one.WithEnv(envA).Digest() == one.WithEnv(envB).Digest())
		require.Equal(t, nameA == nameB, one.WithEnv(envA, envB).Digest() == one.WithEnv(envA).Digest())
		require.NotEqual(t, one.WithEnv(envA).Digest(), one.WithWaivers(domain.Property(nameA)).Digest())
	})
}
