package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
)

// exitDenied is explain's exit code for what the plan denies.
const exitDenied = 1

func (a *app) explainCommand() *cobra.Command {
	var (
		flags sessionFlags
		out   output
		op    string
		to    string
	)
	cmd := &cobra.Command{
		Use:   "explain WHAT [--op OPERATION] [flags] [-- COMMAND [ARG…]]",
		Short: "Say whether a plan allows something, why, and what would allow it",
		Long: `Say whether a plan allows something, which rule decides, and the narrowest flag
that would allow it. Nothing is started and nothing is opened.

WHAT is a path, tcp:HOST:PORT or unix:PATH. The plan is that of "caisson run"
with --agent or --resume, and that of "caisson exec" otherwise; the other flags
are theirs. The answer is the sandbox's alone: modes and owners of files may deny
more.

Exit codes: 0 allowed; 1 denied; 2 usage, a question that makes no sense or is
about what you cannot look at, or no answer because something failed.`,
		Example: `  caisson explain --agent claude ~/.ssh/id_ed25519
  caisson explain --agent codex --op rename --to ../elsewhere notes.txt
  caisson explain --rw . tcp:localhost:5432 -- make test`,
		Args: func(cmd *cobra.Command, args []string) error {
			n := len(args)
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				n = dash
			}
			if n != 1 {
				return usageError{fmt.Errorf("%d things to explain: name one path, tcp:HOST:PORT or unix:PATH", n)}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			e, err := a.explain(cmd.Context(), &flags, args, op, to)
			if err != nil {
				return noVerdict(err)
			}
			text := jsonl.AppendExplanation(nil, e)
			if !out.json {
				text = explanation(e)
			}
			if !e.Allowed {
				a.code = exitDenied
			}
			return noVerdict(a.write(text))
		},
	}
	cmd.Flags().StringVar(&op, "op", string(domain.OpRead), "the `OPERATION` on a path: read, write, exec, create, delete or rename")
	cmd.Flags().StringVar(&to, "to", "", "where rename moves it: a `PATH`")
	flags.addTo(cmd)
	out.add(cmd.Flags())
	return cmd
}

// noVerdict gives a failure a code that is no answer.
func noVerdict(err error) error {
	if err == nil || exitCode(err) != exitDenied {
		return err
	}
	return coded{err, exitUsage}
}

// explain answers the question.
func (a *app) explain(ctx context.Context, flags *sessionFlags, args []string, op, to string) (e domain.Explanation, err error) {
	if err := a.needDir(); err != nil {
		return e, usageError{err}
	}
	ask, err := a.question(args[0], op, to)
	if err != nil {
		return e, usageError{err}
	}
	plan, err := a.planOf(ctx, flags, args[1:])
	if err != nil {
		return e, err
	}
	if e, err = ask(plan); err != nil {
		if invalid := new(domain.InvalidError); !errors.As(err, &invalid) {
			err = fmt.Errorf("%s cannot be looked at: %w", strconv.Quote(args[0]), err)
		}
		// Not a failure, whose code would say that the plan denies it.
		return e, usageError{err}
	}
	return e, nil
}

// question returns what puts the question to a plan.
func (a *app) question(what, op, to string) (func(domain.SandboxPlan) (domain.Explanation, error), error) {
	file, err := domain.ParseFileOp(op)
	if err != nil {
		return nil, fmt.Errorf("--op: %w", err)
	}
	if what == "" {
		return nil, &domain.InvalidError{What: "path", Value: what, Reason: "empty", Remedy: "name what to explain"}
	}
	if (to != "") != (file == domain.OpRename) {
		return nil, &domain.InvalidError{What: "--to", Value: to, Reason: "rename needs it, and nothing else does", Remedy: "--op rename --to PATH"}
	}
	address, isTCP := strings.CutPrefix(what, "tcp:")
	path, isUnix := strings.CutPrefix(what, "unix:")
	switch {
	case (isTCP || isUnix) && file != domain.OpRead:
		return nil, &domain.InvalidError{What: "--op", Value: op, Reason: "of a path, and " + what + " is none", Remedy: "leave it out: the question is whether one may connect"}
	case strings.HasPrefix(path, "@"):
		return nil, &domain.InvalidError{What: "unix socket", Value: path, Reason: "abstract, at no path", Remedy: "no flag grants those of programs outside of the sandbox"}
	case strings.HasPrefix(what, "udp:"):
		return nil, &domain.InvalidError{What: "address", Value: what, Reason: "UDP is allowed to every host or to none", Remedy: `see the plan, and --udp; for a file of that name say "./` + what + `"`}
	case !isTCP && !isUnix && namesHost(what):
		return nil, &domain.InvalidError{What: "path", Value: what, Reason: "it looks like a host", Remedy: `ask for tcp:HOST:PORT; for a file of that name say "./` + what + `"`}
	}
	if isTCP {
		host, service, err := net.SplitHostPort(address)
		if err != nil {
			return nil, &domain.InvalidError{What: "address", Value: what, Reason: "not of the form tcp:HOST:PORT", Remedy: "for example tcp:localhost:443"}
		}
		port, err := strconv.ParseUint(service, 10, 16)
		if err != nil || port == 0 {
			return nil, &domain.InvalidError{What: "port", Value: service, Reason: "no port number", Remedy: "1 to 65535"}
		}
		return func(p domain.SandboxPlan) (domain.Explanation, error) {
			return application.ExplainTCP(p, host, uint16(port))
		}, nil
	}
	if isUnix {
		return func(p domain.SandboxPlan) (domain.Explanation, error) {
			return application.ExplainUnix(p, a.abs(path))
		}, nil
	}
	if to != "" {
		to = a.abs(to)
	}
	return func(p domain.SandboxPlan) (domain.Explanation, error) {
		return application.ExplainFile(p, file, a.abs(what), to)
	}, nil
}

