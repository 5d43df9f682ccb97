package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/store"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
)

// form is the format of an agent that there is not.
var form = ports.LoginFormat{
	File: "auth.json", Keep: []string{"login", "org"}, Drop: []string{"other"},
	Secrets: []string{"login.access", "login.refresh"}, Account: []string{"org"}, Expires: "login.expires",
}

var mine = ports.LoginID{Agent: "fake"}

// login is the content of a file.
func login(word, org string, expires time.Time) string {
	return fmt.Sprintf(`{"other": [1], "login": {"access": "a-%s", "refresh": "r-%s", "expires": %d}, "org": %q}`, word, word, expires.UnixMilli(), org)
}

// loginBench is a store of logins, and a session beside it.
type loginBench struct {
	*store.Logins
	root, file string
	dirs       ports.SessionDirs
}

func TestLoginsKeepTheContract(t *testing.T) {
	portstest.AssertLoginStoreContract(t, func(tb testing.TB, root string) ports.LoginStore {
		logins, err := store.NewLogins(root)
		require.NoError(tb, err)
		return logins
	})
}

func newLoginBench(t *testing.T) *loginBench {
	t.Helper()
	root := filepath.Join(t.TempDir(), "state")
	logins, err := store.NewLogins(root)
	require.NoError(t, err)
	s, err := store.New(root)
	require.NoError(t, err)
	dirs, err := s.Dirs(t.Context(), domain.SessionID("0190b8a0-0000-7000-8000-000000000001"))
	require.NoError(t, err)
	return &loginBench{Logins: logins, root: s.Root(), file: filepath.Join(t.TempDir(), "auth.json"), dirs: dirs}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

func (b *loginBench) keep(t *testing.T, text string) {
	t.Helper()
	write(t, b.file, text)
	_, err := b.Import(t.Context(), mine, form, b.file)
	require.NoError(t, err)
}

func (b *loginBench) kept(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(b.root, "logins", "fake", "default.json"))
	require.NoError(t, err)
	return string(data)
}

func (b *loginBench) copy() string { return filepath.Join(b.dirs.State, form.File) }

func TestAnImportedLoginIsTheLoginAlone(t *testing.T) {
	b := newLoginBench(t)
	expires := time.Now().Add(time.Hour).Truncate(time.Millisecond).UTC()
	b.keep(t, login("one", "us", expires))
	require.JSONEq(t, fmt.Sprintf(`{"login":{"access":"a-one","refresh":"r-one","expires":%d},"org":"us"}`, expires.UnixMilli()), b.kept(t))
	for path, mode := range map[string]os.FileMode{"logins": 0o700, "logins/fake": 0o700, "logins/fake/default.json": 0o600, "logins/lock": 0o600} {
		info, err := os.Lstat(filepath.Join(b.root, path))
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm(), path)
	}
	got, err := b.Login(t.Context(), mine, form)
	require.NoError(t, err)
	require.Equal(t, ports.LoginID{Agent: "fake", Name: "default"}, got.ID)
	require.Equal(t, expires, got.Expires)
	require.WithinDuration(t, time.Now(), got.Kept, time.Minute)

	other := ports.LoginID{Agent: "fake", Name: "work"}
	_, err = b.Import(t.Context(), other, form, b.file)
	require.NoError(t, err)
	_, err = b.Import(t.Context(), ports.LoginID{Agent: "bare"}, form, b.file)
	require.NoError(t, err)
	write(t, filepath.Join(b.root, "logins", "fake", "..json"), "")
	ids, err := b.List(t.Context())
	require.NoError(t, err)
	require.Equal(t, []ports.LoginID{{Agent: "bare", Name: "default"}, {Agent: "fake", Name: "default"}, {Agent: "fake", Name: "work"}}, ids)
	require.Equal(t, "fake (work)", other.String())
	require.NoError(t, b.Delete(t.Context(), mine))
	_, err = b.Login(t.Context(), mine, form)
	require.ErrorContains(t, err, "caisson login fake")
	require.ErrorContains(t, b.Delete(t.Context(), mine), "none is kept")
	_, err = b.Login(t.Context(), other, form)
	require.NoError(t, err)
}

