package portstest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// OpenLoginStore returns the logins that are kept below a directory, as another process
// would open them. A missing directory is made.
type OpenLoginStore func(tb testing.TB, root string) ports.LoginStore

// AssertLoginStoreContract checks what ports.LoginStore promises: what is kept and what
// is refused, what a session gets, and what is taken back from it.
func AssertLoginStoreContract(t *testing.T, open OpenLoginStore) {
	t.Helper()
	runCases(t, []contractCase[OpenLoginStore]{
		{
			"keep", "Of a file the login alone is kept, for the user alone and below Dir: the rest of it is none of Caisson's business.",
			loginKeep,
		},
		{
			"none", "Where no login was ever kept there is none, and asking makes nothing.",
			loginNone,
		},
		{
			"list and delete", "Each id has a login of its own; one that is forgotten is gone, and no other one.",
			loginListAndDelete,
		},
		{
			"names", "An id may come from a person: it leads to no other place.",
			loginNames,
		},
		{
			"refuse", "What is no login by its format is refused, with what to do and without a word of what is in it; the one that is kept stays.",
			loginRefuse,
		},
		{
			"expiry", "The time from which an access token has to be renewed is read from a number or a token.",
			loginExpiry,
		},
		{
			"lend", "A session gets a copy, whatever its agent has put in the place of it, and its secrets are known, to be taken out of events.",
			loginLend,
		},
		{
			"loan", "That a session has a login is known after the end of the process that lent it.",
			loginLoan,
		},
		{
			"return", "A copy is gone after its turn. It is kept if the agent has renewed it: the one that was lent may be of no use any more.",
			loginReturn,
		},
		{
			"return refused", "What the agent has left is the agent's claim: what is no renewed login of the same account changes nothing, and is no error.",
			loginReturnRefused,
		},
		{
			"context", "With a context that has ended nothing is changed, and the copy of a session waits.",
			loginContext,
		},
		{
			"at once", "Several processes use one login at once: each copy is one that was written whole.",
			loginAtOnce,
		},
	}, open)
}

// loginForm is the format of an agent that there is not.
var loginForm = ports.LoginFormat{
	File: "login.json", Keep: []string{"tokens", "organization"}, Drop: []string{"other"},
	Secrets: []string{"tokens.access", "tokens.refresh"}, Account: []string{"organization"}, Expires: "tokens.expires",
}

var aLogin = ports.LoginID{Agent: "fake", Name: ports.DefaultLogin}

// loginText is the content of a file with a login, whose secrets have a word in them.
func loginText(word, organization string, expires time.Time) string {
	return fmt.Sprintf(`{"other": {"secret": "dropped"}, "tokens": {"access": "access-%s", "refresh": "refresh-%s", "expires": %d}, "organization": %q}`,
		word, word, expires.UnixMilli(), organization)
}

// loginKit is a store, the place that it is in, and a session.
type loginKit struct {
	ports.LoginStore
	root, file string
	dirs       ports.SessionDirs
}

func newLoginKit(tb testing.TB, open OpenLoginStore) *loginKit {
	tb.Helper()
	root, err := filepath.EvalSymlinks(tb.TempDir())
	require.NoError(tb, err)
	root = filepath.Join(root, "state")
	return &loginKit{LoginStore: open(tb, root), root: root, file: filepath.Join(tb.TempDir(), "file.json"), dirs: aSession(tb)}
}

// aSession makes the private directories of a session.
func aSession(tb testing.TB) ports.SessionDirs {
	tb.Helper()
	dir, err := filepath.EvalSymlinks(tb.TempDir())
	require.NoError(tb, err)
	dirs := ports.SessionDirs{
		State: filepath.Join(dir, "agent"), Home: filepath.Join(dir, "home"), Temp: filepath.Join(dir, "tmp"), Spool: filepath.Join(dir, "spool"),
	}
	for _, d := range []string{dirs.State, dirs.Home, dirs.Temp, dirs.Spool} {
		require.NoError(tb, os.Mkdir(d, 0o700))
	}
	return dirs
}

// copy is where the session has its copy.
func (k *loginKit) copy() string { return filepath.Join(k.dirs.State, loginForm.File) }

