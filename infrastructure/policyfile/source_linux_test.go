package policyfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// where is a workspace and a configuration.
type where struct {
	t       *testing.T
	dir     string
	config  string
	place   ports.PolicyPlace
	notices []string
}

func newWhere(t *testing.T) *where {
	t.Helper()
	dir := realDir(t)
	w := &where{t: t, dir: filepath.Join(dir, "w"), config: filepath.Join(dir, "config", "caisson"), place: testPlace()}
	require.NoError(t, os.MkdirAll(w.dir, 0o700))
	w.place.Workspace = w.dir
	return w
}

func (w *where) find(s Source) (ports.FoundPolicy, error) {
	w.t.Helper()
	s.LookupEnv = func(name string) (string, bool) {
		return filepath.Dir(w.config), name == "XDG_CONFIG_HOME"
	}
	w.notices = nil
	s.Notice = func(text string) { w.notices = append(w.notices, text) }
	return s.FindPolicy(w.t.Context(), w.place)
}

// ports returns the one port of the policy that is found, by which the files are
// told apart.
func (w *where) port() uint16 {
	w.t.Helper()
	found, err := w.find(Source{})
	require.NoError(w.t, err)
	if len(found.Policy.ConnectTCP) == 0 {
		return 0
	}
	require.Len(w.t, found.Policy.ConnectTCP, 1)
	return found.Policy.ConnectTCP[0]
}

const port = "version = 1\nnetwork.connect_tcp = ["

func (w *where) trust() error {
	_, documents, err := LoadToTrust(filepath.Join(w.dir, Name), w.place)
	if err != nil {
		return err
	}
	return NewTrust(w.config).Add(documents)
}

func TestWhichFileIsUsed(t *testing.T) {
	w := newWhere(t)
	require.Zero(t, w.port(), "there is none")
	require.NoDirExists(t, w.config, "looking makes nothing")
	users := write(t, w.config, UserName, port+"1]")
	require.EqualValues(t, 1, w.port())
	found, err := w.find(Source{})
	require.NoError(t, err)
	require.Equal(t, []string{users}, found.Guarded)
	require.Len(t, found.Notes, 1)
	require.Regexp(t, `^policy: .*/policy\.toml \(sha256 [0-9a-f]{12}\)$`, found.Notes[0])

	path := write(t, w.dir, Name, port+"2]")
	require.EqualValues(t, 1, w.port(), "it is not trusted")
	require.Equal(t, []string{"policy: " + path + ` is not used: you have not trusted it; look at it with "caisson policy show ` + path + `", and trust it with "caisson policy trust ` + path + `"`}, w.notices)
	found, err = w.find(Source{})
	require.NoError(t, err)
	require.Equal(t, w.notices[0], found.Notes[0], "receipts say so too")

	require.NoError(t, w.trust())
	require.EqualValues(t, 2, w.port())
	require.Empty(t, w.notices)
	named := write(t, w.dir, "named.toml", port+"3]")
	found, err = w.find(Source{File: named})
	require.NoError(t, err)
	require.Equal(t, []uint16{3}, found.Policy.ConnectTCP)
	require.Empty(t, found.Guarded)

	w.place.Access = domain.AccessReadWriteExec
	found, err = w.find(Source{File: named})
	require.NoError(t, err)
	require.Contains(t, found.Notes[1], named+" can be changed under the plan that it makes")

	_, err = NewTrust(w.config).Remove(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(users, []byte("nonsense"), 0o600))
	_, err = w.find(Source{})
	require.ErrorContains(t, err, users+":1:8: ", "a fault is no reason to go on without a policy")
	_, err = w.find(Source{File: filepath.Join(w.dir, "gone")})
	require.ErrorContains(t, err, "cannot be read")

	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	_, err = (&Source{File: named}).FindPolicy(ended, w.place)
	require.EqualError(t, err, "enough")
}

// The agent can write the workspace's policy. Whatever it does there, what is used
// is what its user trusted, or nothing.
func TestOnlyWhatWasTrustedIsUsed(t *testing.T) {
	w := newWhere(t)
	path := write(t, w.dir, Name, "version = 1\nextends = [\"base.toml\"]")
	base := write(t, w.dir, "base.toml", port+"2]")
	require.NoError(t, w.trust())
	require.EqualValues(t, 2, w.port())

	refused := func(file, why string) {
		t.Helper()
		_, err := w.find(Source{})
		var changed *ChangedError
		require.ErrorAs(t, err, &changed)
		require.Equal(t, path, changed.Path)
		require.Equal(t, file, changed.File)
		require.ErrorContains(t, err, why)
		require.Empty(t, w.notices)
	}
	write(t, w.dir, Name, "version = 1\nextends = [\"base.toml\"]\n")
	refused(path, "policy: "+path+" is not as it was when you trusted it; look at it with \"caisson policy show "+path+"\", and trust it with")
	write(t, w.dir, Name, "version = 1\nextends = [\"base.toml\"]")
	require.EqualValues(t, 2, w.port(), "the same content again")

	write(t, w.dir, "base.toml", port+"3]")
	refused(base, base+" is not as it was when you trusted "+path)
	require.NoError(t, os.Remove(base))
	other := write(t, w.dir, "other.toml", port+"2]")
	require.NoError(t, os.Symlink(other, base))
	refused(other, other+" is not as it was")
	require.NoError(t, os.Remove(base))
	write(t, w.dir, "base.toml", port+"2]")
	require.EqualValues(t, 2, w.port())

	// The same content elsewhere is another policy.
	second := filepath.Join(w.dir, "second")
	write(t, second, Name, "version = 1\nextends = [\"../base.toml\"]")
	first := w.dir
	w.dir, w.place.Workspace = second, second
	require.Zero(t, w.port())
	require.Len(t, w.notices, 1)
	require.Contains(t, w.notices[0], "you have not trusted it")
	w.dir, w.place.Workspace = first, first

	for name, plant := range map[string]func(){
		"link":      func() { require.NoError(t, os.Symlink(other, path)) },
		"pipe":      func() { require.NoError(t, syscall.Mkfifo(path, 0o600)) },
		"directory": func() { require.NoError(t, os.Mkdir(path, 0o700)) },
		"large":     func() { write(t, w.dir, Name, strings.Repeat("#", maxSize+1)) },
		"dangling":  func() { require.NoError(t, os.Symlink("/nonexistent", path)) },
		"nothing":   func() {},
	} {
		require.NoError(t, os.RemoveAll(path), name)
		plant()
		refused(path, "is not as it was when you trusted it: ")
		require.Error(t, w.trust(), name)
	}
	require.NoError(t, os.RemoveAll(path))
	_, err := NewTrust(w.config).Remove(path)
	require.NoError(t, err)
	require.Zero(t, w.port())
	require.Empty(t, w.notices)
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	require.Zero(t, w.port(), "what was never trusted is not even opened")
}

