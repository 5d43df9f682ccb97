package application

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// launch is one opening of a session, on its way through the steps.
type launch struct {
	o       *Orchestrator
	req     OpenRequest
	preview bool // change nothing
	// terminal says that a person drives it, on a terminal.
	terminal bool
	// logIn is the login that the agent is to make; nil for none.
	logIn *ports.LoginID
	undo  undoStack

	adapter    ports.AgentAdapter // nil for a command on a terminal
	install    ports.AgentInstall
	home       string // $HOME, canonical; "" if there is none
	path       []string
	workspace  string
	record     domain.SessionRecord // of the session to resume
	log        ports.SessionLog
	session    *domain.AgentSession
	git        gitElsewhere
	dirs       ports.SessionDirs
	guarded    []string // of the policy's source
	env        []domain.EnvRule
	fragment   ports.PlanFragment
	login      *borrower         // nil without one
	gated      bool              // the agent is to go through the model gateway
	files      map[string]string // with credentials, by the variable's name; canonical
	notes      []string
	plan       domain.SandboxPlan
	gateway    ports.Gateway // nil without one
	egress     ports.Egress  // nil without one
	journal    *egressJournal
	structured ports.StructuredSession
}

// run opens the session: the numbered steps, each of which leaves on the undo
// stack what takes it back. The caller takes them back after an error.
func (l *launch) run(ctx context.Context) (*Session, error) {
	if err := l.prepare(ctx); err != nil {
		return nil, err
	}
	if err := l.steps(ctx, l.openGateway, l.openEgress, l.launchStructured, l.save); err != nil { // 5e, 6 and 7
		return nil, err
	}
	s := &Session{
		o: l.o, structured: l.structured, agent: l.session, plan: l.plan, gateway: l.gateway, egress: l.egress, journal: l.journal, login: l.login, own: ownDirs(l.dirs), log: l.log, tripwires: l.req.Tripwires,
		id: l.session.ID(), fresh: l.req.Resume == "",
	}
	return s, l.o.register(s)
}

// prepare goes through the steps that a preview goes through too.
func (l *launch) prepare(ctx context.Context) error {
	return l.steps(
		ctx,
		l.validate,            // 1
		l.resolveAgent,        // 2
		l.prepareWorkspace,    // 3
		l.resolveConversation, // 4
		l.makeDirs,            // 5a
		l.findPolicy,          // 5a
		l.buildEnvironment,    // 5b
		l.configureAgent,      // 5c
		l.buildPlan,           // 5d
	)
}

