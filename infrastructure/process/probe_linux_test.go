package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// probeBench has the directories of a session, and a plan for it.
type probeBench struct {
	temp, spool, host string
	plan              domain.SandboxPlan
}

func newProbeBench(t testing.TB) probeBench {
	root := tempDir(t)
	b := probeBench{filepath.Join(root, "temp"), filepath.Join(root, "spool"), filepath.Join(root, "host"), domain.SandboxPlan{}}
	for _, dir := range []string{b.temp, b.spool, b.host} {
		require.NoError(t, os.Mkdir(dir, 0o700))
	}
	t.Setenv("TMPDIR", b.host)
	b.plan = testPlan(b.temp)
	return b
}

func (b probeBench) spec(plan domain.SandboxPlan) ProbeSpec {
	return ProbeSpec{Line: shLine("/", plan, ":"), Granted: b.temp, Denied: b.spool}
}

// probe probes, and sees to it that nothing is left.
func (b probeBench) probe(t testing.TB, e ports.SandboxEnforcer, plan domain.SandboxPlan) (domain.Probe, error) {
	t.Helper()
	probed, err := NewSpawner(Config{Enforcer: e}).Probe(context.Background(), b.spec(plan))
	for _, dir := range []string{b.temp, b.spool, b.host} {
		left, readErr := os.ReadDir(dir)
		require.NoError(t, readErr)
		require.Empty(t, left)
	}
	require.Empty(t, testkit.RestrictedThreads())
	return probed, err
}

// results are the outcomes in order, shortened.
func results(p domain.Probe) (said []string) {
	for _, c := range p.Checks {
		said = append(said, string(c.Attempt)+": "+string(c.Result))
	}
	return said
}

var allHeld = []string{"granted write: held", "denied read: held", "denied write: held", "denied connect: held"}

func TestTheProbeHolds(t *testing.T) {
	testkit.RequireLandlock(t, 4)
	testkit.NoLeaks(t)
	b := newProbeBench(t)
	probed, err := b.probe(t, sandbox.Default(), b.plan)
	require.NoError(t, err)
	require.Empty(t, probed.Skipped)
	require.Equal(t, allHeld, results(probed))
	require.Equal(t, b.temp, filepath.Dir(probed.Checks[0].Target))
	for _, c := range probed.Checks[1:3] {
		require.Equal(t, b.spool, filepath.Dir(c.Target))
		require.Equal(t, "open: permission denied", c.Detail)
	}
	require.Regexp(t, `^127\.0\.0\.1:\d+$`, probed.Checks[3].Target)
	require.Equal(t, "connect: permission denied", probed.Checks[3].Detail)
}

// instead enforces another plan than it is asked for.
type instead struct {
	ports.SandboxEnforcer
	plan func(domain.SandboxPlan) domain.SandboxPlan
}

func (e instead) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	c, err := e.SandboxEnforcer.Prepare(ctx, e.plan(plan), line)
	if err != nil {
		return nil, err
	}
	return &fakeConfinement{enforcer: &fakeEnforcer{}, line: line, inner: c}, nil
}

// claiming says that everything is enforced, whatever its inner one can do.
type claiming struct{ instead }

func (claiming) Supports(plan domain.SandboxPlan) []domain.PropertyStatus {
	return (&fakeEnforcer{}).Supports(plan)
}

// Each attempt catches an enforcer that fails in it alone.
func TestTheProbeRefusesWhatDoesNotHold(t *testing.T) {
	testkit.RequireLandlock(t, 4)
	b := newProbeBench(t)
	also := func(rule domain.PathRule) func(domain.SandboxPlan) domain.SandboxPlan {
		return func(p domain.SandboxPlan) domain.SandboxPlan { return p.WithRules(rule) }
	}
	for name, c := range map[string]struct {
		enforcer ports.SandboxEnforcer
		attempt  domain.ProbeAttempt
		err      error // what the kernel said, nil if it let the attempt through
	}{
		"nothing is restricted": {&fakeEnforcer{}, domain.ProbeDeniedRead, nil},
		"nothing is granted": {
			instead{sandbox.Default(), func(domain.SandboxPlan) domain.SandboxPlan { return domain.NewSandboxPlan("nothing") }},
			domain.ProbeGrantedWrite, unix.EACCES,
		},
		"all can be read":    {instead{sandbox.Default(), also(domain.PathRule{Path: "/", Access: domain.AccessRead})}, domain.ProbeDeniedRead, nil},
		"all can be written": {instead{sandbox.Default(), also(domain.PathRule{Path: "/", Access: domain.AccessWrite})}, domain.ProbeDeniedWrite, nil},
		"all can be connected to": {
			claiming{instead{sandbox.New(sandbox.WithABI(3)), func(p domain.SandboxPlan) domain.SandboxPlan {
				return p.WithWaivers(domain.Properties()...)
			}}}, domain.ProbeDeniedConnect, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			probed, err := b.probe(t, c.enforcer, b.plan)
			require.Empty(t, probed)
			var failed *domain.ProbeError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, c.attempt, failed.Attempt)
			require.NotEmpty(t, failed.Target)
			require.NotEmpty(t, failed.Enforcer)
			require.NotEmpty(t, failed.Remedy)
			if c.err == nil {
				require.NoError(t, failed.Err)
			} else {
				require.ErrorIs(t, err, c.err)
			}
		})
	}
}

