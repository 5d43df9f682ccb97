package application_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/tests/testkit"
)

// explained is a tree with a plan that grants reading it, and writing below rw.
func explained(t *testing.T) (dir string, plan domain.SandboxPlan) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(dir+"/rw", 0o700))
	require.NoError(t, os.WriteFile(dir+"/rw/file", nil, 0o600))
	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o700))
	return dir, domain.NewSandboxPlan("test").WithRules(
		domain.PathRule{Path: dir, Access: domain.AccessRead, Why: "--ro", Resolved: true},
		domain.PathRule{Path: dir + "/rw", Access: domain.AccessReadWrite, Why: "--rw", Resolved: true},
		domain.PathRule{Path: dir + "/none", Access: domain.AccessReadWrite, Presence: domain.Optional, Why: "--optional-rw", Resolved: true},
	)
}

// That the answers are the kernel's is shown by tests/e2e.
func TestExplainFileNamesTheRuleAndTheChange(t *testing.T) {
	dir, plan := explained(t)
	e, err := application.ExplainFile(plan, domain.OpWrite, dir+"/rw/file", "")
	require.NoError(t, err)
	require.True(t, e.Allowed)
	require.Equal(t, dir+"/rw (--rw) grants {write_file} on "+dir+"/rw/file", e.Because)

	e, err = application.ExplainFile(plan, domain.OpWrite, dir+"/file", "")
	require.NoError(t, err)
	require.False(t, e.Allowed)
	require.Equal(t, []domain.PathRule{{Path: dir + "/file", Access: domain.AccessReadWrite}}, e.Change.Rules)
	require.Contains(t, e.Notes[0], "ends when the file is replaced")

	e, err = application.ExplainFile(plan, domain.OpExec, dir+"/file", "")
	require.NoError(t, err)
	require.False(t, e.Allowed)
	require.Contains(t, e.Notes[0], "through the dynamic loader")
}

// A rule can only be for what there is.
func TestExplainOfWhatDoesNotExistIsAboutItsDirectory(t *testing.T) {
	dir, plan := explained(t)
	for op, access := range map[domain.FileOp]domain.Access{
		domain.OpWrite: domain.AccessReadWrite, domain.OpExec: domain.AccessReadExec, domain.OpCreate: domain.AccessReadWrite,
	} {
		e, err := application.ExplainFile(plan, op, dir+"/later", "")
		require.NoError(t, err)
		require.False(t, e.Allowed, op)
		require.Equal(t, []domain.PathRule{{Path: dir, Access: access}}, e.Change.Rules, op)
	}
	e, err := application.ExplainFile(plan, domain.OpRead, dir+"/later", "")
	require.NoError(t, err)
	require.True(t, e.Allowed)
	require.Contains(t, e.Notes[0], "does not exist")
}

// A grant of the directory above it would be for far too much: for a file in
// ~/.ssh, the home directory.
func TestExplainWhereNotEvenTheDirectoryExists(t *testing.T) {
	dir, plan := explained(t)
	require.NoError(t, os.Symlink("no/such", dir+"/link"))
	for _, path := range []string{"/no/such/file", "/no/such/file/", "/link/file", "/rw/../no/such/file"} {
		for _, op := range []domain.FileOp{domain.OpWrite, domain.OpExec} {
			e, err := application.ExplainFile(plan, op, dir+path, "")
			require.NoError(t, err, path)
			require.False(t, e.Allowed, path)
			require.Equal(t, dir, e.Needs[0].Place, path)
			require.True(t, e.Change.IsZero(), path)
			require.Contains(t, e.Notes, `what would allow it can be said when its directory exists, "`+dir+`/no/such"`, path)
		}
		e, err := application.ExplainFile(plan, domain.OpRead, dir+path, "")
		require.NoError(t, err, path)
		require.True(t, e.Allowed, path)
		require.Equal(t, []string{"the path does not exist; this is what the plan says of its place"}, e.Notes, path)
	}
	e, err := application.ExplainFile(plan, domain.OpWrite, dir+"/rw/no/such/file", "")
	require.NoError(t, err)
	require.True(t, e.Allowed)
	e, err = application.ExplainUnix(plan.WithUnixSockets(domain.UnixSocketsOwn), dir+"/no/such/socket")
	require.NoError(t, err)
	require.False(t, e.Allowed)
}

