package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
)

// sessionFlags are the flags that open a session.
type sessionFlags struct {
	policyFlags
	agent     string
	agentBin  string
	workspace string
	tripwires string
	resume    string
	model     string
	gateway   gatewayFlags
	login     string
	timeout   time.Duration
	idle      time.Duration
}

func (f *sessionFlags) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.agent, "agent", "", "the `AGENT`: claude or codex")
	flags.StringVar(&f.agentBin, "agent-bin", "", "the agent's program, a `PATH`; searched on PATH by default")
	flags.StringVar(&f.workspace, "workspace", "", "the `DIR` that the agent works in; the working directory by default")
	flags.StringVar(&f.resume, "resume", "", "continue the session `ID`, which may be shortened; last for the workspace's last one")
	flags.StringVar(&f.model, "model", "", "the `NAME` of the agent's model; its own default otherwise")
	f.policyFlags.add(flags)
	f.gateway.add(flags)
	addLogin(flags, &f.login)
	flags.StringVar(&f.tripwires, "tripwires", "report", "what to do, by `MODE`, when the turn changes files that run code later, outside the sandbox (git hooks, .envrc, workflows …): report, fail or off")
	flags.Var((*duration)(&f.timeout), "timeout", "end the turn after this `TIME`, for example 90s or 10m; 0 for never")
	flags.Var((*duration)(&f.idle), "idle-timeout", "end the turn after this `TIME` without output or a running tool; 0 for never")
}

// request returns what the flags ask for.
func (f *sessionFlags) request(a *app) (application.OpenRequest, error) {
	r := application.OpenRequest{Agent: domain.AgentKind(f.agent), Model: f.model}
	if err := a.needDir(); err != nil {
		return r, err
	}
	r.Resume = domain.SessionID(f.resume) // findResume makes an id of it
	if f.agent == "" && f.resume == "" {
		return r, &domain.InvalidError{What: "--agent", Reason: "missing", Remedy: "name the agent, for example --agent claude"}
	}
	if f.agentBin != "" {
		r.AgentBin = a.abs(f.agentBin)
	}
	switch {
	case f.workspace != "":
		r.Workspace = a.abs(f.workspace)
	case f.resume == "":
		r.Workspace = a.Dir
	}
	var err error
	if r.Policy, err = f.policy(a.abs); err != nil {
		return r, err
	}
	r.PolicySource = f.source(a)
	r.Policy.Limits.WallClock, r.Policy.Limits.Idle = f.timeout, f.idle
	r.Login = f.login
	if r.DirectAPI, r.CredentialFiles, err = f.gateway.parse(a.abs); err != nil {
		return r, err
	}
	switch f.tripwires {
	case "report":
	case "fail":
		r.Tripwires = application.TripwiresFail
	case "off":
		r.Tripwires = application.TripwiresOff
	default:
		return r, &domain.InvalidError{What: "--tripwires", Value: f.tripwires, Reason: "unknown", Remedy: "report, fail or off"}
	}
	r.Sandbox, err = f.mode()
	return r, err
}

func (a *app) runCommand() *cobra.Command {
	var (
		flags sessionFlags
		out   output
	)
	cmd := &cobra.Command{
		Use:   "run --agent AGENT [flags] PROMPT|-",
		Short: "Run one turn of an agent, confined",
		Long: `Run one turn of an agent under the sandbox, and print what it says and does.
With - the prompt is read from standard input.

Exit codes: 0 completed; 1 failed, denied, or exited; 2 usage; 3 refused, the
sandbox cannot be enforced; 4 the agent cannot be started, or its session is in
use; 5 protocol error; 124 timed out; 130 cancelled.`,
		Example: `  caisson run --agent claude "explain this repository"
  caisson run --agent codex --workspace ~/src/app --timeout 10m --output json - < task.md
  caisson run --agent claude --allow-domain registry.npmjs.org "update the dependencies"`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usageError{errors.New("no prompt: pass it as the last argument, or - to read it from standard input")}
			case len(args) > 1 && cmd.Flags().Changed("login"):
				return usageError{fmt.Errorf("%d arguments, but one prompt: put it in quotes, and the name of a login behind =: --login=NAME", len(args))}
			case len(args) > 1:
				return usageError{fmt.Errorf("%d arguments, but one prompt: put it in quotes", len(args))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := flags.request(a)
			if err != nil {
				return usageError{err}
			}
			prompt, err := a.prompt(args[0])
			if err != nil {
				return err
			}
			return a.run(cmd.Context(), request, prompt, a.sink(out.json))
		},
	}
	flags.addTo(cmd)
	out.add(cmd.Flags())
	return cmd
}

