package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// keeperScript is what the keeper runs. Its commands come on standard input:
//
//	arm    ends the hand-shake
//	kill   kills every process that the keeper may signal, which is the turn's
//	probe  lists those that are left
//	leave  ends the keeper; so does the end of the input, but with a kill
//
// The hand-shake is what makes kill(-1) safe. The keeper may reach only its own
// Landlock domain, and proves it by failing to reach the orchestrator; outside
// of such a domain kill(-1) would end everything of the user's. kill -0 also
// fails for a process that is gone, so the proof counts only because the
// orchestrator, alive all the time, takes part: a keeper that is not told "arm"
// never kills.
//
// One kill is enough: kill(-1) signals all members under one lock, and a
// process with a pending SIGKILL cannot fork. (In a loop it would never end:
// unreaped zombies count as signalled.)
const keeperScript = `kill -0 "$1" && { echo exposed; exit 1; }
echo scoped
read -r word
[ "$word" = arm ] || exit 0
echo armed
while read -r word; do
  case $word in
  kill) kill -KILL -1; echo killed ;;
  probe)
    left=
    for dir in /proc/[0-9]*; do
      pid=${dir#/proc/}
      [ "$pid" = $$ ] && continue
      kill -0 "$pid" && left="$left $pid"
    done
    echo "left$left" ;;
  leave) exit 0 ;;
  esac
done
kill -KILL -1`

const (
	keeperShell = "/bin/sh"
	// keeperAnswer bounds the wait for one answer of the keeper.
	keeperAnswer = 10 * time.Second
)

// keeper is a process in the outer domain of a turn, which can end the turn's
// whole tree, and does when the orchestrator dies.
type keeper struct {
	// The keeper's ends, open until it is started.
	stdin, stdout, null *os.File
	// Ours.
	commands, answers *os.File
	lines             *bufio.Reader
	proc              *os.Process
}

// prepareKeeper opens all that start needs.
func prepareKeeper() (*keeper, error) {
	k := &keeper{}
	var err error
	if k.stdin, k.commands, err = os.Pipe(); err == nil {
		if k.answers, k.stdout, err = os.Pipe(); err == nil {
			k.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("keeper: %w", err), k.abandon())
	}
	k.lines = bufio.NewReaderSize(k.answers, 512)
	return k, nil
}

// start starts the keeper; on the throwaway thread, in the outer domain.
func (k *keeper) start() error {
	proc, err := starts.start(keeperShell, []string{"caisson-keeper", "-c", keeperScript, "caisson-keeper", strconv.Itoa(os.Getpid())}, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: []*os.File{k.stdin, k.stdout, k.null},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start the keeper %s: %w", keeperShell, err)
	}
	k.proc = proc
	return nil
}

// arm does the hand-shake. After an error the keeper kills nothing.
func (k *keeper) arm() error {
	if err := closeFiles(&k.stdin, &k.stdout, &k.null); err != nil {
		return err
	}
	if answer, err := k.answer(); err != nil || answer != "scoped" {
		if err == nil {
			err = fmt.Errorf("the keeper answers %q: its domain does not keep signals inside", answer)
		}
		return err
	}
	answer, err := k.ask("arm")
	if err == nil && answer != "armed" {
		err = fmt.Errorf("the keeper answers %q to arm", answer)
	}
	return err
}

// kill kills the turn's whole tree: when it returns nil, no member can do
// anything any more.
func (k *keeper) kill() error {
	answer, err := k.ask("kill")
	if err == nil && answer != "killed" {
		err = fmt.Errorf("the keeper answers %q to kill", answer)
	}
	return err
}

// left returns the members of the domain that are not dead, without main, the
// turn's own process. Zombies, which somebody else has to reap, do not count;
// those that are the orchestrator's children are reaped, but for main.
func (k *keeper) left(main int) ([]int, error) {
	answer, err := k.ask("probe")
	if err != nil {
		return nil, err
	}
	rest, ok := strings.CutPrefix(answer, "left")
	if !ok {
		return nil, fmt.Errorf("the keeper answers %q to probe", answer)
	}
	var pids []int
	for _, s := range strings.Fields(rest) {
		pid, err := strconv.Atoi(s)
		if err != nil {
			return nil, fmt.Errorf("the keeper answers %q to probe", answer)
		}
		st, ok := readStat(pid)
		switch {
		case !ok:
		case st.alive():
			pids = append(pids, pid)
		case st.ppid == os.Getpid() && pid != main:
			// Started with CLONE_PARENT, so it became our own child. Nobody else
			// reaps it.
			_, _ = unix.Wait4(pid, nil, unix.WALL|unix.WNOHANG, nil)
		}
	}
	return pids, nil
}

// dismiss ends the keeper after its work, and reaps it.
func (k *keeper) dismiss() error {
	// A keeper that cannot be told is ended all the same.
	_, _ = io.WriteString(k.commands, "leave\n")
	return k.abandon()
}

// abandon ends and reaps a keeper, whatever its state, without a kill of the
// tree: nothing of the turn may be left. It may be called twice.
func (k *keeper) abandon() error {
	if k.proc != nil {
		// Kill it before its input ends, which would make it kill the tree;
		// with an armed keeper both are right, with an unarmed one neither
		// matters.
		_ = k.proc.Kill()
		_, err := k.proc.Wait()
		k.proc = nil
		return errors.Join(err, closeFiles(&k.stdin, &k.stdout, &k.null, &k.commands, &k.answers))
	}
	return closeFiles(&k.stdin, &k.stdout, &k.null, &k.commands, &k.answers)
}

func (k *keeper) ask(command string) (string, error) {
	if _, err := io.WriteString(k.commands, command+"\n"); err != nil {
		return "", fmt.Errorf("keeper: %w", err)
	}
	return k.answer()
}

func (k *keeper) answer() (string, error) {
	if err := k.answers.SetReadDeadline(time.Now().Add(keeperAnswer)); err != nil {
		return "", fmt.Errorf("keeper: %w", err)
	}
	line, err := k.lines.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("keeper: %w", err)
	}
	return strings.TrimSuffix(line, "\n"), nil
}

// closeFiles closes what is open and forgets it.
func closeFiles(files ...**os.File) error {
	var errs []error
	for _, f := range files {
		if *f != nil {
			errs = append(errs, (*f).Close())
			*f = nil
		}
	}
	return errors.Join(errs...)
}
