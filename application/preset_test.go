package application

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

// grants says which of the rules gives access to a path, "" if none does.
func grants(rules []domain.PathRule, access domain.Access, path string) string {
	for _, r := range rules {
		if covers(r.Path, path) && r.Access&access != 0 {
			return r.Path
		}
	}
	return ""
}

func TestSystemRulesGiveNoSecretOfTheHost(t *testing.T) {
	secrets := []string{
		"/root/.ssh/id_rsa", "/home/user/.aws/credentials", "/dev/sda", "/dev/mem", "/dev/tty", "/dev/pts/0", "/dev/shm/x",
		"/run/docker.sock", "/run/user/1000/bus", "/var/run/docker.sock", "/var/lib/docker", "/tmp/x", "/boot/x",
		"/sys/kernel/debug", "/sys/firmware",
	}
	// What only the mode of the file keeps from an ordinary user.
	rootOnly := []string{
		"/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/sudoers", "/etc/sudoers.d/x", "/etc/ssh/ssh_host_rsa_key",
		"/etc/ssl/private/key.pem", "/etc/pki/tls/private/key.pem", "/etc/pki/nssdb/key4.db", "/etc/environment",
		"/etc/wireguard/wg0.conf", "/etc/NetworkManager/system-connections/x", "/etc/krb5.keytab", "/etc/machine-id",
	}
	for _, secret := range append(secrets, rootOnly...) {
		require.Empty(t, grants(systemRules(0), ^domain.Access(0), secret), secret)
	}
	for _, secret := range secrets {
		require.Empty(t, grants(systemRules(1000), ^domain.Access(0), secret), secret)
	}
	require.Equal(t, "/etc", grants(systemRules(1000), domain.AccessReadFile, "/etc/hosts"))
	for _, euid := range []int{0, 1000} {
		rules := systemRules(euid)
		for _, needed := range []string{"/etc/passwd", "/etc/resolv.conf", "/etc/ssl/certs/x.pem", "/etc/localtime", "/proc/self/status", "/dev/urandom", "/dev/null"} {
			require.NotEmpty(t, grants(rules, domain.AccessReadFile, needed), needed)
		}
		require.Equal(t, "/usr", grants(rules, domain.AccessExecute, "/usr/bin/sh"))
		for _, r := range rules {
			require.Equal(t, domain.Optional, r.Presence, r.Path)
			require.Equal(t, filepath.Clean(r.Path), r.Path)
			require.NotEmpty(t, r.Why)
			if !strings.HasPrefix(r.Path, "/dev/") {
				require.Zero(t, r.Access&changing, r.Path)
			}
			require.Zero(t, r.Access&(domain.AccessIoctlDev|domain.AccessMakeChar|domain.AccessMakeBlock|domain.AccessResolveUnix), r.Path)
		}
	}
}

func TestPassedVariablesLeadNowhere(t *testing.T) {
	for _, name := range passedEnv {
		for _, never := range []string{"SSH_", "DBUS_", "DOCKER", "LD_", "GIT_", "NODE_", "AWS_", "XDG_", "PYTHON", "BASH_", "PROXY"} {
			require.NotContains(t, name, never)
		}
	}
}

func TestTheExecRulesGrantTheCommandAndNoDirectoryOfTheUser(t *testing.T) {
	rules := execRules(execInput{euid: 1000, program: "/home/user/tool", temp: "/state/tmp"})
	require.Equal(t, "/home/user/tool", grants(rules, domain.AccessExecute, "/home/user/tool"))
	require.Empty(t, grants(rules, ^domain.Access(0), "/home/user/other"))
	require.Empty(t, grants(rules, domain.AccessWriteFile, "/home/user/tool"))
	require.Equal(t, "/state/tmp", grants(rules, domain.AccessMakeReg, "/state/tmp/x"))
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		parent, child string
		want          bool
	}{
		{"/a", "/a", true},
		{"/a", "/a/b", true},
		{"/a", "/ab", false},
		{"/a/b", "/a", false},
		{"/", "/a", true},
		{"/", "/", true},
		{"/a/b", "/a/bc/d", false},
		{"/a", "/a/b/c/d", true},
	} {
		require.Equal(t, c.want, covers(c.parent, c.child), "%s %s", c.parent, c.child)
		require.Equal(t, c.want || covers(c.child, c.parent), overlaps(c.parent, c.child))
	}
}

func TestCanonicalPath(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	join := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
	require.NoError(t, os.MkdirAll(join("real", "sub"), 0o755))
	require.NoError(t, os.Symlink("real", join("link")))
	require.NoError(t, os.Symlink("nowhere", join("dangling")))
	require.NoError(t, os.Symlink("loop", join("loop")))
	for _, c := range []struct {
		path, want string
		exists     bool
	}{
		{join("real"), join("real"), true},
		{join("link", "sub"), join("real", "sub"), true},
		{join("link", "new", "file"), join("real", "new", "file"), false},
		{join("link") + "/../link/./x", join("real", "x"), false},
		{join("dangling"), join("dangling"), false},
		{join("dangling", "x"), join("dangling", "x"), false},
		{"/", "/", true},
	} {
		got, exists, err := canonicalPath(c.path)
		require.NoError(t, err, c.path)
		require.Equal(t, c.want, got)
		require.Equal(t, c.exists, exists, c.path)
	}
	_, _, err = canonicalPath(join("loop"))
	require.Error(t, err)
}

func TestRedundantRulesAreLeftOut(t *testing.T) {
	optional := func(path string, access domain.Access) domain.PathRule {
		return domain.PathRule{Path: path, Access: access, Presence: domain.Optional}
	}
	required := func(path string, access domain.Access) domain.PathRule {
		return domain.PathRule{Path: path, Access: access}
	}
	for name, c := range map[string]struct{ rules, want []domain.PathRule }{
		"below a wider one": {
			[]domain.PathRule{optional("/usr/bin", domain.AccessReadExec), optional("/usr", domain.AccessReadExec), optional("/usr/lib", domain.AccessRead)},
			[]domain.PathRule{optional("/usr", domain.AccessReadExec)},
		},
		"the same twice": {
			[]domain.PathRule{optional("/a", domain.AccessRead), optional("/a", domain.AccessRead), optional("/a", domain.AccessRead)},
			[]domain.PathRule{optional("/a", domain.AccessRead)},
		},
		"a right more below": {
			[]domain.PathRule{optional("/a", domain.AccessRead), optional("/a/b", domain.AccessReadExec)},
			[]domain.PathRule{optional("/a", domain.AccessRead), optional("/a/b", domain.AccessReadExec)},
		},
		"a required one stays": {
			[]domain.PathRule{required("/a", domain.AccessReadExec), required("/a/b", domain.AccessRead), optional("/a/c", domain.AccessRead)},
			[]domain.PathRule{required("/a", domain.AccessReadExec), required("/a/b", domain.AccessRead)},
		},
		"a likely name": {
			[]domain.PathRule{optional("/usr", domain.AccessRead), optional("/usr2", domain.AccessRead)},
			[]domain.PathRule{optional("/usr", domain.AccessRead), optional("/usr2", domain.AccessRead)},
		},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, withoutRedundant(c.rules)) })
	}
}
