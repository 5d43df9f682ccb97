package domain_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

func TestPolicyWith(t *testing.T) {
	address := netip.MustParseAddrPort("127.0.0.1:80")
	below := domain.Policy{
		Workspace: domain.AccessReadWrite, Rules: []domain.PathRule{{Path: "/a", Access: domain.AccessRead, Why: "file"}},
		ConnectTCP: []uint16{1}, BindTCP: []uint16{2}, UDP: true, UnixSockets: domain.UnixSocketsOwn,
		Env: []domain.EnvRule{{Name: "A"}}, Waivers: []domain.Property{domain.PropertyIPC},
		Limits:  domain.Limits{MemoryBytes: 1, Pids: 2, CPUs: 3, WallClock: time.Second, Idle: time.Minute},
		Origins: map[string]string{"udp allow": "file"},
	}
	require.Equal(t, below, domain.Policy{}.With(below).With(domain.Policy{}), "nothing on top changes nothing")
	top := domain.Policy{
		Workspace: domain.AccessRead, Rules: []domain.PathRule{{Path: "/b", Access: domain.AccessRead}},
		ConnectTCP: []uint16{3}, BindTCP: []uint16{4}, Destinations: []netip.AddrPort{address}, UnixSockets: domain.UnixSocketsAllow,
		Env: []domain.EnvRule{{Name: "A", Value: "x", Literal: true, Why: "flag"}}, Waivers: []domain.Property{domain.PropertyTCP},
		Limits:  domain.Limits{MemoryBytes: 9, Pids: 8, CPUs: 7, WallClock: 6, Idle: 5},
		Origins: map[string]string{"udp allow": "flag"},
	}
	both := below.With(top)
	require.Equal(t, domain.Policy{
		Workspace:  domain.AccessRead,
		Rules:      []domain.PathRule{{Path: "/a", Access: domain.AccessRead, Why: "file"}, {Path: "/b", Access: domain.AccessRead}},
		ConnectTCP: []uint16{1, 3}, BindTCP: []uint16{2, 4}, Destinations: []netip.AddrPort{address}, UDP: true, UnixSockets: domain.UnixSocketsAllow,
		Env:     []domain.EnvRule{{Name: "A"}, {Name: "A", Value: "x", Literal: true, Why: "flag"}},
		Waivers: []domain.Property{domain.PropertyIPC, domain.PropertyTCP}, Limits: top.Limits, Origins: map[string]string{"udp allow": "flag"},
	}, both)
	require.Equal(t, map[string]string{"udp allow": "file"}, below.Origins, "neither is changed")

	plan := both.Apply(domain.NewSandboxPlan("p"))
	require.Empty(t, plan.Rules(), "they must be resolved first")
	require.Equal(t, []uint16{1, 3}, plan.ConnectTCP())
	require.Equal(t, []uint16{2, 4}, plan.BindTCP())
	require.Equal(t, []netip.AddrPort{address}, plan.Destinations())
	require.True(t, plan.UDP())
	require.Equal(t, domain.UnixSocketsAllow, plan.UnixSockets())
	require.Equal(t, []domain.EnvRule{{Name: "A", Value: "x", Literal: true, Why: "flag"}}, plan.Env(), "the upper one counts")
	require.Equal(t, top.Limits, plan.Limits())
	require.Equal(t, both.Origins, plan.Origins())
	require.Equal(t, []domain.EnvRule{{Name: "A", Why: "policy"}}, domain.Policy{Env: []domain.EnvRule{{Name: "A"}}}.Apply(plan.WithEnv()).Env())
	require.True(t, domain.Policy{}.Apply(plan).UDP(), "what is allowed stays so")

	require.Equal(t, []domain.PathRule{{Path: "/a", Access: domain.AccessRead, Why: "file"}, {Path: "/b", Access: domain.AccessRead, Why: "policy"}}, both.PathRules())
	require.Empty(t, both.Rules[1].Why, "the policy itself is not changed")
	require.Equal(t, domain.Policy{Env: both.Env, Limits: both.Limits, Origins: both.Origins}, both.WithoutGrants())
}

// What has no reason of its own shows who put it there, and the digest does not
// count it.
func TestPlanOrigins(t *testing.T) {
	plan := domain.NewSandboxPlan("p").WithConnectTCP(80, 443).WithBindTCP(1).WithUDP(true).WithUnixSockets(domain.UnixSocketsOwn).
		WithDestinations(netip.MustParseAddrPort("[::1]:5")).WithWaivers(domain.PropertyIPC, domain.PropertyTCP).
		WithEnv(domain.EnvRule{Name: "A", Why: "preset"}, domain.EnvRule{Name: "B", Why: "x\n"}, domain.EnvRule{Name: "C", Why: "preset"}).
		WithLimits(domain.Limits{MemoryBytes: 1, Pids: 2, CPUs: 3, WallClock: 4, Idle: 5})
	said := plan.WithOrigins(map[string]string{"udp allow": "old"}).WithOrigins(map[string]string{
		"tcp connect 443": "f:1", "tcp connect [::1]:5": "f:2", "tcp bind 1": "f:3", "udp allow": "f:4", "unix sockets own": "f:5\n",
		"limit memory": "f:6", "limit pids": "f:7", "limit cpus": "f:8", "limit timeout": "f:9", "limit idle": "f:10", "waive ipc": "f:11",
	})
	require.Equal(t, `plan p
  tcp connect      80 443  (waived: not enforced where the kernel cannot)  # 443: f:1
  tcp connect to   [::1]:5  # [::1]:5: f:2
  tcp bind         1  (waived: not enforced where the kernel cannot)  # 1: f:3
  udp              allow  # f:4
  unix sockets     own  # "f:5\n"
  environment      A C  # preset
  environment      B  # "x\n"
  limits           memory 1 bytes, pids 2, cpus 3, wall clock 4ns, idle 5ns  # memory: f:6, pids: f:7, cpus: f:8, timeout: f:9, idle: f:10
  waived           ipc, tcp  # ipc: f:11`, said.String())
	require.Equal(t, plan.Digest(), said.Digest())
	require.Equal(t, plan.Grants(), said.Grants())
	require.Empty(t, plan.Origins(), "a copy was changed")
	said.Origins()["udp allow"] = "evil"
	require.Equal(t, "f:4", said.Origins()["udp allow"])
}