func TestNamesOfLoginsAreNoPaths(t *testing.T) {
	b := newLoginBench(t)
	write(t, b.file, login("one", "us", time.Now()))
	for _, id := range []ports.LoginID{
		{}, {Agent: "../fake"}, {Agent: "."}, {Agent: "fake", Name: ".."}, {Agent: "fake", Name: "a/b"}, {Agent: "fake", Name: "-rf"},
		{Agent: "fake", Name: "A"}, {Agent: "fake", Name: "a.b"}, {Agent: "fake", Name: strings.Repeat("a", 65)}, {Agent: "fake", Name: "a\x00"},
	} {
		_, err := b.Import(t.Context(), id, form, b.file)
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid, "%q", id)
		require.Contains(t, invalid.Reason, "no name")
	}
	require.NoDirExists(t, b.Dir())
}

// The refusals that only a file of the host's can have; what an agent can leave is
// in tests/e2e.
func TestWhatIsNoFileWithALogin(t *testing.T) {
	b := newLoginBench(t)
	good := login("geheim", "us", time.Now())
	for name, tt := range map[string]struct {
		make   func(path string) error
		reason string
	}{
		"missing":   {func(string) error { return nil }, "does not exist"},
		"directory": {func(p string) error { return os.Mkdir(p, 0o700) }, "not a regular file"},
		"link": {func(p string) error {
			write(t, p+".target", good)
			return os.Symlink(p+".target", p)
		}, "not a regular file"},
		"pipe":   {func(p string) error { return unix.Mkfifo(p, 0o600) }, "not a regular file"},
		"device": {func(p string) error { return os.Symlink("/dev/zero", p) }, "not a regular file"},
		"group": {func(p string) error {
			write(t, p, good)
			return os.Chmod(p, 0o640)
		}, "chmod 600"},
		"hard link": {func(p string) error {
			write(t, p, good)
			return os.Link(p, p+".too")
		}, "hard link"},
		"owner": {func(p string) error {
			if os.Geteuid() != 0 { // then a file of root's is somebody else's
				return os.Symlink("/etc/passwd", p)
			}
			write(t, p, good)
			return os.Chown(p, 65534, 65534)
		}, map[bool]string{true: "another user", false: "not a regular file"}[os.Geteuid() == 0]},
		"a file of settings": {func(p string) error { write(t, p, `{"hooks":{},"model":"x"}`); return nil }, "no login has that is known"},
		"an odd member":      {func(p string) error { write(t, p, `{"a-geheim\u0007":1}`); return nil }, "with a name that is none"},
		"a secret as member": {func(p string) error { write(t, p, `{"`+strings.Repeat("geheim", 9)+`":1}`); return nil }, "with a name that is none"},
		"no expiry":          {func(p string) error { write(t, p, `{"login":{"access":"geheim","refresh":"geheim"}}`); return nil }, "no time of expiry in login.expires"},
		"a wild expiry": {func(p string) error {
			write(t, p, `{"login":{"access":"geheim","refresh":"geheim","expires":1e300}}`)
			return nil
		}, "no time of expiry"},
		"a token that is no text": {func(p string) error {
			write(t, p, `{"login":{"access":["geheim"],"refresh":"geheim","expires":1}}`)
			return nil
		}, "no text in login.access"},
		"not UTF-8": {func(p string) error { write(t, p, "{\"login\":\"geheim\xff\"}"); return nil }, "no JSON object"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "auth.json")
			require.NoError(t, tt.make(path))
			_, err := b.Import(t.Context(), mine, form, path)
			require.ErrorContains(t, err, tt.reason)
			require.ErrorContains(t, err, path)
			require.NotContains(t, err.Error(), "geheim")
			var invalid *domain.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.NotEmpty(t, invalid.Remedy)
		})
	}
	require.NoDirExists(t, b.Dir())
}

