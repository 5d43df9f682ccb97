package portstest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// MemoryStore is a ports.SessionStore that keeps the records, the logs and who
// has them open in memory, so that other processes share none of it. The
// directories are real ones, below its root.
type MemoryStore struct {
	root string

	mu       sync.Mutex
	sessions map[domain.SessionID]*memorySession
	open     map[domain.SessionID]bool
}

// memorySession is what is kept of a session.
type memorySession struct {
	record *domain.SessionRecord
	events []domain.Event
	epoch  uint64 // of the last event
}

var _ ports.SessionStore = (*MemoryStore)(nil)

// NewMemoryStore returns a store whose directories go with the test.
func NewMemoryStore(tb testing.TB) *MemoryStore {
	tb.Helper()
	r, err := MemoryStoreAt(tb.TempDir())
	require.NoError(tb, err)
	return r
}

// MemoryStoreAt returns a store whose directories are below root, an existing
// directory that the caller removes.
func MemoryStoreAt(root string) (*MemoryStore, error) {
	canonical, err := filepath.EvalSymlinks(root)
	if err != nil {
		return nil, err
	}
	return &MemoryStore{
		root: canonical, sessions: map[domain.SessionID]*memorySession{}, open: map[domain.SessionID]bool{},
	}, nil
}

// session returns what is kept of a session, and makes a place for it.
func (m *MemoryStore) session(id domain.SessionID) *memorySession {
	s, ok := m.sessions[id]
	if !ok {
		s = &memorySession{}
		m.sessions[id] = s
	}
	return s
}

// Root implements ports.SessionStore.
func (m *MemoryStore) Root() string { return m.root }

// Paths implements ports.SessionStore.
func (m *MemoryStore) Paths(id domain.SessionID) (ports.SessionDirs, error) {
	if _, err := domain.ParseSessionID(string(id)); err != nil {
		return ports.SessionDirs{}, err
	}
	dir := filepath.Join(m.root, string(id))
	return ports.SessionDirs{
		State: filepath.Join(dir, "state"), Home: filepath.Join(dir, "home"),
		Temp: filepath.Join(dir, "temp"), Spool: filepath.Join(dir, "spool"),
	}, nil
}

// Dirs implements ports.SessionStore.
func (m *MemoryStore) Dirs(_ context.Context, id domain.SessionID) (ports.SessionDirs, error) {
	dirs, err := m.Paths(id)
	if err != nil {
		return ports.SessionDirs{}, err
	}
	m.mu.Lock()
	m.session(id)
	m.mu.Unlock()
	for _, dir := range []string{dirs.State, dirs.Home, dirs.Temp, dirs.Spool} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return ports.SessionDirs{}, err
		}
	}
	return dirs, nil
}

// Open implements ports.SessionStore.
func (m *MemoryStore) Open(_ context.Context, id domain.SessionID) (ports.SessionLog, error) {
	if _, err := domain.ParseSessionID(string(id)); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open[id] {
		return nil, &domain.BusyError{Session: id}
	}
	m.open[id] = true
	s := m.session(id)
	l := &memoryLog{store: m, session: s, id: id, epoch: s.epoch}
	if n := len(s.events); n > 0 {
		l.last = s.events[n-1].Seq
	}
	if r := s.record; r != nil {
		l.last, l.epoch = max(l.last, r.LastSeq), max(l.epoch, r.Epoch)
	}
	l.epoch++
	return l, nil
}

// memoryLog is the log of an open session in a MemoryStore, whose lock guards it.
type memoryLog struct {
	store   *MemoryStore
	session *memorySession
	id      domain.SessionID
	epoch   uint64
	last    uint64
	closed  bool
}

// Epoch implements ports.SessionLog.
func (l *memoryLog) Epoch() uint64 { return l.epoch }

// LastSeq implements ports.SessionLog.
func (l *memoryLog) LastSeq() uint64 {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	return l.last
}

// Append implements ports.SessionLog.
func (l *memoryLog) Append(_ context.Context, e domain.Event) error {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	switch {
	case l.closed:
		return fmt.Errorf("the log of session %s: %w", l.id, domain.ErrClosed)
	case e.Session != l.id:
		return &domain.InvalidError{What: "event", Value: string(e.Session), Reason: "it belongs to another session"}
	case e.Seq != l.last+1:
		return &domain.InvalidError{What: "sequence number", Value: fmt.Sprint(e.Seq), Reason: fmt.Sprintf("the log goes on with %d", l.last+1)}
	}
	l.session.events = append(l.session.events, e)
	l.session.epoch, l.last = l.epoch, e.Seq
	return nil
}