func put(tb testing.TB, path, text string) {
	tb.Helper()
	require.NoError(tb, os.WriteFile(path, []byte(text), 0o600))
}

func get(tb testing.TB, path string) string {
	tb.Helper()
	data, err := os.ReadFile(path)
	require.NoError(tb, err)
	return string(data)
}

// keep imports a login.
func (k *loginKit) keep(tb testing.TB, text string) {
	tb.Helper()
	put(tb, k.file, text)
	_, err := k.Import(tb.Context(), aLogin, loginForm, k.file)
	require.NoError(tb, err)
}

// kept returns what a session would get.
func (k *loginKit) kept(tb testing.TB) string {
	tb.Helper()
	dirs := aSession(tb)
	_, err := k.Lend(tb.Context(), aLogin, loginForm, dirs)
	require.NoError(tb, err)
	text := get(tb, filepath.Join(dirs.State, loginForm.File))
	ret, err := k.Return(tb.Context(), loginForm, dirs)
	require.NoError(tb, err)
	requireUnchanged(tb, ret)
	return text
}

func requireUnchanged(tb testing.TB, ret ports.LoginReturn) {
	tb.Helper()
	require.False(tb, ret.Renewed)
	require.Empty(tb, ret.Problem)
}

func requireNotKept(tb testing.TB, err error) {
	tb.Helper()
	var invalid *domain.InvalidError
	require.ErrorAs(tb, err, &invalid)
	require.NotEmpty(tb, invalid.Remedy)
}

func loginKeep(tb testing.TB, open OpenLoginStore) {
	k := newLoginKit(tb, open)
	expires := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	text := loginText("one", "us", expires)
	put(tb, k.file, text)
	login, err := k.Import(tb.Context(), ports.LoginID{Agent: "fake"}, loginForm, k.file)
	require.NoError(tb, err)
	require.Equal(tb, aLogin, login.ID, "without a name it is the default one")
	require.True(tb, expires.Equal(login.Expires), "%v", login.Expires)
	require.WithinDuration(tb, time.Now(), login.Kept, time.Minute)
	again, err := open(tb, k.root).Login(tb.Context(), aLogin, loginForm)
	require.NoError(tb, err)
	require.Equal(tb, login.ID, again.ID)
	require.Equal(tb, text, get(tb, k.file), "the file stays as it was")
	require.JSONEq(tb, fmt.Sprintf(`{"tokens": {"access": "access-one", "refresh": "refresh-one", "expires": %d}, "organization": "us"}`, expires.UnixMilli()), k.kept(tb))

	found := 0
	require.NoError(tb, filepath.WalkDir(k.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content := get(tb, path)
		require.NotContains(tb, content, "dropped", path)
		if strings.Contains(content, "access-one") {
			found++
			rel, err := filepath.Rel(k.Dir(), path)
			require.NoError(tb, err)
			require.True(tb, filepath.IsLocal(rel), "%s is not below Dir", path)
			info, err := d.Info()
			require.NoError(tb, err)
			require.Zero(tb, info.Mode().Perm()&0o077, path)
		}
		return nil
	}))
	require.LessOrEqual(tb, found, 1, "it is kept once")

	k.keep(tb, loginText("two", "them", expires))
	require.Contains(tb, k.kept(tb), "access-two", "a person may replace it by another account's")
}

func loginNone(tb testing.TB, open OpenLoginStore) {
	k := newLoginKit(tb, open)
	ids, err := k.List(tb.Context())
	require.NoError(tb, err)
	require.Empty(tb, ids)
	_, err = k.Login(tb.Context(), aLogin, loginForm)
	requireNotKept(tb, err)
	requireNotKept(tb, k.Delete(tb.Context(), aLogin))
	ret, err := k.Return(tb.Context(), loginForm, k.dirs)
	require.NoError(tb, err)
	require.Zero(tb, ret)
	lent, err := k.Lent(tb.Context(), k.dirs)
	require.NoError(tb, err)
	require.Zero(tb, lent)
	require.NoDirExists(tb, k.Dir())
	_, err = k.Lend(tb.Context(), aLogin, loginForm, k.dirs)
	var invalid *domain.InvalidError
	require.ErrorAs(tb, err, &invalid)
	require.NoFileExists(tb, k.copy())
}

