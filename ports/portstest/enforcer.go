package portstest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// EnforcerFeatures says what [AssertEnforcerContract] may expect.
type EnforcerFeatures struct {
	// Enforces are the properties that the enforcer must enforce on this host.
	// The kit's plans waive all others. The behaviour is checked for
	// domain.PropertyFilesystem only.
	Enforces []domain.Property
	// Spawn starts c.SpawnLine() under the confinement, with nothing on its stdin,
	// and waits for its end. It does not close c. The status that it returns is
	// Known, with the child's code or signal.
	//
	// An embedder with a spawner of its own passes on to that. Otherwise: open
	// the child's files; in a new goroutine call runtime.LockOSThread, then
	// c.Apply, then start the child (os.StartProcess with all three files given,
	// for a restricted thread can open none); let the goroutine return without
	// ever unlocking, so that the runtime ends its thread; wait for the child
	// elsewhere. If the goroutine runs on the process's main thread, which Go
	// cannot end, keep it there and use another one. If c is a ports.Supervised,
	// run its supervisor meanwhile: without it the child waits for ever.
	//
	// With nil the cases that need a child are skipped, and with them the proof
	// that anything is really denied.
	Spawn func(ctx context.Context, c ports.Confinement) (domain.ExitStatus, error)
	// Program is the path of a program that calls escape.Host first, such as the
	// test binary with that call in TestMain; children of every plan must be able
	// to run it. It makes the attempts of package escape that are about a property
	// of Enforces. With "" they are skipped.
	Program string
}

// AssertEnforcerContract checks that an enforcer keeps the contract of
// [ports.SandboxEnforcer] and, if it can spawn, that the kernel really denies
// what the plan does not grant. Each denial has a companion that shows the
// same attempt succeeding under a plan that grants it. newEnforcer is called
// for every case. The cases do not run in parallel, and need a POSIX shell as
// /bin/sh. The last one makes the attempts of package escape, see
// [EnforcerFeatures.Program].
func AssertEnforcerContract(t *testing.T, newEnforcer func(testing.TB) ports.SandboxEnforcer, features EnforcerFeatures) {
	t.Helper()
	runCases(t, slices.Concat(enforcerCases, enforcerSpawnCases), enforcerUnderTest{newEnforcer, features})
}

type enforcerUnderTest struct {
	newEnforcer func(testing.TB) ports.SandboxEnforcer
	features    EnforcerFeatures
}

// onEnforcer makes a check of a method of the kit.
func onEnforcer(check func(*enforcerKit)) func(testing.TB, enforcerUnderTest) {
	return func(tb testing.TB, h enforcerUnderTest) {
		// Temporary directories are often reached through links, and the kit
		// compares canonical paths.
		dir, err := filepath.EvalSymlinks(tb.TempDir())
		require.NoError(tb, err)
		check(&enforcerKit{TB: tb, e: h.newEnforcer(tb), features: h.features, dir: dir})
	}
}

var enforcerCases = []contractCase[enforcerUnderTest]{
	{"a zero plan is refused", "A forgotten plan must not become a child without a sandbox.", onEnforcer((*enforcerKit).zeroPlan)},
	{"an invalid plan is refused", "What a malformed rule would grant, nobody can say.", onEnforcer((*enforcerKit).invalidPlan)},
	{"every property has a status", "A property that is not mentioned is a gap that nobody sees.", onEnforcer((*enforcerKit).supports)},
	{"a waiver does not weaken", "What can be enforced is enforced, also if the plan could do without it.", onEnforcer((*enforcerKit).waivers)},
	{"what cannot be enforced is refused by name", "A user who is refused must learn which property is missing and why.", onEnforcer((*enforcerKit).strictness)},
	{"a required path that is missing is refused by name", "An agent without a path that it needs fails later and in an opaque way.", onEnforcer((*enforcerKit).requiredMissing)},
	{"an optional path that is missing is skipped", "A preset names paths that not every host has; the receipt says which ones were left out.", onEnforcer((*enforcerKit).optionalMissing)},
	{"the receipt says what was asked", "The receipt is what a person and a log rely on.", onEnforcer((*enforcerKit).receipt)},
	{"the spawn line is kept", "An enforcer may put its own program in front, and changes nothing else.", onEnforcer((*enforcerKit).spawnLine)},
	{"closing twice is no error", "Callers close on every path, some of them twice.", onEnforcer((*enforcerKit).closeTwice)},
	{"nothing is left open", "Prepare runs once per turn, so a descriptor that stays is one per turn.", onEnforcer((*enforcerKit).descriptors)},
	{"a cancelled context is refused", "A turn that was cancelled before its child exists ends there.", onEnforcer((*enforcerKit).cancelled)},
	{"plans are prepared concurrently", "Sessions share one enforcer, and none may get the plan of another.", onEnforcer((*enforcerKit).concurrent)},
	{"preparing restricts nothing", "Prepare runs on an ordinary thread of the orchestrator.", onEnforcer((*enforcerKit).prepareIsHarmless)},
}