func TestExplainFileFollowsALinkToWhatItWillMake(t *testing.T) {
	dir, plan := explained(t)
	require.NoError(t, os.Symlink("rw/../later", dir+"/rw/../link"))
	e, err := application.ExplainFile(plan, domain.OpCreate, dir+"/link", "")
	require.NoError(t, err)
	require.False(t, e.Allowed)
	require.Equal(t, dir, e.Needs[0].Place)
	e, err = application.ExplainFile(plan, domain.OpDelete, dir+"/link", "")
	require.NoError(t, err)
	require.Equal(t, dir, e.Needs[0].Place, "a link is removed where it stands")
}

func TestExplainRefusesWhatHasNoAnswer(t *testing.T) {
	dir, plan := explained(t)
	require.NoError(t, os.Symlink("loop", dir+"/loop"))
	for _, c := range []struct {
		name     string
		op       domain.FileOp
		path, to string
		message  string
	}{
		{"an unknown operation", "chmod", dir, "", "unknown"},
		{"a relative path", domain.OpRead, "file", "", "not absolute"},
		{"a relative destination", domain.OpRename, dir + "/file", "other", "not absolute"},
		{"making what exists", domain.OpCreate, dir + "/file", "", "it exists"},
		{"writing a directory", domain.OpWrite, dir, "", "a directory is not written"},
		{"running a directory", domain.OpExec, dir, "", "only a regular file"},
		{"making where no directory is", domain.OpCreate, dir + "/no/file", "", "its directory does not exist"},
		{"removing what is not there", domain.OpDelete, dir + "/gone", "", "does not exist"},
		{"removing where no directory is", domain.OpDelete, dir + "/no/gone", "", "does not exist"},
		{"moving to where no directory is", domain.OpRename, dir + "/file", dir + "/no/file", "there is no directory for"},
		{"removing the root", domain.OpDelete, "/", "", "names no entry"},
		{"removing by dots", domain.OpDelete, dir + "/rw/..", "", "names no entry"},
		{"moving into itself", domain.OpRename, dir + "/rw", dir + "/rw/in", "inside of the other"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := application.ExplainFile(plan, c.op, c.path, c.to)
			var invalid *domain.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.ErrorContains(t, err, c.message)
		})
	}
	_, err := application.ExplainFile(plan, domain.OpRead, dir+"/loop", "")
	require.Error(t, err)
	_, err = application.ExplainFile(domain.SandboxPlan{}, domain.OpRead, dir, "")
	require.ErrorIs(t, err, domain.ErrNoSandbox)
}

func TestExplainRefusesAPlanWhosePathBecameALink(t *testing.T) {
	dir, plan := explained(t)
	require.NoError(t, os.Rename(dir+"/rw", dir+"/old"))
	require.NoError(t, os.Symlink("old", dir+"/rw"))
	_, err := application.ExplainFile(plan, domain.OpRead, dir+"/file", "")
	require.ErrorContains(t, err, "a symbolic link by now")
}

func TestExplainWithoutASandbox(t *testing.T) {
	e, err := application.ExplainFile(domain.Unconfined("--sandbox off"), domain.OpWrite, "/etc/passwd", "")
	require.NoError(t, err)
	require.True(t, e.Allowed)
	require.Equal(t, "there is no sandbox: --sandbox off", e.Because)
}