func loginListAndDelete(tb testing.TB, open OpenLoginStore) {
	k := newLoginKit(tb, open)
	want := []ports.LoginID{{Agent: "bare", Name: "default"}, {Agent: "fake", Name: "default"}, {Agent: "fake", Name: "work"}}
	for i := len(want) - 1; i >= 0; i-- {
		put(tb, k.file, loginText(fmt.Sprint(i), "us", time.Now()))
		_, err := k.Import(tb.Context(), want[i], loginForm, k.file)
		require.NoError(tb, err)
	}
	ids, err := open(tb, k.root).List(tb.Context())
	require.NoError(tb, err)
	require.Equal(tb, want, ids)
	require.NoError(tb, k.Delete(tb.Context(), aLogin))
	_, err = k.Login(tb.Context(), aLogin, loginForm)
	requireNotKept(tb, err)
	requireNotKept(tb, k.Delete(tb.Context(), aLogin))
	ids, err = k.List(tb.Context())
	require.NoError(tb, err)
	require.Equal(tb, []ports.LoginID{want[0], want[2]}, ids)
	secrets, err := k.Lend(tb.Context(), want[2], loginForm, k.dirs)
	require.NoError(tb, err)
	require.Equal(tb, []string{"access-2", "refresh-2"}, secrets)
}

func loginNames(tb testing.TB, open OpenLoginStore) {
	k := newLoginKit(tb, open)
	put(tb, k.file, loginText("one", "us", time.Now()))
	for _, id := range []ports.LoginID{{}, {Agent: "../fake"}, {Agent: ".."}, {Agent: "fake", Name: ".."}, {Agent: "fake", Name: "a/b"}, {Agent: "fake", Name: "a\x00"}} {
		var invalid *domain.InvalidError
		_, err := k.Import(tb.Context(), id, loginForm, k.file)
		require.ErrorAs(tb, err, &invalid, "%q", id)
		_, err = k.Login(tb.Context(), id, loginForm)
		require.ErrorAs(tb, err, &invalid, "%q", id)
		require.ErrorAs(tb, k.Delete(tb.Context(), id), &invalid, "%q", id)
		_, err = k.Lend(tb.Context(), id, loginForm, k.dirs)
		require.ErrorAs(tb, err, &invalid, "%q", id)
	}
	require.NoDirExists(tb, k.Dir())
}

// notLogins are files that are none, each with a secret in it.
var notLogins = map[string]func(path string) error{
	"missing":   func(string) error { return nil },
	"directory": func(path string) error { return os.Mkdir(path, 0o700) },
	"link": func(path string) error {
		return errors.Join(os.WriteFile(path+".target", []byte(loginText("geheim", "us", time.Now())), 0o600), os.Symlink(path+".target", path))
	},
	"hard link": func(path string) error {
		return errors.Join(os.WriteFile(path, []byte(loginText("geheim", "us", time.Now())), 0o600), os.Link(path, path+".too"))
	},
	"others can read it": func(path string) error {
		return errors.Join(os.WriteFile(path, []byte(loginText("geheim", "us", time.Now())), 0o600), os.Chmod(path, 0o644))
	},
	"too large":         content(strings.Replace(loginText("geheim", "us", time.Now()), "dropped", strings.Repeat("x", 1<<20), 1)),
	"no JSON":           content(`{"tokens": "geheim"`),
	"more behind it":    content(loginText("geheim", "us", time.Now()) + "{}"),
	"a member twice":    content(`{"organization": "geheim", ` + loginText("geheim", "us", time.Now())[1:]),
	"an unknown member": content(`{"hooks": "geheim", ` + loginText("geheim", "us", time.Now())[1:]),
	"no secret":         content(`{"tokens": {"access": "geheim", "expires": 1}}`),
	"a secret is empty": content(`{"tokens": {"access": "geheim", "refresh": "", "expires": 1}}`),
	"a secret is none":  content(`{"tokens": {"access": "geheim", "refresh": ["geheim"], "expires": 1}}`),
	"a line in one":     content(`{"tokens": {"access": "geheim", "refresh": "geheim\n", "expires": 1}}`),
	"no expiry":         content(`{"tokens": {"access": "geheim", "refresh": "geheim"}}`),
	"no time":           content(`{"tokens": {"access": "geheim", "refresh": "geheim", "expires": "geheim"}}`),
}

