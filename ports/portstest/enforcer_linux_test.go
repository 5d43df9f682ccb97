package portstest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/landlock"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// fault is an enforcer with one fault. Nil functions do as a good one does.
type fault struct {
	ports.SandboxEnforcer
	supports func([]domain.PropertyStatus) []domain.PropertyStatus
	plan     func(domain.SandboxPlan) domain.SandboxPlan
	ctx      func(context.Context) context.Context
	err      func(error) error
	receipt  func(domain.Receipt) domain.Receipt
	line     func(domain.SpawnLine) domain.SpawnLine
	apply    func() error
	close    func(ports.Confinement) error
}

func (f fault) Supports(p domain.SandboxPlan) []domain.PropertyStatus {
	s := f.SandboxEnforcer.Supports(p)
	if f.supports != nil {
		s = f.supports(s)
	}
	return s
}

func (f fault) Prepare(ctx context.Context, p domain.SandboxPlan, l domain.SpawnLine) (ports.Confinement, error) {
	if f.ctx != nil {
		ctx = f.ctx(ctx)
	}
	if f.plan != nil {
		p = f.plan(p)
	}
	c, err := f.SandboxEnforcer.Prepare(ctx, p, l)
	if err != nil {
		if f.err != nil {
			err = f.err(err)
		}
		return nil, err
	}
	return faultyConfinement{c, f}, nil
}

type faultyConfinement struct {
	ports.Confinement
	f fault
}

func (c faultyConfinement) Receipt() domain.Receipt {
	r := c.Confinement.Receipt()
	if c.f.receipt != nil {
		r = c.f.receipt(r)
	}
	return r
}

func (c faultyConfinement) SpawnLine() domain.SpawnLine {
	l := c.Confinement.SpawnLine()
	if c.f.line != nil {
		l = c.f.line(l)
	}
	return l
}

func (c faultyConfinement) Apply() error {
	if c.f.apply != nil {
		return c.f.apply()
	}
	return c.Confinement.Apply()
}

func (c faultyConfinement) Close() error {
	if c.f.close != nil {
		return c.f.close(c.Confinement)
	}
	return c.Confinement.Close()
}

// trial runs a check and says whether it failed, without failing the test.
type trial struct {
	testing.TB
	failed  bool
	said    string
	skipped string
}

func (tr *trial) Errorf(format string, args ...any) {
	tr.failed, tr.said = true, fmt.Sprintf(format, args...)
}
func (tr *trial) FailNow()         { tr.failed = true; runtime.Goexit() }
func (tr *trial) Skip(args ...any) { tr.skipped = fmt.Sprint(args...); runtime.Goexit() }
func (tr *trial) Cleanup(func())   {} // what a failed case leaves is the trial's
func (tr *trial) Helper()          {}

// The kit itself must find faults: each of these enforcers has one, and the
// named case fails because of it.
func TestEnforcerKitFindsFaults(t *testing.T) {
	testkit.RequireLandlock(t, 3)
	var notClosed []ports.Confinement
	t.Cleanup(func() {
		for _, c := range notClosed {
			require.NoError(t, c.Close())
		}
	})
	drop := func(s []domain.PropertyStatus) []domain.PropertyStatus { return s[1:] }
	ipc := slices.Index(domain.Properties(), domain.PropertyIPC)
	noReason := func(s []domain.PropertyStatus) []domain.PropertyStatus {
		for i := range s {
			s[i].Detail = ""
		}
		return s
	}
	for name, c := range map[string]struct {
		fails string
		fault fault
	}{
		"a zero plan becomes a plan": {"a zero plan is refused", fault{plan: func(p domain.SandboxPlan) domain.SandboxPlan {
			if p.IsZero() {
				return domain.NewSandboxPlan("made up").WithWaivers(domain.Properties()...)
			}
			return p
		}}},
		"invalid rules are left out": {"an invalid plan is refused", fault{plan: func(p domain.SandboxPlan) domain.SandboxPlan {
			if p.Validate() != nil {
				return domain.NewSandboxPlan("kit").WithWaivers(domain.Properties()...)
			}
			return p
		}}},
		"a property is left out":   {"every property has a status", fault{supports: drop}},
		"a status gives no reason": {"every property has a status", fault{supports: noReason}},
		"a waiver switches off": {"a waiver does not weaken", fault{supports: func(s []domain.PropertyStatus) []domain.PropertyStatus {
			for i := range s {
				if s[ipc].State == domain.StateWaived { // in a plan that has waivers
					s[i].State = domain.StateWaived
				}
			}
			return s
		}}},
		"everything is waived by itself": {"what cannot be enforced is refused by name", fault{plan: func(p domain.SandboxPlan) domain.SandboxPlan { return p.WithWaivers(domain.Properties()...) }}},
		"errors lose their type":         {"a required path that is missing is refused by name", fault{err: func(err error) error { return errors.New(err.Error()) }}},
		"skipped without a reason": {"an optional path that is missing is skipped", fault{receipt: func(r domain.Receipt) domain.Receipt {
			for i := range r.Rules {
				r.Rules[i].Skipped = ""
			}
			return r
		}}},
		"the digest of another plan": {"the receipt says what was asked", fault{receipt: func(r domain.Receipt) domain.Receipt { r.PlanDigest = ""; return r }}},
		"more is granted than asked": {"the receipt says what was asked", fault{receipt: func(r domain.Receipt) domain.Receipt {
			r.Rules[1].Access = domain.AccessReadWriteExec
			return r
		}}},
		"the line loses an argument": {"the spawn line is kept", fault{line: func(l domain.SpawnLine) domain.SpawnLine { l.Argv = l.Argv[:len(l.Argv)-1]; return l }}},
		"the line loses its sandbox": {"the spawn line is kept", fault{line: func(l domain.SpawnLine) domain.SpawnLine { l.Sandbox = domain.Unconfined(""); return l }}},
		"closing fails":              {"closing twice is no error", fault{close: func(c ports.Confinement) error { return errors.Join(c.Close(), errors.New("closed twice")) }}},
		"nothing is closed":          {"nothing is left open", fault{close: func(c ports.Confinement) error { notClosed = append(notClosed, c); return nil }}},
		"the context is ignored":     {"a cancelled context is refused", fault{ctx: context.WithoutCancel}},
		"one plan for all": {"plans are prepared concurrently", fault{receipt: func(r domain.Receipt) domain.Receipt {
			r.PlanDigest = domain.NewSandboxPlan("first").Digest()
			return r
		}}},
		"a write is not denied":     {"a write outside the plan is denied", fault{apply: func() error { return nil }}},
		"a read is not denied":      {"a read outside the plan is denied", fault{apply: func() error { return nil }}},
		"a sibling is not denied":   {"a file rule grants that file alone", fault{apply: func() error { return nil }}},
		"everything is denied":      {"a write outside the plan is denied", fault{apply: func() error { return os.ErrPermission }}},
		"links are denied":          {"a hard link between granted directories is allowed", fault{apply: func() error { return os.ErrPermission }}},
		"rules by link are dropped": {"a rule through a symbolic link grants its target", fault{apply: func() error { return os.ErrPermission }}},
		"attempts get out":          {"nothing gets out", fault{apply: func() error { return nil }}},
		"the next child is denied":  {"the caller and the next child are not restricted", fault{apply: func() error { return os.ErrPermission }}},
	} {
		t.Run(name, func(t *testing.T) {
			c.fault.SandboxEnforcer = landlock.New()
			tr := &trial{TB: t}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for _, k := range append(enforcerCases, enforcerSpawnCases...) {
					if k.name == c.fails {
						k.check(tr, enforcerUnderTest{
							newEnforcer: func(testing.TB) ports.SandboxEnforcer { return c.fault },
							features:    EnforcerFeatures{Enforces: []domain.Property{domain.PropertyFilesystem}, Spawn: spawnPlainly, Program: testkit.FakeProgram()},
						})
						return
					}
				}
				t.Errorf("no case %q", c.fails)
			}()
			<-done
			require.True(t, tr.failed, "the kit did not notice")
		})
	}
}

