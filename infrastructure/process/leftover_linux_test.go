package process

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/tests/testkit"
)

// abandon starts a native turn, for which there is no keeper, tells its identity
// and waits to be killed.
func abandon(args []string) int {
	run, err := NewSpawner(Config{}).StartTurn(context.Background(), TurnSpec{
		Line: shLine(args[0], domain.Unconfined("test"), args[2]), SpoolDir: args[1],
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(run.Process()); err != nil {
		return 1
	}
	select {}
}

// leaveBehind runs a turn whose orchestrator is killed.
func leaveBehind(t *testing.T, dir, script string, files ...string) (left domain.ProcessIdentity, pids []int) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	orchestrator := exec.Command(exe, "__helper", "abandon", dir, t.TempDir(), script)
	out, err := orchestrator.StdoutPipe()
	require.NoError(t, err)
	orchestrator.Stderr = os.Stderr
	require.NoError(t, orchestrator.Start())
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(line, &left))
	for _, file := range files {
		pids = append(pids, readPid(t, filepath.Join(dir, file)))
	}
	require.NoError(t, orchestrator.Process.Kill())
	require.Error(t, orchestrator.Wait())
	return left, pids
}

// Of a turn whose orchestrator died while it was starting only the mark is known.
func TestLeftoversAreFoundByTheirMark(t *testing.T) {
	left, pids := leaveBehind(t, tempDir(t), "(setsid sleep 1000 & echo $! > a); echo $$ > b; sleep 1000", "a", "b")
	require.NoError(t, NewSpawner(Config{}).EndLeftover(t.Context(), domain.ProcessIdentity{Mark: left.Mark}))
	for _, pid := range pids {
		require.False(t, alive(pid))
	}
}

func TestLeftoversAreEnded(t *testing.T) {
	s := NewSpawner(Config{})
	for name, script := range map[string]string{
		"with its root":           "setsid sleep 1000 & echo $! > a; sleep 1000 & echo $! > b; echo $$ > c; wait",
		"adopted by init":         "(setsid sleep 1000 & echo $! > a); (sleep 1000 & echo $! > b); echo $$ > c; sleep 1000", // a root that ends has its orchestrator take the tree along
		"without an environment":  "env -i sleep 1000 & echo $! > a; env -i setsid sleep 1000 & echo $! > b; echo $$ > c; wait",
		"deaf to signals":         "trap '' TERM INT HUP; sleep 1000 & echo $! > a; sleep 1001 & echo $! > b; echo $$ > c; wait",
		"in a group of their own": "set -m; sleep 1000 & echo $! > a; sleep 1001 & echo $! > b; echo $$ > c; wait",
	} {
		t.Run(name, func(t *testing.T) {
			left, pids := leaveBehind(t, tempDir(t), script, "a", "b", "c")
			require.Equal(t, pids[2], left.Pid)
			require.NotEmpty(t, left.Boot)
			require.NotEmpty(t, left.Mark)
			require.NotZero(t, left.Start)
			require.True(t, alive(pids[0]))
			require.NoError(t, s.EndLeftover(t.Context(), left))
			for _, pid := range pids {
				require.False(t, alive(pid))
			}
			require.NoError(t, s.EndLeftover(t.Context(), left), "twice")
		})
	}
}

// A process in the middle of an exec shows no mark; one that execs all the time is
// found all the same.
func TestAProcessBetweenTwoProgramsIsFound(t *testing.T) {
	dir := tempDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "again"), []byte("#!/bin/sh\nexec \"$0\"\n"), 0o700))
	for range 20 {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "a")))
		run := startTurn(t, NewSpawner(Config{}), TurnSpec{
			Line: shLine(dir, domain.Unconfined("test"), "(setsid sh -c 'echo $$ > a; exec ./again' &); while ! [ -s a ]; do :; done"), Graces: quick,
		})
		pid := readPid(t, filepath.Join(dir, "a"))
		_, _, _ = collect(t, run)
		// What was killed may be on its way out, where it has no environment either.
		deadline := time.Now().Add(time.Second)
		for alive(pid) && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if alive(pid) {
			_ = unix.Kill(pid, unix.SIGKILL)
			t.Fatalf("process %d is left", pid)
		}
	}
}

// Whoever has the pid by now, or its number as a group, is nobody's leftover.
func TestABystanderIsNoLeftover(t *testing.T) {
	testkit.NoLeaks(t)
	s := NewSpawner(Config{})
	run := startTurn(t, s, TurnSpec{Line: shLine("/", domain.Unconfined("test"), "sleep 1000 & wait"), Graces: quick})
	is := run.Process()
	for name, left := range map[string]domain.ProcessIdentity{
		"nobody":            {},
		"init":              {Pid: 1, Start: 1, Boot: is.Boot, Mark: "x"},
		"an earlier start":  {Pid: is.Pid, Start: is.Start - 1, Boot: is.Boot, Mark: "another"},
		"another mark":      {Mark: "another"},
		"without a mark":    {Pid: is.Pid, Start: is.Start - 1, Boot: is.Boot},
		"an earlier boot":   {Pid: is.Pid, Start: is.Start, Boot: "00000000-0000-0000-0000-000000000000", Mark: is.Mark},
		"an unknown boot":   {Pid: is.Pid, Start: is.Start, Mark: is.Mark},
		"a pid of nobody's": {Pid: 1 << 30, Start: 1, Boot: is.Boot},
	} {
		require.NoError(t, s.EndLeftover(t.Context(), left), name)
		require.True(t, alive(is.Pid), name)
	}
	require.NotEmpty(t, is.Mark)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.EndLeftover(ctx, is), context.Canceled)
	require.True(t, alive(is.Pid))
	run.Cancel(nil)
	_, _, end := collect(t, run)
	require.Equal(t, domain.EndCancelled, end.Cause)
	require.Equal(t, is, run.Process(), "also when it is gone")
}

// What has been read is not kept: the file is as large as the reader is behind.
func TestTheSpoolBeginsAnewWhenAllIsRead(t *testing.T) {
	s, err := newSpool(t.TempDir(), 1<<40)
	require.NoError(t, err)
	var buf [frameHead + chunkSize]byte
	got := 0
	for range 200 {
		require.NoError(t, s.append(fromStdout, &buf, chunkSize))
		require.NoError(t, s.append(fromStdout, &buf, 10))
		for s.unread() {
			require.NoError(t, s.next(&buf, func(_ stream, data []byte) { got += len(data) }))
		}
	}
	require.Equal(t, 200*(chunkSize+10), got)
	info, err := s.file.Stat()
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(3*chunkSize))
	s.limit = s.output
	var limit *OutputLimitError
	require.ErrorAs(t, s.append(fromStdout, &buf, 1), &limit, "all output counts")
	require.NoError(t, s.close())
}