func content(text string) func(path string) error {
	return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
}

func loginRefuse(tb testing.TB, open OpenLoginStore) {
	k := newLoginKit(tb, open)
	k.keep(tb, loginText("one", "us", time.Now()))
	for name, make := range notLogins {
		path := filepath.Join(tb.TempDir(), "file.json")
		require.NoError(tb, make(path), name)
		_, err := k.Import(tb.Context(), aLogin, loginForm, path)
		var invalid *domain.InvalidError
		require.ErrorAs(tb, err, &invalid, name)
		require.NotEmpty(tb, invalid.Remedy, name)
		require.NotContains(tb, err.Error(), "geheim", name)
	}
	require.Contains(tb, k.kept(tb), "access-one")
}

func loginExpiry(tb testing.TB, open OpenLoginStore) {
	k := newLoginKit(tb, open)
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"exp": 1893456000}`))
	for expires, want := range map[string]time.Time{
		"1893456000123":                     time.UnixMilli(1893456000123),
		`"e30.` + claims + `.c2lnbmF0dXJl"`: time.Unix(1893456000, 0),
	} {
		put(tb, k.file, `{"tokens": {"access": "access", "refresh": "refresh", "expires": `+expires+`}}`)
		login, err := k.Import(tb.Context(), aLogin, loginForm, k.file)
		require.NoError(tb, err, expires)
		require.True(tb, want.Equal(login.Expires), "%s: %v", expires, login.Expires)
	}
	format := loginForm
	format.Expires = ""
	put(tb, k.file, `{"tokens": {"access": "access", "refresh": "refresh"}}`)
	login, err := k.Import(tb.Context(), aLogin, format, k.file)
	require.NoError(tb, err)
	require.Zero(tb, login.Expires, "it does not say")
}

func loginLend(tb testing.TB, open OpenLoginStore) {
	k := newLoginKit(tb, open)
	k.keep(tb, loginText("one", "us", time.Now()))
	outside := filepath.Join(tb.TempDir(), "outside")
	put(tb, outside, "as it was")
	for name, obstacle := range map[string]func() error{
		"nothing":   func() error { return nil },
		"a file":    func() error { return os.WriteFile(k.copy(), []byte(loginText("planted", "us", time.Now())), 0o444) },
		"a link":    func() error { return os.Symlink(outside, k.copy()) },
		"a tree":    func() error { return os.MkdirAll(filepath.Join(k.copy(), "a", "b"), 0o700) },
		"no access": func() error { return os.Chmod(k.dirs.State, 0) },
	} {
		require.NoError(tb, obstacle(), name)
		secrets, err := k.Lend(tb.Context(), aLogin, loginForm, k.dirs)
		require.NoError(tb, err, name)
		require.Equal(tb, []string{"access-one", "refresh-one"}, secrets, name)
		info, err := os.Lstat(k.copy())
		require.NoError(tb, err, name)
		require.True(tb, info.Mode().IsRegular(), name)
		require.Zero(tb, info.Mode().Perm()&0o077, name)
		var members map[string]any
		require.NoError(tb, json.Unmarshal([]byte(get(tb, k.copy())), &members), name)
		require.NotContains(tb, members, "other", name)
		ret, err := k.Return(tb.Context(), loginForm, k.dirs)
		require.NoError(tb, err, name)
		requireUnchanged(tb, ret)
		require.NoFileExists(tb, k.copy(), name)
	}
	require.Equal(tb, "as it was", get(tb, outside))
}

func loginLoan(tb testing.TB, open OpenLoginStore) {
	k := newLoginKit(tb, open)
	k.keep(tb, loginText("one", "us", time.Now()))
	_, err := k.Lend(tb.Context(), ports.LoginID{Agent: "fake"}, loginForm, k.dirs)
	require.NoError(tb, err)
	next := open(tb, k.root)
	lent, err := next.Lent(tb.Context(), k.dirs)
	require.NoError(tb, err)
	require.Equal(tb, aLogin, lent)
	put(tb, k.copy(), loginText("two", "us", time.Now().Add(time.Hour)))
	ret, err := next.Return(tb.Context(), loginForm, k.dirs)
	require.NoError(tb, err)
	require.Equal(tb, ports.LoginReturn{ID: aLogin, Renewed: true}, ret)
	lent, err = k.Lent(tb.Context(), k.dirs)
	require.NoError(tb, err)
	require.Zero(tb, lent)
	require.Contains(tb, k.kept(tb), "access-two")

	// Without a loan what is there is the agent's own.
	put(tb, k.copy(), loginText("three", "us", time.Now().Add(2*time.Hour)))
	ret, err = next.Return(tb.Context(), loginForm, k.dirs)
	require.NoError(tb, err)
	require.Zero(tb, ret)
	require.Contains(tb, k.kept(tb), "access-two")
}

func loginReturn(tb testing.TB, open OpenLoginStore) {
	now := time.Now()
	for name, c := range map[string]struct {
		copy    string // as the agent leaves it, "" for as it was
		by      string // what somebody else keeps meanwhile
		want    string // the access token that is kept then
		renewed bool
	}{
		"as it was":             {want: "access-one"},
		"renewed by another":    {by: loginText("three", "us", now.Add(-time.Hour)), want: "access-three"},
		"in another form":       {copy: strings.ReplaceAll(loginText("one", "us", now), " ", "\n\t"), want: "access-one"},
		"renewed":               {copy: loginText("two", "us", now.Add(time.Hour)), want: "access-two", renewed: true},
		"renewed for less":      {copy: loginText("two", "us", now.Add(-time.Hour)), want: "access-two", renewed: true},
		"both, the copy longer": {copy: loginText("two", "us", now.Add(2*time.Hour)), by: loginText("three", "us", now.Add(time.Hour)), want: "access-two", renewed: true},
		"both to the same":      {copy: loginText("two", "us", now.Add(time.Hour)), by: loginText("two", "us", now.Add(time.Hour)), want: "access-two"},
	} {
		k := newLoginKit(tb, open)
		k.keep(tb, loginText("one", "us", now))
		_, err := k.Lend(tb.Context(), aLogin, loginForm, k.dirs)
		require.NoError(tb, err, name)
		if c.copy != "" {
			put(tb, k.copy(), c.copy)
		}
		if c.by != "" {
			k.keep(tb, c.by)
		}
		ret, err := k.Return(tb.Context(), loginForm, k.dirs)
		require.NoError(tb, err, name)
		require.Equal(tb, c.renewed, ret.Renewed, name)
		require.Empty(tb, ret.Problem, name)
		require.NoFileExists(tb, k.copy(), name)
		require.Contains(tb, k.kept(tb), c.want+`"`, name)
	}
}

