package store

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

const (
	sessionsDir = "sessions"
	// tempsDir and a name of 26 characters are shorter by 21 than a place in the
	// session's own directory: a path of a unix socket has room for 107 bytes, and
	// programs put theirs below $TMPDIR (unix(7)).
	tempsDir   = "t"
	recordFile = "record.json"
	lockFile   = "lock"
	// maxRecord bounds what is read. A record is some thousand bytes: 60 for each
	// grant of the plan, and 40 for each change of the conversation.
	maxRecord = 16 << 20
)

// Store is a ports.SessionStore in the file system. Between calls it holds no
// descriptor but those of the open logs, so there is nothing to close. It is safe
// for concurrent use, also by several processes: a record is replaced whole, by
// rename.
type Store struct {
	root string
}

var _ ports.SessionStore = (*Store)(nil)

// DefaultRoot returns where the state of Caisson belongs by the XDG Base
// Directory Specification (version 0.8): $XDG_STATE_HOME/caisson, or
// $HOME/.local/state/caisson. As the specification asks, a relative
// $XDG_STATE_HOME is ignored.
func DefaultRoot(lookupEnv func(name string) (string, bool)) (string, error) {
	if dir, _ := lookupEnv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "caisson"), nil
	}
	home, _ := lookupEnv("HOME")
	if !filepath.IsAbs(home) {
		return "", &domain.InvalidError{
			What: "HOME", Value: home, Reason: "not an absolute path, so there is no place for Caisson's state",
			Remedy: "set HOME or XDG_STATE_HOME",
		}
	}
	return filepath.Join(home, ".local", "state", "caisson"), nil
}

// New returns the store below root, an absolute path. A missing root is made,
// for the user alone. One that belongs to somebody else, or that others can
// write to, is refused with a *domain.InvalidError.
func New(root string) (*Store, error) {
	bad := func(reason, remedy string, err error) error {
		return &domain.InvalidError{What: "state directory", Value: root, Reason: reason, Remedy: remedy, Err: err}
	}
	if !filepath.IsAbs(root) {
		return nil, bad("not an absolute path", "pass an absolute path", nil)
	}
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, bad("cannot be made", "set XDG_STATE_HOME to a directory that you can write to", err)
	}
	canonical, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, bad("cannot be resolved", "", err)
	}
	info, err := os.Lstat(canonical)
	switch {
	case err != nil:
		return nil, bad("cannot be examined", "", err)
	case !ours(info):
		return nil, bad("belongs to another user", "set XDG_STATE_HOME to a directory of your own", nil)
	case othersCanWrite(info):
		return nil, bad("others can write to it ("+info.Mode().String()+")", "chmod go-w it", nil)
	}
	return &Store{root: canonical}, nil
}

// Root implements ports.SessionStore.
func (s *Store) Root() string { return s.root }

// Paths implements ports.SessionStore.
func (s *Store) Paths(id domain.SessionID) (ports.SessionDirs, error) {
	if _, err := domain.ParseSessionID(string(id)); err != nil {
		return ports.SessionDirs{}, err
	}
	dir := filepath.Join(s.root, sessionsDir, string(id))
	temp := filepath.Join(s.root, tempsDir, tempName(id))
	// A session of an older Caisson keeps its place: it is in the plan, which must
	// stay the same.
	if old := filepath.Join(dir, "tmp"); isDir(old) {
		temp = old
	}
	return ports.SessionDirs{
		State: filepath.Join(dir, "agent"), Home: filepath.Join(dir, "home"), Temp: temp, Spool: filepath.Join(dir, "spool"),
	}, nil
}

func isDir(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

// tempName is the id written with fewer characters. No two ids have the same.
func tempName(id domain.SessionID) string {
	value, err := hex.DecodeString(strings.ReplaceAll(string(id), "-", ""))
	if err != nil {
		return string(id) // no id that was parsed
	}
	return strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(value))
}