func TestTrust(t *testing.T) {
	w := newWhere(t)
	path := write(t, w.dir, Name, port+"2]")
	trust := NewTrust(w.config)
	documents, err := trust.Documents(path)
	require.NoError(t, err)
	require.Nil(t, documents)
	was, err := trust.Remove(path)
	require.NoError(t, err)
	require.False(t, was)
	require.ErrorContains(t, trust.Add(nil), "no file")

	old := syscall.Umask(0)
	defer syscall.Umask(old)
	require.NoError(t, w.trust())
	require.NoError(t, w.trust(), "again")
	entries, err := os.ReadDir(filepath.Join(w.config, "trust"))
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing else is left")
	info, err := entries[0].Info()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.EqualValues(t, 2, w.port())

	// Whoever can write there could trust for the user.
	for _, dir := range []string{w.config, filepath.Join(w.config, "trust")} {
		require.NoError(t, os.Chmod(dir, 0o770))
		_, err = w.find(Source{})
		require.ErrorContains(t, err, "others can write to it")
		require.ErrorContains(t, w.trust(), "others can write to it")
		require.NoError(t, os.Chmod(dir, 0o700))
	}
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(w.config, 1, 1))
		_, err = w.find(Source{})
		require.ErrorContains(t, err, "others can write to it")
		require.NoError(t, os.Chown(w.config, 0, 0))
	}

	entry := filepath.Join(w.config, "trust", entries[0].Name())
	require.NoError(t, os.WriteFile(entry, []byte("nonsense\n"), 0o600))
	_, err = w.find(Source{})
	require.ErrorContains(t, err, "not understood")
	require.NoError(t, os.WriteFile(entry, nil, 0o600))
	require.Zero(t, w.port(), "nothing is trusted")
	require.NoError(t, w.trust())
	was, err = trust.Remove(path)
	require.NoError(t, err)
	require.True(t, was)
	require.Zero(t, w.port())
}

// Flags take the place of some keys, which must be well formed all the same.
func TestReplacedKeys(t *testing.T) {
	w := newWhere(t)
	path := write(t, w.dir, "p.toml", "version = 1\ntripwires = \"off\"\ngateway = false\nnetwork.unix_sockets = \"allow\"\n[limits]\nmemory = \"1K\"\npids = 1\ncpus = 1\ntimeout = \"1s\"\nidle_timeout = \"1s\"")
	found, err := w.find(Source{File: path, Replaced: []string{
		"tripwires", "gateway", "network.unix_sockets", "limits.memory", "limits.pids", "limits.cpus", "limits.timeout", "limits.idle_timeout",
	}})
	require.NoError(t, err)
	require.Zero(t, found.Tripwires)
	require.False(t, found.DirectAPI)
	require.Zero(t, found.Policy.UnixSockets)
	require.Zero(t, found.Policy.Limits)
	require.Empty(t, found.Policy.Origins)
	write(t, w.dir, "p.toml", "version = 1\n[limits]\nmemory = \"x\"")
	_, err = w.find(Source{File: path, Replaced: []string{"limits.memory"}})
	require.ErrorContains(t, err, "no size")
}

func TestConfigDir(t *testing.T) {
	env := map[string]string{"XDG_CONFIG_HOME": "relative", "HOME": "/home/u"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	require.Equal(t, "/home/u/.config/caisson", ConfigDir(lookup))
	env["XDG_CONFIG_HOME"] = "/c"
	require.Equal(t, "/c/caisson", ConfigDir(lookup))
	env["XDG_CONFIG_HOME"], env["HOME"] = "", ""
	require.Empty(t, ConfigDir(lookup))

	// Without a place for trust nothing is trusted, and nobody is asked.
	w := newWhere(t)
	path := write(t, w.dir, Name, port+"2]")
	found, err := (&Source{LookupEnv: lookup}).FindPolicy(t.Context(), w.place)
	require.NoError(t, err)
	require.Zero(t, found.Policy)
	require.Contains(t, found.Notes[0], path+" is not used: nothing can be trusted without a configuration directory")
	found, err = (&Source{}).FindPolicy(t.Context(), w.place)
	require.NoError(t, err)
	require.Zero(t, found.Policy)
}