func loginReturnRefused(tb testing.TB, open OpenLoginStore) {
	later := time.Now().Add(2 * time.Hour)
	cases := map[string]func(k *loginKit) error{
		"removed":         func(*loginKit) error { return nil },
		"another account": func(k *loginKit) error { return content(loginText("geheim", "them", later))(k.copy()) },
		"no account": func(k *loginKit) error {
			return content(fmt.Sprintf(`{"tokens": {"access": "geheim", "refresh": "geheim", "expires": %d}}`, later.UnixMilli()))(k.copy())
		},
		"renewed elsewhere for longer": func(k *loginKit) error {
			k.keep(tb, loginText("one", "us", later))
			return content(loginText("geheim", "us", later.Add(-time.Hour)))(k.copy())
		},
	}
	for name, make := range notLogins {
		cases["left: "+name] = func(k *loginKit) error { return make(k.copy()) }
	}
	for name, leave := range cases {
		k := newLoginKit(tb, open)
		k.keep(tb, loginText("one", "us", time.Now()))
		_, err := k.Lend(tb.Context(), aLogin, loginForm, k.dirs)
		require.NoError(tb, err, name)
		require.NoError(tb, os.Remove(k.copy()), name)
		require.NoError(tb, leave(k), name)
		ret, err := k.Return(tb.Context(), loginForm, k.dirs)
		require.NoError(tb, err, name)
		require.Equal(tb, aLogin, ret.ID, name)
		require.False(tb, ret.Renewed, name)
		require.NotEmpty(tb, ret.Problem, name)
		require.NotContains(tb, ret.Problem, "geheim", name)
		_, err = os.Lstat(k.copy())
		require.ErrorIs(tb, err, fs.ErrNotExist, name)
		require.Contains(tb, k.kept(tb), "access-one", name)
	}

	// It is not for an agent to bring back what a person has forgotten.
	k := newLoginKit(tb, open)
	k.keep(tb, loginText("one", "us", time.Now()))
	_, err := k.Lend(tb.Context(), aLogin, loginForm, k.dirs)
	require.NoError(tb, err)
	put(tb, k.copy(), loginText("two", "us", later))
	require.NoError(tb, k.Delete(tb.Context(), aLogin))
	ret, err := k.Return(tb.Context(), loginForm, k.dirs)
	require.NoError(tb, err)
	require.False(tb, ret.Renewed)
	require.NotEmpty(tb, ret.Problem)
	_, err = k.Login(tb.Context(), aLogin, loginForm)
	requireNotKept(tb, err)
}