// namesHost reports whether somebody who asks for this means a host and no path.
func namesHost(what string) bool {
	host, service, err := net.SplitHostPort(what)
	_, notPort := strconv.ParseUint(service, 10, 16)
	return strings.Contains(what, "://") || err == nil && notPort == nil && !strings.Contains(host, "/")
}

// planOf returns the plan of run, if the flags name an agent or a session, and
// that of exec otherwise.
func (a *app) planOf(ctx context.Context, flags *sessionFlags, argv []string) (plan domain.SandboxPlan, err error) {
	caisson, err := a.compose(ctx)
	if err != nil {
		return plan, failure{err}
	}
	defer func() {
		if closed := caisson.Close(context.WithoutCancel(ctx)); closed != nil {
			err = errors.Join(err, failure{closed})
		}
	}()
	if flags.agent != "" || flags.resume != "" {
		if len(argv) > 0 {
			return plan, usageError{errors.New("a command and an agent: name one of them")}
		}
		request, err := flags.request(a)
		if err != nil {
			return plan, usageError{err}
		}
		if err := a.findResume(ctx, caisson.Orchestrator, &request); err != nil {
			return plan, failure{err}
		}
		preview, err := caisson.Orchestrator.Plan(ctx, request)
		if err != nil {
			return plan, failure{err}
		}
		return preview.Plan, nil
	}
	if len(argv) == 0 {
		argv = []string{"/bin/sh"}
	}
	request := application.ExecRequest{Argv: argv, Dir: a.Dir}
	if request.Policy, err = flags.policy(a.abs); err != nil {
		return plan, usageError{err}
	}
	request.PolicySource = flags.source(a)
	if request.Sandbox, err = flags.mode(); err != nil {
		return plan, usageError{err}
	}
	if plan, err = caisson.Orchestrator.PlanExec(ctx, request); err != nil {
		return plan, failure{err}
	}
	return plan, nil
}

// explanation is the answer for a person.
func explanation(e domain.Explanation) []byte {
	verdict := "denied"
	if e.Allowed {
		verdict = "allowed"
	}
	text := fmt.Appendf(nil, "%s: %s\n  because          %s\n", verdict, ui.Line(e.Question), ui.Line(e.Because))
	if flags := changeFlags(e.Change); len(flags) > 0 {
		// One line: it takes them all.
		text = fmt.Appendf(text, "  would allow it   %s\n", strings.Join(flags, " "))
	}
	for _, note := range e.Notes {
		text = fmt.Appendf(text, "  note             %s\n", ui.Line(note))
	}
	return text
}

// changeFlags says a change in flags. A right that no flag grants is named.
func changeFlags(c domain.Change) []string {
	var flags []string
	for _, r := range c.Rules {
		name := r.Access.String()
		for _, usual := range domain.UsualAccesses() {
			if usual.Access == r.Access {
				name = "--" + usual.Name
			}
		}
		flags = append(flags, name+" "+ui.Line(strconv.Quote(r.Path)))
	}
	for _, p := range c.ConnectTCP {
		flags = append(flags, fmt.Sprintf("--connect-tcp %d", p))
	}
	for _, d := range c.Destinations {
		flags = append(flags, "--connect "+d.String())
	}
	for _, d := range c.Domains {
		flags = append(flags, "--allow-domain "+ui.Line(strconv.Quote(d.String())))
	}
	for _, path := range c.UnixDestinations {
		flags = append(flags, "--connect "+ui.Line(strconv.Quote("unix:"+path)))
	}
	if c.UnixSockets != domain.UnixSocketsDeny {
		flags = append(flags, "--unix-sockets "+c.UnixSockets.String())
	}
	return flags
}
