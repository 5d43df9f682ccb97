package application_test

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an orchestrator on fakes, and the fakes.
type rig struct {
	*application.Orchestrator
	sessions  *portstest.FakeSessionFactory
	records   *hookedRecords
	commands  *fakeRunner
	env       map[string]string
	home      string
	workspace string
	log       *syncBuffer
}

func newRig(t *testing.T, change ...func(*application.Config)) *rig {
	t.Helper()
	dir := realPath(t, t.TempDir())
	r := &rig{
		sessions:  &portstest.FakeSessionFactory{},
		records:   &hookedRecords{MemoryStore: portstest.NewMemoryStore(t)},
		commands:  &fakeRunner{},
		home:      filepath.Join(dir, "home"),
		workspace: filepath.Join(dir, "home", "project"),
		log:       &syncBuffer{},
	}
	mkdir(t, r.workspace)
	r.env = map[string]string{"HOME": r.home, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
	cfg := application.Config{
		Agents:   []ports.AgentAdapter{portstest.FakeAgent{AgentKind: "fake", Program: "/bin/cat"}},
		Sessions: r.sessions,
		Commands: r.commands,
		Store:    r.records,
		Host: ports.Host{LookupEnv: func(name string) (string, bool) {
			v, ok := r.env[name]
			return v, ok
		}},
		Logger: slog.New(slog.NewTextHandler(r.log, nil)),
	}
	for _, c := range change {
		c(&cfg)
	}
	o, err := application.New(cfg)
	require.NoError(t, err)
	r.Orchestrator = o
	t.Cleanup(func() { require.NoError(t, o.Close(context.WithoutCancel(t.Context()))) })
	return r
}

// request is a good request.
func (r *rig) request() application.OpenRequest {
	return application.OpenRequest{Agent: "fake", Workspace: r.workspace}
}

func (r *rig) open(t *testing.T) *application.Session {
	t.Helper()
	s, err := r.Open(t.Context(), r.request())
	require.NoError(t, err)
	return s
}

func (r *rig) resume(t *testing.T, id domain.SessionID) *application.Session {
	t.Helper()
	s, err := r.Open(t.Context(), application.OpenRequest{Resume: id})
	require.NoError(t, err)
	return s
}

// left returns what is below the root of the records.
func (r *rig) left(t *testing.T) []string {
	t.Helper()
	var paths []string
	require.NoError(t, filepath.WalkDir(r.records.Root(), func(path string, _ fs.DirEntry, err error) error {
		if path != r.records.Root() {
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

// hookedRecords may fail at will.
type hookedRecords struct {
	*portstest.MemoryStore
	mu     sync.Mutex
	open   error
	dirs   error
	save   error
	remove error
	append error // of events that are no finals
	final  error // of all events
	onLoad func()
	saves  []domain.SessionRecord
}

func (h *hookedRecords) set(field *error, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*field = err
}

func (h *hookedRecords) get(field *error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return *field
}

func (h *hookedRecords) Open(ctx context.Context, id domain.SessionID) (ports.SessionLog, error) {
	if err := h.get(&h.open); err != nil {
		return nil, err
	}
	log, err := h.MemoryStore.Open(ctx, id)
	return hookedLog{SessionLog: log, h: h}, err
}

// hookedLog fails when its store is told to.
type hookedLog struct {
	ports.SessionLog
	h *hookedRecords
}

func (l hookedLog) Append(ctx context.Context, e domain.Event) error {
	_, final := e.Reply.(domain.Final)
	if err := l.h.get(&l.h.append); err != nil && !final {
		return err
	}
	if err := l.h.get(&l.h.final); err != nil {
		return err
	}
	return l.SessionLog.Append(ctx, e)
}

func (h *hookedRecords) Dirs(ctx context.Context, id domain.SessionID) (ports.SessionDirs, error) {
	dirs, err := h.MemoryStore.Dirs(ctx, id)
	if failure := h.get(&h.dirs); failure != nil {
		return ports.SessionDirs{}, failure
	}
	return dirs, err
}

func (h *hookedRecords) Save(ctx context.Context, r domain.SessionRecord) error {
	if err := h.get(&h.save); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	h.saves = append(h.saves, r)
	h.mu.Unlock()
	return h.MemoryStore.Save(ctx, r)
}

func (h *hookedRecords) Load(ctx context.Context, id domain.SessionID) (domain.SessionRecord, error) {
	r, err := h.MemoryStore.Load(ctx, id)
	if h.onLoad != nil {
		h.onLoad()
	}
	return r, err
}

func (h *hookedRecords) Remove(ctx context.Context, id domain.SessionID) error {
	if err := h.get(&h.remove); err != nil {
		return err
	}
	return h.MemoryStore.Remove(ctx, id)
}

func (h *hookedRecords) lastSave() (domain.SessionRecord, int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.saves) == 0 {
		return domain.SessionRecord{}, 0
	}
	return h.saves[len(h.saves)-1], len(h.saves)
}

// fakeRunner runs nothing.
type fakeRunner struct {
	run func(ctx context.Context, line domain.SpawnLine, stdio ports.Stdio) (ports.CommandResult, error)
}

func (f *fakeRunner) Run(ctx context.Context, line domain.SpawnLine, stdio ports.Stdio) (ports.CommandResult, error) {
	return f.run(ctx, line, stdio)
}

// syncBuffer is a log that can be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// collect reads a turn to its end.
func collect(turn *application.Turn) (events []domain.Event, errs []error) {
	for e, err := range turn.Events() {
		if err != nil {
			errs = append(errs, err)
		} else {
			events = append(events, e)
		}
	}
	return events, errs
}

// play runs a turn that is expected to go without an error of Caisson's.
func play(t *testing.T, s *application.Session, prompt string) []domain.Event {
	t.Helper()
	turn, err := s.Send(t.Context(), prompt)
	require.NoError(t, err)
	events, errs := collect(turn)
	require.Empty(t, errs)
	checkTurn(t, events)
	return events
}

// checkTurn checks what holds for every turn that is read to its end.
func checkTurn(t *testing.T, events []domain.Event) {
	t.Helper()
	require.NotEmpty(t, events)
	for i, e := range events {
		require.Equal(t, events[0].Seq+uint64(i), e.Seq, "a gap in the numbers")
		require.Equal(t, events[0].Session, e.Session)
		require.Equal(t, events[0].Turn, e.Turn)
		require.Equal(t, time.UTC, e.Time.Location())
		_, final := e.Reply.(domain.Final)
		require.Equal(t, i == len(events)-1, final, "event %d of %d is %T", i, len(events), e.Reply)
	}
}

// replay returns what the log of a session has.
func replay(t *testing.T, r *rig, id domain.SessionID) (events []domain.Event) {
	t.Helper()
	for e, err := range r.records.Replay(t.Context(), id, 1) {
		require.NoError(t, err)
		events = append(events, e)
	}
	return events
}

// checkLog checks what holds for every log: no gap, and one final per turn, last.
func checkLog(t *testing.T, events []domain.Event) {
	t.Helper()
	var turn []domain.Event
	for i, e := range events {
		require.Equal(t, uint64(i+1), e.Seq)
		turn = append(turn, e)
		if _, ok := e.Reply.(domain.Final); ok {
			checkTurn(t, turn)
			turn = nil
		}
	}
	require.Empty(t, turn, "a turn without a final")
}

// finals counts the finals of a turn.
func finals(events []domain.Event, turn int) (n int) {
	for _, e := range events {
		if _, ok := e.Reply.(domain.Final); ok && e.Turn == turn {
			n++
		}
	}
	return n
}

func finalOf(t *testing.T, events []domain.Event) domain.Final {
	t.Helper()
	require.NotEmpty(t, events)
	f, ok := events[len(events)-1].Reply.(domain.Final)
	require.True(t, ok)
	return f
}

func textOf(events []domain.Event) string {
	text := ""
	for _, e := range events {
		if t, ok := e.Reply.(domain.Text); ok {
			text += t.Text
		}
	}
	return text
}

func mkdir(t *testing.T, parts ...string) string {
	t.Helper()
	dir := filepath.Join(parts...)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	return dir
}

func write(t *testing.T, text string, parts ...string) string {
	t.Helper()
	file := filepath.Join(parts...)
	mkdir(t, filepath.Dir(file))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	return file
}

func realPath(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.EvalSymlinks(path)
	require.NoError(t, err)
	return path
}
