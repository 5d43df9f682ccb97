package store

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
	"github.com/caisson-run/caisson/tests/testkit"
)

const id = domain.SessionID("01890a5d-ac96-774b-bcce-b302099a8057")

func newStore(tb testing.TB) *Store {
	tb.Helper()
	s, err := New(filepath.Join(tb.TempDir(), "a", "state"))
	require.NoError(tb, err)
	return s
}

func TestStoreKeepsTheContract(t *testing.T) {
	portstest.AssertSessionStoreContract(t, func(tb testing.TB) ports.SessionStore { return newStore(tb) })
}

func TestNothingIsLeftOpenAndNoTemporaryFileStays(t *testing.T) {
	testkit.NoLeaks(t)
	s := newStore(t)
	dirs, err := s.Dirs(t.Context(), id)
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, s.Save(t.Context(), domain.SessionRecord{ID: id, Kind: "claude"}))
	}
	_, err = s.Load(t.Context(), id)
	require.NoError(t, err)
	for range 3 {
		log, err := s.Open(t.Context(), id)
		require.NoError(t, err)
		_, err = s.Open(t.Context(), id)
		require.ErrorIs(t, err, domain.ErrBusy)
		require.NoError(t, log.Append(t.Context(), event(log.LastSeq()+1, "x")))
		for _, err := range s.Replay(t.Context(), id, 1) {
			require.NoError(t, err)
		}
		require.NoError(t, log.Close())
	}
	entries, err := os.ReadDir(filepath.Dir(dirs.State))
	require.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	require.Equal(t, []string{"agent", "events.jsonl", "home", "lock", "record.json", "spool"}, names)
}

// hold makes this test binary a process that has a session open.
const hold = "__hold"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == hold {
		os.Exit(holder(os.Args[2]))
	}
	os.Exit(m.Run())
}

// holder locks the session, says so, and holds it until its input ends.
func holder(root string) int {
	s, err := New(root)
	if err == nil {
		_, err = s.Open(context.Background(), id)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Fprintln(os.Stdout, "locked")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func TestAnotherProcessIsLockedOutUntilTheFirstIsGone(t *testing.T) {
	for name, end := range map[string]func(*os.Process, io.Closer) error{
		"it ends":      func(_ *os.Process, stdin io.Closer) error { return stdin.Close() },
		"it is killed": func(p *os.Process, _ io.Closer) error { return p.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			cmd := exec.CommandContext(t.Context(), os.Args[0], hold, s.Root())
			cmd.Stderr = os.Stderr
			stdin, err := cmd.StdinPipe()
			require.NoError(t, err)
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			line, err := bufio.NewReader(stdout).ReadString('\n')
			require.NoError(t, err)
			require.Equal(t, "locked\n", line)

			_, err = s.Open(t.Context(), id)
			require.ErrorIs(t, err, domain.ErrBusy)
			require.NoError(t, end(cmd.Process, stdin))
			_ = cmd.Wait() // killed or not
			log, err := s.Open(t.Context(), id)
			require.NoError(t, err)

			second := exec.CommandContext(t.Context(), os.Args[0], hold, s.Root())
			out, err := second.CombinedOutput()
			require.Error(t, err, "now it is the other one that is locked out")
			require.Contains(t, string(out), "in use")
			require.NoError(t, log.Close())
		})
	}
}

// A child must not keep the lock alive beyond its parent.
func TestAChildDoesNotInheritTheLock(t *testing.T) {
	s := newStore(t)
	log, err := s.Open(t.Context(), id)
	require.NoError(t, err)
	child := exec.CommandContext(t.Context(), "/bin/sh", "-c", `ls -l /proc/self/fd; read -r line`)
	stdin, err := child.StdinPipe()
	require.NoError(t, err)
	var out strings.Builder
	child.Stdout = &out
	require.NoError(t, child.Start())
	require.NoError(t, log.Close())
	again, err := s.Open(t.Context(), id)
	require.NoError(t, err, "while the child runs")
	require.NoError(t, again.Close())
	require.NoError(t, stdin.Close())
	_ = child.Wait() // read fails at the end of its input
	require.NotContains(t, out.String(), s.Root())
}

func TestALockWithoutARootFails(t *testing.T) {
	s := newStore(t)
	require.NoError(t, os.RemoveAll(s.Root()))
	_, err := s.Open(t.Context(), id)
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestRemoveDoesNotTouchWhatIsBegunAnew(t *testing.T) {
	s := newStore(t)
	require.NoError(t, s.Save(t.Context(), domain.SessionRecord{ID: id, Kind: "claude"}))
	old, err := s.Open(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, s.Remove(t.Context(), id))
	log, err := s.Open(t.Context(), id)
	require.NoError(t, err, "a removed session is nobody's")
	require.NoError(t, s.Save(t.Context(), domain.SessionRecord{ID: id, Kind: "codex"}))
	require.NoError(t, old.Close())
	_, err = s.Open(t.Context(), id)
	require.ErrorIs(t, err, domain.ErrBusy, "the old lock does not free the new one")
	require.NoError(t, log.Close())
	got, err := s.Load(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, domain.AgentCodex, got.Kind)
}

func TestEverythingIsPrivate(t *testing.T) {
	s := newStore(t)
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	require.NoError(t, s.Save(t.Context(), domain.SessionRecord{ID: id, Kind: "claude"}))
	_, err := s.Dirs(t.Context(), id)
	require.NoError(t, err)
	log, err := s.Open(t.Context(), id)
	require.NoError(t, err)
	defer func() { require.NoError(t, log.Close()) }()
	require.NoError(t, filepath.Walk(s.Root(), func(path string, info os.FileInfo, err error) error {
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "%s %s", path, info.Mode())
		return nil
	}))
}

func TestDirsMakesADirectoryPrivateAndUsableAgain(t *testing.T) {
	s := newStore(t)
	dirs, err := s.Dirs(t.Context(), id)
	require.NoError(t, err)
	for _, mode := range []os.FileMode{0o755, 0o701, 0o500, 0} {
		require.NoError(t, os.Chmod(dirs.Home, mode))
		_, err = s.Dirs(t.Context(), id)
		require.NoError(t, err)
		info, err := os.Stat(dirs.Home)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o700), info.Mode().Perm(), "was %s", mode)
	}
}