func TestExplainTCP(t *testing.T) {
	plan := domain.NewSandboxPlan("test").WithConnectTCP(443, 8080)
	e, err := application.ExplainTCP(plan, "example.org", 443)
	require.NoError(t, err)
	require.True(t, e.Allowed)
	require.Contains(t, e.Notes, "a granted port is granted on every host")
	e, err = application.ExplainTCP(plan, "example.org", 80)
	require.NoError(t, err)
	require.False(t, e.Allowed)
	require.Equal(t, "the plan grants TCP connections to port 443, port 8080 alone", e.Because)
	byName, err := domain.EgressHost("example.org", 80)
	require.NoError(t, err)
	require.Equal(t, domain.Change{Domains: []domain.EgressDomain{byName}}, e.Change)

	at := netip.MustParseAddrPort
	plan = domain.NewSandboxPlan("test").WithDestinations(at("127.0.0.1:80"))
	e, err = application.ExplainTCP(plan, "::ffff:127.0.0.1", 80)
	require.NoError(t, err)
	require.True(t, e.Allowed)
	e, err = application.ExplainTCP(plan, "127.0.0.2", 80)
	require.NoError(t, err)
	require.False(t, e.Allowed)
	require.Equal(t, "the plan grants TCP connections to 127.0.0.1:80 alone", e.Because)
	require.Equal(t, domain.Change{Destinations: []netip.AddrPort{at("127.0.0.2:80")}}, e.Change)
	e, err = application.ExplainTCP(plan, "example.org", 80)
	require.NoError(t, err)
	require.False(t, e.Allowed)
	require.Equal(t, domain.Change{Domains: []domain.EgressDomain{byName}}, e.Change)
	require.Contains(t, e.Notes, "destinations are addresses: ask for the one that the name leads to")

	e, err = application.ExplainTCP(plan.WithModelGateway(40123), "127.0.0.1", 40123)
	require.NoError(t, err)
	require.True(t, e.Allowed)
	e, err = application.ExplainTCP(plan.WithModelGateway(0), "localhost", 40123)
	require.NoError(t, err)
	require.False(t, e.Allowed)
	require.Contains(t, e.Because, "the session's model gateway")

	// What a policy calls localhost.
	e, err = application.ExplainTCP(plan, "localhost", 80)
	require.NoError(t, err)
	require.True(t, e.Allowed)
	require.Equal(t, []string{"not to [::1]:80, where the name leads as well"}, e.Notes)
	e, err = application.ExplainTCP(plan.WithDestinations(at("127.0.0.1:80"), at("[::1]:80")), "localhost", 80)
	require.NoError(t, err)
	require.True(t, e.Allowed)
	require.Equal(t, "the plan grants TCP connections to 127.0.0.1:80, [::1]:80", e.Because)
	require.Empty(t, e.Notes)
	e, err = application.ExplainTCP(plan, "localhost", 81)
	require.NoError(t, err)
	require.False(t, e.Allowed)
	require.Equal(t, domain.Change{Destinations: []netip.AddrPort{at("127.0.0.1:81"), at("[::1]:81")}}, e.Change)
	require.Empty(t, e.Notes, "it needs no DNS, and no grant of every host")

	_, err = application.ExplainTCP(domain.SandboxPlan{}, "example.org", 80)
	require.ErrorIs(t, err, domain.ErrNoSandbox)
}

func TestExplainTCPByName(t *testing.T) {
	plan := domain.NewSandboxPlan("test").WithEgressDomains(testkit.EgressDomains("*.example.org:8443", "db.internal=10.0.0.0/8")...)
	for _, host := range []string{"a.example.org", "A.Example.ORG."} {
		e, err := application.ExplainTCP(plan, host, 8443)
		require.NoError(t, err)
		require.True(t, e.Allowed)
		require.Equal(t, "the plan allows the domain *.example.org:8443, through the session's egress proxy", e.Because)
	}
	e, err := application.ExplainTCP(plan, "a.example.org", 443)
	require.NoError(t, err)
	require.False(t, e.Allowed)
	require.Equal(t, "the plan grants TCP connections to *.example.org:8443, db.internal=10.0.0.0/8 alone", e.Because)
	require.Equal(t, domain.Change{Domains: testkit.EgressDomains("a.example.org:443")}, e.Change)
	require.Contains(t, e.Notes, "the session's egress proxy refuses it: the policy allows this domain on other ports than 443")
	e, err = application.ExplainTCP(plan, "10.0.0.1", 443)
	require.NoError(t, err)
	require.False(t, e.Allowed, "an address is no name")
	e, err = application.ExplainTCP(plan, "2130706433", 443)
	require.NoError(t, err)
	require.Equal(t, domain.Change{ConnectTCP: []uint16{443}}, e.Change, "what no domain can be is no domain")
}

func TestExplainUnix(t *testing.T) {
	dir, plan := explained(t)
	for _, c := range []struct {
		unix    domain.UnixSockets
		path    string
		allowed bool
		change  domain.UnixSockets
	}{
		{domain.UnixSocketsDeny, "/rw/socket", false, domain.UnixSocketsOwn},
		{domain.UnixSocketsDeny, "/socket", false, domain.UnixSocketsAllow},
		{domain.UnixSocketsOwn, "/rw/socket", true, domain.UnixSocketsDeny},
		{domain.UnixSocketsOwn, "/socket", false, domain.UnixSocketsAllow},
		{domain.UnixSocketsAllow, "/socket", true, domain.UnixSocketsDeny},
	} {
		e, err := application.ExplainUnix(plan.WithUnixSockets(c.unix), dir+c.path)
		require.NoError(t, err)
		require.Equal(t, c.allowed, e.Allowed, "%s: %s", c.unix, c.path)
		require.Equal(t, domain.Change{UnixSockets: c.change}, e.Change, "%s: %s", c.unix, c.path)
		require.NotEmpty(t, e.Because)
	}
	_, err := application.ExplainUnix(plan, "socket")
	require.ErrorContains(t, err, "not absolute")
}
