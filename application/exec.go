package application

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Exec runs a command under a plan and waits for its end: the preset grants the
// command's own file, the system's programs and libraries, a few devices, and a
// private temporary directory ($TMPDIR) that is removed afterwards. Everything
// else takes a policy, the directory that the command starts in included. $HOME
// keeps its value but is not granted.
//
// A command that is not found gives a *domain.SpawnError that is fs.ErrNotExist,
// one that cannot be executed one that is fs.ErrPermission. How the command
// ended is in the result and is no error. When the orchestrator is closed, the
// command is ended as if ctx were over, with domain.ErrClosed.
func (o *Orchestrator) Exec(ctx context.Context, req ExecRequest) (result ports.CommandResult, err error) {
	id, err := newSessionID()
	if err != nil {
		return ports.CommandResult{}, err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	x := &execution{o: o, req: req, end: end, ended: make(chan struct{})}
	if err := x.register(); err != nil {
		return ports.CommandResult{}, err
	}
	defer x.release()
	if err := x.resolve(ctx); err != nil {
		return ports.CommandResult{}, err
	}
	// The temporary directory is one of the kind that sessions have: below the
	// state, private, and removed in the same way.
	var open ports.SessionLog
	defer func() {
		removed := o.store.Remove(context.WithoutCancel(ctx), id)
		if open != nil {
			removed = errors.Join(removed, open.Close())
		}
		if removed == nil {
			return
		}
		removed = fmt.Errorf("remove the command's temporary directory: %w", removed)
		if err != nil {
			err = errors.Join(err, removed)
		} else {
			result.CleanUp = errors.Join(result.CleanUp, removed)
		}
	}()
	// A place that nobody has open is one that somebody left behind, and removed.
	log, err := o.store.Open(ctx, id)
	if err != nil {
		return ports.CommandResult{}, err
	}
	open = log
	dirs, err := o.store.Dirs(ctx, id)
	if err != nil {
		return ports.CommandResult{}, err
	}
	if err := x.buildPlan(ctx, dirs.Temp); err != nil {
		return ports.CommandResult{}, err
	}
	journal := &egressJournal{}
	plan, proxy, err := o.openEgress(ctx, id, x.plan, journal)
	if err != nil {
		return ports.CommandResult{}, err
	}
	if proxy != nil {
		defer func() {
			closed := o.closeEgress(context.WithoutCancel(ctx), proxy)
			journal.log(o.log)
			if err != nil {
				err = errors.Join(err, closed)
			} else { // the command has its result all the same
				result.CleanUp = errors.Join(result.CleanUp, closed)
			}
		}()
	}
	x.plan = plan
	line := domain.SpawnLine{
		Path: x.path, Argv: req.Argv, Dir: x.dir, Env: x.plan.Environ(o.host.LookupEnv), Sandbox: x.plan,
	}
	if err := line.Validate(); err != nil {
		return ports.CommandResult{}, err
	}
	if limit := x.plan.Limits().WallClock; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, &domain.TimeoutError{Limit: limit})
		defer cancel()
	}
	return o.commands.Run(ctx, line, req.Stdio)
}

// PlanExec returns the plan that Exec would run the command under, and changes
// nothing. The private directory stands in it under the id
// 00000000-0000-0000-0000-000000000000, and does not exist.
func (o *Orchestrator) PlanExec(ctx context.Context, req ExecRequest) (domain.SandboxPlan, error) {
	x := &execution{o: o, req: req}
	if err := x.resolve(ctx); err != nil {
		return domain.SandboxPlan{}, err
	}
	dirs, err := o.store.Paths(domain.SessionID(uuid.Nil.String()))
	if err != nil {
		return domain.SandboxPlan{}, err
	}
	err = x.buildPlan(ctx, dirs.Temp)
	return x.plan, err
}

// execution is one run of a command, on its way through the steps.
type execution struct {
	o    *Orchestrator
	req  ExecRequest
	dir  string
	path string // of the program: absolute, as found
	plan domain.SandboxPlan

	end   context.CancelCauseFunc
	ended chan struct{} // closed when the command and its directory are gone
}