func TestTheProbePassesFailuresOn(t *testing.T) {
	testkit.RequireLandlock(t, 4)
	testkit.NoLeaks(t)
	b := newProbeBench(t)
	for _, e := range []*fakeEnforcer{{prepare: errBroken}, {apply: errBroken}} {
		_, err := b.probe(t, e, b.plan)
		require.ErrorIs(t, err, errBroken)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errBroken)
	_, err := NewSpawner(Config{Enforcer: sandbox.Default()}).Probe(ctx, b.spec(b.plan))
	require.ErrorIs(t, err, errBroken)

	e := &fakeEnforcer{inner: sandbox.Default()}
	require.NoError(t, os.RemoveAll(b.spool))
	_, err = NewSpawner(Config{Enforcer: e}).Probe(context.Background(), b.spec(b.plan))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "space left")
	var refused *domain.EnforcementError
	require.NotErrorAs(t, err, &refused, "a failure of the storage says nothing about the sandbox")
	require.NotZero(t, e.closed)
	left, err := os.ReadDir(b.temp)
	require.NoError(t, err)
	require.Empty(t, left)
}

// What a plan grants does not count as denied.
func TestTheProbeAsksOnlyForWhatThePlanSays(t *testing.T) {
	testkit.RequireLandlock(t, 4)
	testkit.NoLeaks(t)
	b := newProbeBench(t)
	alias := filepath.Join(tempDir(t), "alias")
	require.NoError(t, os.Symlink(filepath.Dir(b.spool), alias))
	rule := func(path string, access domain.Access) domain.SandboxPlan {
		return b.plan.WithRules(domain.PathRule{Path: path, Access: access})
	}
	const granted, read, write, connect = 0, 1, 2, 3
	for name, c := range map[string]struct {
		plan  domain.SandboxPlan
		not   []int  // asked
		read  string // directory of the denied read, "" if not asked
		write string
	}{
		"the spool can be read":       {rule(b.spool, domain.AccessRead), nil, b.host, b.spool},
		"the spool can be written":    {rule(b.spool, domain.AccessWrite), nil, b.spool, b.host},
		"by another name":             {rule(alias, domain.AccessRead), []int{read}, "", b.spool},
		"all can be read":             {rule("/", domain.AccessRead), []int{read}, "", b.spool},
		"everything":                  {rule("/", domain.AccessReadWriteExec), []int{read, write}, "", ""},
		"only this can be listed":     {rule(b.spool, domain.AccessReadDir), nil, b.spool, b.spool},
		"the temp cannot be written":  {testPlan(""), []int{granted}, b.spool, b.spool},
		"a rule that leads nowhere":   {b.plan.WithRules(domain.PathRule{Path: "/nonexistent", Access: domain.AccessRead, Presence: domain.Optional}), nil, b.spool, b.spool},
		"a directory with a likeness": {rule(b.host, domain.AccessReadWrite), nil, b.spool, b.spool},
	} {
		probed, err := b.probe(t, sandbox.Default(), c.plan)
		require.NoError(t, err, name)
		require.Len(t, probed.Checks, 4, name)
		not := map[int]bool{}
		for _, i := range c.not {
			not[i] = true
		}
		for i, check := range probed.Checks {
			require.Equal(t, not[i], check.Result == domain.ProbeNotAsked, "%s: %s", name, check.Attempt)
			require.Equal(t, not[i], check.Target == "", name)
			if not[i] {
				require.NotEmpty(t, check.Detail)
			}
		}
		require.Equal(t, domain.ProbeHeld, probed.Checks[connect].Result, name)
		for i, dir := range map[int]string{read: c.read, write: c.write} {
			if dir != "" {
				require.Equal(t, dir, filepath.Dir(probed.Checks[i].Target), "%s: %s", name, probed.Checks[i].Attempt)
			}
		}
	}
}

