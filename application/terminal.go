package application

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Terminal is a program on a terminal of its own, in a sandbox. Its methods are
// those of ports.TerminalSession; Close also removes the private directories.
type Terminal struct {
	ports.TerminalSession
	o     *Orchestrator
	plan  domain.SandboxPlan
	notes []string
	// journal has what the egress proxy decided.
	journal *egressJournal
	// logIn is the login that is made on it, nil for none, and loginFile where the
	// program is to put it.
	logIn     *ports.LoginID
	loginFile string

	closing sync.Mutex
	undo    undoStack
}

// Plan returns the plan that the program runs under, without the terminal's own
// device file, which is added when it is known.
func (t *Terminal) Plan() domain.SandboxPlan { return t.plan }

// Receipt says what is enforced.
func (t *Terminal) Receipt() domain.Receipt {
	r := t.TerminalSession.Receipt()
	r.Agent = append(r.Agent, t.notes...)
	return r
}

// Close ends the program if it still runs, with its whole process tree, and
// frees everything: the terminal, and the private directories with all that is
// in them. When ctx ends before that, it gives the context's error; then, and
// when something cannot be removed, it can be called again, and does what is left.
// Closing twice is no error.
func (t *Terminal) Close(ctx context.Context) error {
	if err := t.TerminalSession.Close(ctx); err != nil {
		return err
	}
	t.closing.Lock()
	defer t.closing.Unlock()
	t.journal.log(t.o.log)
	if err := t.undo.run(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	t.o.mu.Lock()
	defer t.o.mu.Unlock()
	delete(t.o.terminals, t)
	return nil
}

// OpenTerminal starts a program on a terminal of its own: a shell, any command,
// or an agent's own interface. It runs under the coding preset: it has the
// workspace, the system's programs, and private directories that are empty at
// the start and removed at the end; $HOME is one of them. ctx governs the whole
// session. The caller closes the terminal; after an error nothing is left.
//
// What the program prints reaches the caller raw. A caller that passes it on to
// a terminal trusts the program with that terminal's escape sequences.
//
// Errors are those of [Orchestrator.Open] and [Orchestrator.Exec]; an agent
// without an interface for terminals gives a *domain.InvalidError.
func (o *Orchestrator) OpenTerminal(ctx context.Context, req TerminalRequest) (*Terminal, error) {
	return o.openTerminal(ctx, req, nil)
}

// openTerminal is OpenTerminal, or with logIn the agent's own login.
func (o *Orchestrator) openTerminal(ctx context.Context, req TerminalRequest, logIn *ports.LoginID) (*Terminal, error) {
	if err := o.check(ctx); err != nil {
		return nil, err
	}
	l := &launch{o: o, terminal: true, logIn: logIn, req: OpenRequest{
		Agent: req.Agent, AgentBin: req.AgentBin, Workspace: req.Workspace, Model: req.Model, Policy: req.Policy, Sandbox: req.Sandbox,
		PolicySource: req.PolicySource, DirectAPI: req.DirectAPI, CredentialFiles: req.CredentialFiles, Login: req.Login,
	}}
	t, err := l.openTerminal(ctx, req)
	if err != nil {
		return nil, errors.Join(err, l.undo.run(context.WithoutCancel(ctx)))
	}
	return t, nil
}

// openTerminal goes through the steps of a launch. Those that are about an
// agent are other ones for a command.
func (l *launch) openTerminal(ctx context.Context, req TerminalRequest) (*Terminal, error) {
	resolve, configure := l.resolveAgent, l.configureAgent
	if req.Agent == "" {
		resolve, configure = func(context.Context) error { return l.resolveCommand(req) }, l.configureCommand
	}
	if l.logIn != nil {
		if err := l.emptyWorkspace(ctx); err != nil {
			return nil, err
		}
	}
	err := l.steps(
		ctx,
		func(context.Context) error { return l.validateTerminal(req) },
		l.validate,            // 1
		resolve,               // 2
		l.prepareWorkspace,    // 3
		l.resolveConversation, // 4
		l.makeDirs,            // 5a
		l.findPolicy,          // 5a
		l.checkTerminalLimits, // 5a
		l.buildEnvironment,    // 5b
		configure,             // 5c
		l.buildPlan,           // 5d
		l.openGateway,         // 5e
		l.openEgress,          // 5e
	)
	if err != nil {
		return nil, err
	}
	line, err := l.terminalLine(req)
	if err != nil {
		return nil, err
	}
	if err := l.lendToTerminal(ctx); err != nil {
		return nil, err
	}
	session, err := l.o.screens.Start(ctx, line, req.Size)
	if err != nil {
		return nil, err
	}
	l.undo.push(session.Close)
	t := &Terminal{TerminalSession: session, o: l.o, plan: l.plan, notes: l.notes, journal: l.journal, logIn: l.logIn}
	if agent, ok := l.adapter.(ports.LoginAgent); ok {
		t.loginFile = filepath.Join(l.dirs.State, agent.LoginFormat().File)
	}
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	if l.o.closed {
		return nil, errOrchestratorClosed
	}
	t.undo, l.undo = l.undo, nil
	l.o.terminals[t] = true
	return t, nil
}

// lendToTerminal gives the agent its login, until the terminal is closed.
func (l *launch) lendToTerminal(ctx context.Context) error {
	if l.login == nil {
		return nil
	}
	l.undo.push(func(ctx context.Context) error {
		ret, err := l.login.takeBack(ctx)
		if err == nil && ret.Problem != "" {
			n, _ := tellReturn(ret)
			return &domain.InvalidError{What: "login", Value: ret.ID.String(), Reason: n.Message, Remedy: "look at what the agent did, and log in again if the login is of no use any more"}
		}
		return err
	})
	_, err := l.login.lend(ctx)
	return err
}

// validateTerminal checks what only a request for a terminal has.
func (l *launch) validateTerminal(req TerminalRequest) error {
	switch {
	case l.o.screens == nil:
		return &domain.InvalidError{What: "terminal", Reason: "this orchestrator has no terminal sessions", Remedy: "set application.Config.Terminals"}
	case req.Agent != "" && len(req.Argv) > 0:
		return &domain.InvalidError{What: "command", Value: req.Argv[0], Reason: "an agent and a command", Remedy: "name one of them"}
	}
	return nil
}

// checkTerminalLimits refuses a limit that cannot be kept on a terminal.
func (l *launch) checkTerminalLimits(context.Context) error {
	return refuseIdleLimit(l.req.Policy, "a person at a terminal may think as long as they like")
}

// refuseIdleLimit refuses a limit on idle time where there is no knowing it.
func refuseIdleLimit(p Policy, reason string) error {
	if p.Limits.Idle <= 0 {
		return nil
	}
	remedy := "limit the wall clock"
	if where := p.Origins["limit idle"]; where != "" {
		remedy = fmt.Sprintf("limit the wall clock, or say it for an agent alone (%s)", where)
	}
	return &domain.InvalidError{What: "idle limit", Value: p.Limits.Idle.String(), Reason: reason, Remedy: remedy}
}

// resolveCommand is step 2 for a command: it finds the program.
func (l *launch) resolveCommand(req TerminalRequest) error {
	name := "/bin/sh"
	switch shell, _ := l.o.host.LookupEnv("SHELL"); {
	case len(req.Argv) > 0:
		name = req.Argv[0]
	case shell != "":
		if path, err := findProgram(shell, "/", l.o.path()); err == nil {
			name = path
		}
	}
	if name == "" {
		return &domain.InvalidError{What: "command", Reason: "empty", Remedy: "name a program"}
	}
	dir, err := canonicalDir("workspace", req.Workspace)
	if err != nil {
		return err
	}
	l.install.Path, err = findProgram(name, dir, l.o.path())
	return err
}

// configureCommand is step 5c for a command: it needs its own file, and no model.
func (l *launch) configureCommand(context.Context) error {
	if len(l.req.CredentialFiles) > 0 {
		return &domain.InvalidError{What: "credential file", Reason: "a command has no model API", Remedy: "leave it out"}
	}
	if l.req.Login != "" {
		return &domain.InvalidError{What: "login", Value: l.req.Login, Reason: "a command has none", Remedy: "name the agent, or leave it out"}
	}
	program, _, err := canonicalPath(l.install.Path)
	if err != nil {
		return &domain.SpawnError{Step: "resolve", Argv0: l.install.Path, Err: err}
	}
	l.fragment.Rules = rules(domain.AccessReadExec, domain.Required, "the command", program)
	return nil
}

// terminalLine returns what to start.
func (l *launch) terminalLine(req TerminalRequest) (domain.SpawnLine, error) {
	line := domain.SpawnLine{Path: l.install.Path, Argv: req.Argv}
	turn := ports.TurnRequest{
		Install: l.install, Dirs: l.dirs, Workspace: l.workspace, Model: l.req.Model, Confined: l.plan.IsConfined(),
	}
	var err error
	agent, interactive := l.adapter.(ports.InteractiveAgent)
	logger, logsIn := l.adapter.(ports.LoginAgent)
	switch {
	case l.logIn != nil && logsIn:
		line, err = logger.LogIn(turn)
	case interactive:
		line, err = agent.Interactive(turn)
	case l.adapter != nil:
		return line, &domain.InvalidError{
			What: "agent", Value: string(l.req.Agent), Reason: "its adapter knows no interface for a terminal", Remedy: "run it as a session",
		}
	case len(line.Argv) == 0:
		line.Argv = []string{l.install.Path}
	}
	if err != nil {
		return line, err
	}
	line.Dir = l.workspace
	line.Env = domain.MergeEnv(l.plan.Environ(l.o.host.LookupEnv), line.Env)
	line.Sandbox = l.plan
	return line, line.Validate()
}
