package cli

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
)

// shellFlags are the flags of shell.
type shellFlags struct {
	policyFlags
	agent     string
	agentBin  string
	workspace string
	model     string
	gateway   gatewayFlags
	login     string
	timeout   time.Duration
}

func (a *app) shellCommand() *cobra.Command {
	var f shellFlags
	cmd := &cobra.Command{
		Use:   "shell [--agent AGENT] [flags] [-- COMMAND [ARG…]]",
		Short: "Drive a shell, or an agent's own interface, on a confined terminal",
		Long: `Run a program under the sandbox on a terminal of its own, and connect this one to
it: $SHELL, the COMMAND, or with --agent the agent's own interface. It has the
workspace, the system's programs, and private directories ($HOME and $TMPDIR
among them) that are empty at the start and removed at the end. Job control
works, the size of the window follows, and nothing that the program does reaches
the input of this terminal. Everything that it started ends with it.

What the program prints goes to this terminal as it is, escape sequences
included: as with any remote shell, the program is trusted with what they can do.
If this terminal shows no input afterwards, because Caisson itself was killed by
SIGKILL and could not put its mode back, type "reset" or "stty sane" blindly, and
Enter, or Ctrl-J if Enter does nothing.

Exit codes: the program's own; 128+n if signal n ended it; 124 timed out; 125
Caisson failed or refused; 126 the program is not executable, or running it was
denied; 127 it was not found.`,
		Example: `  caisson shell
  caisson shell --agent claude --workspace ~/src/app
  caisson shell --allow-domain github.com -- bash`,
		RunE: func(cmd *cobra.Command, args []string) error {
			code, err := a.shell(cmd.Context(), f, args)
			a.code = code
			return err
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.SetInterspersed(false)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return coded{flagFault(cmd, err), exitExecFailed}
	})
	flags.StringVar(&f.agent, "agent", "", "run the interface of this `AGENT`: claude or codex")
	flags.StringVar(&f.agentBin, "agent-bin", "", "the agent's program, a `PATH`; searched on PATH by default")
	flags.StringVar(&f.workspace, "workspace", "", "the `DIR` to work in; the working directory by default")
	flags.StringVar(&f.model, "model", "", "the `NAME` of the agent's model; its own default otherwise")
	f.policyFlags.add(flags)
	f.gateway.add(flags)
	addLogin(flags, &f.login)
	flags.Var((*duration)(&f.timeout), "timeout", "end the program after this `TIME`, for example 90s or 10m; 0 for never")
	return cmd
}

// request returns what the flags ask for.
func (f *shellFlags) request(a *app, argv []string) (application.TerminalRequest, error) {
	r := application.TerminalRequest{Argv: argv, Agent: domain.AgentKind(f.agent), Model: f.model, Workspace: a.Dir}
	if f.agent == "" && (f.agentBin != "" || f.model != "") {
		return r, &domain.InvalidError{What: "--agent", Reason: "missing", Remedy: "name the agent that --agent-bin and --model are about"}
	}
	if f.agentBin != "" {
		r.AgentBin = a.abs(f.agentBin)
	}
	if f.workspace != "" {
		r.Workspace = a.abs(f.workspace)
	}
	var err error
	if r.Policy, err = f.policy(a.abs); err != nil {
		return r, err
	}
	r.PolicySource = f.source(a)
	r.Login = f.login
	if r.DirectAPI, r.CredentialFiles, err = f.gateway.parse(a.abs); err != nil {
		return r, err
	}
	r.Policy.Limits.WallClock = f.timeout
	r.Sandbox, err = f.mode()
	return r, err
}

// shell runs a program on a terminal of its own and returns its exit code.
func (a *app) shell(ctx context.Context, flags shellFlags, argv []string) (_ int, err error) {
	defer func() {
		if err != nil {
			err = coded{err, execCode(err)}
		}
	}()
	if err := a.needDir(); err != nil {
		return 0, err
	}
	in, out, err := a.terminal("use caisson exec where no person drives the program")
	if err != nil {
		return 0, err
	}
	request, err := flags.request(a, argv)
	if err != nil {
		return 0, err
	}
	request.Size = terminalSize(in)
	caisson, err := a.compose(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, caisson.Close(context.WithoutCancel(ctx))) }()
	t, err := caisson.Orchestrator.OpenTerminal(ctx, request)
	if err != nil {
		return 0, err
	}
	a.warnUnconfined(t.Receipt())
	result, err := a.connect(ctx, t, in, out)
	err = errors.Join(err, t.Close(context.WithoutCancel(ctx)))
	if err != nil {
		return 0, err
	}
	var timeout *domain.TimeoutError
	switch exit := result.Exit; {
	case errors.As(result.Ended, &timeout):
		return 0, result.Ended
	case !exit.Known:
		return 0, errors.New("the end of the program is not known")
	case exit.Signal != "":
		return exitSignalBase + exit.SignalNumber, nil
	default:
		return exit.Code, nil
	}
}

// terminal returns the terminal that a person is at; the remedy is for where there
// is none.
func (a *app) terminal(remedy string) (in, out *os.File, err error) {
	in, isFile := a.Stdin.(*os.File)
	out, both := a.Stdout.(*os.File)
	if !isFile || !both || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
		return nil, nil, &domain.InvalidError{
			What: "terminal", Reason: "standard input and output are not one", Remedy: remedy,
		}
	}
	return in, out, nil
}