// What an orchestrator that died had lent is taken back by whoever comes next.
func TestALoanOutlivesItsProcess(t *testing.T) {
	b := newLoginBench(t)
	b.keep(t, login("one", "us", time.Now()))
	// Whatever is there is replaced, and no link followed.
	victim := filepath.Join(t.TempDir(), "victim")
	write(t, victim, "as it was")
	require.NoError(t, os.Symlink(victim, b.copy()))
	secrets, err := b.Lend(t.Context(), mine, form, b.dirs)
	require.NoError(t, err)
	require.Equal(t, []string{"a-one", "r-one"}, secrets)
	info, err := os.Lstat(b.copy())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.Equal(t, "as it was", readFile(t, victim))
	require.NotContains(t, readFile(t, filepath.Join(b.dirs.Spool, "login.json")), "a-one")
	lent, err := b.Lent(t.Context(), b.dirs)
	require.NoError(t, err)
	require.Equal(t, ports.LoginID{Agent: "fake", Name: "default"}, lent)

	write(t, b.copy(), login("two", "us", time.Now().Add(time.Hour)))
	next, err := store.NewLogins(b.root)
	require.NoError(t, err)
	ret, err := next.Return(t.Context(), form, b.dirs)
	require.NoError(t, err)
	require.Equal(t, ports.LoginReturn{ID: ports.LoginID{Agent: "fake", Name: "default"}, Renewed: true}, ret)
	require.Contains(t, b.kept(t), "a-two")
	require.NoFileExists(t, b.copy())
	ret, err = next.Return(t.Context(), form, b.dirs)
	require.NoError(t, err)
	require.Zero(t, ret, "once")
	lent, err = b.Lent(t.Context(), b.dirs)
	require.NoError(t, err)
	require.Zero(t, lent)
	write(t, filepath.Join(b.dirs.Spool, "login.json"), "no note")
	_, err = b.Lent(t.Context(), b.dirs)
	require.ErrorContains(t, err, "the note of a loan")
}

// A copy that cannot be kept now waits for the next attempt.
func TestACopyThatCannotBeKeptIsNotLost(t *testing.T) {
	b := newLoginBench(t)
	b.keep(t, login("one", "us", time.Now()))
	_, err := b.Lend(t.Context(), mine, form, b.dirs)
	require.NoError(t, err)
	write(t, b.copy(), login("two", "us", time.Now().Add(time.Hour)))
	obstacle := filepath.Join(b.Dir(), "fake", "default.json.obstacle")
	require.NoError(t, os.MkdirAll(filepath.Join(obstacle, "full"), 0o700))
	_, err = b.Return(t.Context(), form, b.dirs)
	require.Error(t, err)
	require.Contains(t, b.kept(t), "a-one")
	require.FileExists(t, b.copy())
	require.NoError(t, os.RemoveAll(obstacle))
	ret, err := b.Return(t.Context(), form, b.dirs)
	require.NoError(t, err)
	require.True(t, ret.Renewed)
	require.Contains(t, b.kept(t), "a-two")
}

// What the agent has put there in an earlier turn is gone before there is a note of a
// loan: whoever finds the note takes what is there for the copy.
func TestNothingIsThereBeforeTheLoan(t *testing.T) {
	b := newLoginBench(t)
	b.keep(t, login("one", "us", time.Now()))
	write(t, b.copy(), login("planted", "us", time.Now().Add(time.Hour)))
	note := filepath.Join(b.dirs.Spool, "login.json")
	require.NoError(t, os.MkdirAll(filepath.Join(note, "full"), 0o700))
	_, err := b.Lend(t.Context(), mine, form, b.dirs)
	require.Error(t, err)
	require.NoFileExists(t, b.copy())
	require.NoError(t, os.RemoveAll(note))
	_, err = b.Lend(t.Context(), mine, form, b.dirs)
	require.NoError(t, err)
	require.FileExists(t, b.copy())
}

