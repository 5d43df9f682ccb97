package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/infrastructure/policyfile"
	"github.com/caisson-run/caisson/tests/testkit"
)

// configured gives the bench a configuration directory of its own.
func configured(t *testing.T, b *bench) string {
	t.Helper()
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	return filepath.Join(config, "caisson")
}

func (b *bench) write(name, text string) string {
	b.t.Helper()
	path := filepath.Join(b.workspace, name)
	require.NoError(b.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// Under a policy file every command has what it grants, and no more.
func TestPolicyFile(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	b := newBench(t)
	configured(t, b)
	outside := t.TempDir()
	policy := b.write("p.toml", "version = 1\nworkspace = \"ro\"\n[paths]\nrw = [\""+outside+"\"]\n[network]\nconnect_tcp = [4433]\n[env.set]\nGREETING = \"hello ${tmp}\"\n")

	got := b.run("exec", "--policy", "p.toml", "--", "sh", "-c", `cat p.toml > `+outside+`/copy && echo "$GREETING" && [ "$GREETING" = "hello $TMPDIR" ] && ! echo > p.toml`)
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "hello /")
	require.FileExists(t, filepath.Join(outside, "copy"))
	got = b.run("exec", "--policy", "none", "--", "cat", "p.toml")
	require.NotZero(t, got.code)

	got = b.run("plan", "--policy", "p.toml", "--agent", "claude", "--connect-tcp", "22", "--udp", "--timeout", "1m")
	require.Zero(t, got.code, got.stderr)
	for _, line := range []string{
		"  read             " + b.workspace + "  # workspace, " + policy + ":2\n", outside + "  # " + policy + ":4\n", "22: --connect-tcp", "4433: " + policy + ":6",
		"udp              allow  # --udp\n", "environment      GREETING  # " + policy + ":8\n", "limits           wall clock 1m0s  # timeout: --timeout\n",
		"policy: " + policy + " (sha256 ", "policy: " + policy + " is not used",
	} {
		if strings.HasSuffix(line, "not used") {
			require.NotContains(t, got.stdout, line)
			continue
		}
		require.Contains(t, got.stdout, line)
	}
	got = b.run("explain", "--policy", "p.toml", "--op", "write", outside+"/x")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, policy+":4")
	got = b.run("explain", "--policy", "p.toml", "--agent", "claude", "--op", "write", "p.toml")
	require.Equal(t, 1, got.code, got.stdout+got.stderr)
	got = b.run("run", "--policy", "p.toml", "--agent", "claude", "--output", "json", "hello")
	require.Contains(t, got.stdout, "policy: "+policy, "%s", got.stderr)

	for args, want := range map[string]int{"exec": 125, "explain": 2, "plan": 2, "run": 2, "verify": 2} {
		b.write("bad.toml", "version = 1\nworkspce = \"ro\"")
		line := map[string][]string{
			"exec": {"exec", "--", "true"}, "explain": {"explain", "/x"}, "plan": {"plan", "--agent", "claude"}, "run": {"run", "--agent", "claude", "hello"}, "verify": {"verify"},
		}[args]
		got := b.run(append([]string{line[0], "--policy", "bad.toml"}, line[1:]...)...)
		require.Equal(t, want, got.code, "%s: %s", args, got.stderr)
		require.Contains(t, got.stderr, "bad.toml:2:1: workspce: unknown key; did you mean workspace?", args)
	}
}

// A turn of a session has the policy of its first one, or none at all.
func TestResumeUnderAChangedPolicy(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	b := newBench(t)
	config := configured(t, b)
	policy := b.write(policyfile.Name, "version = 1\n[network]\nconnect_tcp = [4433]\n")
	require.Zero(t, b.run("policy", "trust").code)
	got := b.run("run", "--agent", "claude", "--output", "json", "hello")
	require.Zero(t, got.code, got.stderr)
	id := b.events(got.stdout)[0].Session
	got = b.run("run", "--resume", string(id), "again")
	require.Zero(t, got.code, got.stderr)

	require.NoError(t, os.WriteFile(policy, []byte("version = 1\n[network]\nconnect_tcp = [4434]\n"), 0o600))
	got = b.run("run", "--resume", string(id), "again")
	require.Equal(t, 3, got.code, got.stderr)
	require.Contains(t, got.stderr, policy+" is not as it was when you trusted it; look at it with")
	require.Equal(t, 3, b.run("plan", "--agent", "claude").code)
	require.Equal(t, 125, b.run("exec", "--", "true").code)
	require.Zero(t, b.run("exec", "--policy", "none", "--", "true").code)
	got = b.run("run", "--resume", string(id), "--policy", "none", "again")
	require.Equal(t, 3, got.code, got.stderr)
	require.Contains(t, got.stderr, "- tcp connect 4433")
	require.Zero(t, b.run("policy", "trust").code)
	got = b.run("run", "--resume", string(id), "again")
	require.Equal(t, 3, got.code, got.stderr)
	require.Contains(t, got.stderr, "+ tcp connect 4434")

	// No plan may let what is trusted be written.
	for _, dir := range []string{filepath.Dir(config), config, filepath.Join(config, "trust")} {
		got = b.run("exec", "--rw", dir, "--", "true")
		require.Equal(t, 125, got.code)
		require.Contains(t, got.stderr, "would let it change Caisson's policies and what they trust ("+config+"); grant a directory that does not contain it")
	}
	require.Zero(t, b.run("exec", "--ro", dir(config), "--", "true").code)
}

func dir(path string) string { return filepath.Dir(path) }

