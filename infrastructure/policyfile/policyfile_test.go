package policyfile

import (
	"bytes"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

var update = flag.Bool("update", false, "write the schema")

func TestEverything(t *testing.T) {
	dir := realDir(t)
	base := write(t, dir, "base.toml", `version = 1
workspace = "rwx"
waive = ["ipc"]
[paths]
ro = ["/base"]
[network]
connect_tcp = [80]
udp = true
[env.set]
A = "base"
B = "base"
[limits]
pids = 1
timeout = "1h"
`)
	main := write(t, dir, "sub/main.toml", `version = 1
extends = ["../base.toml", "preset:review"]
groups = ["go"]
tripwires = "off"
gateway = false
waive = ["udp"]

[paths]
ro = ["${home}/notes/"]
optional_rwx = ["${state}/x", "/opt//tool"]
[[paths.rule]]
path = "/run/x"
rights = ["read_file", "make_sock"]
optional = true

[network]
connect_tcp = [443]
connect = ["localhost:5432", "[::ffff:10.0.0.1]:1", "unix:/run/a b.sock"]
bind_tcp = [0, 0x1F90]
domains = ["*.Example.org:8443", "db.internal:1=10.0.0.0/8"]
udp = false
unix_sockets = "own"

[env]
pass = ["TOKEN"]
set = { A = "$${home} $5 ${home}${tmp}", 'x y' = "" }

[limits]
memory = "2GiB"
cpus = 2
timeout = "90s"
idle_timeout = "10m"

[agent.claude]
tripwires = "fail"
workspace = "rw"
[agent.claude.paths]
rw = ["/claude"]
[agent.codex.env.set]
A = "codex"
`)
	found, documents, err := Load(main, testPlace())
	require.NoError(t, err)
	require.Equal(t, []string{main, base}, []string{documents[0].Path, documents[1].Path})
	p := found.Policy
	require.Equal(t, []domain.PathRule{
		{Path: "/base", Access: domain.AccessRead, Why: base + ":5"},
		{Path: "/home/u/.gitconfig", Access: domain.AccessRead, Presence: domain.Optional, Why: "group git (preset review)"},
		{Path: "/home/u/notes", Access: domain.AccessRead, Why: main + ":9"},
		{Path: "/s/state/x", Access: domain.AccessReadWriteExec, Presence: domain.Optional, Why: main + ":10"},
		{Path: "/opt/tool", Access: domain.AccessReadWriteExec, Presence: domain.Optional, Why: main + ":10"},
		{Path: "/run/x", Access: domain.AccessReadFile | domain.AccessMakeSock, Presence: domain.Optional, Why: main + ":12"},
	}, p.Rules)
	require.Equal(t, domain.AccessRead, p.Workspace, "what comes later counts")
	require.Equal(t, []uint16{80, 443}, p.ConnectTCP)
	require.Equal(t, []uint16{0, 8080}, p.BindTCP)
	require.Equal(t, []netip.AddrPort{
		netip.MustParseAddrPort("127.0.0.1:5432"), netip.MustParseAddrPort("[::1]:5432"), netip.MustParseAddrPort("10.0.0.1:1"),
	}, p.Destinations)
	require.Equal(t, []string{"/run/a b.sock"}, p.UnixDestinations)
	require.Equal(t, "[*.example.org:8443 db.internal:1=10.0.0.0/8]", fmt.Sprint(p.Domains))
	require.False(t, p.UDP)
	require.Equal(t, domain.UnixSocketsOwn, p.UnixSockets)
	require.Equal(t, []domain.Property{"ipc", "udp"}, p.Waivers)
	require.Equal(t, domain.Limits{MemoryBytes: 2 << 30, Pids: 1, CPUs: 2, WallClock: 90 * time.Second, Idle: 10 * time.Minute}, p.Limits)
	require.Equal(t, domain.TripwiresOff, found.Tripwires)
	require.True(t, found.DirectAPI)
	require.Equal(t, map[string]string{
		"workspace": "preset review", "waive ipc": base + ":3", "waive udp": main + ":6",
		"tcp connect 80": base + ":7", "tcp connect 443": main + ":17", "tcp connect 127.0.0.1:5432": main + ":18",
		"tcp connect [::1]:5432": main + ":18", "tcp connect 10.0.0.1:1": main + ":18",
		domain.UnixDestinationGrant("/run/a b.sock"): main + ":18",
		"tcp bind 0": main + ":19", "tcp bind 8080": main + ":19", "unix sockets own": main + ":22",
		"domain *.example.org:8443": main + ":20", "domain db.internal:1=10.0.0.0/8": main + ":20",
		"limit memory": main + ":29", "limit pids": base + ":13", "limit cpus": main + ":30", "limit timeout": main + ":31", "limit idle": main + ":32",
	}, p.Origins)
	plan := p.Apply(domain.NewSandboxPlan("p"))
	require.NoError(t, plan.WithRules(p.PathRules()...).Validate())
	require.Equal(t, []string{
		"B=base", "GIT_CONFIG_GLOBAL=/home/u/.gitconfig", "GOCACHE=/s/state/cache/go-build", "GOMODCACHE=/s/state/cache/go-mod", "GOPATH=/s/state/go",
		"TOKEN=secret", "A=${home} $5 /home/u/s/tmp", "x y=",
	}, plan.Environ(func(name string) (string, bool) { return "secret", name == "TOKEN" }))
	for _, e := range plan.Env() {
		require.True(t, e.Secret, "%s: values of a policy are shown nowhere", e.Name)
	}

	place := testPlace()
	place.Agent, place.Access = "claude", domain.AccessReadWriteExec
	found, _, err = Load(main, place)
	require.NoError(t, err)
	require.Equal(t, domain.TripwiresFail, found.Tripwires)
	require.Equal(t, domain.AccessReadWrite, found.Policy.Workspace)
	require.Contains(t, found.Policy.Rules, domain.PathRule{Path: "/claude", Access: domain.AccessReadWrite, Why: main + ":38"})
	place.Agent = "codex"
	found, _, err = Load(main, place)
	require.NoError(t, err)
	require.Equal(t, domain.TripwiresOff, found.Tripwires)
	require.Contains(t, found.Policy.Env, domain.EnvRule{Name: "A", Value: "codex", Literal: true, Secret: true, Why: main + ":40"})
}

// What a person wants narrower than the preset has it is refused, in place of being
// wider in silence; the preset's grant counts only where there is one.
func TestNarrowerThanThePreset(t *testing.T) {
	path := write(t, realDir(t), "p.toml", "version = 1\n[paths]\nro = [\"${workspace}/docs\"]")
	_, _, err := Load(path, testPlace())
	require.NoError(t, err)
	place := testPlace()
	place.Access = domain.AccessReadWriteExec
	_, _, err = Load(path, place)
	require.EqualError(t, err, path+`:3:7: paths.ro[0]: read of /w/app/docs adds nothing to read+write+exec of /w/app (the preset), and `+cannotDeny+
		`; leave it out, or grant narrower: less of the workspace with workspace = "ro", or the directories beside the one to leave out instead of the one above it`)
}

func TestExtendedTwiceCountsOnce(t *testing.T) {
	dir := realDir(t)
	write(t, dir, "base.toml", "version = 1\nextends = [\"preset:ci\"]\n[paths]\nro = [\"/a\"]")
	write(t, dir, "left.toml", "version = 1\nextends = [\"base.toml\", \"preset:ci\"]")
	path := write(t, dir, "p.toml", "version = 1\nextends = [\"left.toml\", \"base.toml\", \""+filepath.Join(dir, "base.toml")+"\"]\ngroups = [\"git\"]\n[paths]\nro = [\"/a\"]")
	found, documents, err := Load(path, testPlace())
	require.NoError(t, err, "another file may say the same")
	require.Len(t, documents, 3)
	require.Equal(t, domain.TripwiresFail, found.Tripwires)
	require.Len(t, found.Policy.Rules, 3, "%v", found.Policy.Rules)
}

func TestBuiltinsAreWellFormed(t *testing.T) {
	require.Equal(t, []string{"git", "go", "node", "python", "rust"}, Groups())
	require.Equal(t, []string{"ci", "review"}, Presets())
	for _, g := range Groups() {
		found, _, err := Load(write(t, realDir(t), "p.toml", "version = 1\ngroups = [\""+g+"\"]"), testPlace())
		require.NoError(t, err, g)
		require.NotEmpty(t, found.Policy.Env, g)
		for _, r := range found.Policy.Rules {
			require.Zero(t, r.Access&domain.AccessWrite, "a group grants nothing writable: %s", r)
			require.Equal(t, domain.Optional, r.Presence, "not everybody has %s", r)
			require.NotEqual(t, "/home/u", r.Path)
		}
	}
	for _, p := range Presets() {
		_, _, err := Load(write(t, realDir(t), "p.toml", "version = 1\nextends = [\"preset:"+p+"\"]"), testPlace())
		require.NoError(t, err, p)
	}
}

// The published schema is made of what the decoder checks.
func TestSchemaIsPublished(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "policy.schema.json")
	if *update {
		require.NoError(t, os.WriteFile(path, Schema(), 0o644))
	}
	published, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(Schema(), published), "go test ./infrastructure/policyfile -run Schema -update")
}