func (l *launch) steps(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// validate is step 1. A request to resume is completed from its record.
func (l *launch) validate(ctx context.Context) error {
	if err := l.req.Sandbox.validate(); err != nil {
		return err
	}
	// The model becomes an argument of the agent's command line.
	if m := l.req.Model; strings.HasPrefix(m, "-") || strings.ContainsFunc(m, func(r rune) bool { return r < ' ' || r == utf8.RuneError }) {
		return &domain.InvalidError{What: "model", Value: m, Reason: "not the name of a model", Remedy: "leave it out for the agent's default"}
	}
	if l.req.Resume == "" {
		return nil
	}
	id, err := domain.ParseSessionID(string(l.req.Resume))
	if err != nil {
		return err
	}
	if l.o.forget {
		return &domain.InvalidError{What: "session", Value: string(id), Reason: "this orchestrator keeps no sessions", Remedy: "open a new one"}
	}
	if l.record, err = l.o.store.Load(ctx, id); err != nil {
		return err
	}
	if l.record.Live == nil { // otherwise the log may know more
		if err := l.resumable(); err != nil {
			return err
		}
	}
	if l.req.Agent == "" {
		l.req.Agent = l.record.Kind
	}
	if l.req.Workspace == "" {
		l.req.Workspace = l.record.Workspace
	}
	return nil
}

// resumable refuses a session without a conversation.
func (l *launch) resumable() error {
	if l.record.ConversationID != "" {
		return nil
	}
	return &domain.InvalidError{
		What: "session", Value: string(l.record.ID), Reason: "its agent never named a conversation, so there is nothing to go on with",
		Remedy: "open a new session",
	}
}

// resolveAgent is step 2. It reads files and runs nothing.
func (l *launch) resolveAgent(context.Context) (err error) {
	if l.adapter, err = l.o.adapter(l.req.Agent); err != nil {
		return err
	}
	if l.install, err = l.adapter.Resolve(l.req.AgentBin, l.o.host); err != nil {
		return err
	}
	return l.chooseLogin()
}

// prepareWorkspace is step 3.
func (l *launch) prepareWorkspace(context.Context) (err error) {
	l.home = l.o.home()
	l.path = l.o.path()
	if l.workspace, err = canonicalDir("workspace", l.req.Workspace); err != nil {
		return err
	}
	if reason := l.o.unfitWorkspace(l.workspace, l.home); reason != "" {
		return &domain.InvalidError{What: "workspace", Value: l.workspace, Reason: reason, Remedy: "pass the directory of one project"}
	}
	l.git, err = findGitElsewhere(l.workspace, func(path string) bool { return l.o.unfitWorkspace(path, l.home) != "" })
	l.notes = append(l.notes, l.git.notes...)
	return err
}

// canonicalDir returns the canonical path of a directory that exists.
func canonicalDir(what, path string) (string, error) {
	bad := func(reason string, err error) error {
		return &domain.InvalidError{What: what, Value: path, Reason: reason, Remedy: "pass the absolute path of a directory", Err: err}
	}
	if !filepath.IsAbs(path) {
		return "", bad("not an absolute path", nil)
	}
	canonical, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", bad("does not exist", nil)
	}
	if err != nil {
		return "", bad("cannot be resolved", err)
	}
	info, err := os.Stat(canonical)
	switch {
	case err != nil:
		return "", bad("cannot be examined", err)
	case !info.IsDir():
		return "", bad("not a directory", nil)
	case !utf8.ValidString(canonical):
		return "", bad("not valid UTF-8, so it cannot be recorded", nil)
	}
	return canonical, nil
}

// unfitWorkspace says why a directory must not be granted to an agent for
// writing, "" if it may.
func (o *Orchestrator) unfitWorkspace(dir, home string) string {
	root := o.store.Root()
	switch {
	case dir == filepath.Dir(dir):
		return "the root of the file system"
	case home != "" && dir == home:
		return "your home directory: every key and setting in it would be the agent's"
	case home != "" && covers(dir, home):
		return "it contains your home directory " + home
	case covers(dir, root):
		return "it contains Caisson's state in " + root
	case covers(root, dir):
		return "it lies in Caisson's state in " + root
	}
	for _, kernel := range []string{"/proc", "/sys"} {
		if covers(kernel, dir) {
			return "it is no directory of files but lies in " + kernel
		}
	}
	for _, system := range slices.Concat(sharedDirs, systemDirs) {
		canonical, _, err := canonicalPath(system)
		if err != nil {
			canonical = system
		}
		if covers(dir, system) || covers(dir, canonical) {
			return "it is or contains the system directory " + system
		}
	}
	return ""
}

// sharedDirs hold what is everybody's or the system's. A project may lie in one of
// them, but is none.
var sharedDirs = []string{"/etc", "/dev", "/dev/shm", "/boot", "/run", "/var", "/var/tmp", "/tmp"}

// home returns the canonical $HOME, "" if there is none.
func (o *Orchestrator) home() string {
	home, _ := o.host.LookupEnv("HOME")
	if !filepath.IsAbs(home) {
		return ""
	}
	canonical, _, err := canonicalPath(home)
	if err != nil {
		return filepath.Clean(home)
	}
	return canonical
}

// path returns the absolute entries of the host's PATH.
func (o *Orchestrator) path() []string {
	path, _ := o.host.LookupEnv("PATH")
	return absoluteEntries(path)
}