func TestFlagsTakeThePlaceOfKeys(t *testing.T) {
	b := newBench(t)
	configured(t, b)
	b.write("p.toml", "version = 1\ntripwires = \"fail\"\ngateway = false\n[network]\nunix_sockets = \"allow\"\n[limits]\ntimeout = \"1h\"\nidle_timeout = \"1m\"\n")
	got := b.run("plan", "--agent", "claude", "--policy", "p.toml")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "wall clock 1h0m0s, idle 1m0s")
	require.Contains(t, got.stdout, "unix sockets     allow")
	require.Contains(t, got.stdout, "the model gateway is off")
	got = b.run("plan", "--agent", "claude", "--policy", "p.toml", "--timeout", "0", "--idle-timeout", "2s", "--unix-sockets", "deny", "--gateway", "on")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "limits           idle 2s  # idle: --idle-timeout\n")
	require.Contains(t, got.stdout, "unix sockets     deny")
	require.NotContains(t, got.stdout, "the model gateway is off")
	// Where idle time cannot be known, a limit on it is refused and not dropped.
	got = b.run("exec", "--policy", "p.toml", "--", "true")
	require.Equal(t, 125, got.code)
	require.Contains(t, got.stderr, "idle limit")
	require.Contains(t, got.stderr, "p.toml:8")
	// Without a sandbox nothing could keep the grants.
	got = b.run("plan", "--agent", "claude", "--policy", "p.toml", "--sandbox", "off")
	require.Zero(t, got.code, got.stderr)
}

func TestTripwiresOfAPolicy(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	b := newBench(t)
	configured(t, b)
	b.write("p.toml", "version = 1\ntripwires = \"fail\"\n")
	got := b.run("run", "--agent", "claude", "--policy", "p.toml", "#caisson-script\nwrite .envrc one\n")
	require.Equal(t, 1, got.code, got.stdout+got.stderr)
	require.Contains(t, got.stdout, "the turn changed what could run code outside of the sandbox: .envrc")
	got = b.run("run", "--agent", "claude", "--policy", "p.toml", "--tripwires", "report", "#caisson-script\nwrite .envrc two\n")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "changed .envrc")
}

// The policy's limit ends a command as timeout(1) would, and says so.
func TestExecThatRunsOutOfTime(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	for name, script := range map[string]string{"by the signal": "exec sleep 60", "by itself": "trap 'kill $!; exit 0' TERM; sleep 60 & wait"} {
		b := newBench(t)
		b.write("p.toml", "version = 1\n[limits]\ntimeout = \"300ms\"")
		got := b.run("exec", "--policy", "p.toml", "--", "/bin/sh", "-c", script)
		require.Equal(t, 124, got.code, "%s: %s", name, got.stderr)
		require.Contains(t, got.stderr, "caisson: still running after 300ms (wall-clock limit)", name)
		require.Zero(t, b.run("exec", "--policy", "p.toml", "--", "true").code)
	}
}

func TestPolicyCommands(t *testing.T) {
	b := newBench(t)
	config := configured(t, b)
	path := filepath.Join(b.workspace, policyfile.Name)
	got := b.run("policy", "check")
	require.Equal(t, 2, got.code)
	require.Contains(t, got.stderr, path+": cannot be read: no such file or directory")
	got = b.run("policy", "init")
	require.Zero(t, got.code, got.stderr)
	got = b.run("policy", "init")
	require.Equal(t, 2, got.code, "it overwrites nothing")
	require.Contains(t, got.stderr, "is not overwritten; edit it")
	got = b.run("policy", "check")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, path+": well formed\n  sha256 ")
	got = b.run("policy", "show", "--agent", "claude")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "environment      GIT_CONFIG_GLOBAL  # group git ("+path+":")
	require.NoDirExists(t, config)
	got = b.run("policy", "trust", path)
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "trusted, as it is now:\n  sha256 ")
	got = b.run("policy", "untrust")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, 2, b.run("policy", "untrust").code)
	got = b.run("policy", "schema")
	require.Zero(t, got.code)
	require.Equal(t, string(policyfile.Schema()), got.stdout)

	other := b.write("other.toml", "version = 1\n[agent.codex.paths]\nro = [\"relative\"]\n[paths]\nrwx = [\"${state}/x\"]")
	got = b.run("policy", "check", other)
	require.Equal(t, 2, got.code)
	require.Contains(t, got.stderr, other+":3:7: agent.codex.paths.ro[0]: \"relative\" is a relative path", "every agent's section is looked at")
	require.Equal(t, 1, strings.Count(got.stderr, "relative path"), "each fault once")
	wide := b.write("wide.toml", "version = 1\n[agent.codex.network]\ndomains = [\"*.github.io\"]")
	got = b.run("policy", "check", wide)
	require.Equal(t, 2, got.code, "what every launch refuses is not well formed")
	require.Contains(t, got.stderr, `domain "*.github.io": everybody can have a host below the public suffix github.io (granted by: `+wide+`:3)`)
	proxied := b.write("proxied.toml", "version = 1\n[network]\ndomains = [\"example.org\"]\n[env.set]\nhttps_proxy = \"http://127.0.0.1:1\"")
	got = b.run("policy", "check", proxied)
	require.Equal(t, 2, got.code)
	require.Contains(t, got.stderr, `environment variable "https_proxy": it leads programs to the egress proxy, which the domains of the policy take (set by: `+proxied+`:5)`)
	got = b.run("policy", "show", other)
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "${state}/x")
	got = b.run("policy", "trust", other)
	require.Equal(t, 2, got.code)
	require.Contains(t, got.stderr, "only .caisson.toml in a workspace")
	for _, args := range [][]string{{"policy"}, {"policy", "fly"}, {"policy", "check", "a", "b"}, {"policy", "show", "--agent", "nobody"}} {
		require.Equal(t, 2, b.run(args...).code, "%v", args)
	}
}
