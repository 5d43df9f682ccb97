package process

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// soakSpawns is how many confined children each part of the soak starts, and as
// many plain ones. `make test-full` takes 10,000.
var soakSpawns = flag.Int("soak", 800, "confined spawns per part of the soak")

const (
	soakWorkers = 64
	soakRounds  = 10
	// soakThreads is by how many threads the host may grow between the first
	// rounds and the last: the runtime keeps those that once blocked. A spawn that
	// left one would be seen a thousand times.
	soakThreads = 24
)

// The scripts tell what they may by their exit codes, and leave a file where they
// could. Each reads its own status: it is free, or it is not, as a whole.
const (
	soakStatus = `while read -r k v; do case $k in NoNewPrivs:) [ "$v" = "$1" ] || exit 9;; esac; done < /proc/self/status; `

	soakConfined = soakStatus + `echo > "$2/in-$4" || exit 10; (echo > "$3/confined-$4") 2>/dev/null && exit 11
(read -r x < "$3/secret") 2>/dev/null && exit 12; exit 0`
	soakPlain = soakStatus + `echo > "$3/plain-$4" || exit 13; read -r x < "$3/secret" || exit 14; exit 0`
)

// Confined spawns beside plain ones from many goroutines: no restriction leaks
// into the host or its plain children, no child of a plan is free, and neither
// threads nor descriptors add up.
func TestSoakOfSpawns(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for name, procs := range map[string]int{"all processors": runtime.GOMAXPROCS(0), "one processor": 1} {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			begun := time.Now()
			spawns := *soakSpawns
			if testing.Short() {
				spawns = min(spawns, 100)
			}
			n := soak(t, spawns)
			t.Logf("%d confined spawns (%d of them turns with a keeper) and %d plain ones from %d goroutines, GOMAXPROCS=%d, uid %d, in %s; threads %v, descriptors %v",
				n.confined.Load(), n.turns.Load(), n.plain.Load(), soakWorkers, procs, os.Getuid(), time.Since(begun).Round(time.Second), n.threads, n.fds)
		})
	}
}

type soakCounts struct {
	confined, turns, plain atomic.Int64
	threads, fds           []int // after each round
}

func soak(t *testing.T, spawns int) *soakCounts {
	inside, outside := tempDir(t), tempDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("s\n"), 0o600))
	free := "0"
	if status, err := os.ReadFile("/proc/self/status"); err == nil && strings.Contains(string(status), "NoNewPrivs:\t1") {
		free = "1" // where the tests themselves are started so
	}
	spool := t.TempDir()
	s := confinedSpawner()
	plan := testPlan(inside)
	counts := &soakCounts{}
	line := func(id string) domain.SpawnLine {
		l := shLine(inside, plan, soakConfined)
		l.Argv = append(l.Argv, "sh", "1", inside, outside, id)
		return l
	}
	confined := func(id string, turn bool) error {
		if !turn {
			result, err := s.Run(context.Background(), line(id), ports.Stdio{})
			if err == nil && !result.Exit.Success() {
				err = fmt.Errorf("%s", result.Exit)
			}
			return err
		}
		run, err := s.StartTurn(context.Background(), TurnSpec{Line: line(id), SpoolDir: spool})
		if err != nil {
			return err
		}
		said := ""
		err = run.Lines(func(l Line) error { said += string(l.Text); return nil })
		end, fault := run.Wait()
		switch {
		case err != nil:
		case fault != nil:
			err = fault
		case !end.Exit.Success():
			err = fmt.Errorf("%s: %s", end.Exit, said)
		}
		if closed := run.Close(); err == nil {
			err = closed
		}
		return err
	}
	plain := func(id string) error {
		out, err := exec.Command("/bin/sh", "-c", soakPlain, "sh", free, inside, outside, id).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	host := func(id string) error {
		// Each of these may run on another thread than the one before.
		file := filepath.Join(outside, "host-"+id)
		if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
			return err
		}
		if _, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil {
			return err
		}
		return os.Remove(file)
	}

	perRound := (spawns + soakRounds - 1) / soakRounds
	for round := range soakRounds {
		var next atomic.Int64
		var wg sync.WaitGroup
		for range soakWorkers {
			wg.Go(func() {
				for {
					n := int(next.Add(1)) - 1
					if n >= 2*perRound || t.Failed() {
						return
					}
					id := fmt.Sprintf("%d-%d", round, n)
					var err error
					switch {
					case n%2 == 1:
						err = plain(id)
						counts.plain.Add(1)
					default:
						turn := n%8 == 0
						err = confined(id, turn)
						counts.confined.Add(1)
						if turn {
							counts.turns.Add(1)
						}
					}
					if err != nil {
						t.Errorf("spawn %s: %v", id, err)
					}
					if err := host(id); err != nil {
						t.Errorf("the host beside spawn %s: %v", id, err)
					}
				}
			})
		}
		wg.Wait()
		require.False(t, t.Failed())
		require.Empty(t, testkit.RestrictedThreads(), "round %d", round)
		require.Empty(t, testkit.Children(), "round %d", round)
		counts.threads = append(counts.threads, len(testkit.Threads()))
		counts.fds = append(counts.fds, len(testkit.OpenFDs()))

		// The files bear the exit codes out, and go before the next round.
		found := map[string]int{}
		for kind, dir := range map[string]string{"in": inside, "plain": outside, "confined": outside, "host": outside} {
			files, err := filepath.Glob(filepath.Join(dir, kind+"-*"))
			require.NoError(t, err)
			found[kind] = len(files)
			for _, f := range files {
				require.NoError(t, os.Remove(f))
			}
		}
		require.Equal(t, map[string]int{"in": perRound, "plain": perRound, "confined": 0, "host": 0}, found, "round %d", round)
	}
	require.EqualValues(t, perRound*soakRounds, counts.confined.Load())
	require.EqualValues(t, perRound*soakRounds, counts.plain.Load())
	for round := 1; round < soakRounds; round++ {
		require.LessOrEqual(t, counts.fds[round], counts.fds[0], "descriptors after each round: %v", counts.fds)
	}
	require.LessOrEqual(t, counts.threads[soakRounds-1], max(counts.threads[0], counts.threads[1])+soakThreads, "threads after each round: %v", counts.threads)
	return counts
}
