package soak

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
	"github.com/caisson-run/caisson/infrastructure/store"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == orchestrator {
		var cfg config
		err := json.Unmarshal([]byte(os.Args[2]), &cfg)
		if err == nil {
			err = orchestrate(cfg)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	fakecli.Host() // where the fake cannot be built, the test binary is it
	testkit.MainWithFake(m)
}

var (
	sessionsFlag = flag.Int("sessions", 100, "how many sessions run at once")
	turnsFlag    = flag.Int("turns", 10, "turns of each session")
	crashesFlag  = flag.Int("crashes", 3, "how often the orchestrator is killed")
	aloneFlag    = flag.Int("alone", 20, "turns that run one at a time at the end")
	seedFlag     = flag.Uint64("seed", 0, "of everything random but the scheduling; 0 for one by the clock")
)

// heapPerSession bounds the orchestrator's heap for a session, with a turn
// running in it or without.
const heapPerSession = 64 << 10

var agents = []domain.AgentKind{domain.AgentClaude, domain.AgentCodex}

// witness is what the orchestrators told.
type witness struct {
	sent    map[string]map[int]bool           // turns by session
	finals  map[string]map[int]domain.Outcome // that a reader got
	events  map[string]map[uint64]string      // checksums of what a reader got
	took    []int64                           // microseconds of plain turns among all the others
	alone   [2][]int64                        // of plain runs, and of turns, one at a time
	turns   int                               // that an orchestrator told of
	done    int                               // also those that it was killed in before it could
	refused int
	pids    []int // of the orchestrators
	cost    cost
	report  *report
	wrong   []string
}

// note takes one line that an orchestrator told.
func (w *witness) note(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	scan := func(n int, into ...any) error {
		if got, err := fmt.Sscan(rest, into...); err != nil || got != n {
			return fmt.Errorf("%q: %w", line, err)
		}
		return nil
	}
	var id, what, name string
	var n, micros int64
	var seq uint64
	switch word {
	case "over":
		return nil
	case "ready":
		return scan(1, &w.done)
	case "refused":
		w.refused++
		return nil
	case "turn":
		err := scan(2, &id, &n)
		put(w.sent, id, int(n), true)
		w.turns++
		w.done++
		return err
	case "event":
		err := scan(3, &id, &seq, &what)
		if _, twice := w.events[id][seq]; twice {
			return fmt.Errorf("%q was given out twice", line)
		}
		put(w.events, id, seq, what)
		return err
	case "final":
		err := scan(5, &id, &n, &what, &name, &micros)
		put(w.finals, id, int(n), domain.Outcome(what))
		if name == plain.name {
			w.took = append(w.took, micros)
		}
		return err
	case "alone":
		err := scan(2, &n, &micros)
		w.alone[0], w.alone[1] = append(w.alone[0], n), append(w.alone[1], micros)
		return err
	case "cost":
		return json.Unmarshal([]byte(rest), &w.cost)
	case "report":
		w.report = &report{}
		return json.Unmarshal([]byte(rest), w.report)
	case "wrong":
		w.wrong = append(w.wrong, rest)
		return nil
	}
	return fmt.Errorf("an orchestrator told %q", line)
}

func put[K, L comparable, V any](m map[K]map[L]V, k K, l L, v V) {
	if m[k] == nil {
		m[k] = map[L]V{}
	}
	m[k][l] = v
}

// Many sessions at once, most of them in trouble, in an orchestrator that is
// killed and started again: every turn has one final, every event is in the log
// once and nothing else is, nothing is left of anything, and a session costs no
// more than it may.
func TestSoakOfSessions(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	// What an orchestrator leaves becomes this process's child, whatever it did
	// to hide, so nothing has to be searched for.
	require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer func() { require.NoError(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)) }()
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	cfg := config{
		Fake: testkit.FakeProgram(), Base: base, Sessions: *sessionsFlag, Turns: *turnsFlag,
		Seed: *seedFlag, First: true,
	}
	crashes := *crashesFlag
	if testing.Short() {
		cfg.Sessions, crashes = min(cfg.Sessions, 10), min(crashes, 1)
	}
	if cfg.Seed == 0 {
		cfg.Seed = uint64(time.Now().UnixNano())
	}
	t.Logf("%d sessions of %d turns, seed %d", cfg.Sessions, cfg.Turns, cfg.Seed)
	require.NoError(t, os.Mkdir(cfg.root(), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(base, "tmp"), 0o700))
	for n := range cfg.Sessions + 1 {
		require.NoError(t, os.Mkdir(cfg.workspace(n), 0o700))
	}
	w := &witness{sent: map[string]map[int]bool{}, finals: map[string]map[int]domain.Outcome{}, events: map[string]map[uint64]string{}}
	random := rand.New(rand.NewPCG(cfg.Seed, 0))
	cfg.Alone = *aloneFlag
	var took time.Duration
	crashed := 0
	for w.report == nil {
		after := 0
		if crashed < crashes {
			// The moments are spread over the turns: the first is when the cost is
			// known. A crash ends a turn of every session, so there may be fewer.
			share := cfg.Sessions * (cfg.Turns - 1) / (crashes + 1)
			after = cfg.Sessions + crashed*share + 1 + random.IntN(share)
		}
		took += live(t, cfg, w, after)
		cfg.First = false
		if w.report == nil {
			crashed++
		}
	}
	require.GreaterOrEqual(t, crashed, min(crashes, 1))
	require.Empty(t, w.report.Left, "the orchestrator still had this when all was closed")

	events, outcomes := checkLogs(t, cfg, w)
	require.Empty(t, remains(t, cfg))
	require.Empty(t, controlGroups(t, w.pids), "control groups are left")

	per := func(bytes uint64) int64 { return (int64(bytes) - int64(w.cost.Base)) / int64(cfg.Sessions) }
	require.LessOrEqual(t, per(w.cost.Idle), int64(heapPerSession), "heap for a session without a turn")
	require.LessOrEqual(t, per(w.cost.Running), int64(heapPerSession), "heap for a session with a turn")
	t.Logf("%d turns in %d sessions at once, with %d crashes of the orchestrator, in %s: %.1f sessions/s, %.1f turns/s; uid %d",
		w.turns, cfg.Sessions, crashed, took.Round(time.Second), float64(cfg.Sessions)/took.Seconds(), float64(w.turns)/took.Seconds(), os.Getuid())
	t.Logf("%d events in the logs; finals: %s; %d turns refused since their time was over", events, outcomes, w.refused)
	t.Logf("heap for a session: %.1f KiB without a turn, %.1f KiB with one, and %.1f KiB of stacks (%d threads, %d goroutines)",
		float64(per(w.cost.Idle))/1024, float64(per(w.cost.Running))/1024, float64(w.cost.Stacks)/float64(cfg.Sessions)/1024, w.cost.Threads, w.cost.Goroutines)
	t.Logf("peaks of the last orchestrator: %.1f MiB of heap with garbage, %.1f MiB RSS, %d threads",
		float64(w.report.PeakHeap)/(1<<20), float64(w.report.PeakRSS)/(1<<20), w.report.PeakThreads)
	t.Logf("a plain turn among all the others: p50 %s, p99 %s", quantile(w.took, 50), quantile(w.took, 99))
	if len(w.alone[0]) > 0 {
		over := make([]int64, len(w.alone[0]))
		for i := range over {
			over[i] = w.alone[1][i] - w.alone[0][i]
		}
		t.Logf("one at a time: the program by itself p50 %s, as a turn p50 %s; overhead p50 %s, p99 %s",
			quantile(w.alone[0], 50), quantile(w.alone[1], 50), quantile(over, 50), quantile(over, 99))
	}
}