// resolveConversation is step 4. From here on nobody else has the session open,
// in this process or in another one.
func (l *launch) resolveConversation(ctx context.Context) error {
	if l.req.Resume != "" {
		mismatch := func(what, is, was string) error {
			return &domain.InvalidError{
				What: what, Value: is, Reason: fmt.Sprintf("session %s is one of %q", l.record.ID, was),
				Remedy: "leave it out to go on with the session, or open a new one",
			}
		}
		if l.req.Agent != l.record.Kind {
			return mismatch("agent", string(l.req.Agent), string(l.record.Kind))
		}
		if l.workspace != l.record.Workspace {
			return mismatch("workspace", l.workspace, l.record.Workspace)
		}
	}
	if l.preview {
		return nil
	}
	id := l.record.ID
	if l.req.Resume == "" {
		var err error
		if id, err = newSessionID(); err != nil {
			return err
		}
	}
	if l.req.Resume == "" {
		// Before the steps that make something: one that fails may have made a
		// part of it.
		l.undo.push(func(ctx context.Context) error { return l.o.removeStored(ctx, id) })
	}
	var err error
	if l.log, err = l.o.store.Open(ctx, id); err != nil {
		return err
	}
	l.undo.push(func(context.Context) error { return l.log.Close() })
	if l.req.Resume == "" {
		l.record.ID = id
		return nil
	}
	// Whoever had the session open until now has saved it since step 1, or died.
	if l.record, err = l.o.store.Load(ctx, id); err != nil {
		return err
	}
	if l.record, err = l.o.recover(ctx, l.log, l.record); err != nil {
		return err
	}
	return l.resumable()
}

// makeDirs is step 5a: the session's private directories.
func (l *launch) makeDirs(ctx context.Context) (err error) {
	if l.preview {
		id := l.record.ID
		if id == "" {
			id = domain.SessionID(uuid.Nil.String())
		}
		l.dirs, err = l.o.store.Paths(id)
		return err
	}
	l.dirs, err = l.o.store.Dirs(ctx, l.record.ID)
	return err
}

// buildEnvironment is step 5b: the variables that reach the agent. Its $HOME is
// a private directory, so that what it keeps there is no other session's.
func (l *launch) buildEnvironment(context.Context) error {
	l.env = append(presetEnv(l.path, domain.EnvRule{Value: l.dirs.Home, Literal: true}, l.dirs.Temp), xdgEnv(l.dirs.Home, l.dirs.Temp)...)
	return nil
}

// configureAgent is step 5c: what the agent itself needs.
func (l *launch) configureAgent(ctx context.Context) (err error) {
	if err := l.findLogin(ctx); err != nil {
		return err
	}
	if l.fragment, err = l.adapter.Needs(l.install, l.dirs, l.o.host); err != nil {
		return err
	}
	err = l.chooseWay()
	l.notes = append(l.notes, l.fragment.Notes...)
	return err
}

// buildPlan is step 5d: preset, the agent's needs and the policy, in this order.
func (l *launch) buildPlan(ctx context.Context) error {
	policy := l.req.Policy
	rules := policy.PathRules()
	var plan domain.SandboxPlan
	if l.req.Sandbox.off {
		plan = domain.Unconfined(l.req.Sandbox.why).WithEnv(l.env...).WithEnv(l.fragment.Env...)
	} else {
		preset := codingRules(codingInput{
			euid: os.Geteuid(), workspace: l.workspace, access: policy.Workspace, why: policy.Origins[domain.OriginWorkspace],
			dirs: l.dirs, homePath: l.o.homePath(l.workspace),
		})
		for _, r := range l.git.rules {
			if policy.Workspace != 0 {
				r.Access &= policy.Workspace
			}
			preset = append(preset, r)
		}
		if l.terminal {
			preset = append(preset, terminalRules()...)
		}
		rules = append(append(preset, l.fragment.Rules...), rules...)
		if why := l.fragment.UDP; why != "" {
			l.notes = append(l.notes, fmt.Sprintf("%s: UDP is allowed, to any host: %s", l.req.Agent, why))
		}
		plan = domain.NewSandboxPlan(presetCoding).
			WithEnv(l.env...).WithEnv(l.fragment.Env...).
			WithConnectTCP(l.fragment.ConnectTCP...).
			WithEgressDomains(l.fragment.Domains...).
			WithUDP(l.fragment.UDP != "").
			WithWaivers(l.fragment.Waivers...).
			WithOrigins(l.needsOrigins())
		if l.gated {
			plan = l.withGateway(plan)
			l.noteGateway()
		}
	}
	own := ownDirs(l.dirs)
	programs := append(l.o.guard(l.guarded), l.o.ownProgram())
	if l.adapter != nil {
		programs = append(programsOf(l.req.Agent, l.install), programs...)
	}
	plan, err := l.o.completePlan(ctx, plan, policy, rules, own, programs)
	if err == nil && l.gated {
		err = l.checkGateway(plan)
	}
	if err == nil {
		err = l.checkLogin()
	}
	if err != nil {
		return err
	}
	l.noteEgress(plan)
	l.plan = plan
	digest := plan.Digest()
	if l.req.Resume == "" {
		l.session = domain.NewAgentSession(l.record.ID, l.req.Agent, l.workspace, plan, l.o.now())
		return nil
	}
	if digest != l.record.PlanDigest {
		changed := &domain.PlanChangedError{Session: l.record.ID, Was: l.record.PlanDigest, Is: digest, Workspace: l.workspace}
		if l.record.Grants != nil {
			changed.Added, changed.Removed = domain.DiffGrants(l.record.Grants, plan.Grants())
		}
		return changed
	}
	l.session = domain.RestoreAgentSession(l.record)
	return nil
}

