package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

const (
	loginsDir = "logins"
	loginExt  = ".json"
	// lentFile is in a session's spool directory, which its agent cannot write to,
	// while the session has a login.
	lentFile = "login.json"
	// maxLogin bounds what is read. The files of Claude Code and Codex have some
	// thousand bytes.
	maxLogin = 64 << 10
	// lockWait is how often a lock that somebody else has is tried again. It is held
	// for as long as it takes to write a file.
	lockWait = 5 * time.Millisecond
)

// Logins is a ports.LoginStore in the file system: of each login one file,
// logins/AGENT/NAME.json below the root, and one lock for all. It is safe for
// concurrent use, also by several processes.
type Logins struct{ s *Store }

var _ ports.LoginStore = (*Logins)(nil)

// NewLogins returns the logins below the root of a store.
func NewLogins(root string) (*Logins, error) {
	s, err := New(root)
	return &Logins{s}, err
}

// Dir implements ports.LoginStore.
func (l *Logins) Dir() string { return filepath.Join(l.s.root, loginsDir) }

// loginName returns the name of a login's file. The parts of an id become parts
// of a path.
func loginName(id ports.LoginID) (agent, file string, err error) {
	name := cmp.Or(id.Name, ports.DefaultLogin)
	for _, part := range []struct{ what, s string }{{"agent", string(id.Agent)}, {"name of a login", name}} {
		what, s := part.what, part.s
		bad := func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
		}
		if s == "" || len(s) > 64 || s[0] == '-' || strings.ContainsFunc(s, bad) {
			return "", "", &domain.InvalidError{What: what, Value: s, Reason: "no name", Remedy: "small letters, digits, - and _, at most 64"}
		}
	}
	return string(id.Agent), name + loginExt, nil
}

// none reports whether no login was ever kept: then nothing is made to find out.
func (l *Logins) none() bool {
	_, err := os.Lstat(l.Dir())
	return errors.Is(err, fs.ErrNotExist)
}