// Sync implements ports.SessionLog.
func (l *memoryLog) Sync(context.Context) error {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if l.closed {
		return fmt.Errorf("the log of session %s: %w", l.id, domain.ErrClosed)
	}
	return nil
}

// Close implements ports.SessionLog.
func (l *memoryLog) Close() error {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if !l.closed {
		l.closed = true
		delete(l.store.open, l.id)
	}
	return nil
}

// Replay implements ports.SessionStore.
func (m *MemoryStore) Replay(ctx context.Context, id domain.SessionID, from uint64) iter.Seq2[domain.Event, error] {
	return func(yield func(domain.Event, error) bool) {
		if _, err := domain.ParseSessionID(string(id)); err != nil {
			yield(domain.Event{}, err)
			return
		}
		for {
			if err := context.Cause(ctx); err != nil {
				yield(domain.Event{}, err)
				return
			}
			e, ok := m.event(id, from)
			if !ok || !yield(e, nil) {
				return
			}
			from = e.Seq + 1
		}
	}
}

// event returns the first event of a session with that number or a higher one.
func (m *MemoryStore) event(id domain.SessionID, from uint64) (domain.Event, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.sessions[id]
	if !ok {
		return domain.Event{}, false
	}
	i, _ := slices.BinarySearchFunc(s.events, from, func(e domain.Event, seq uint64) int { return cmp.Compare(e.Seq, seq) })
	if i == len(s.events) {
		return domain.Event{}, false
	}
	return s.events[i], true
}

// List implements ports.SessionStore.
func (m *MemoryStore) List(context.Context) ([]domain.SessionID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.sessions)), nil
}

// Save implements ports.SessionStore.
func (m *MemoryStore) Save(_ context.Context, r domain.SessionRecord) error {
	if _, err := domain.ParseSessionID(string(r.ID)); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	r = cloneRecord(r)
	m.session(r.ID).record = &r
	return nil
}

// Load implements ports.SessionStore.
func (m *MemoryStore) Load(_ context.Context, id domain.SessionID) (domain.SessionRecord, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.sessions[id]
	if !ok || s.record == nil {
		return domain.SessionRecord{}, &domain.InvalidError{What: "session", Value: string(id), Reason: "no such session"}
	}
	return cloneRecord(*s.record), nil
}

// cloneRecord returns a record that shares nothing.
func cloneRecord(r domain.SessionRecord) domain.SessionRecord {
	r.Lineage, r.Grants = slices.Clone(r.Lineage), slices.Clone(r.Grants)
	if r.Live != nil {
		live := *r.Live
		r.Live = &live
	}
	return r
}

// Remove implements ports.SessionStore.
func (m *MemoryStore) Remove(_ context.Context, id domain.SessionID) error {
	if _, err := domain.ParseSessionID(string(id)); err != nil {
		return err
	}
	// An open session stays open: nobody begins it anew while its directories go.
	m.mu.Lock()
	delete(m.sessions, id)
	m.mu.Unlock()
	dir := filepath.Join(m.root, string(id))
	// Directories without write permission are removed too.
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return err
	})
	return os.RemoveAll(dir)
}

// AssertSessionStoreContract checks an implementation of ports.SessionStore.
// open returns a fresh and empty one.
func AssertSessionStoreContract(t *testing.T, open func(testing.TB) ports.SessionStore) {
	t.Helper()
	runCases(t, slices.Concat(storeContract, logContract), open)
}

const (
	idA = domain.SessionID("01890a5d-ac96-774b-bcce-b302099a8057")
	idB = domain.SessionID("01890a5d-ac96-774b-bcce-b302099a8058")
)

// aRecord has a value in every field, and none that another one has.
func aRecord(id domain.SessionID) domain.SessionRecord {
	return domain.SessionRecord{
		ID: id, Kind: "codex", Workspace: "/some/where with a space/é", PlanDigest: strings.Repeat("ab", 32),
		Grants: []string{"read /a  # one", "tcp connect 443"},
		Prompt: "do \x1b[31m this", Outcome: "denied",
		ConversationID: "c-3", Lineage: []string{"c-1", "c-2"}, Turns: 3, LastSeq: 1 << 60,
		Total: domain.Usage{
			InputTokens: 11, CachedInputTokens: 12, CacheWriteTokens: 13, OutputTokens: 14, ReasoningTokens: 15,
		},
		Opened: time.Date(2026, 2, 3, 4, 5, 6, 789, time.UTC), Updated: time.Date(2026, 3, 3, 4, 5, 6, 789, time.UTC),
		Epoch: 7,
		Live:  &domain.LiveTurn{Turn: 3, First: 20, Process: domain.ProcessIdentity{Pid: 21, Start: 22, Boot: "boot-23", Mark: "mark-24"}},
	}
}