var enforcerSpawnCases = []contractCase[enforcerUnderTest]{
	{"a write outside the plan is denied", "The kernel denies it, and allows it where the plan grants it.", onEnforcer((*enforcerKit).write)},
	{"a read outside the plan is denied", "The kernel denies it, and allows it where the plan grants it.", onEnforcer((*enforcerKit).read)},
	{"a file rule grants that file alone", "A file is granted without its directory.", onEnforcer((*enforcerKit).fileRule)},
	{"a hard link between granted directories is allowed", "Without it git, npm and cargo fail with EXDEV.", onEnforcer((*enforcerKit).refer)},
	{"a rule through a symbolic link grants its target", "A rule means what its path leads to when it is prepared.", onEnforcer((*enforcerKit).throughLink)},
	{"nothing gets out", "What the enforcer says that it enforces must hold against a child that tries.", onEnforcer((*enforcerKit).escapes)},
	{"the caller and the next child are not restricted", "A restriction that stays on one of the orchestrator's threads breaks unrelated work.", onEnforcer((*enforcerKit).callerStaysFree)},
}

type enforcerKit struct {
	testing.TB
	e        ports.SandboxEnforcer
	features EnforcerFeatures
	dir      string // canonical, empty
}

// plan returns a plan with the rules that waives what the enforcer need not do.
func (k *enforcerKit) plan(rules ...domain.PathRule) domain.SandboxPlan {
	waived := slices.DeleteFunc(domain.Properties(), func(p domain.Property) bool {
		return slices.Contains(k.features.Enforces, p)
	})
	return domain.NewSandboxPlan("kit").WithRules(rules...).WithWaivers(waived...)
}

// path returns a path below the case's directory.
func (k *enforcerKit) path(name string) string { return filepath.Join(k.dir, name) }

// mkdir makes a directory and returns its path.
func (k *enforcerKit) mkdir(name string) string {
	k.Helper()
	require.NoError(k, os.MkdirAll(k.path(name), 0o700))
	return k.path(name)
}

// file writes a file and returns its path.
func (k *enforcerKit) file(name, text string) string {
	k.Helper()
	require.NoError(k, os.WriteFile(k.path(name), []byte(text), 0o600))
	return k.path(name)
}

func shellLine(plan domain.SandboxPlan, dir, script string, args ...string) domain.SpawnLine {
	return domain.SpawnLine{
		Path:    "/bin/sh",
		Argv:    append([]string{"sh", "-c", script, "sh"}, args...),
		Env:     []string{"PATH=/usr/bin:/bin", "LC_ALL=C"},
		Dir:     dir,
		Sandbox: plan,
	}
}

// prepare prepares a plan that must not be refused.
func (k *enforcerKit) prepare(plan domain.SandboxPlan) ports.Confinement {
	k.Helper()
	c, err := k.e.Prepare(k.Context(), plan, shellLine(plan, k.dir, ":"))
	require.NoError(k, err)
	require.NotNil(k, c)
	k.Cleanup(func() { require.NoError(k, c.Close()) })
	return c
}

// refused prepares a plan that must be refused, and returns the error.
func (k *enforcerKit) refused(ctx context.Context, plan domain.SandboxPlan) error {
	k.Helper()
	c, err := k.e.Prepare(ctx, plan, shellLine(plan, k.dir, ":"))
	require.Error(k, err)
	require.Nil(k, c, "a refusal must not come with a confinement")
	return err
}

