package application

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// loginOf returns how an agent keeps a login of its own, or why there is none.
func (o *Orchestrator) loginOf(kind domain.AgentKind) (ports.LoginAgent, error) {
	a, err := o.adapter(kind)
	if err != nil {
		return nil, err
	}
	agent, ok := a.(ports.LoginAgent)
	switch {
	case !ok:
		return nil, &domain.InvalidError{What: "agent", Value: string(kind), Reason: "its adapter knows no login of its own", Remedy: "give it a credential for its model's API"}
	case o.logins == nil:
		return nil, &domain.InvalidError{What: "login", Value: string(kind), Reason: "this orchestrator keeps no logins", Remedy: "set application.Config.Logins"}
	}
	return agent, nil
}

// Logins returns the logins that are kept, by agent and name. One that cannot be
// used, or is of an agent without an adapter, is there without its times.
func (o *Orchestrator) Logins(ctx context.Context) ([]ports.Login, error) {
	if err := o.check(ctx); err != nil {
		return nil, err
	}
	if o.logins == nil {
		return nil, nil
	}
	ids, err := o.logins.List(ctx)
	if err != nil {
		return nil, err
	}
	logins := make([]ports.Login, 0, len(ids))
	for _, id := range ids {
		login := ports.Login{ID: id}
		if agent, err := o.loginOf(id.Agent); err == nil {
			kept, err := o.logins.Login(ctx, id, agent.LoginFormat())
			invalid := (*domain.InvalidError)(nil)
			switch {
			case err == nil:
				login = kept
			case !errors.As(err, &invalid):
				return nil, err // which says nothing of the login
			}
		}
		logins = append(logins, login)
	}
	return logins, nil
}

// ImportLogin keeps a copy of the file in which an agent has its login, given by
// its absolute path, in place of an earlier login of that id. Nothing else of the
// directory that it is in is read, and no session is ever granted it.
func (o *Orchestrator) ImportLogin(ctx context.Context, id ports.LoginID, path string) (ports.Login, error) {
	if err := o.check(ctx); err != nil {
		return ports.Login{}, err
	}
	agent, err := o.loginOf(id.Agent)
	if err != nil {
		return ports.Login{}, err
	}
	return o.logins.Import(ctx, id, agent.LoginFormat(), path)
}

// ForgetLogin deletes a login. A session that has a copy keeps it until its turn
// ends, and the provider knows nothing of it.
func (o *Orchestrator) ForgetLogin(ctx context.Context, id ports.LoginID) error {
	if err := o.check(ctx); err != nil {
		return err
	}
	if o.logins == nil {
		return &domain.InvalidError{What: "login", Value: id.String(), Reason: "this orchestrator keeps no logins", Remedy: "set application.Config.Logins"}
	}
	return o.logins.Delete(ctx, id)
}

// LoginRequest says whose login to make.
type LoginRequest struct {
	ID ports.LoginID
	// AgentBin is as of OpenRequest.
	AgentBin string
	// Size is the terminal's size at the start.
	Size ports.TerminalSize
}

// OpenLogin starts an agent's own login on a terminal of its own, confined, in
// private directories that are new and with nothing of the user's. Its workspace
// is an empty directory that it can only read, and it reaches its provider, as a session with a login does.
// When the program has ended, [Terminal.TakeLogin] keeps what it got. The caller
// closes the terminal.
func (o *Orchestrator) OpenLogin(ctx context.Context, req LoginRequest) (*Terminal, error) {
	if _, err := o.loginOf(req.ID.Agent); err != nil {
		return nil, err
	}
	return o.openTerminal(ctx, TerminalRequest{Agent: req.ID.Agent, AgentBin: req.AgentBin, Size: req.Size}, &req.ID)
}

// emptyWorkspace gives a login a directory to be in, which stays empty: what an agent
// has made is not for a plain removal, which a chain of directories could hold.
func (l *launch) emptyWorkspace(context.Context) (err error) {
	if l.req.Workspace, err = os.MkdirTemp("", "caisson-login-"); err != nil {
		return fmt.Errorf("make an empty workspace: %w", err)
	}
	l.req.Policy.Workspace = domain.AccessRead
	l.undo.push(func(context.Context) error { return os.Remove(l.req.Workspace) })
	return nil
}

// TakeLogin ends the program of a terminal that [Orchestrator.OpenLogin] opened,
// and keeps the file with the login that the program has made, alone. Nothing is
// kept if that is not what a login of the agent's is.
func (t *Terminal) TakeLogin(ctx context.Context) (ports.Login, error) {
	if t.logIn == nil {
		return ports.Login{}, &domain.InvalidError{What: "terminal", Reason: "no login was made on it", Remedy: "open it with OpenLogin"}
	}
	if err := t.TerminalSession.Close(ctx); err != nil {
		return ports.Login{}, err
	}
	t.closing.Lock()
	defer t.closing.Unlock()
	if t.undo == nil {
		return ports.Login{}, fmt.Errorf("terminal: %w", domain.ErrClosed)
	}
	return t.o.ImportLogin(ctx, *t.logIn, t.loginFile)
}