func TestNewRefuses(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777))
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for root, reason := range map[string]string{
		"":                        "not an absolute path",
		"relative/path":           "not an absolute path",
		open:                      "others can write to it",
		file:                      "cannot be made",
		filepath.Join(file, "in"): "cannot be made",
	} {
		_, err := New(root)
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid, root)
		require.Contains(t, err.Error(), reason)
		require.Equal(t, root, invalid.Value)
	}
}

func TestRootIsCanonical(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o700))
	require.NoError(t, os.Symlink("real", filepath.Join(dir, "link")))
	s, err := New(filepath.Join(dir, "link", "state"))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "real", "state"), s.Root())
}

func TestDefaultRoot(t *testing.T) {
	env := func(pairs ...string) func(string) (string, bool) {
		return func(name string) (string, bool) {
			for i := 0; i < len(pairs); i += 2 {
				if pairs[i] == name {
					return pairs[i+1], true
				}
			}
			return "", false
		}
	}
	for _, c := range []struct {
		name string
		env  func(string) (string, bool)
		want string
	}{
		{"home", env("HOME", "/h"), "/h/.local/state/caisson"},
		{"xdg", env("HOME", "/h", "XDG_STATE_HOME", "/x"), "/x/caisson"},
		{"xdg without a home", env("XDG_STATE_HOME", "/x"), "/x/caisson"},
		{"a relative xdg is ignored", env("HOME", "/h", "XDG_STATE_HOME", "x"), "/h/.local/state/caisson"},
		{"an empty xdg is ignored", env("HOME", "/h", "XDG_STATE_HOME", ""), "/h/.local/state/caisson"},
		{"neither", env(), ""},
		{"a relative home", env("HOME", "h"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := DefaultRoot(c.env)
			require.Equal(t, c.want, got)
			if c.want == "" {
				var invalid *domain.InvalidError
				require.ErrorAs(t, err, &invalid)
				require.NotEmpty(t, invalid.Remedy)
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestForeignThingsInTheWayAreErrors(t *testing.T) {
	elsewhere := func(t *testing.T) string {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "record.json"), []byte("{}"), 0o600))
		return dir
	}
	for _, c := range []struct {
		name  string
		plant func(t *testing.T, s *Store)
	}{
		{"a link for all sessions", func(t *testing.T, s *Store) {
			require.NoError(t, os.Symlink(elsewhere(t), filepath.Join(s.root, "sessions")))
		}},
		{"a file for all sessions", func(t *testing.T, s *Store) {
			require.NoError(t, os.WriteFile(filepath.Join(s.root, "sessions"), nil, 0o600))
		}},
		{"a link for the session", func(t *testing.T, s *Store) {
			require.NoError(t, os.Mkdir(filepath.Join(s.root, "sessions"), 0o700))
			require.NoError(t, os.Symlink(elsewhere(t), filepath.Join(s.root, "sessions", string(id))))
		}},
		{"a link within the root for the session", func(t *testing.T, s *Store) {
			_, err := s.Dirs(t.Context(), "01890a5d-ac96-774b-bcce-b302099a8058")
			require.NoError(t, err)
			require.NoError(t, os.Symlink("01890a5d-ac96-774b-bcce-b302099a8058", filepath.Join(s.root, "sessions", string(id))))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t)
			c.plant(t, s)
			_, err := s.Dirs(t.Context(), id)
			require.ErrorContains(t, err, "not a directory")
			require.ErrorContains(t, s.Save(t.Context(), domain.SessionRecord{ID: id}), "not a directory")
			_, err = s.Load(t.Context(), id)
			require.ErrorContains(t, err, "not a directory")
			_, err = s.Open(t.Context(), id)
			require.ErrorContains(t, err, "not a directory")
		})
	}
	for name, plant := range map[string]func(t *testing.T, s *Store){
		"a link for all temporary directories": func(t *testing.T, s *Store) {
			require.NoError(t, os.Symlink(elsewhere(t), filepath.Join(s.root, "t")))
		},
		"a file for all temporary directories": func(t *testing.T, s *Store) {
			require.NoError(t, os.WriteFile(filepath.Join(s.root, "t"), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			plant(t, s)
			_, err := s.Dirs(t.Context(), id)
			require.ErrorContains(t, err, "not a directory")
			require.ErrorContains(t, s.Remove(t.Context(), id), "not a directory")
		})
	}
	t.Run("a link for a private directory", func(t *testing.T) {
		s := newStore(t)
		dirs, err := s.Dirs(t.Context(), id)
		require.NoError(t, err)
		require.NoError(t, os.Remove(dirs.Temp))
		require.NoError(t, os.Symlink("home", dirs.Temp))
		_, err = s.Dirs(t.Context(), id)
		require.ErrorContains(t, err, "not a directory")
	})
	t.Run("a link for the record", func(t *testing.T) {
		s := newStore(t)
		dirs, err := s.Dirs(t.Context(), id)
		require.NoError(t, err)
		require.NoError(t, s.Save(t.Context(), domain.SessionRecord{ID: id, Kind: "claude"}))
		record := filepath.Join(filepath.Dir(dirs.State), "record.json")
		require.NoError(t, os.Rename(record, filepath.Join(dirs.State, "record.json")))
		require.NoError(t, os.Symlink("agent/record.json", record))
		_, err = s.Load(t.Context(), id)
		require.ErrorContains(t, err, "not a regular file")
		// A save replaces the link and does not follow it.
		require.NoError(t, s.Save(t.Context(), domain.SessionRecord{ID: id, Kind: "codex"}))
		got, err := s.Load(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, domain.AgentCodex, got.Kind)
		old, err := os.ReadFile(filepath.Join(dirs.State, "record.json"))
		require.NoError(t, err)
		require.Contains(t, string(old), "claude")
	})
	t.Run("something else for the lock", func(t *testing.T) {
		s := newStore(t)
		dirs, err := s.Dirs(t.Context(), id)
		require.NoError(t, err)
		lock := filepath.Join(filepath.Dir(dirs.State), "lock")
		for _, plant := range []func() error{
			func() error { return os.Symlink("agent/made", lock) },
			func() error { return syscall.Mkfifo(lock, 0o600) },
			func() error { return os.Mkdir(lock, 0o700) },
		} {
			require.NoError(t, plant())
			_, err = s.Open(t.Context(), id)
			require.ErrorContains(t, err, "not a regular file")
			require.NoError(t, os.Remove(lock))
		}
		require.NoFileExists(t, filepath.Join(dirs.State, "made"))
	})
	t.Run("a pipe for the record does not hang", func(t *testing.T) {
		s := newStore(t)
		dirs, err := s.Dirs(t.Context(), id)
		require.NoError(t, err)
		require.NoError(t, syscall.Mkfifo(filepath.Join(filepath.Dir(dirs.State), "record.json"), 0o600))
		_, err = s.Load(t.Context(), id)
		require.ErrorContains(t, err, "not a regular file")
	})
	t.Run("a file of another user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("root: only root can give a file away")
		}
		s := newStore(t)
		dirs, err := s.Dirs(t.Context(), id)
		require.NoError(t, err)
		require.NoError(t, s.Save(t.Context(), domain.SessionRecord{ID: id, Kind: "claude"}))
		record := filepath.Join(filepath.Dir(dirs.State), "record.json")
		require.NoError(t, os.Chown(record, 65534, 65534))
		_, err = s.Load(t.Context(), id)
		require.ErrorContains(t, err, "another user")
		require.NoError(t, os.Chown(dirs.Home, 65534, 65534))
		_, err = s.Dirs(t.Context(), id)
		require.ErrorContains(t, err, "another user")
		require.NoError(t, os.Chown(s.Root(), 65534, 65534))
		_, err = New(s.Root())
		require.ErrorContains(t, err, "another user")
	})
}