// live runs one orchestrator, kills it after that many turns if that is not 0,
// and sees to it that nothing of it is left. It returns for how long there were
// sessions.
func live(t *testing.T, cfg config, w *witness, after int) time.Duration {
	exe, err := os.Executable()
	require.NoError(t, err)
	text, err := json.Marshal(cfg)
	require.NoError(t, err)
	r, out, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(exe, orchestrator, string(text))
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Join(cfg.Base, "tmp"))
	begun := time.Now()
	require.NoError(t, cmd.Start())
	w.pids = append(w.pids, cmd.Process.Pid)
	require.NoError(t, out.Close())
	// This process gets the orphans of the orchestrator and must reap them all
	// the time, so os/exec cannot be the one who waits.
	died := make(chan unix.WaitStatus, 1)
	go func() {
		for {
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, 0, nil)
			if err == nil && pid == cmd.Process.Pid || errors.Is(err, unix.ECHILD) {
				died <- status
				return
			}
		}
	}()
	var took time.Duration
	killed := false
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break // what it did not finish saying it did not say
		}
		require.NoError(t, err)
		line = strings.TrimSuffix(line, "\n")
		require.NoError(t, w.note(line))
		if line == "over" {
			took = time.Since(begun)
		}
		if after > 0 && !killed && took == 0 && w.done >= after && (!cfg.First || w.cost.Base > 0) {
			killed = true
			require.NoError(t, cmd.Process.Kill())
		}
	}
	status := <-died
	require.NoError(t, r.Close())
	require.NoError(t, cmd.Process.Release())
	if took == 0 {
		took = time.Since(begun)
	}
	require.Empty(t, w.wrong)
	if killed {
		require.Equal(t, unix.SIGKILL, status.Signal(), "the orchestrator ended with %v", status)
	} else {
		require.True(t, status.Exited() && status.ExitStatus() == 0, "the orchestrator ended with %v", status)
		require.NotNil(t, w.report, "it told nothing of how it ended")
	}
	// Keepers kill by themselves, and need a moment where there are many; of one
	// that ended by itself nothing may be left.
	wait := time.Minute
	if !killed {
		wait = 0
	}
	require.Empty(t, orphans(wait), "processes are left")
	return took
}