// register makes the run known, so that the orchestrator's Close finds it.
func (x *execution) register() error {
	x.o.mu.Lock()
	defer x.o.mu.Unlock()
	if x.o.closed {
		return errOrchestratorClosed
	}
	x.o.running[x] = true
	return nil
}

// release takes back register.
func (x *execution) release() {
	x.o.mu.Lock()
	defer x.o.mu.Unlock()
	delete(x.o.running, x)
	close(x.ended)
}

// Close ends the command, and returns when it is gone or ctx ends, with its error.
func (x *execution) Close(ctx context.Context) error {
	x.end(errOrchestratorClosed)
	return await(ctx, x.ended)
}

// resolve checks the request and finds the directory and the program.
func (x *execution) resolve(ctx context.Context) error {
	if err := x.o.check(ctx); err != nil {
		return err
	}
	if err := x.req.Sandbox.validate(); err != nil {
		return err
	}
	if len(x.req.Argv) == 0 || x.req.Argv[0] == "" {
		return &domain.InvalidError{What: "command", Reason: "empty", Remedy: "name a program"}
	}
	var err error
	if x.dir, err = canonicalDir("working directory", x.req.Dir); err != nil {
		return err
	}
	x.path, err = findProgram(x.req.Argv[0], x.dir, x.o.path())
	return err
}

// buildPlan makes the plan: preset and policy. The one private directory is a
// command's state too.
func (x *execution) buildPlan(ctx context.Context, temp string) error {
	found, err := findPolicy(ctx, x.req.PolicySource, ports.PolicyPlace{
		Agents: x.o.Agents(), Workspace: x.dir, Home: x.o.home(), State: temp, Temp: temp,
	}, x.req.Sandbox, x.req.Policy)
	if err != nil {
		return err
	}
	policy := found.Policy
	if err := refuseIdleLimit(policy, "the output of a command is not seen, so its idle time is not known"); err != nil {
		return err
	}
	env := presetEnv(x.o.path(), domain.EnvRule{}, temp)
	rules := policy.PathRules()
	plan := domain.Unconfined(x.req.Sandbox.why).WithEnv(env...)
	if !x.req.Sandbox.off {
		program, _, err := canonicalPath(x.path)
		if err != nil {
			return &domain.SpawnError{Step: "resolve", Argv0: x.req.Argv[0], Err: err}
		}
		preset := execRules(execInput{euid: os.Geteuid(), program: program, temp: temp, homePath: x.o.homePath()})
		preset = append(preset, workspaceRules(x.dir, policy.Workspace, policy.Origins[domain.OriginWorkspace])...)
		rules = append(preset, rules...)
		plan = domain.NewSandboxPlan(presetExec).WithEnv(env...)
	}
	x.plan, err = x.o.completePlan(ctx, plan, policy, rules, []string{temp}, append(x.o.guard(found.Guarded), x.o.ownProgram()))
	return err
}

// findProgram finds a program as execvp(3) does, but in absolute entries of PATH
// only: a file that can be executed comes before one that cannot.
func findProgram(name, dir string, path []string) (string, error) {
	var candidates []string
	if strings.ContainsRune(name, filepath.Separator) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		candidates = []string{filepath.Clean(name)}
	} else {
		if len(path) == 0 {
			path = defaultPath
		}
		for _, entry := range path {
			candidates = append(candidates, filepath.Join(entry, name))
		}
	}
	missing := &domain.SpawnError{Step: "resolve", Argv0: name, Err: fs.ErrNotExist, Remedy: "name a program on PATH, or pass its path"}
	for _, c := range candidates {
		info, err := os.Stat(c)
		switch {
		case err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0:
			return c, nil
		case err == nil, errors.Is(err, fs.ErrPermission):
			missing = &domain.SpawnError{Step: "resolve", Argv0: c, Err: fs.ErrPermission, Remedy: "pass a file that can be executed"}
		}
	}
	return "", missing
}