func loginContext(tb testing.TB, open OpenLoginStore) {
	k := newLoginKit(tb, open)
	k.keep(tb, loginText("one", "us", time.Now()))
	over, cancel := context.WithCancel(tb.Context())
	cancel()
	put(tb, k.file, loginText("two", "us", time.Now()))
	_, err := k.Import(over, aLogin, loginForm, k.file)
	require.ErrorIs(tb, err, context.Canceled)
	_, err = k.Login(over, aLogin, loginForm)
	require.ErrorIs(tb, err, context.Canceled)
	_, err = k.List(over)
	require.ErrorIs(tb, err, context.Canceled)
	require.ErrorIs(tb, k.Delete(over, aLogin), context.Canceled)
	_, err = k.Lend(over, aLogin, loginForm, k.dirs)
	require.ErrorIs(tb, err, context.Canceled)
	require.NoFileExists(tb, k.copy())
	require.Contains(tb, k.kept(tb), "access-one")

	_, err = k.Lend(tb.Context(), aLogin, loginForm, k.dirs)
	require.NoError(tb, err)
	put(tb, k.copy(), loginText("two", "us", time.Now()))
	_, err = k.Return(over, loginForm, k.dirs)
	require.ErrorIs(tb, err, context.Canceled)
	ret, err := k.Return(tb.Context(), loginForm, k.dirs)
	require.NoError(tb, err)
	require.True(tb, ret.Renewed)
}

func loginAtOnce(tb testing.TB, open OpenLoginStore) {
	k := newLoginKit(tb, open)
	k.keep(tb, loginText("one", "us", time.Now()))
	var all sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		store, dirs := open(tb, k.root), aSession(tb)
		all.Go(func() { errs[i] = useLogin(tb, store, dirs, fmt.Sprintf("w%d", i)) })
	}
	all.Wait()
	require.NoError(tb, errors.Join(errs...))
}

// useLogin borrows a login, renews it and gives it back, again and again.
func useLogin(tb testing.TB, store ports.LoginStore, dirs ports.SessionDirs, word string) error {
	for n := range 10 {
		secrets, err := store.Lend(tb.Context(), aLogin, loginForm, dirs)
		if err != nil {
			return err
		}
		if strings.TrimPrefix(secrets[0], "access-") != strings.TrimPrefix(secrets[1], "refresh-") {
			return fmt.Errorf("a copy of two logins: %q", secrets)
		}
		text := loginText(word, "us", time.Now().Add(time.Duration(n)*time.Minute))
		if err := os.WriteFile(filepath.Join(dirs.State, loginForm.File), []byte(text), 0o600); err != nil {
			return err
		}
		// Another one may have renewed it for longer, which is a problem and no error.
		if _, err := store.Return(tb.Context(), loginForm, dirs); err != nil {
			return err
		}
	}
	return nil
}