var storeContract = []contractCase[func(testing.TB) ports.SessionStore]{
	{
		"root", "Root is an existing, canonical directory: plans are checked against it by path",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			root := open(tb).Root()
			require.True(tb, filepath.IsAbs(root), root)
			canonical, err := filepath.EvalSymlinks(root)
			require.NoError(tb, err)
			require.Equal(tb, canonical, root)
		},
	},
	{
		"paths make nothing", "Paths tells where the directories would be, so that a plan can be shown without side effects",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			dirs, err := r.Paths(idA)
			require.NoError(tb, err)
			for _, dir := range fourDirs(dirs) {
				require.NoFileExists(tb, dir)
				require.NoDirExists(tb, dir)
			}
			made, err := r.Dirs(tb.Context(), idA)
			require.NoError(tb, err)
			require.Equal(tb, dirs, made)
		},
	},
	{
		"private directories", "Dirs makes four directories below Root, none in another, that only the user can look into",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			a, err := r.Dirs(tb.Context(), idA)
			require.NoError(tb, err)
			b, err := r.Dirs(tb.Context(), idB)
			require.NoError(tb, err)
			all := append(fourDirs(a), fourDirs(b)...)
			for i, dir := range all {
				info, err := os.Lstat(dir)
				require.NoError(tb, err)
				require.True(tb, info.IsDir(), dir)
				require.Zero(tb, info.Mode().Perm()&0o077, "%s has mode %s", dir, info.Mode())
				require.True(tb, strings.HasPrefix(dir, r.Root()+string(filepath.Separator)), dir)
				for j, other := range all {
					if i != j {
						require.False(tb, strings.HasPrefix(other+"/", dir+"/"), "%s is in %s", other, dir)
					}
				}
			}
		},
	},
	{
		"directories last", "Dirs of an existing session keeps what is in its directories: the agent's conversation lives there",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			dirs, err := r.Dirs(tb.Context(), idA)
			require.NoError(tb, err)
			file := filepath.Join(dirs.State, "conversation")
			require.NoError(tb, os.WriteFile(file, []byte("kept"), 0o600))
			again, err := r.Dirs(tb.Context(), idA)
			require.NoError(tb, err)
			require.Equal(tb, dirs, again)
			data, err := os.ReadFile(file)
			require.NoError(tb, err)
			require.Equal(tb, "kept", string(data))
		},
	},
	{
		"round trip", "Load gives back every field that Save was given",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			require.NoError(tb, r.Save(tb.Context(), aRecord(idA)))
			got, err := r.Load(tb.Context(), idA)
			require.NoError(tb, err)
			require.True(tb, aRecord(idA).Opened.Equal(got.Opened), got.Opened)
			require.True(tb, aRecord(idA).Updated.Equal(got.Updated), got.Updated)
			got.Opened, got.Updated = aRecord(idA).Opened, aRecord(idA).Updated
			require.Equal(tb, aRecord(idA), got)
		},
	},
	{
		"the last save counts", "Save replaces the earlier record whole, and not that of another session",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			require.NoError(tb, r.Save(tb.Context(), aRecord(idA)))
			require.NoError(tb, r.Save(tb.Context(), aRecord(idB)))
			next := aRecord(idA)
			next.Turns, next.Lineage, next.ConversationID = 4, nil, ""
			require.NoError(tb, r.Save(tb.Context(), next))
			got, err := r.Load(tb.Context(), idA)
			require.NoError(tb, err)
			require.Equal(tb, 4, got.Turns)
			require.Empty(tb, got.Lineage)
			require.Empty(tb, got.ConversationID)
			got, err = r.Load(tb.Context(), idB)
			require.NoError(tb, err)
			require.Equal(tb, 3, got.Turns)
		},
	},
	{
		"a record is a copy", "what the caller does to a record after Save or Load does not change what is stored",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			mine := aRecord(idA)
			require.NoError(tb, r.Save(tb.Context(), mine))
			mine.Lineage[0], mine.Grants[0], mine.Live.Turn = "changed", "changed", 99
			got, err := r.Load(tb.Context(), idA)
			require.NoError(tb, err)
			require.Equal(tb, "c-1", got.Lineage[0])
			require.Equal(tb, "read /a  # one", got.Grants[0])
			require.Equal(tb, 3, got.Live.Turn)
			got.Lineage[0], got.Grants[0], got.Live.Turn = "changed", "changed", 99
			got, err = r.Load(tb.Context(), idA)
			require.NoError(tb, err)
			require.Equal(tb, "c-1", got.Lineage[0])
			require.Equal(tb, "read /a  # one", got.Grants[0])
			require.Equal(tb, 3, got.Live.Turn)
		},
	},
	{
		"unknown session", "Load of a session that was never saved is the caller's mistake and named as such, also if its directories exist",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			var invalid *domain.InvalidError
			_, err := r.Load(tb.Context(), idA)
			require.ErrorAs(tb, err, &invalid)
			require.Equal(tb, "session", invalid.What)
			require.Contains(tb, err.Error(), string(idA))
			_, err = r.Dirs(tb.Context(), idA)
			require.NoError(tb, err)
			_, err = r.Load(tb.Context(), idA)
			require.ErrorAs(tb, err, &invalid)
		},
	},
	{
		"one has the session open", "Open refuses everybody but the first with a BusyError, at once, until that one closes it: two ends of one conversation fork it",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			log := openLog(tb, r, idA)
			_, err := r.Load(tb.Context(), idA)
			require.Error(tb, err, "an open session is no record")
			for range 2 {
				_, err := r.Open(tb.Context(), idA)
				require.ErrorIs(tb, err, domain.ErrBusy)
				var busy *domain.BusyError
				require.ErrorAs(tb, err, &busy)
				require.Equal(tb, idA, busy.Session)
			}
			other := openLog(tb, r, idB)
			require.NoError(tb, r.Save(tb.Context(), aRecord(idA)), "who has it open can save it")
			require.NoError(tb, log.Close())
			again := openLog(tb, r, idA)
			require.NoError(tb, log.Close(), "twice, which takes nothing from the next one")
			_, err = r.Open(tb.Context(), idA)
			require.ErrorIs(tb, err, domain.ErrBusy)
			require.NoError(tb, again.Close())
			require.NoError(tb, other.Close())
		},
	},
	{
		"one of many has the session open", "Of those who open it at the same time exactly one succeeds, also while others remove the session",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			var holders atomic.Int32
			const workers, rounds = 8, 25
			failures := make(chan error, workers*rounds)
			var wg sync.WaitGroup
			for range workers {
				wg.Go(func() {
					for range rounds {
						log, err := r.Open(tb.Context(), idA)
						if errors.Is(err, domain.ErrBusy) {
							continue
						}
						if err != nil {
							failures <- err
							continue
						}
						if n := holders.Add(1); n != 1 {
							failures <- fmt.Errorf("%d have it open", n)
						}
						holders.Add(-1)
						if err := errors.Join(r.Remove(tb.Context(), idA), log.Close()); err != nil {
							failures <- err
						}
					}
				})
			}
			wg.Wait()
			close(failures)
			for err := range failures {
				require.NoError(tb, err)
			}
			require.NoError(tb, openLog(tb, r, idA).Close(), "in the end it is free")
		},
	},
	{
		"remove what one has open", "Who has a session open can remove it: that is how a session without a turn ends",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			log := openLog(tb, r, idA)
			dirs, err := r.Dirs(tb.Context(), idA)
			require.NoError(tb, err)
			require.NoError(tb, log.Append(tb.Context(), anEvent(idA, 1)))
			require.NoError(tb, r.Remove(tb.Context(), idA))
			require.NoDirExists(tb, dirs.State)
			require.NoError(tb, log.Close())
			require.Empty(tb, replayed(tb, r, idA, 1))
			log = openLog(tb, r, idA)
			require.Zero(tb, log.LastSeq())
			require.NoError(tb, log.Close())
		},
	},
	{
		"ids are no paths", "an id that is no lower-case UUID is refused by every method: an id becomes a directory's name",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			for _, id := range []domain.SessionID{"", ".", "..", "../x", "a/b", idA + "/..", domain.SessionID(strings.ToUpper(string(idA))), idA + "\x00"} {
				_, err := r.Paths(id)
				require.Error(tb, err, "Paths(%q)", id)
				_, err = r.Dirs(tb.Context(), id)
				require.Error(tb, err, "Dirs(%q)", id)
				_, err = r.Load(tb.Context(), id)
				require.Error(tb, err, "Load(%q)", id)
				_, err = r.Open(tb.Context(), id)
				require.Error(tb, err, "Open(%q)", id)
				_, errs := drain(r.Replay(tb.Context(), id, 1))
				require.Len(tb, errs, 1, "Replay(%q)", id)
				require.Error(tb, r.Remove(tb.Context(), id), "Remove(%q)", id)
				record := aRecord(id)
				require.Error(tb, r.Save(tb.Context(), record), "Save(%q)", id)
			}
		},
	},
	{
		"remove", "Remove leaves neither the record nor the directories, whatever the agent left in them, and touches no other session",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			outside := filepath.Join(tb.TempDir(), "outside")
			require.NoError(tb, os.WriteFile(outside, []byte("kept"), 0o600))
			for _, id := range []domain.SessionID{idA, idB} {
				require.NoError(tb, r.Save(tb.Context(), aRecord(id)))
			}
			dirs, err := r.Dirs(tb.Context(), idA)
			require.NoError(tb, err)
			other, err := r.Dirs(tb.Context(), idB)
			require.NoError(tb, err)
			sealed := filepath.Join(dirs.Home, "go", "pkg", "mod")
			require.NoError(tb, os.MkdirAll(sealed, 0o700))
			require.NoError(tb, os.WriteFile(filepath.Join(sealed, "file"), nil, 0o400))
			require.NoError(tb, os.Symlink(outside, filepath.Join(sealed, "link")))
			require.NoError(tb, os.Symlink(filepath.Dir(outside), filepath.Join(sealed, "dirlink")))
			require.NoError(tb, os.Chmod(sealed, 0o500))
			require.NoError(tb, os.Chmod(filepath.Dir(sealed), 0o000))

			require.NoError(tb, r.Remove(tb.Context(), idA))
			for _, dir := range fourDirs(dirs) {
				require.NoDirExists(tb, dir)
			}
			_, err = r.Load(tb.Context(), idA)
			require.Error(tb, err)
			require.FileExists(tb, outside)
			require.DirExists(tb, other.State)
			_, err = r.Load(tb.Context(), idB)
			require.NoError(tb, err)
		},
	},
	{
		"remove nothing", "Removing what is not there is no error, so a rollback can always remove",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			require.NoError(tb, r.Remove(tb.Context(), idA))
			require.NoError(tb, r.Save(tb.Context(), aRecord(idA)))
			require.NoError(tb, r.Remove(tb.Context(), idA))
			require.NoError(tb, r.Remove(tb.Context(), idA))
		},
	},
	{
		"whole or not at all", "a reader never sees half of a record while others write",
		func(tb testing.TB, open func(testing.TB) ports.SessionStore) {
			r := open(tb)
			require.NoError(tb, r.Save(tb.Context(), aRecord(idA)))
			const writers, rounds = 4, 25
			failures := make(chan error, 2*writers*rounds)
			var wg sync.WaitGroup
			for w := range writers {
				wg.Go(func() {
					for range rounds {
						record := aRecord(idA)
						record.Turns = w
						record.ConversationID = strings.Repeat(fmt.Sprint(w), 1000*(w+1))
						if err := r.Save(tb.Context(), record); err != nil {
							failures <- err
						}
					}
				})
				wg.Go(func() {
					for range rounds {
						got, err := r.Load(tb.Context(), idA)
						switch {
						case err != nil:
							failures <- err
						case got.ConversationID != "c-3" && got.ConversationID != strings.Repeat(fmt.Sprint(got.Turns), 1000*(got.Turns+1)):
							failures <- fmt.Errorf("turns %d with a conversation id of %d bytes", got.Turns, len(got.ConversationID))
						}
					}
				})
			}
			wg.Wait()
			close(failures)
			for err := range failures {
				require.NoError(tb, err)
			}
		},
	},
}

// openLog opens a session that must be free.
func openLog(tb testing.TB, r ports.SessionStore, id domain.SessionID) ports.SessionLog {
	tb.Helper()
	log, err := r.Open(tb.Context(), id)
	require.NoError(tb, err)
	return log
}

func fourDirs(d ports.SessionDirs) []string { return []string{d.State, d.Home, d.Temp, d.Spool} }