func (k *enforcerKit) zeroPlan() {
	require.ErrorIs(k, k.refused(k.Context(), domain.SandboxPlan{}), domain.ErrNoSandbox)
}

func (k *enforcerKit) invalidPlan() {
	for _, rule := range []domain.PathRule{
		{Path: "relative/path", Access: domain.AccessRead},
		{Path: k.dir + "/../up", Access: domain.AccessRead},
		{Path: k.dir},
	} {
		err := k.refused(k.Context(), k.plan(rule))
		var invalid *domain.InvalidError
		require.ErrorAs(k, err, &invalid)
		require.Equal(k, rule.Path, invalid.Value)
	}
}

func (k *enforcerKit) supports() {
	limits := domain.Limits{MemoryBytes: 1 << 30, Pids: 100, CPUs: 1}
	for _, plan := range []domain.SandboxPlan{
		k.plan(),
		k.plan().WithLimits(limits),
		k.plan().WithUDP(true).WithUnixSockets(domain.UnixSocketsAllow),
		domain.NewSandboxPlan("strict").WithLimits(limits),
	} {
		statuses := k.e.Supports(plan)
		said := make([]domain.Property, 0, len(statuses))
		for _, s := range statuses {
			said = append(said, s.Property)
			if !plan.Requests(s.Property) {
				require.Equal(k, domain.StateNotRequested, s.State, s.Property)
				continue
			}
			switch s.State {
			case domain.StateEnforced:
				require.NotEmpty(k, s.Mechanism, "%s is enforced by nothing", s.Property)
			case domain.StateWaived:
				require.True(k, plan.Waives(s.Property), "%s is waived, but not by the plan", s.Property)
				require.NotEmpty(k, s.Detail, "%s is waived without saying what is missing", s.Property)
			case domain.StateUnenforceable:
				require.False(k, plan.Waives(s.Property), "%s is waived by the plan", s.Property)
				require.NotEmpty(k, s.Detail, "%s cannot be enforced without saying why", s.Property)
			default:
				require.Failf(k, "no state", "%s is requested, and its state is %q", s.Property, s.State)
			}
		}
		require.Equal(k, domain.Properties(), said, "each property once, in the order of receipts")
	}
	for _, p := range k.features.Enforces {
		plan := k.plan().WithDestinations(netip.MustParseAddrPort("127.0.0.1:443"))
		require.Equal(k, domain.StateEnforced, stateOf(k.e.Supports(plan), p), p)
	}
}

func stateOf(statuses []domain.PropertyStatus, p domain.Property) domain.PropertyState {
	for _, s := range statuses {
		if s.Property == p {
			return s.State
		}
	}
	return ""
}

func (k *enforcerKit) waivers() {
	strict := domain.NewSandboxPlan("strict")
	without, with := k.e.Supports(strict), k.e.Supports(strict.WithWaivers(domain.Properties()...))
	for _, p := range domain.Properties() {
		require.Equal(k, stateOf(without, p) == domain.StateEnforced, stateOf(with, p) == domain.StateEnforced, p)
	}
}

func (k *enforcerKit) strictness() {
	plan := k.plan()
	strict := domain.NewSandboxPlan("strict").WithLimits(domain.Limits{MemoryBytes: 1 << 30, Pids: 100, CPUs: 1})
	want := domain.CheckStrictness(strict, k.e.Supports(strict))
	if want == nil {
		plan = strict // an enforcer that can do everything
	} else {
		var is, should *domain.StrictnessError
		require.ErrorAs(k, want, &should)
		require.ErrorAs(k, k.refused(k.Context(), strict), &is)
		require.Equal(k, should.Missing, is.Missing)
	}
	require.NoError(k, domain.CheckStrictness(plan, k.prepare(plan).Receipt().Properties))
}

func (k *enforcerKit) requiredMissing() {
	missing := k.path("not there")
	err := k.refused(k.Context(), k.plan(
		domain.PathRule{Path: k.dir, Access: domain.AccessRead},
		domain.PathRule{Path: missing, Access: domain.AccessReadWrite},
	))
	var failed *domain.EnforcementError
	require.ErrorAs(k, err, &failed)
	require.Equal(k, missing, failed.Path)
	require.Equal(k, domain.AccessReadWrite, failed.Access)
	require.NotEmpty(k, failed.Remedy)
}