// needsOrigins says that it is the agent that needs what has no reason of its own.
func (l *launch) needsOrigins() map[string]string {
	origins := map[string]string{}
	for _, port := range l.fragment.ConnectTCP {
		origins[fmt.Sprintf("tcp connect %d", port)] = string(l.req.Agent) + ": its model API"
	}
	for _, d := range l.fragment.Domains {
		origins["domain "+d.String()] = string(l.req.Agent) + ": its login"
	}
	if l.fragment.UDP != "" {
		origins["udp allow"] = string(l.req.Agent) + ": " + l.fragment.UDP
	}
	for _, w := range l.fragment.Waivers {
		origins["waive "+string(w)] = string(l.req.Agent)
	}
	return origins
}

// ownDirs are the directories that a session's programs may write to.
func ownDirs(dirs ports.SessionDirs) []string { return []string{dirs.State, dirs.Home, dirs.Temp} }

// completePlan adds the policy and the rules to a plan and checks the whole.
// own are directories below the records' root that the plan may let be written.
func (o *Orchestrator) completePlan(ctx context.Context, plan domain.SandboxPlan, policy Policy, rules []domain.PathRule, own []string, programs []program) (domain.SandboxPlan, error) {
	policy, err := resolveSockets(policy)
	if err != nil {
		return domain.SandboxPlan{}, err
	}
	plan = policy.Apply(plan)
	if l := policy.Limits; plan.IsUnconfined() && (l.MemoryBytes > 0 || l.Pids > 0 || l.CPUs > 0) {
		return domain.SandboxPlan{}, &domain.InvalidError{
			What: "limits", Value: l.String(), Reason: "without a sandbox only time can be limited",
			Remedy: "leave the others out, or confine the turn",
		}
	}
	if err := plan.WithRules(rules...).Validate(); err != nil {
		return domain.SandboxPlan{}, err
	}
	root := o.store.Root()
	resolved, err := resolveRules(rules, func(path string) bool { return covers(root, path) })
	if err != nil {
		return domain.SandboxPlan{}, err
	}
	plan = plan.WithRules(resolved...)
	if err := checkGrants(plan, root, own, programs); err != nil {
		return domain.SandboxPlan{}, err
	}
	if err := o.checkLogins(ctx, plan, own); err != nil {
		return domain.SandboxPlan{}, err
	}
	return o.planEgress(plan, policy)
}

// ownProgram is Caisson itself.
func (o *Orchestrator) ownProgram() program {
	path := o.executable
	if canonical, _, err := canonicalPath(path); err == nil {
		path = canonical
	}
	return program{path: path, what: "Caisson's own program"}
}

// launchStructured is step 6. It starts no process.
func (l *launch) launchStructured(ctx context.Context) (err error) {
	l.structured, err = l.o.factory.Start(ctx, ports.SessionSpec{
		ID: l.record.ID, Kind: l.req.Agent, Install: l.install, Workspace: l.workspace, Dirs: l.dirs,
		Model: l.req.Model, ConversationID: l.record.ConversationID, UsageBefore: l.record.Total, Notes: l.notes,
	}, l.plan)
	if err != nil {
		return err
	}
	l.undo.push(l.structured.Close)
	l.session.OpenedWith(l.log.Epoch())
	l.session.Touched(l.o.now())
	return l.session.Ready()
}

// save is step 7: from here on the session can be resumed.
func (l *launch) save(ctx context.Context) error {
	if l.o.forget {
		return nil
	}
	return l.o.store.Save(ctx, l.session.Record())
}
