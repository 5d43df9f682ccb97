package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
	"github.com/caisson-run/caisson/ports"
)

// loginFlags are the flags of login.
type loginFlags struct {
	name     string
	from     string
	agentBin string
	list     bool
	out      output
}

func (a *app) loginCommand() *cobra.Command {
	var f loginFlags
	cmd := &cobra.Command{
		Use:   "login AGENT [--name NAME] [--from FILE] | login --list",
		Short: "Log an agent in, for sessions in which it holds its own login",
		Long: `Keep a login of an agent's own, such as a subscription's, for the sessions that
ask for it with --login. The agent's own login runs on this terminal, confined, in
private directories that are new; of what it leaves, the one file with the login
is kept and everything else removed. With --from the login comes from a file, for
example ~/.claude/.credentials.json or ~/.codex/auth.json, of which a copy is kept.
The agent's configuration directory is never granted, nor read but for that file.

A session with --login has a copy of that file in its private state while a turn
runs. If the agent renews its login, the renewed one is kept, and nothing else.
The agent and every tool that it runs can read the copy: the model gateway, which
keeps an API key from them, is the stronger way where you have a key.`,
		Example: `  caisson login claude
  caisson login codex --from ~/.codex/auth.json
  caisson run --agent claude --login "explain this repository"
  caisson login --list`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case f.list && (len(args) > 0 || f.name != "" || f.from != "" || f.agentBin != ""):
				return usageError{errors.New("--list stands alone" + seeHelp(cmd))}
			case !f.list && len(args) != 1:
				return usageError{errors.New("name one agent, for example claude" + seeHelp(cmd))}
			case f.from != "" && f.agentBin != "":
				return usageError{errors.New("with --from no agent runs, so --agent-bin means nothing" + seeHelp(cmd))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *application.Orchestrator) error {
				if f.list {
					return a.listLogins(ctx, o, f.out.json)
				}
				return a.login(ctx, o, ports.LoginID{Agent: domain.AgentKind(args[0]), Name: f.name}, f)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.name, "name", "", "the `NAME` of this login, if the agent has several")
	flags.StringVar(&f.from, "from", "", "copy the login from `FILE`, which the agent itself wrote")
	flags.StringVar(&f.agentBin, "agent-bin", "", "the agent's program, a `PATH`; searched on PATH by default")
	flags.BoolVar(&f.list, "list", false, "list the logins that are kept")
	f.out.add(flags)
	return cmd
}

func (a *app) logoutCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "logout AGENT [--name NAME]",
		Short: "Forget a login that caisson login has kept",
		Long: `Delete a login that caisson login has kept. The provider is not told: to end the
login there, use its own page of devices and sessions.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("name one agent, for example claude" + seeHelp(cmd))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *application.Orchestrator) error {
				id := ports.LoginID{Agent: domain.AgentKind(args[0]), Name: name}
				if err := o.ForgetLogin(ctx, id); err != nil {
					return err
				}
				return a.write(fmt.Appendf(nil, "the login of %s is forgotten\n", id))
			})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "the `NAME` of the login, if the agent has several")
	return cmd
}

// login keeps a login, from a file or by the agent's own doing.
func (a *app) login(ctx context.Context, o *application.Orchestrator, id ports.LoginID, f loginFlags) error {
	if err := a.needDir(); err != nil {
		return err
	}
	var login ports.Login
	var err error
	if f.from != "" {
		login, err = o.ImportLogin(ctx, id, a.abs(f.from))
	} else {
		login, err = a.logIn(ctx, o, id, f.agentBin)
	}
	if err != nil {
		return err
	}
	use := "--login"
	if login.ID.Name != ports.DefaultLogin {
		use += "=" + login.ID.Name
	}
	return a.write(fmt.Appendf(nil, "the login of %s is kept%s; use it with: caisson run --agent %s %s\n",
		login.ID, until(login.Expires), login.ID.Agent, use))
}

// logIn runs the agent's own login on this terminal.
func (a *app) logIn(ctx context.Context, o *application.Orchestrator, id ports.LoginID, bin string) (_ ports.Login, err error) {
	in, out, err := a.terminal("name the file with the login: --from FILE")
	if err != nil {
		return ports.Login{}, err
	}
	if bin != "" {
		bin = a.abs(bin)
	}
	t, err := o.OpenLogin(ctx, application.LoginRequest{ID: id, AgentBin: bin, Size: terminalSize(in)})
	if err != nil {
		return ports.Login{}, err
	}
	defer func() { err = errors.Join(err, t.Close(context.WithoutCancel(ctx))) }()
	result, err := a.connect(ctx, t, in, out)
	if err != nil {
		return ports.Login{}, err
	}
	if !result.Exit.Success() {
		return ports.Login{}, errors.New("the agent's login did not succeed, and nothing is kept")
	}
	return t.TakeLogin(ctx)
}

// listLogins prints what can be shown of the logins.
func (a *app) listLogins(ctx context.Context, o *application.Orchestrator, asJSON bool) error {
	logins, err := o.Logins(ctx)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if asJSON {
		for _, l := range logins {
			text.Write(jsonl.AppendLogin(nil, l))
		}
		return a.write(text.Bytes())
	}
	if len(logins) == 0 {
		return a.write([]byte("no logins are kept; make one with: caisson login AGENT\n"))
	}
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "AGENT\tNAME\tKEPT\tACCESS TOKEN")
	for _, l := range logins {
		kept, expires := "cannot be used: log in again", "-"
		if !l.Kept.IsZero() {
			kept = l.Kept.Local().Format(time.DateTime)
		}
		switch {
		case l.Expires.IsZero():
		case l.Expires.Before(time.Now()):
			expires = "expired " + l.Expires.Local().Format(time.DateTime) + ", renewed at its next use"
		default:
			expires = "until " + l.Expires.Local().Format(time.DateTime)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", l.ID.Agent, l.ID.Name, kept, expires)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return a.write(text.Bytes())
}

// until says how long a login's access token is good for.
func until(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " (its access token until " + t.Local().Format(time.DateTime) + ")"
}
