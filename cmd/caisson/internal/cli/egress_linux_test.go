package cli_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/infrastructure/egress"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestAllowDomain(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	b := newBench(t)
	got := b.run("plan", "--agent", "claude", "--allow-domain", "*.Example.org:8443")
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "domains          *.example.org:8443  # *.example.org:8443: --allow-domain\n")
	require.Contains(t, got.stdout, "HTTPS_PROXY")
	require.Contains(t, got.stdout, "through Caisson's egress proxy")
	got = b.run("explain", "--allow-domain", "*.example.org:8443", "tcp:a.example.org:8443")
	require.Equal(t, 0, got.code, got.stdout)
	got = b.run("explain", "--allow-domain", "*.example.org:8443", "tcp:example.org:8443")
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stdout, `would allow it   --allow-domain "example.org:8443"`)
	require.NotContains(t, got.stdout, "UDP", "the proxy resolves it")

	for name, args := range map[string][]string{
		"every host":            {"--allow-domain", "*"},
		"a top-level domain":    {"--allow-domain", "*.com"},
		"a public suffix":       {"--allow-domain", "*.co.uk"},
		"an address":            {"--allow-domain", "10.0.0.1"},
		"this machine":          {"--allow-domain", "localhost:8080"},
		"nothing":               {"--allow-domain", ""},
		"our variable":          {"--allow-domain", "example.org", "--env", "HTTPS_PROXY"},
		"nothing that keeps it": {"--allow-domain", "example.org", "--sandbox", "off"},
	} {
		got := b.run(append(append([]string{"exec"}, args...), "--", "true")...)
		require.Equal(t, 125, got.code, "%s: %s", name, got.stderr)
	}
}

// Commands and turns reach what is named, and are told what is not.
func TestHostsByName(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("the host has no curl for this user")
	}
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "from the host") }))
	t.Cleanup(host.Close)
	_, port, err := net.SplitHostPort(host.Listener.Addr().String())
	require.NoError(t, err)
	script := curl + " -sS -m 20 http://here.example:" + port + "/ http://elsewhere.example/"
	allow := "here.example:" + port + "=127.0.0.1"
	b := newBench(t)
	b.compose = []composition.Option{composition.WithEgressProxy(egress.New(egress.WithResolver(func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	})))}
	got := b.run("exec", "--allow-domain", allow, "--", "/bin/sh", "-c", script)
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "from the host")
	require.Contains(t, got.stdout, `Caisson refused a connection to "elsewhere.example" on port 80`)
	require.Contains(t, got.stderr, "egress proxy: refused elsewhere.example:80: the policy does not allow this domain")
	got = b.run("exec", "--allow-domain", "example.org", "--", "/bin/sh", "-c", script)
	require.NotContains(t, got.stdout, "from the host", "the companion")

	got = b.run("run", "--agent", "claude", "--allow-domain", allow, fakecli.Script("sh "+script))
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "egress: allowed here.example:"+port)
	require.Contains(t, got.stdout, "egress: refused elsewhere.example:80: the policy does not allow this domain")
}