func TestTheLockOfTheLogins(t *testing.T) {
	b := newLoginBench(t)
	b.keep(t, login("one", "us", time.Now()))
	// Somebody has it, and lets go of it at last.
	f, err := os.OpenFile(filepath.Join(b.Dir(), "lock"), os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err = b.Login(ctx, mine, form)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	done := make(chan error, 1)
	go func() {
		_, err := b.Login(t.Context(), mine, form)
		done <- err
	}()
	select {
	case err := <-done:
		require.Fail(t, "it did not wait", "%v", err)
	case <-time.After(30 * time.Millisecond):
	}
	require.NoError(t, f.Close())
	require.NoError(t, <-done)

	require.NoError(t, os.Remove(filepath.Join(b.Dir(), "lock")))
	require.NoError(t, unix.Mkfifo(filepath.Join(b.Dir(), "lock"), 0o600))
	_, err = b.Login(t.Context(), mine, form)
	require.ErrorContains(t, err, "not a regular file")
}

// Many at once: what is read is always one that was written whole.
func TestManyUseOneLoginAtOnce(t *testing.T) {
	b := newLoginBench(t)
	b.keep(t, login("w0", "us", time.Now()))
	s, err := store.New(b.root)
	require.NoError(t, err)
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() {
			logins, err := store.NewLogins(b.root)
			if err != nil {
				errs[i] = err
				return
			}
			dirs, err := s.Dirs(t.Context(), domain.SessionID(fmt.Sprintf("0190b8a0-0000-7000-8000-0000000001%02d", i)))
			for n := 1; n <= 20 && err == nil; n++ {
				_, err = logins.Lend(t.Context(), mine, form, dirs)
				if err == nil {
					text := login(fmt.Sprintf("w%d", i), "us", time.Now().Add(time.Duration(n)*time.Minute))
					err = os.WriteFile(filepath.Join(dirs.State, form.File), []byte(text), 0o600)
				}
				if err == nil {
					var ret ports.LoginReturn
					if ret, err = logins.Return(t.Context(), form, dirs); err == nil && ret.Problem != "" && !strings.Contains(ret.Problem, "elsewhere") {
						err = errors.New(ret.Problem)
					}
				}
			}
			errs[i] = err
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	var is map[string]map[string]any
	_ = json.Unmarshal([]byte(b.kept(t)), &is)
	require.Equal(t, strings.TrimPrefix(is["login"]["access"].(string), "a-"), strings.TrimPrefix(is["login"]["refresh"].(string), "r-"))
	names, err := filepath.Glob(filepath.Join(b.Dir(), "fake", "*"))
	require.NoError(t, err)
	require.Len(t, names, 1, "nothing half written is left")
}

// Whatever is in a file: what is kept of it is one that is accepted again and
// kept as it is, and a refusal repeats none of it.
func FuzzLogin(f *testing.F) {
	f.Add([]byte(login("one", "us", time.Unix(1, 0))))
	f.Add([]byte(`{"login":{"access":"a","refresh":"b","expires":"x.eyJleHAiOjF9.y"},"org":null}`))
	f.Add([]byte(`{"hooks":1}`))
	root := f.TempDir()
	logins, err := store.NewLogins(root)
	require.NoError(f, err)
	file, again := filepath.Join(root, "in.json"), filepath.Join(root, "logins", "fake", "default.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(file, data, 0o600))
		_, err := logins.Import(t.Context(), mine, form, file)
		if err != nil {
			var invalid *domain.InvalidError
			require.ErrorAs(t, err, &invalid)
			return
		}
		kept := readFile(t, again)
		var members map[string]json.RawMessage
		require.NoError(t, json.Unmarshal([]byte(kept), &members))
		for name := range members {
			require.Contains(t, form.Keep, name)
		}
		require.NoError(t, os.WriteFile(file, []byte(kept), 0o600))
		_, err = logins.Import(t.Context(), mine, form, file)
		require.NoError(t, err)
		require.Equal(t, kept, readFile(t, again))
	})
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}