// prompt returns the prompt that an argument means.
func (a *app) prompt(arg string) (string, error) {
	if arg != "-" {
		return arg, nil
	}
	type read struct {
		data []byte
		err  error
	}
	done := make(chan read, 1)
	go func() {
		// One byte more than a prompt may have: the application says what is wrong.
		data, err := io.ReadAll(io.LimitReader(a.Stdin, application.MaxPrompt+1))
		done <- read{data, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return "", failure{fmt.Errorf("read the prompt from standard input: %w", r.err)}
		}
		return string(r.data), nil
	case <-a.Signals:
		// The read goes on until the process ends, which is now.
		return "", quiet{exitCancelled}
	}
}

// sink is where events go. An error means that nobody reads them any more.
type sink func(domain.Event) error

// sink returns the sink for standard output.
func (a *app) sink(asJSON bool) sink {
	if !asJSON {
		return a.printer().Event
	}
	var line []byte
	return func(e domain.Event) error {
		line = jsonl.AppendEvent(line[:0], e)
		_, err := a.Stdout.Write(line)
		return err
	}
}

// withProgress shows, if standard error is a terminal, how the turn gets on there,
// between what the sink writes, until stop is called.
func (a *app) withProgress(give sink) (_ sink, stop func()) {
	f, ok := a.Stderr.(*os.File)
	if kind, _ := a.LookupEnv("TERM"); !ok || !term.IsTerminal(int(f.Fd())) || kind == "dumb" {
		return give, func() {}
	}
	progress := ui.NewProgress(f, func() int {
		width, _, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0
		}
		return width
	})
	return func(e domain.Event) error { return progress.Event(e, func() error { return give(e) }) }, progress.Stop
}

// width returns the columns of the terminal that standard output is; 0 for none.
func (a *app) width() int {
	f, ok := a.Stdout.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// printer returns the printer on standard output.
func (a *app) printer() *ui.Printer {
	opt := ui.Options{Width: a.width}
	if f, ok := a.Stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		_, noColour := a.LookupEnv("NO_COLOR")
		kind, _ := a.LookupEnv("TERM")
		opt.Colour = !noColour && kind != "dumb"
	}
	return ui.New(a.Stdout, opt)
}

// notWritten is why a turn is cancelled whose output went nowhere.
func notWritten(err error) error {
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) || errors.Is(err, os.ErrClosed) {
		return coded{fmt.Errorf("standard output was closed: %w", err), exitCancelled}
	}
	return failure{fmt.Errorf("standard output cannot be written: %w", err)}
}

// run runs one turn in a session of its own.
func (a *app) run(ctx context.Context, request application.OpenRequest, prompt string, give sink) error {
	watch := a.watch(ctx)
	defer watch.stop()
	ended := make(chan error, 1)
	go func() { ended <- a.turn(watch.ctx, watch, request, prompt, give) }()
	select {
	case err := <-ended:
		return err
	case <-watch.second:
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(killLimit):
		return quiet{exitCancelled}
	}
}

// turn opens a session, runs the turn, and closes everything.
func (a *app) turn(ctx context.Context, watch *watch, request application.OpenRequest, prompt string, give sink) (err error) {
	caisson, err := a.compose(ctx)
	if err != nil {
		return failure{err}
	}
	// The end must not depend on the context that was cancelled.
	closing := context.WithoutCancel(ctx)
	defer func() {
		if closed := caisson.Close(closing); closed != nil {
			err = errors.Join(err, failure{closed})
		}
	}()
	if err := a.findResume(ctx, caisson.Orchestrator, &request); err != nil {
		return failure{err}
	}
	session, err := caisson.Orchestrator.Open(ctx, request)
	if err != nil {
		return failure{err}
	}
	turn, err := session.Send(ctx, prompt)
	if err != nil {
		return failure{err}
	}
	stopWatching := watch.killOnSecond(turn)
	defer stopWatching()
	show, stop := a.withProgress(give)
	defer stop()
	for e, err := range turn.Events() {
		if err != nil {
			return failure{err}
		}
		if err := show(e); err != nil {
			return notWritten(err)
		}
		if final, ok := e.Reply.(domain.Final); ok {
			a.code = outcomeCode(final.Outcome)
		}
	}
	return nil
}