// The host's temporary directory may be a link to what the plan grants.
func TestTheProbeSeesWhereAPlaceReallyIs(t *testing.T) {
	testkit.RequireLandlock(t, 4)
	testkit.NoLeaks(t)
	b := newProbeBench(t)
	link := filepath.Join(tempDir(t), "tmp")
	require.NoError(t, os.Symlink(b.host, link))
	t.Setenv("TMPDIR", link)
	probed, err := b.probe(t, sandbox.Default(), b.plan.WithRules(domain.PathRule{Path: filepath.Dir(b.host), Access: domain.AccessRead}))
	require.NoError(t, err)
	require.Equal(t, domain.ProbeNotAsked, probed.Checks[1].Result)
	require.Equal(t, domain.ProbeHeld, probed.Checks[2].Result)
}

// A line on a terminal need not say where it may write, nor where nobody may.
func TestTheProbeWithoutDirectories(t *testing.T) {
	testkit.RequireLandlock(t, 4)
	testkit.NoLeaks(t)
	b := newProbeBench(t)
	for _, granted := range []string{"", "relative"} {
		probed, err := confinedSpawner().Probe(context.Background(), ProbeSpec{Line: shLine("/", b.plan, ":"), Granted: granted})
		require.NoError(t, err)
		require.Equal(t, append([]string{"granted write: not asked"}, allHeld[1:]...), results(probed))
		require.Equal(t, b.host, filepath.Dir(probed.Checks[1].Target))
	}
}

// A port that the plan grants is not one to be denied on.
func TestTheProbeFindsAPortThatIsDenied(t *testing.T) {
	testkit.RequireLandlock(t, 4)
	testkit.NoLeaks(t)
	b := newProbeBench(t)
	every := make([]uint16, 0, 65535)
	for p := 1; p <= 65535; p++ {
		every = append(every, uint16(p))
	}
	p := &probe{spec: b.spec(b.plan.WithConnectTCP(every...))}
	addr, _, not := p.listen()
	require.Nil(t, addr)
	require.Contains(t, not, "every port")
	require.NoError(t, p.clear())

	p = &probe{spec: b.spec(b.plan.WithConnectTCP(443))}
	addr, text, not := p.listen()
	require.Empty(t, not)
	require.NotEmpty(t, text)
	require.NoError(t, connectTo(addr, connectLimit), "the companion: nothing but the sandbox denies it")
	require.NoError(t, p.clear())
	require.ErrorIs(t, connectTo(addr, connectLimit), unix.ECONNREFUSED)
}

// What each ABI can be asked. The filter lets TCP through, whose ports are
// Landlock's, so below ABI 4 a plan has to waive it, and the probe does not ask.
func TestWhatTheProbeAsksPerABI(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	plan := testPlan("").WithWaivers(domain.Properties()...)
	for abi := 1; abi <= 7; abi++ {
		statuses := sandbox.New(sandbox.WithABI(abi)).Supports(plan)
		require.Empty(t, unenforced(statuses, domain.PropertyFilesystem), abi)
		if abi < 4 {
			require.Contains(t, unenforced(statuses, domain.PropertyTCP), "tcp is waived", abi)
		} else {
			require.Empty(t, unenforced(statuses, domain.PropertyTCP), abi)
		}
	}
	enforced := domain.PropertyStatus{Property: domain.PropertyTCP, State: domain.StateEnforced}
	waived := domain.PropertyStatus{Property: domain.PropertyTCP, State: domain.StateWaived, Detail: "why"}
	for want, statuses := range map[string][]domain.PropertyStatus{
		"the enforcer says nothing about tcp": nil,
		"":                                    {enforced, enforced},
		"tcp is waived: why":                  {enforced, waived},
	} {
		require.Equal(t, want, unenforced(statuses, domain.PropertyTCP))
	}
}