// orphans reaps this process's children until there is none or the time is over,
// and returns those that are left.
func orphans(wait time.Duration) (left []string) {
	for deadline := time.Now().Add(wait); ; {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if errors.Is(err, unix.ECHILD) {
			return nil
		}
		if err != nil || pid > 0 {
			continue
		}
		if time.Now().After(deadline) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for _, pid := range testkit.Children() {
		left = append(left, fmt.Sprintf("%d (%s)", pid, testkit.Comm(pid)))
	}
	return left
}

// checkLogs reads every log and compares it with what was told. It returns the
// number of events and the outcomes.
func checkLogs(t *testing.T, cfg config, w *witness) (int, string) {
	c, err := cfg.compose(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close(t.Context())) }()
	infos, err := c.Orchestrator.Sessions(t.Context())
	require.NoError(t, err)
	all := 0
	turns := make([]int, cfg.Sessions+1)
	outcomes := map[domain.Outcome]int{}
	var line []byte
	for _, info := range infos {
		require.False(t, info.Running)
		id := string(info.ID)
		var log logCheck
		for e, err := range c.Orchestrator.Replay(t.Context(), info.ID, 1, false) {
			require.NoError(t, err)
			all++
			line = jsonl.AppendEvent(line[:0], e)
			if sum, ok := w.events[id][e.Seq]; ok {
				require.Equal(t, fmt.Sprintf("%08x", crc32.ChecksumIEEE(line)), sum, "event %d of session %s is another one in the log: %s", e.Seq, id, line)
				delete(w.events[id], e.Seq)
			}
			require.NoError(t, log.next(e), "event %d of session %s: %s", e.Seq, id, line)
			if f, ok := e.Reply.(domain.Final); ok {
				outcomes[f.Outcome]++
				delete(w.sent[id], e.Turn)
				if is, ok := w.finals[id][e.Turn]; ok {
					require.Equal(t, is, f.Outcome)
				}
				delete(w.finals[id], e.Turn)
			}
		}
		require.True(t, log.over(), "the last turn of session %s has no final", id)
		require.Equal(t, info.LastSeq, log.seq)
		require.Equal(t, info.Turns, log.turn)
		require.Empty(t, w.events[id], "events of session %s that were given out and are not in the log", id)
		require.Empty(t, w.sent[id], "turns of session %s without a final", id)
		require.Empty(t, w.finals[id], "finals of session %s that were given out and are not in the log", id)
		delete(w.events, id)
		delete(w.sent, id)
		delete(w.finals, id)
		n, err := slotOf(info.Workspace)
		require.NoError(t, err)
		turns[n] += log.turn
	}
	require.Empty(t, w.events, "sessions that are not there any more")
	require.Empty(t, w.sent, "sessions that are not there any more")
	for n, is := range turns[:cfg.Sessions] {
		require.Equal(t, cfg.Turns, is, "turns of session %d", n)
	}
	var text []string
	for o, n := range outcomes {
		text = append(text, fmt.Sprintf("%d %s", n, o))
	}
	slices.Sort(text)
	return all, strings.Join(text, ", ")
}