func TestDecodeIsStrict(t *testing.T) {
	good, err := encode(domain.SessionRecord{ID: id, Kind: "claude", Turns: 2})
	require.NoError(t, err)
	_, err = decode(good)
	require.NoError(t, err)
	change := func(old, new string) string {
		require.Contains(t, string(good), old)
		return strings.Replace(string(good), old, new, 1)
	}
	for name, c := range map[string]struct{ data, want string }{
		"nothing":           {"", "decode"},
		"cut off":           {string(good[:len(good)/2]), "decode"},
		"another version":   {change(`"version": 4`, `"version": 7`), `version "7": this Caisson reads 1 to 4`},
		"no version":        {`{}`, `version "0"`},
		"a version as text": {`{"version":"1"}`, "decode"},
		"an unknown member": {change(`"turns"`, `"secret": 1, "turns"`), "secret"},
		"a member twice":    {change(`"turns"`, `"turns": 1, "turns"`), "turns"},
		"another spelling":  {change(`"turns"`, `"Turns"`), "Turns"},
		"a foreign id":      {change(string(id), "../../etc"), "not a lower-case UUID"},
		"invalid UTF-8":     {change("claude", "cl\xffude"), "UTF-8"},
		"more behind it":    {string(good) + "{}", "decode"},
		"negative turns":    {change(`"turns": 2`, `"turns": -2`), "negative"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decode([]byte(c.data))
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestARecordOfVersion1IsRead(t *testing.T) {
	data, err := encode(domain.SessionRecord{ID: id, Kind: "claude", Turns: 2})
	require.NoError(t, err)
	require.NotContains(t, string(data), "grants")
	r, err := decode([]byte(strings.Replace(string(data), `"version": 4`, `"version": 1`, 1)))
	require.NoError(t, err)
	require.Equal(t, 2, r.Turns)
	require.Nil(t, r.Grants, "unknown, which is not none")
}

func TestLoadRefusesTheRecordOfAnotherSession(t *testing.T) {
	s := newStore(t)
	const other = domain.SessionID("01890a5d-ac96-774b-bcce-b302099a8058")
	require.NoError(t, s.Save(t.Context(), domain.SessionRecord{ID: id}))
	require.NoError(t, s.Save(t.Context(), domain.SessionRecord{ID: other}))
	dir := filepath.Join(s.Root(), "sessions")
	require.NoError(t, os.Rename(filepath.Join(dir, string(id), "record.json"), filepath.Join(dir, string(other), "record.json")))
	_, err := s.Load(t.Context(), other)
	require.ErrorContains(t, err, "that of session "+string(id))
}

func TestLoadRefusesAHugeFile(t *testing.T) {
	s := newStore(t)
	dirs, err := s.Dirs(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(dirs.State), "record.json"), make([]byte, maxRecord+1), 0o600))
	_, err = s.Load(t.Context(), id)
	require.ErrorContains(t, err, "too many for a record")
}

func TestAFailedSaveLeavesTheEarlierRecord(t *testing.T) {
	s := newStore(t)
	require.NoError(t, s.Save(t.Context(), domain.SessionRecord{ID: id, Kind: "claude"}))
	require.Error(t, s.Save(t.Context(), domain.SessionRecord{ID: id, Kind: "not \xff UTF-8"}))
	got, err := s.Load(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, domain.AgentClaude, got.Kind)
}

func FuzzDecode(f *testing.F) {
	good, err := encode(domain.SessionRecord{ID: id, Kind: "claude", Lineage: []string{"a"}})
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			return
		}
		again, err := encode(r)
		require.NoError(t, err)
		back, err := decode(again)
		require.NoError(t, err)
		require.True(t, r.Opened.Equal(back.Opened))
		require.True(t, r.Updated.Equal(back.Updated))
		back.Opened, back.Updated = r.Opened, r.Updated
		if len(r.Lineage) == 0 {
			back.Lineage = r.Lineage
		}
		require.Equal(t, r, back)
	})
}