func (k *enforcerKit) optionalMissing() {
	file := k.file("file", "")
	for _, missing := range []string{k.path("not there"), k.path("neither/here"), file + "/below a file"} {
		rules := k.prepare(k.plan(
			domain.PathRule{Path: missing, Access: domain.AccessRead, Presence: domain.Optional, Why: "kit"},
			domain.PathRule{Path: file, Access: domain.AccessRead, Presence: domain.Optional},
		)).Receipt().Rules
		require.Len(k, rules, 2)
		require.NotEmpty(k, rules[0].Skipped)
		rules[0].Skipped = ""
		require.Equal(k, domain.GrantedRule{Path: missing, Why: "kit"}, rules[0])
		require.Equal(k, domain.GrantedRule{Path: file, Canonical: file, Access: domain.AccessReadFile}, rules[1])
	}
}

func (k *enforcerKit) receipt() {
	target := k.mkdir("target")
	require.NoError(k, os.Symlink(target, k.path("link")))
	asked := []domain.PathRule{
		{Path: target, Access: domain.AccessReadWrite, Why: "the workspace"},
		{Path: k.path("link"), Access: domain.AccessReadExec},
	}
	plan := k.plan(asked...).WithConnectTCP(443, 8443).WithModelGateway(54321).WithBindTCP(8080)
	r := k.prepare(plan).Receipt()
	require.False(k, r.Unconfined)
	require.Equal(k, "kit", r.Preset)
	require.NotEmpty(k, r.Enforcer)
	require.NotEmpty(k, r.Layers)
	require.Equal(k, plan.Digest(), r.PlanDigest)
	require.Equal(k, plan.ConnectTCP(), r.ConnectTCP)
	require.Equal(k, []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:54321")}, r.Destinations, "the model gateway")
	require.Equal(k, plan.BindTCP(), r.BindTCP)
	require.Equal(k, k.e.Supports(plan), r.Properties)
	require.NoError(k, domain.CheckStrictness(plan, r.Properties))
	require.Len(k, r.Rules, len(asked))
	for i, g := range r.Rules {
		require.Equal(k, asked[i].Path, g.Path)
		require.Equal(k, target, g.Canonical)
		require.Equal(k, asked[i].Why, g.Why)
		require.Empty(k, g.Skipped)
		require.NotZero(k, g.Access)
		require.True(k, asked[i].Access.Has(g.Access), "granted %s, asked for %s", g.Access, asked[i].Access)
	}
}

func (k *enforcerKit) spawnLine() {
	plan := k.plan()
	given := shellLine(plan, k.dir, "exit 3", "an argument", "")
	given.Stdin = []byte("input")
	c, err := k.e.Prepare(k.Context(), plan, given)
	require.NoError(k, err)
	defer func() { require.NoError(k, c.Close()) }()
	got := c.SpawnLine()
	require.NoError(k, got.Validate())
	require.Equal(k, given.Stdin, got.Stdin)
	require.Equal(k, plan.Digest(), got.Sandbox.Digest())
	// A wrapper puts its own program first, and the given command last.
	require.GreaterOrEqual(k, len(got.Argv), len(given.Argv))
	require.Equal(k, given.Argv[1:], got.Argv[len(got.Argv)-len(given.Argv)+1:])
}

func (k *enforcerKit) closeTwice() {
	c := k.prepare(k.plan(domain.PathRule{Path: k.dir, Access: domain.AccessRead}))
	require.NoError(k, c.Close())
	require.NoError(k, c.Close())
}

// descriptors prepares, and fails to prepare, and looks what stays open.
// Systems without /proc tell nothing, and pass.
func (k *enforcerKit) descriptors() {
	good := k.plan(domain.PathRule{Path: k.dir, Access: domain.AccessReadWrite})
	bad := good.WithRules(domain.PathRule{Path: k.path("not there"), Access: domain.AccessRead})
	before := openDescriptors()
	for range 20 {
		c, err := k.e.Prepare(k.Context(), good, shellLine(good, k.dir, ":"))
		require.NoError(k, err)
		require.NoError(k, c.Close())
		require.Error(k, k.refused(k.Context(), bad))
	}
	// Descriptors of others, such as the runtime's, may come meanwhile, but not
	// one for each round.
	require.Eventually(k, func() bool { return openDescriptors() < before+10 }, 2*time.Second, 10*time.Millisecond,
		"%d descriptors before, %d after", before, openDescriptors())
}

func openDescriptors() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

func (k *enforcerKit) cancelled() {
	ctx, cancel := context.WithCancel(k.Context())
	cancel()
	err := k.refused(ctx, k.plan(domain.PathRule{Path: k.dir, Access: domain.AccessRead}))
	require.ErrorIs(k, err, context.Canceled)
}

func (k *enforcerKit) concurrent() {
	errs := make(chan error)
	const workers = 8
	for w := range workers {
		dir := k.mkdir(fmt.Sprint("dir", w))
		plan := k.plan(domain.PathRule{Path: dir, Access: domain.AccessReadWrite}).WithConnectTCP(uint16(1000 + w))
		go func() {
			errs <- func() error {
				for range 20 {
					c, err := k.e.Prepare(k.Context(), plan, shellLine(plan, dir, ":"))
					if err != nil {
						return err
					}
					r := c.Receipt()
					if r.PlanDigest != plan.Digest() || r.Rules[0].Canonical != dir || c.SpawnLine().Dir != dir {
						return errors.Join(fmt.Errorf("the confinement of another plan: %s", r), c.Close())
					}
					if err := c.Close(); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range workers {
		require.NoError(k, <-errs)
	}
}

func (k *enforcerKit) prepareIsHarmless() {
	k.prepare(k.plan())
	k.file("by the orchestrator", "")
}

// system are the rules that a shell and the usual tools need to run.
func system() []domain.PathRule {
	rules := []domain.PathRule{{Path: "/dev/null", Access: domain.AccessReadWrite}}
	for _, dir := range []string{"/bin", "/usr", "/lib", "/lib64", "/nix/store"} {
		rules = append(rules, domain.PathRule{Path: dir, Access: domain.AccessReadExec, Presence: domain.Optional})
	}
	return append(rules, domain.PathRule{Path: "/etc/ld.so.cache", Access: domain.AccessRead, Presence: domain.Optional})
}

// run runs a shell script under the system's rules and more.
func (k *enforcerKit) run(rules []domain.PathRule, script string, args ...string) domain.ExitStatus {
	k.Helper()
	if k.features.Spawn == nil {
		k.Skip("no EnforcerFeatures.Spawn given: that anything is really denied is not proved")
	}
	ctx, cancel := context.WithTimeout(k.Context(), time.Minute)
	defer cancel()
	plan := k.plan(append(system(), rules...)...)
	c, err := k.e.Prepare(ctx, plan, shellLine(plan, k.dir, script, args...))
	require.NoError(k, err)
	defer func() { require.NoError(k, c.Close()) }()
	exit, err := k.features.Spawn(ctx, c)
	require.NoError(k, err)
	require.True(k, exit.Known, "EnforcerFeatures.Spawn returned an ExitStatus that is not Known: wait for the child, and set Known with its Code or Signal")
	return exit
}

func (k *enforcerKit) write() {
	in, out := k.mkdir("in"), k.mkdir("out")
	inside := domain.PathRule{Path: in, Access: domain.AccessReadWrite}
	const script = `echo hello > "$1"`
	require.True(k, k.run([]domain.PathRule{inside}, script, in+"/file").Success())
	require.Equal(k, "hello\n", k.content(in+"/file"))

	require.False(k, k.run([]domain.PathRule{inside}, script, out+"/file").Success())
	require.NoFileExists(k, out+"/file")

	require.True(k, k.run([]domain.PathRule{inside, {Path: out, Access: domain.AccessReadWrite}}, script, out+"/file").Success())
	require.Equal(k, "hello\n", k.content(out+"/file"))
}

func (k *enforcerKit) content(path string) string {
	k.Helper()
	data, err := os.ReadFile(path)
	require.NoError(k, err)
	return string(data)
}

func (k *enforcerKit) read() {
	in := k.mkdir("in")
	secret := k.file("secret", "the secret")
	inside := domain.PathRule{Path: in, Access: domain.AccessReadWrite}
	const script = `cat < "$1" > "$2"`
	require.False(k, k.run([]domain.PathRule{inside}, script, secret, in+"/copy").Success())
	require.NoFileExists(k, in+"/copy")

	require.True(k, k.run([]domain.PathRule{inside, {Path: secret, Access: domain.AccessRead}}, script, secret, in+"/copy").Success())
	require.Equal(k, "the secret", k.content(in+"/copy"))
}

func (k *enforcerKit) fileRule() {
	in := k.mkdir("in")
	file, sibling := k.file("in/file", "old"), k.file("in/sibling", "old")
	rule := []domain.PathRule{{Path: file, Access: domain.AccessReadWrite}}
	const script = `printf new > "$1"`
	require.True(k, k.run(rule, script, file).Success())
	require.Equal(k, "new", k.content(file))
	require.False(k, k.run(rule, script, sibling).Success())
	require.Equal(k, "old", k.content(sibling))
	require.True(k, k.run([]domain.PathRule{{Path: in, Access: domain.AccessReadWrite}}, script, sibling).Success())
}

func (k *enforcerKit) refer() {
	a, b := k.mkdir("a"), k.mkdir("b")
	k.file("a/file", "text")
	// Across directories a rename falls back to a copy in mv, a link does not.
	require.True(k, k.run([]domain.PathRule{
		{Path: a, Access: domain.AccessReadWrite}, {Path: b, Access: domain.AccessReadWrite},
	}, `ln "$1" "$2"`, a+"/file", b+"/file").Success())
	require.Equal(k, "text", k.content(b+"/file"))
}

func (k *enforcerKit) throughLink() {
	target := k.mkdir("target")
	require.NoError(k, os.Symlink(target, k.path("link")))
	require.True(k, k.run([]domain.PathRule{{Path: k.path("link"), Access: domain.AccessReadWrite}}, `echo hello > "$1"`, target+"/file").Success())
	require.Equal(k, "hello\n", k.content(target+"/file"))
}

func (k *enforcerKit) callerStaysFree() {
	a, b := k.mkdir("a"), k.mkdir("b")
	const script = `echo hello > "$1"`
	for i := range 5 {
		file := fmt.Sprint("/file", i)
		require.True(k, k.run([]domain.PathRule{{Path: a, Access: domain.AccessReadWrite}}, script, a+file).Success())
		require.True(k, k.run([]domain.PathRule{{Path: b, Access: domain.AccessReadWrite}}, script, b+file).Success())
		// Many goroutines reach many of the process's threads.
		var wg sync.WaitGroup
		errs := make([]error, 32)
		for j := range errs {
			wg.Go(func() { errs[j] = os.WriteFile(k.path(fmt.Sprint("free", i, "-", j)), nil, 0o600) })
		}
		wg.Wait()
		require.NoError(k, errors.Join(errs...))
	}
}

// Preparation is one call of Prepare, as [RecordingEnforcer] saw it.
type Preparation struct {
	Plan domain.SandboxPlan
	Line domain.SpawnLine
	// Err is what Prepare returned.
	Err error
	// KillGroups, Applied and Closed count the calls on the confinement.
	KillGroups, Applied, Closed int
}

// RecordingEnforcer passes everything on to another enforcer and keeps what it
// was asked. It is for tests that must know which plan reached the enforcer,
// and whether every confinement was closed. It is safe for concurrent use.
type RecordingEnforcer struct {
	inner ports.SandboxEnforcer

	mu       sync.Mutex
	prepared []*Preparation
}

// NewRecordingEnforcer returns one that passes on to inner.
func NewRecordingEnforcer(inner ports.SandboxEnforcer) *RecordingEnforcer {
	return &RecordingEnforcer{inner: inner}
}

// Preparations returns what was asked so far, in the order of the calls'
// returns.
func (r *RecordingEnforcer) Preparations() []Preparation {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Preparation, 0, len(r.prepared))
	for _, p := range r.prepared {
		out = append(out, *p)
	}
	return out
}

// Unclosed returns the plans whose confinements were not closed.
func (r *RecordingEnforcer) Unclosed() []domain.SandboxPlan {
	var plans []domain.SandboxPlan
	for _, p := range r.Preparations() {
		if p.Err == nil && p.Closed == 0 {
			plans = append(plans, p.Plan)
		}
	}
	return plans
}

// Supports implements [ports.SandboxEnforcer].
func (r *RecordingEnforcer) Supports(plan domain.SandboxPlan) []domain.PropertyStatus {
	return r.inner.Supports(plan)
}

// Prepare implements [ports.SandboxEnforcer]. The confinement is a
// [ports.KillGroup] if the inner one is.
func (r *RecordingEnforcer) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	c, err := r.inner.Prepare(ctx, plan, line)
	p := &Preparation{Plan: plan, Line: line, Err: err}
	r.mu.Lock()
	r.prepared = append(r.prepared, p)
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	recorded := recordedConfinement{Confinement: c, r: r, p: p}
	if g, ok := c.(ports.KillGroup); ok {
		return recordedKillGroup{recorded, g}, nil
	}
	return recorded, nil
}

func (r *RecordingEnforcer) count(n *int) {
	r.mu.Lock()
	*n++
	r.mu.Unlock()
}

type recordedConfinement struct {
	ports.Confinement
	r *RecordingEnforcer
	p *Preparation
}

func (c recordedConfinement) Apply() error {
	c.r.count(&c.p.Applied)
	return c.Confinement.Apply()
}

// Supervisor implements [ports.Supervised]: that of the inner confinement, if it
// has one.
func (c recordedConfinement) Supervisor() (ports.Supervisor, error) {
	if s, ok := c.Confinement.(ports.Supervised); ok {
		return s.Supervisor()
	}
	return nil, nil //nolint:nilnil // as the port says
}

func (c recordedConfinement) Close() error {
	c.r.count(&c.p.Closed)
	return c.Confinement.Close()
}

type recordedKillGroup struct {
	recordedConfinement
	group ports.KillGroup
}

func (c recordedKillGroup) PrepareKillGroup() (bool, error) { return c.group.PrepareKillGroup() }

func (c recordedKillGroup) EnterKillGroup() error {
	c.r.count(&c.p.KillGroups)
	return c.group.EnterKillGroup()
}

// DenyingEnforcer claims to support every plan and then fails: in Prepare with
// PrepareErr, or else in Apply with ApplyErr. It is for tests which show that
// no child exists after such a failure. With both nil it enforces nothing, so
// its Apply fails then too.
type DenyingEnforcer struct {
	PrepareErr error
	ApplyErr   error
}

// errDenied is the failure of a DenyingEnforcer that was given none.
var errDenied = errors.New("the denying enforcer enforces nothing")

// Supports implements [ports.SandboxEnforcer].
func (d DenyingEnforcer) Supports(plan domain.SandboxPlan) []domain.PropertyStatus {
	statuses := make([]domain.PropertyStatus, 0, len(domain.Properties()))
	for _, p := range domain.Properties() {
		s := domain.PropertyStatus{Property: p, State: domain.StateNotRequested}
		if plan.Requests(p) {
			s.State, s.Mechanism = domain.StateEnforced, "denying fake"
		}
		statuses = append(statuses, s)
	}
	return statuses
}

// Prepare implements [ports.SandboxEnforcer].
func (d DenyingEnforcer) Prepare(_ context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	if d.PrepareErr != nil {
		return nil, d.PrepareErr
	}
	c := deniedConfinement{line: line, err: d.ApplyErr, receipt: domain.Receipt{
		Preset: plan.Preset(), Enforcer: "denying fake", Layers: []string{"denying fake"},
		Properties: d.Supports(plan), PlanDigest: plan.Digest(),
	}}
	if c.err == nil {
		c.err = errDenied
	}
	return c, nil
}

type deniedConfinement struct {
	line    domain.SpawnLine
	err     error
	receipt domain.Receipt
}

func (c deniedConfinement) SpawnLine() domain.SpawnLine { return c.line }
func (c deniedConfinement) Apply() error                { return c.err }
func (c deniedConfinement) Receipt() domain.Receipt     { return c.receipt }
func (c deniedConfinement) Close() error                { return nil }
