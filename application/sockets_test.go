package application

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

func TestUnixDestinationsAreMadeCanonical(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no paths from / on")
	}
	dir, err := os.MkdirTemp("", "u") //nolint:usetesting // a path of a socket is short
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	dir, err = filepath.EvalSymlinks(dir)
	require.NoError(t, err)
	socket, link := dir+"/a.sock", dir+"/link"
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	require.NoError(t, os.Symlink(socket, link))

	was := Policy{UnixDestinations: []string{link}, Origins: map[string]string{domain.UnixDestinationGrant(link): "--connect", "udp allow": "--udp"}}
	is, err := resolveSockets(was)
	require.NoError(t, err)
	require.Equal(t, []string{socket}, is.UnixDestinations)
	require.Equal(t, map[string]string{domain.UnixDestinationGrant(socket): "--connect " + link, "udp allow": "--udp"}, is.Origins, "a person finds what was said")
	require.Equal(t, "--connect", was.Origins[domain.UnixDestinationGrant(link)], "what was given is not changed")

	for path, reason := range map[string]string{
		"a.sock": "not the absolute, clean path", dir: "no unix socket", dir + "/none": "does not exist", socket + "/below": "cannot be resolved",
	} {
		_, err := resolveSockets(Policy{UnixDestinations: []string{path}})
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid, path)
		require.ErrorContains(t, err, reason, path)
	}

	plan := domain.NewSandboxPlan("test")
	e, err := ExplainUnix(plan, link)
	require.NoError(t, err)
	require.False(t, e.Allowed)
	require.Equal(t, domain.Change{UnixDestinations: []string{socket}}, e.Change, "narrower than any choice")
	e, err = ExplainUnix(plan.WithUnixDestinations(e.Change.UnixDestinations...), link)
	require.NoError(t, err)
	require.True(t, e.Allowed)
	require.Contains(t, e.Because, "the plan grants connections to the unix socket")
	e, err = ExplainUnix(plan.WithUnixDestinations(socket), dir+"/other")
	require.NoError(t, err)
	require.False(t, e.Allowed)
	require.Equal(t, "the plan denies every unix socket that has a path but "+socket, e.Because)

	d := denials{plan: plan, said: map[string]bool{}}
	require.Empty(t, d.notes("curl: "+socket+": Permission denied"), "a socket is no file that could be read")
	refused := domain.Refusal{Network: domain.NetworkUnix, Address: socket, Count: 1}
	require.Contains(t, d.explained(domain.Notice{Refused: refused}).Message, "to allow it, grant the unix socket "+socket)
	refused.Address = "@abstract"
	require.Equal(t, "as it came", d.explained(domain.Notice{Message: "as it came", Refused: refused}).Message)
}