func TestOpenRemovesWhatASaveThatWasKilledLeft(t *testing.T) {
	s := newStore(t)
	dirs, err := s.Dirs(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, s.Save(t.Context(), domain.SessionRecord{ID: id, Kind: "claude"}))
	place := filepath.Dir(dirs.State)
	for _, name := range []string{"A", "B"} {
		require.NoError(t, os.WriteFile(filepath.Join(place, "record.json."+name), []byte(`{"ver`), 0o600))
	}
	log, err := s.Open(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, log.Close())
	left, err := filepath.Glob(filepath.Join(place, "record.json*"))
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(place, "record.json")}, left)
	r, err := s.Load(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, domain.AgentKind("claude"), r.Kind)
}

// A path of a unix socket has room for 107 bytes. Python's multiprocessing takes 32
// of them below $TMPDIR, tmux 19 and gpg about 40.
func TestTheTemporaryDirectoryIsShort(t *testing.T) {
	s := &Store{root: "/home/somebody/.local/state/caisson"}
	dirs, err := s.Paths(id)
	require.NoError(t, err)
	require.LessOrEqual(t, len(dirs.Temp), 107-42)
	other, err := s.Paths("01890a5d-ac96-774b-bcce-b302099a8058")
	require.NoError(t, err)
	require.NotEqual(t, dirs.Temp, other.Temp)
	require.Equal(t, strings.ToLower(dirs.Temp), dirs.Temp, "also where case does not count")
}