// try runs one check on a trial.
func try(t *testing.T, check func(testing.TB, enforcerUnderTest), features EnforcerFeatures) *trial {
	tr := &trial{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		check(tr, enforcerUnderTest{newEnforcer: func(testing.TB) ports.SandboxEnforcer { return landlock.New() }, features: features})
	}()
	<-done
	return tr
}

// What is not proved must be seen not to be.
func TestWithoutSpawnTheDenialsAreSkippedAndNotLeftOut(t *testing.T) {
	testkit.RequireLandlock(t, 3)
	for _, c := range enforcerSpawnCases {
		tr := try(t, c.check, EnforcerFeatures{Enforces: []domain.Property{domain.PropertyFilesystem}})
		require.Contains(t, tr.skipped, "Spawn", c.name)
		require.False(t, tr.failed, c.name)
	}
}

func TestAStatusThatIsNotKnownIsNamed(t *testing.T) {
	testkit.RequireLandlock(t, 3)
	tr := try(t, enforcerSpawnCases[0].check, EnforcerFeatures{
		Enforces: []domain.Property{domain.PropertyFilesystem},
		Spawn:    func(context.Context, ports.Confinement) (domain.ExitStatus, error) { return domain.ExitStatus{}, nil },
	})
	require.True(t, tr.failed)
	require.Contains(t, tr.said, "set Known")
}

// spawnPlainly starts the line from here, which is right only because the
// faulty enforcers that it serves restrict nothing.
func spawnPlainly(ctx context.Context, c ports.Confinement) (domain.ExitStatus, error) {
	if err := c.Apply(); err != nil {
		return domain.ExitStatus{Known: true, Code: 126}, nil //nolint:nilerr // as a child whose every attempt is denied
	}
	line := c.SpawnLine()
	cmd := exec.CommandContext(ctx, line.Path, line.Argv[1:]...)
	cmd.Env, cmd.Dir = line.Env, line.Dir
	err := cmd.Run()
	return domain.ExitStatus{Known: true, Code: cmd.ProcessState.ExitCode()}, errors.Join(ctx.Err(), ignoreExit(err))
}

func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

func TestRecordingEnforcerKeepsTheKillGroup(t *testing.T) {
	testkit.RequireLandlock(t, 1)
	// Without the signal scope the kill group changes nothing, so it may be
	// entered here.
	r := NewRecordingEnforcer(landlock.New(landlock.WithABI(5)))
	plan := domain.NewSandboxPlan("seen").WithWaivers(domain.Properties()...)
	c, err := r.Prepare(t.Context(), plan, domain.SpawnLine{})
	require.NoError(t, err)
	ok, err := c.(ports.KillGroup).PrepareKillGroup()
	require.NoError(t, err)
	require.False(t, ok)
	require.Error(t, c.(ports.KillGroup).EnterKillGroup())
	require.NoError(t, c.Close())
	require.Equal(t, 1, r.Preparations()[0].KillGroups)
}