// logCheck follows a session's log: the numbers have no gap, every turn has one
// final, last, and the agent's texts are those that it was told to say, each once
// and in order, as far as it got.
type logCheck struct {
	seq   uint64
	turn  int
	final bool // the turn has its final
	texts int
	kind  string
	said  [2]int // lines, and whether an end must follow
}

func (c *logCheck) over() bool { return c.turn == 0 || c.final }

func (c *logCheck) next(e domain.Event) error {
	c.seq++
	if e.Seq != c.seq {
		return fmt.Errorf("its number is not %d", c.seq)
	}
	if c.over() {
		*c = logCheck{seq: c.seq, turn: c.turn + 1}
	}
	if e.Turn != c.turn {
		return fmt.Errorf("it is of turn %d, and turn %d is not over", e.Turn, c.turn)
	}
	switch r := e.Reply.(type) {
	case domain.Text:
		c.texts++
		return c.text(r.Text)
	case domain.Final:
		c.final = true
		if all := c.said[0] + c.said[1] + 1; r.Outcome == domain.OutcomeCompleted && c.texts != all {
			return fmt.Errorf("a completed turn has %d texts of %d", c.texts, all)
		}
	default: // nothing is known of it
	}
	return nil
}

func (c *logCheck) text(text string) error {
	want := "nothing"
	switch n := c.texts - 1; {
	case n == 0:
		var slot, turn int
		_, err := fmt.Sscanf(text, "soak %d %d %s %d %d", &slot, &turn, &c.kind, &c.said[0], &c.said[1])
		return err
	case n <= c.said[0]:
		want = lastLine(n)
	case n == c.said[0]+1 && c.said[1] == 1:
		want = "end"
	case n == c.said[0]+1 && c.kind == "error":
		want = "API Error: 429 too much of it" // Claude says it in a text, too
	}
	if text != want {
		return fmt.Errorf("the text should be %q", want)
	}
	return nil
}

// remains are the files that are left and should not be: temporary ones. A place
// without a record is of a session that was killed before there was one; nobody
// comes there again.
func remains(t *testing.T, cfg config) (left []string) {
	sessions, err := store.New(cfg.root())
	require.NoError(t, err)
	ids, err := sessions.List(t.Context())
	require.NoError(t, err)
	recorded := map[string]bool{} // by temporary directory
	for _, id := range ids {
		dirs, err := sessions.Paths(id)
		require.NoError(t, err)
		_, err = os.Stat(filepath.Join(filepath.Dir(dirs.State), "record.json"))
		recorded[dirs.Temp] = err == nil
	}
	require.NoError(t, filepath.WalkDir(cfg.Base, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(cfg.Base, path)
		parts := strings.Split(rel, string(filepath.Separator))
		switch {
		case parts[0] == "tmp":
			left = append(left, rel)
		case parts[0] == "state" && parts[1] == "t":
			known, ok := recorded[filepath.Join(cfg.root(), "t", parts[2])]
			if known || !ok {
				left = append(left, rel)
			}
		case parts[0] == "state" && len(parts) >= 4:
			if _, err := os.Stat(filepath.Join(cfg.root(), parts[1], parts[2], "record.json")); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			switch parts[3] {
			case "lock", "record.json", "events.jsonl", "agent", "home":
			default: // the directory spool, and what was to be renamed
				left = append(left, rel)
			}
		}
		return err
	}))
	return left
}

// controlGroups are those that these orchestrators made.
func controlGroups(t *testing.T, pids []int) (groups []string) {
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && slices.ContainsFunc(pids, func(pid int) bool {
			return strings.HasPrefix(d.Name(), fmt.Sprintf("caisson-%d-", pid))
		}) {
			groups = append(groups, path)
		}
		return nil // another process's group may be gone by now
	})
	require.NoError(t, err)
	return groups
}

func quantile(micros []int64, percent int) time.Duration {
	if len(micros) == 0 {
		return 0
	}
	slices.Sort(micros)
	d := time.Duration(micros[min(len(micros)-1, len(micros)*percent/100)]) * time.Microsecond
	return d.Round(100 * time.Microsecond)
}