// saveLogin takes back the login that a session still has which is to be removed: its
// orchestrator died, and if the agent has renewed it, the one that is kept is of no
// use any more. What is of no login goes with the session.
func (o *Orchestrator) saveLogin(ctx context.Context, id domain.SessionID) error {
	if o.logins == nil {
		return nil
	}
	dirs, err := o.store.Paths(id)
	if err != nil {
		return err
	}
	lent, err := o.logins.Lent(ctx, dirs)
	if err != nil {
		o.log.Warn("the login of a session that is removed cannot be taken back", slog.String("session", string(id)), slog.Any("error", err))
		return nil
	}
	agent, err := o.loginOf(lent.Agent)
	if err != nil {
		return nil //nolint:nilerr // of none, or of an agent that nobody knows
	}
	ret, err := o.logins.Return(ctx, agent.LoginFormat(), dirs)
	if n, ok := tellReturn(ret); ok {
		o.log.Warn(n.Message, slog.String("session", string(id)))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed in part, by somebody who did not get to the end
	}
	return err
}

// borrower is a session's way to a login.
type borrower struct {
	store  ports.LoginStore
	id     ports.LoginID
	format ports.LoginFormat
	dirs   ports.SessionDirs
}

// findLogin is the part of step 5c that finds the login that the agent is to hold.
// What a session whose orchestrator died still has of one is taken back first.
func (l *launch) findLogin(ctx context.Context) error {
	agent, ok := l.adapter.(ports.LoginAgent)
	if ok && l.o.logins != nil && l.req.Resume != "" && !l.preview {
		ret, err := l.o.logins.Return(ctx, agent.LoginFormat(), l.dirs)
		if err != nil {
			return err
		}
		if n, ok := tellReturn(ret); ok {
			l.notes = append(l.notes, fmt.Sprintf("%s, from a turn that was cut short: %s", l.req.Agent, n.Message))
		}
	}
	if l.login == nil {
		return nil
	}
	_, err := l.o.logins.Login(ctx, l.login.id, l.login.format)
	l.login.dirs = l.dirs
	return err
}

// chooseLogin is the part of step 2 that says that the agent is to hold a login.
func (l *launch) chooseLogin() error {
	if l.req.Login == "" && l.logIn == nil {
		return nil
	}
	agent, err := l.o.loginOf(l.req.Agent)
	if err != nil {
		return err
	}
	l.install.OwnLogin = true
	if l.logIn == nil {
		l.login = &borrower{
			store: l.o.logins, id: ports.LoginID{Agent: l.req.Agent, Name: l.req.Login}, format: agent.LoginFormat(),
		}
	}
	return nil
}

// checkLogin refuses a variable that would come before the login that the agent is
// to hold.
func (l *launch) checkLogin() error {
	if api := l.fragment.ModelAPI; l.login != nil && api != nil {
		for _, e := range l.req.Policy.Env {
			if slices.ContainsFunc(api.Credentials, func(c ports.APICredential) bool { return c.Env == e.Name }) {
				return &domain.InvalidError{
					What: "environment variable", Value: e.Name, Reason: "the agent is to hold a login, and would use this credential instead",
					Remedy: "leave one of them out",
				}
			}
		}
	}
	return nil
}

// checkLogins refuses a plan that lets a program read the logins that are kept, or the
// copies that sessions have of them. own are the directories of its own session.
func (o *Orchestrator) checkLogins(ctx context.Context, plan domain.SandboxPlan, own []string) error {
	if o.logins == nil {
		return nil
	}
	dir, root := o.logins.Dir(), o.store.Root()
	for _, r := range plan.Rules() {
		if slices.ContainsFunc(own, func(dir string) bool { return covers(dir, r.Path) }) || !overlaps(r.Path, dir) && !overlaps(r.Path, root) {
			continue
		}
		kept, err := o.logins.List(ctx)
		if err != nil || len(kept) == 0 {
			return err
		}
		return &domain.InvalidError{
			What: "path rule", Value: r.Path, Reason: fmt.Sprintf("it would let the program read the logins that Caisson keeps in %s, or the copies of its sessions (granted by: %s)", dir, r.Why),
			Remedy: "grant a directory that does not contain them, or forget them with: caisson logout",
		}
	}
	return nil
}

// lend puts the copy in its place, and returns the secrets in it.
func (b *borrower) lend(ctx context.Context) ([]string, error) {
	if b == nil {
		return nil, nil
	}
	return b.store.Lend(ctx, b.id, b.format, b.dirs)
}

// returnLimit is how long the end of a turn waits for others who use the logins:
// one of them may be stopped in the middle.
const returnLimit = 30 * time.Second

// takeBack takes the copy out of the session again. The end of a turn's context
// must not stop it.
func (b *borrower) takeBack(ctx context.Context) (ports.LoginReturn, error) {
	if b == nil {
		return ports.LoginReturn{}, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnLimit)
	defer cancel()
	return b.store.Return(ctx, b.format, b.dirs)
}

// tellReturn says what became of a copy, if there is something to say.
func tellReturn(ret ports.LoginReturn) (domain.Notice, bool) {
	switch {
	case ret.Renewed:
		return domain.Notice{Class: domain.NoticeInfo, Message: fmt.Sprintf("the agent has renewed its login, and Caisson keeps that of %s", ret.ID)}, true
	case ret.Problem != "":
		return domain.Notice{Class: domain.NoticeWarning, Message: fmt.Sprintf("the login of %s stays as it was: what the agent has left of its copy is not taken: %s", ret.ID, ret.Problem)}, true
	}
	return domain.Notice{}, false
}