// locked calls do with the directory of the logins, while nobody else has it.
func (l *Logins) locked(ctx context.Context, do func(logins *os.Root) error) (err error) {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	root, err := os.OpenRoot(l.s.root)
	if err != nil {
		return fmt.Errorf("open the state directory: %w", err)
	}
	defer root.Close()
	logins, err := openDir(root, loginsDir, true)
	if err != nil {
		return err
	}
	defer logins.Close()
	if info, err := logins.Lstat(lockFile); err == nil && !info.Mode().IsRegular() {
		return notRegular(filepath.Join(logins.Name(), lockFile), info)
	}
	f, err := logins.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("lock the logins: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	tick := time.NewTicker(lockWait)
	defer tick.Stop()
	for {
		if err = tryLock(f); err == nil {
			break
		}
		if !errors.Is(err, errLocked) {
			return fmt.Errorf("lock the logins: %w", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("lock the logins: %w", context.Cause(ctx))
		}
	}
	// As in Store.lock: a child that is just being started shares the lock.
	defer func() { err = errors.Join(err, releaseLock(f)) }()
	return do(logins)
}

// Import implements ports.LoginStore.
func (l *Logins) Import(ctx context.Context, id ports.LoginID, format ports.LoginFormat, path string) (ports.Login, error) {
	agent, file, err := loginName(id)
	if err != nil {
		return ports.Login{}, err
	}
	dir, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return ports.Login{}, fmt.Errorf("open the directory of the login's file: %w", err)
	}
	defer dir.Close()
	c, err := readLogin(dir, filepath.Base(path), format)
	if errors.Is(err, fs.ErrNotExist) {
		return ports.Login{}, refuseLogin(path, "does not exist", "name the file with the agent's login")
	}
	if err != nil {
		return ports.Login{}, err
	}
	err = l.locked(ctx, func(logins *os.Root) error { return keepLogin(logins, agent, file, c.data) })
	if err != nil {
		return ports.Login{}, err
	}
	return l.Login(ctx, id, format)
}

// Login implements ports.LoginStore.
func (l *Logins) Login(ctx context.Context, id ports.LoginID, format ports.LoginFormat) (login ports.Login, err error) {
	agent, file, err := loginName(id)
	if err != nil {
		return ports.Login{}, err
	}
	if l.none() {
		return ports.Login{}, noLogin(id)
	}
	err = l.locked(ctx, func(logins *os.Root) error {
		c, err := keptLogin(logins, agent, file, id, format)
		login = ports.Login{
			ID: ports.LoginID{Agent: id.Agent, Name: strings.TrimSuffix(file, loginExt)}, Kept: c.modified, Expires: c.expires,
		}
		return err
	})
	return login, err
}

// List implements ports.LoginStore.
func (l *Logins) List(ctx context.Context) ([]ports.LoginID, error) {
	if l.none() {
		return nil, ctx.Err()
	}
	var ids []ports.LoginID
	err := l.locked(ctx, func(logins *os.Root) error {
		names, err := fs.Glob(logins.FS(), "*/*"+loginExt)
		for _, n := range names {
			agent, file := filepath.Split(filepath.FromSlash(n))
			id := ports.LoginID{Agent: domain.AgentKind(filepath.Clean(agent)), Name: strings.TrimSuffix(file, loginExt)}
			if _, _, err := loginName(id); err == nil {
				ids = append(ids, id)
			}
		}
		return err
	})
	slices.SortFunc(ids, func(a, b ports.LoginID) int {
		return cmp.Or(cmp.Compare(a.Agent, b.Agent), cmp.Compare(a.Name, b.Name))
	})
	return ids, err
}

// Delete implements ports.LoginStore.
func (l *Logins) Delete(ctx context.Context, id ports.LoginID) error {
	agent, file, err := loginName(id)
	if err != nil {
		return err
	}
	if l.none() {
		return noLogin(id)
	}
	return l.locked(ctx, func(logins *os.Root) error {
		dir, err := openDir(logins, agent, false)
		if err == nil {
			defer dir.Close()
			err = dir.Remove(file)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return noLogin(id)
		case err != nil:
			return fmt.Errorf("forget the login of %s: %w", id, err)
		}
		return sweep(dir, file)
	})
}

// loan is what is noted of a login that a session has.
type loan struct {
	Agent  string `json:"agent"`
	Name   string `json:"name"`
	Digest string `json:"digest"` // of the copy as it was lent
}

func (l loan) id() ports.LoginID {
	return ports.LoginID{Agent: domain.AgentKind(l.Agent), Name: l.Name}
}

func readLoan(spool *os.Root) (lent loan, err error) {
	data, err := readRegular(spool, lentFile)
	if err != nil {
		return lent, err
	}
	if err := json.Unmarshal(data, &lent); err != nil {
		return lent, fmt.Errorf("the note of a loan in %s: %w", spool.Name(), err)
	}
	return lent, nil
}

// Lent implements ports.LoginStore.
func (l *Logins) Lent(ctx context.Context, dirs ports.SessionDirs) (ports.LoginID, error) {
	if _, err := os.Lstat(filepath.Join(dirs.Spool, lentFile)); errors.Is(err, fs.ErrNotExist) {
		return ports.LoginID{}, ctx.Err()
	}
	spool, err := openPath(dirs.Spool)
	if err != nil {
		return ports.LoginID{}, err
	}
	defer spool.Close()
	lent, err := readLoan(spool)
	return lent.id(), err
}

// Lend implements ports.LoginStore.
func (l *Logins) Lend(ctx context.Context, id ports.LoginID, format ports.LoginFormat, dirs ports.SessionDirs) (secrets []string, err error) {
	agent, file, err := loginName(id)
	if err != nil {
		return nil, err
	}
	err = l.locked(ctx, func(logins *os.Root) error {
		c, err := keptLogin(logins, agent, file, id, format)
		if err != nil {
			return err
		}
		note, err := json.Marshal(loan{Agent: agent, Name: strings.TrimSuffix(file, loginExt), Digest: c.digest()})
		if err != nil {
			return err
		}
		state, spool, err := sessionRoots(dirs)
		if err != nil {
			return err
		}
		defer state.Close()
		defer spool.Close()
		// The agent may have put anything there in an earlier turn, which must not be
		// there when there is a note: it would be taken for the copy, renewed.
		if err := removeTree(state, format.File); err != nil {
			return err
		}
		// The note first: a copy without one would not be taken back.
		if err := replace(spool, lentFile, note); err != nil {
			return err
		}
		secrets = c.secrets
		return replace(state, format.File, c.data)
	})
	if err != nil {
		return nil, fmt.Errorf("lend the login of %s: %w", id, err)
	}
	return secrets, nil
}

// Return implements ports.LoginStore.
func (l *Logins) Return(ctx context.Context, format ports.LoginFormat, dirs ports.SessionDirs) (ret ports.LoginReturn, err error) {
	if _, err := os.Lstat(filepath.Join(dirs.Spool, lentFile)); errors.Is(err, fs.ErrNotExist) {
		return ret, nil
	}
	err = l.locked(ctx, func(logins *os.Root) error {
		state, spool, err := sessionRoots(dirs)
		if err != nil {
			return err
		}
		defer state.Close()
		defer spool.Close()
		lent, err := readLoan(spool)
		if err != nil {
			return err
		}
		ret.ID = lent.id()
		if err := takeBack(logins, state, format, lent, &ret); err != nil {
			return err // both are still there for another try
		}
		if err := removeTree(state, format.File); err != nil {
			return err
		}
		return spool.Remove(lentFile)
	})
	if err != nil {
		return ret, fmt.Errorf("take the login back from the session: %w", err)
	}
	return ret, nil
}

// takeBack keeps the session's copy if it is a renewed one of the login that was
// lent, and says in ret what became of it.
func takeBack(logins, state *os.Root, format ports.LoginFormat, lent loan, ret *ports.LoginReturn) error {
	agent, file, err := loginName(ret.ID)
	if err != nil {
		return err
	}
	back, err := readLogin(state, format.File, format)
	invalid := (*domain.InvalidError)(nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		ret.Problem = "the agent has removed it"
		return nil
	case errors.As(err, &invalid):
		ret.Problem = invalid.Reason
		return nil
	case err != nil:
		return err
	case back.digest() == lent.Digest:
		return nil
	}
	now, err := keptLogin(logins, agent, file, ret.ID, format)
	switch {
	case errors.As(err, &invalid):
		// Forgotten meanwhile, and it is not for an agent to bring it back.
		ret.Problem = "the login is not kept any more, or cannot be used"
		return nil
	case err != nil:
		return err
	case back.digest() == now.digest():
		return nil
	case !sameAccount(now.account, back.account):
		ret.Problem = "it is that of another account"
		return nil
	case now.digest() != lent.Digest && !back.expires.After(now.expires):
		ret.Problem = "it was renewed elsewhere meanwhile, for at least as long"
		return nil
	}
	if err := keepLogin(logins, agent, file, back.data); err != nil {
		return err
	}
	ret.Renewed = true
	return nil
}

// sameAccount reports whether what was known of whose login it is stays so.
func sameAccount(was, is []string) bool {
	for i := range was {
		if was[i] != "" && is[i] != was[i] {
			return false
		}
	}
	return true
}

// sessionRoots opens the directories of a session that a loan is about. The agent
// may have made its own unusable.
func sessionRoots(dirs ports.SessionDirs) (state, spool *os.Root, err error) {
	if state, err = openPath(dirs.State); err != nil {
		return nil, nil, err
	}
	if spool, err = openPath(dirs.Spool); err != nil {
		return nil, nil, errors.Join(err, state.Close())
	}
	return state, spool, nil
}

func openPath(path string) (*os.Root, error) {
	parent, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	return openDir(parent, filepath.Base(path), false)
}

// keepLogin writes the file of a login.
func keepLogin(logins *os.Root, agent, file string, data []byte) error {
	dir, err := openDir(logins, agent, true)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := sweep(dir, file); err != nil {
		return err
	}
	return replace(dir, file, data)
}

// keptLogin reads the file of a login.
func keptLogin(logins *os.Root, agent, file string, id ports.LoginID, format ports.LoginFormat) (loginContent, error) {
	dir, err := openDir(logins, agent, false)
	if errors.Is(err, fs.ErrNotExist) {
		return loginContent{}, noLogin(id)
	}
	if err != nil {
		return loginContent{}, err
	}
	defer dir.Close()
	c, err := readLogin(dir, file, format)
	if errors.Is(err, fs.ErrNotExist) {
		return loginContent{}, noLogin(id)
	}
	return c, err
}

func noLogin(id ports.LoginID) error {
	remedy := "log in with: caisson login " + string(id.Agent)
	if name := cmp.Or(id.Name, ports.DefaultLogin); name != ports.DefaultLogin {
		remedy += " --name " + name
	}
	return &domain.InvalidError{What: "login", Value: id.String(), Reason: "none is kept", Remedy: remedy}
}

func refuseLogin(path, reason, remedy string) error {
	return &domain.InvalidError{What: "file with a login", Value: path, Reason: reason, Remedy: remedy}
}

func notRegular(path string, info fs.FileInfo) error {
	return &domain.InvalidError{What: "file", Value: path, Reason: "not a regular file but " + info.Mode().Type().String(), Remedy: "look at what it is, and remove it"}
}

// loginContent is a file with a login that was checked.
type loginContent struct {
	data     []byte // of the file to keep
	secrets  []string
	account  []string
	expires  time.Time
	modified time.Time
}

func (c loginContent) digest() string {
	sum := sha256.Sum256(c.data)
	return hex.EncodeToString(sum[:])
}

// readLogin reads and checks a file with a login. What is opened must be what was
// examined, and opening it waits for nobody: whoever made it may be an agent. A
// missing file is fs.ErrNotExist.
func readLogin(dir *os.Root, name string, format ports.LoginFormat) (c loginContent, err error) {
	full := filepath.Join(dir.Name(), name)
	bad := func(reason, remedy string) (loginContent, error) {
		return loginContent{}, refuseLogin(full, reason, remedy)
	}
	before, err := dir.Lstat(name)
	if err != nil {
		return c, err
	}
	switch {
	case !before.Mode().IsRegular():
		return bad("not a regular file but "+before.Mode().Type().String(), "name the file itself")
	case !ours(before):
		return bad("it belongs to another user", "use a file of your own")
	case !soleName(before):
		return bad("it is known under a second name (a hard link)", "use a copy of it")
	case othersCanUse(before):
		return bad("others can read or write it ("+before.Mode().String()+")", "chmod 600 it")
	case before.Size() > maxLogin:
		return bad(fmt.Sprintf("it has %d bytes, more than the %d of any login", before.Size(), maxLogin), "name the file with the login")
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|openPlain, 0)
	if err != nil {
		return bad("it cannot be opened as a plain file", "look at what it is")
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	after, err := f.Stat()
	if err != nil {
		return c, err
	}
	if !os.SameFile(before, after) {
		return bad("it was replaced while it was being opened", "try again")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxLogin+1))
	if err != nil {
		return c, fmt.Errorf("read %s: %w", full, err)
	}
	if len(data) > maxLogin {
		return bad("it is growing", "name the file with the login")
	}
	c, reason := checkLogin(data, format)
	if reason != "" {
		return bad(reason, "use the file "+format.File+" that the agent itself wrote when it logged in")
	}
	c.modified = after.ModTime()
	return c, nil
}