// An answer that denies nothing proves nothing.
func TestAnAttemptThatProvesNothing(t *testing.T) {
	for _, err := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EIO, fmt.Errorf("no answer")} {
		p := &probe{attempts: []attempt{{name: domain.ProbeDeniedConnect, target: "127.0.0.1:1", err: err}}}
		_, got := p.result()
		var failed *domain.ProbeError
		require.ErrorAs(t, got, &failed)
		require.ErrorIs(t, got, err)
	}
	for _, err := range denials {
		p := &probe{attempts: []attempt{{name: domain.ProbeDeniedConnect, target: "127.0.0.1:1", err: os.NewSyscallError("connect", err)}}}
		got, failed := p.result()
		require.NoError(t, failed)
		require.Equal(t, []string{"denied connect: held"}, results(got))
	}
}

// wrapping runs the command through another program and restricts nothing
// itself.
type wrapping struct{ *fakeEnforcer }

func (e wrapping) Prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	line.Argv = append([]string{"env", line.Path}, line.Argv[1:]...)
	line.Path = "/usr/bin/env"
	return e.fakeEnforcer.Prepare(ctx, plan, line)
}

func TestAWrappingEnforcerIsNotProbed(t *testing.T) {
	testkit.NoLeaks(t)
	b := newProbeBench(t)
	e := wrapping{&fakeEnforcer{onApply: func() { t.Error("applied") }}}
	probed, err := b.probe(t, e, b.plan)
	require.NoError(t, err)
	require.Contains(t, probed.Skipped, `"/usr/bin/env"`)
	require.Empty(t, probed.Checks)
	require.NotZero(t, e.closed)
}

func TestNothingIsProbedWithoutASandbox(t *testing.T) {
	testkit.NoLeaks(t)
	b := newProbeBench(t)
	for _, c := range []struct {
		cfg  Config
		plan domain.SandboxPlan
	}{
		{Config{Enforcer: &fakeEnforcer{prepare: errBroken}}, domain.Unconfined("test")},
		{Config{AllowNative: true}, b.plan},
	} {
		probed, err := NewSpawner(c.cfg).Probe(context.Background(), b.spec(c.plan))
		require.NoError(t, err)
		require.Empty(t, probed)
	}
}

func TestProbesSideBySide(t *testing.T) {
	testkit.RequireLandlock(t, 4)
	testkit.NoLeaks(t)
	b := newProbeBench(t)
	s := confinedSpawner()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 10 {
				probed, err := s.Probe(context.Background(), b.spec(b.plan))
				if got := strings.Join(results(probed), ", "); err != nil || got != strings.Join(allHeld, ", ") {
					t.Errorf("%s %v", got, err)
				}
			}
		})
	}
	wg.Wait()
	require.Empty(t, testkit.RestrictedThreads())
}

func BenchmarkProbe(b *testing.B) {
	testkit.RequireLandlock(b, 4)
	bench := newProbeBench(b)
	s := confinedSpawner()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Probe(context.Background(), bench.spec(bench.plan)); err != nil {
			b.Fatal(err)
		}
	}
}

// A process that is killed while it probes leaves its files, and the next probe
// takes them away; those of a process that runs it leaves alone.
func TestAProbeTakesAwayWhatADeadOneLeft(t *testing.T) {
	testkit.RequireLandlock(t, 4)
	b := newProbeBench(t)
	cmd := exec.Command("/bin/true")
	require.NoError(t, cmd.Run())
	dead, alive := fmt.Sprintf(".caisson-probe-%d-X", cmd.Process.Pid), fmt.Sprintf(".caisson-probe-%d-X", os.Getppid())
	for _, name := range []string{dead, alive} {
		for _, dir := range []string{b.temp, b.spool} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
		}
	}
	_, err := NewSpawner(Config{Enforcer: sandbox.Default()}).Probe(context.Background(), b.spec(b.plan))
	require.NoError(t, err)
	for _, dir := range []string{b.temp, b.spool} {
		require.NoFileExists(t, filepath.Join(dir, dead))
		require.FileExists(t, filepath.Join(dir, alive))
	}
}

// A file that has a name for a moment is left if the process is killed in it.
func TestTheSpoolNeverHasAName(t *testing.T) {
	dir := tempDir(t)
	s, err := newSpool(dir, 1<<20)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.close()) }()
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", s.file.Fd()))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(name, filepath.Join(dir, "#")), "%s was a name", name)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}
