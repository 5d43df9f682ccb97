package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

func (a *app) execCommand() *cobra.Command {
	var flags policyFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] -- COMMAND [ARG…]",
		Short: "Run any command under a plan",
		Long: `Run a command under the sandbox, with standard input, output and error passed
through and signals passed on. It gets the programs of the system and those on
PATH, a private TMPDIR that is removed afterwards, and what the flags grant:
neither $HOME nor the working directory is granted by itself. The command is a
session of its own without a controlling terminal, so a shell in it has no job
control.

Exit codes: the command's own; 128+n if signal n ended it; 124 the policy's limit
on time ended it; 125 Caisson failed or refused; 126 the command is not
executable, or running it was denied; 127 it was not found.`,
		Example: `  caisson exec --ro . -- grep -r password .
  caisson exec --rwx . --optional-ro ~/.gitconfig --allow-domain github.com -- git fetch
  caisson exec --rwx . --rw /dev/shm -- python3 pool.py    # multiprocessing has its semaphores there`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return coded{errors.New("no command: caisson exec [flags] -- COMMAND [ARG…]"), exitExecFailed}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			code, err := a.exec(cmd.Context(), flags, args)
			a.code = code
			return err
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().SetInterspersed(false)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return coded{flagFault(cmd, err), exitExecFailed}
	})
	flags.add(cmd.Flags())
	return cmd
}

// exec runs the command and returns its exit code.
func (a *app) exec(ctx context.Context, flags policyFlags, argv []string) (_ int, err error) {
	defer func() {
		if err != nil {
			err = coded{err, execCode(err)}
		}
	}()
	if err := a.needDir(); err != nil {
		return 0, err
	}
	request := application.ExecRequest{Argv: argv, Dir: a.Dir, Stdio: ports.Stdio{
		In: a.Stdin, Out: a.Stdout, Err: a.Stderr, Started: a.warnUnconfined,
	}}
	if request.Policy, err = flags.policy(a.abs); err != nil {
		return 0, err
	}
	request.PolicySource = flags.source(a)
	if request.Sandbox, err = flags.mode(); err != nil {
		return 0, err
	}
	caisson, err := a.compose(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, caisson.Close(context.WithoutCancel(ctx))) }()

	signals, stop := a.passOn()
	defer stop()
	request.Stdio.Signals = signals
	result, err := caisson.Orchestrator.Exec(ctx, request)
	if err != nil {
		return 0, err
	}
	if result.CleanUp != nil {
		a.tell(result.CleanUp.Error())
	}
	var timeout *domain.TimeoutError
	switch exit := result.Exit; {
	case errors.As(result.Ended, &timeout):
		return 0, result.Ended
	case !exit.Known:
		return 0, errors.New("the end of the command is not known")
	case exit.Signal != "":
		return exitSignalBase + exit.SignalNumber, nil
	default:
		return exit.Code, nil
	}
}

// warnUnconfined says that nothing is enforced.
func (a *app) warnUnconfined(r domain.Receipt) {
	if r.Unconfined {
		fmt.Fprintf(a.Stderr, "caisson: %s\n", ui.Line(r.String()))
	}
}

// execCode returns exec's exit code for an error, and shell's.
func execCode(err error) int {
	var timeout *domain.TimeoutError
	if errors.As(err, &timeout) {
		return exitTimedOut
	}
	var spawn *domain.SpawnError
	if errors.As(err, &spawn) && (spawn.Step == "resolve" || spawn.Step == "start") {
		if errors.Is(err, fs.ErrNotExist) {
			return exitNotFound
		}
		return exitNotExecutable
	}
	return exitExecFailed
}

// passOn turns the signals that came into those for a command.
func (a *app) passOn() (<-chan ports.Signal, func()) {
	out := make(chan ports.Signal)
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stopped:
				return
			case sig := <-a.Signals:
				n, ok := sig.(syscall.Signal)
				if !ok {
					continue
				}
				select {
				case out <- ports.Signal(n):
				case <-stopped:
					return
				}
			}
		}
	}()
	return out, func() { close(stopped); <-done }
}