func TestATemporaryDirectoryIsRemovedWithItsSession(t *testing.T) {
	s := newStore(t)
	dirs, err := s.Dirs(t.Context(), id)
	require.NoError(t, err)
	other, err := s.Dirs(t.Context(), "01890a5d-ac96-774b-bcce-b302099a8058")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(dirs.Temp, "a", "b"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(dirs.Temp, strings.Repeat("d/", 3*maxOpen)), 0o700))
	for n := range batch + 10 {
		require.NoError(t, os.WriteFile(filepath.Join(dirs.Temp, fmt.Sprint(n)), nil, 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dirs.Temp, "a", "file"), nil, 0o400))
	require.NoError(t, os.Chmod(filepath.Join(dirs.Temp, "a"), 0o500))
	require.NoError(t, os.Chmod(dirs.Temp, 0))
	require.NoError(t, s.Remove(t.Context(), id))
	require.NoDirExists(t, dirs.Temp)
	require.DirExists(t, other.Temp)
	require.NoError(t, s.Remove(t.Context(), id), "twice")
}

// The plan of a session names its temporary directory, and must stay the same.
func TestASessionOfAnOlderCaissonKeepsItsTemporaryDirectory(t *testing.T) {
	s := newStore(t)
	old := filepath.Join(s.root, "sessions", string(id), "tmp")
	require.NoError(t, os.MkdirAll(old, 0o700))
	dirs, err := s.Dirs(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, old, dirs.Temp)
	require.NoDirExists(t, filepath.Join(s.root, "t"))
	require.NoError(t, s.Remove(t.Context(), id))
	require.NoDirExists(t, old)
}