// Dirs implements ports.SessionStore.
func (s *Store) Dirs(ctx context.Context, id domain.SessionID) (ports.SessionDirs, error) {
	dirs, err := s.Paths(id)
	if err != nil {
		return ports.SessionDirs{}, err
	}
	session, err := s.openSession(ctx, id, true)
	if err != nil {
		return ports.SessionDirs{}, err
	}
	defer session.Close()
	for _, dir := range []string{dirs.State, dirs.Home, dirs.Spool} {
		if err := privateDir(session, filepath.Base(dir), true); err != nil {
			return ports.SessionDirs{}, err
		}
	}
	if filepath.Dir(dirs.Temp) == filepath.Dir(dirs.State) {
		return dirs, privateDir(session, filepath.Base(dirs.Temp), true)
	}
	temps, err := s.open(ctx, tempsDir, true)
	if err != nil {
		return ports.SessionDirs{}, err
	}
	defer temps.Close()
	return dirs, privateDir(temps, filepath.Base(dirs.Temp), true)
}

// List implements ports.SessionStore.
func (s *Store) List(ctx context.Context) ([]domain.SessionID, error) {
	sessions, err := s.openSessions(ctx, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer sessions.Close()
	entries, err := fs.ReadDir(sessions.FS(), ".") // sorted by name
	if err != nil {
		return nil, fmt.Errorf("list the sessions: %w", err)
	}
	var ids []domain.SessionID
	for _, e := range entries {
		if id, err := domain.ParseSessionID(e.Name()); err == nil && e.IsDir() {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// lock makes the caller the only one to have the session open, until unlock is
// called or the process ends.
func (s *Store) lock(ctx context.Context, id domain.SessionID) (func() error, error) {
	if _, err := domain.ParseSessionID(string(id)); err != nil {
		return nil, err
	}
	// Whoever had the session open may remove it meanwhile; then there is another
	// file to lock, unless the next one has been faster again and again.
	for range 100 {
		f, err := s.openLock(ctx, id)
		if errors.Is(err, fs.ErrNotExist) && s.exists() {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lock session %s: %w", id, err)
		}
		err = tryLock(f)
		if errors.Is(err, errLocked) {
			return nil, errors.Join(&domain.BusyError{Session: id}, f.Close())
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock session %s: %w", id, err), f.Close())
		}
		if s.isLock(ctx, id, f) {
			// A child that is just being started shares the lock until it executes
			// its program, so closing the file alone would not free it at once.
			return sync.OnceValue(func() error { return errors.Join(releaseLock(f), f.Close()) }), nil
		}
		if err := f.Close(); err != nil {
			return nil, fmt.Errorf("lock session %s: %w", id, err)
		}
	}
	return nil, &domain.BusyError{Session: id}
}

// exists reports whether the root is there.
func (s *Store) exists() bool {
	_, err := os.Lstat(s.root)
	return err == nil
}

// openLock opens the session's lock file, and makes it if it is missing.
func (s *Store) openLock(ctx context.Context, id domain.SessionID) (*os.File, error) {
	session, err := s.openSession(ctx, id, true)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	if info, err := session.Lstat(lockFile); err == nil && !info.Mode().IsRegular() {
		return nil, &domain.InvalidError{
			What: "file", Value: filepath.Join(session.Name(), lockFile),
			Reason: "not a regular file but " + info.Mode().Type().String(), Remedy: "look at what it is, and remove it",
		}
	}
	return session.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
}

// isLock reports whether the open file is the session's lock file.
func (s *Store) isLock(ctx context.Context, id domain.SessionID, f *os.File) bool {
	session, err := s.openSession(ctx, id, false)
	if err != nil {
		return false
	}
	defer session.Close()
	is, err := session.Lstat(lockFile)
	if err != nil {
		return false
	}
	opened, err := f.Stat()
	return err == nil && os.SameFile(is, opened)
}

// Save implements ports.SessionStore.
func (s *Store) Save(ctx context.Context, r domain.SessionRecord) error {
	if _, err := domain.ParseSessionID(string(r.ID)); err != nil {
		return err
	}
	data, err := encode(r)
	if err != nil {
		return err
	}
	session, err := s.openSession(ctx, r.ID, true)
	if err != nil {
		return err
	}
	defer session.Close()
	if err := replace(session, recordFile, data); err != nil {
		return fmt.Errorf("save the record of session %s: %w", r.ID, err)
	}
	return nil
}

// Load implements ports.SessionStore.
func (s *Store) Load(ctx context.Context, id domain.SessionID) (domain.SessionRecord, error) {
	if _, err := domain.ParseSessionID(string(id)); err != nil {
		return domain.SessionRecord{}, err
	}
	unknown := &domain.InvalidError{
		What: "session", Value: string(id), Reason: "no such session in " + s.root,
		Remedy: "pass the id that an earlier run printed (\"continue with: --resume ID\", or the field \"session\" of its events)",
	}
	session, err := s.openSession(ctx, id, false)
	if errors.Is(err, fs.ErrNotExist) {
		return domain.SessionRecord{}, unknown
	}
	if err != nil {
		return domain.SessionRecord{}, err
	}
	defer session.Close()
	data, err := readRegular(session, recordFile)
	if errors.Is(err, fs.ErrNotExist) {
		return domain.SessionRecord{}, unknown
	}
	if err != nil {
		return domain.SessionRecord{}, fmt.Errorf("read the record of session %s: %w", id, err)
	}
	r, err := decode(data)
	if err != nil {
		return domain.SessionRecord{}, fmt.Errorf("the record of session %s: %w", id, err)
	}
	if r.ID != id {
		return domain.SessionRecord{}, fmt.Errorf("the record of session %s: it is that of session %s", id, r.ID)
	}
	return r, nil
}

// Remove implements ports.SessionStore.
func (s *Store) Remove(ctx context.Context, id domain.SessionID) error {
	if _, err := domain.ParseSessionID(string(id)); err != nil {
		return err
	}
	// First: as long as the session is there, somebody comes to remove it again if
	// this fails, and nobody else begins it anew.
	if err := s.removeTemp(ctx, id); err != nil {
		return fmt.Errorf("remove the temporary directory of session %s: %w", id, err)
	}
	sessions, err := s.openSessions(ctx, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer sessions.Close()
	if err := removeSession(sessions, string(id)); err != nil {
		return fmt.Errorf("remove session %s: %w", id, err)
	}
	return nil
}

func (s *Store) removeTemp(ctx context.Context, id domain.SessionID) error {
	temps, err := s.open(ctx, tempsDir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer temps.Close()
	name := tempName(id)
	if info, err := temps.Lstat(name); err != nil || !info.IsDir() {
		return removeTree(temps, name)
	}
	// An agent may have changed its mode.
	temp, err := openDir(temps, name, false)
	if err != nil {
		return err
	}
	defer temp.Close()
	// What is deep is lifted to the top of what is removed, and must not be left
	// behind anywhere else if the process ends.
	if err := removeAll(temp); err != nil {
		return err
	}
	return remove(temps, name)
}

// removeSession removes a session's directory, the lock last: from then on
// somebody else may lock the session and begin it anew, and what that one makes
// is not touched.
func removeSession(sessions *os.Root, id string) error {
	if info, err := sessions.Lstat(id); err != nil || !info.IsDir() {
		return removeTree(sessions, id)
	}
	session, err := sessions.OpenRoot(id)
	if err != nil {
		return err
	}
	defer session.Close()
	entries, err := fs.ReadDir(session.FS(), ".")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Name() != lockFile {
			errs = append(errs, removeTree(session, e.Name()))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := removeTree(session, lockFile); err != nil {
		return err
	}
	// A directory that is not empty is fs.ErrExist.
	if err := sessions.Remove(id); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// openSessions opens the directory of all sessions, and makes it if it may.
func (s *Store) openSessions(ctx context.Context, create bool) (*os.Root, error) {
	return s.open(ctx, sessionsDir, create)
}

// open opens a directory in the root, and makes it if it may.
func (s *Store) open(ctx context.Context, name string, create bool) (*os.Root, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(s.root)
	if err != nil {
		return nil, fmt.Errorf("open the state directory: %w", err)
	}
	defer root.Close()
	return openDir(root, name, create)
}

// openSession opens one session's directory, and makes it if it may. Without
// leave to make it, a missing one is fs.ErrNotExist.
func (s *Store) openSession(ctx context.Context, id domain.SessionID, create bool) (*os.Root, error) {
	sessions, err := s.openSessions(ctx, create)
	if err != nil {
		return nil, err
	}
	defer sessions.Close()
	return openDir(sessions, string(id), create)
}

func openDir(parent *os.Root, name string, create bool) (*os.Root, error) {
	if err := privateDir(parent, name, create); err != nil {
		return nil, err
	}
	dir, err := parent.OpenRoot(name)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", filepath.Join(parent.Name(), name), err)
	}
	return dir, nil
}

// privateDir checks that name is a directory of the user's own, and sees to it
// that he can use it and nobody else: an agent may have changed the mode of what
// is its own. It makes it if it is missing and create is true.
func privateDir(parent *os.Root, name string, create bool) error {
	full := filepath.Join(parent.Name(), name)
	if create {
		if err := parent.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make %s: %w", full, err)
		}
	}
	info, err := parent.Lstat(name)
	switch {
	case err != nil:
		return fmt.Errorf("examine %s: %w", full, err)
	case !info.IsDir():
		return &domain.InvalidError{What: "state directory", Value: full, Reason: "not a directory but " + info.Mode().Type().String(), Remedy: "look at what it is, and remove it"}
	case !ours(info):
		return &domain.InvalidError{What: "state directory", Value: full, Reason: "belongs to another user", Remedy: "look at what it is, and remove it"}
	case info.Mode().Perm() != 0o700:
		if err := parent.Chmod(name, 0o700); err != nil {
			return fmt.Errorf("make %s private: %w", full, err)
		}
	}
	return nil
}

// readRegular reads a regular file of the user's own. It follows no link: what
// is opened must be what was examined.
func readRegular(dir *os.Root, name string) ([]byte, error) {
	full := filepath.Join(dir.Name(), name)
	bad := func(reason string) error {
		return &domain.InvalidError{What: "file", Value: full, Reason: reason, Remedy: "look at what it is, and remove it"}
	}
	// Another process may replace the record in between; that is no reason to
	// fail, but to look again.
	for range 10 {
		before, err := dir.Lstat(name)
		switch {
		case err != nil:
			return nil, err
		case !before.Mode().IsRegular():
			return nil, bad("not a regular file but " + before.Mode().Type().String())
		case !ours(before):
			return nil, bad("belongs to another user")
		case before.Size() > maxRecord:
			return nil, bad(fmt.Sprintf("%d bytes are too many for a record", before.Size()))
		}
		data, same, err := readSame(dir, name, before)
		if same || err != nil {
			return data, err
		}
	}
	return nil, bad("replaced again and again while it was being opened")
}

// readSame reads a file if it is still the one that was examined.
func readSame(dir *os.Root, name string, before fs.FileInfo) (data []byte, same bool, err error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	after, err := f.Stat()
	if err != nil || !os.SameFile(before, after) {
		return nil, false, err
	}
	data, err = io.ReadAll(io.LimitReader(f, maxRecord))
	return data, true, err
}

// replace writes a file whole or not at all, also across a power failure: the
// data is on disk before the name points to it.
func replace(dir *os.Root, name string, data []byte) (err error) {
	temp := name + "." + rand.Text()
	f, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, dir.Remove(temp))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := dir.Rename(temp, name); err != nil {
		return err
	}
	return syncDir(dir)
}

// sweep removes what replace left of a process that was killed in it.
func sweep(dir *os.Root, name string) error {
	entries, err := fs.ReadDir(dir.FS(), ".")
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), name+".") {
			// Whoever else may have been faster.
			if gone := dir.Remove(e.Name()); !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}
	return err
}
