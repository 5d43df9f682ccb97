package application_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// policySource gives a policy, and keeps what it was asked for.
type policySource struct {
	found ports.FoundPolicy
	err   error
	asked []ports.PolicyPlace
}

func (s *policySource) FindPolicy(_ context.Context, place ports.PolicyPlace) (ports.FoundPolicy, error) {
	s.asked = append(s.asked, place)
	return s.found, s.err
}

func granted(plan domain.SandboxPlan, path string) (domain.PathRule, bool) {
	rules := plan.Rules()
	i := slices.IndexFunc(rules, func(r domain.PathRule) bool { return r.Path == path })
	if i < 0 {
		return domain.PathRule{}, false
	}
	return rules[i], true
}

func TestAPolicyFromElsewhere(t *testing.T) {
	r := newRig(t)
	extra := realPath(t, t.TempDir())
	source := &policySource{found: ports.FoundPolicy{
		Policy: domain.Policy{
			Workspace: domain.AccessRead, Rules: []domain.PathRule{{Path: extra, Access: domain.AccessRead, Why: "file:1"}}, ConnectTCP: []uint16{1},
			Limits: domain.Limits{WallClock: time.Hour, Idle: time.Minute}, Origins: map[string]string{domain.OriginWorkspace: "file:2", "tcp connect 1": "file:3"},
		},
		Tripwires: domain.TripwiresFail, Notes: []string{"policy: file"},
	}}
	request := r.request()
	request.PolicySource = source
	request.Policy = application.Policy{ConnectTCP: []uint16{2}, Limits: domain.Limits{WallClock: time.Second}}
	s, err := r.Open(t.Context(), request)
	require.NoError(t, err)
	place := source.asked[0]
	require.Equal(t, []ports.PolicyPlace{place}, source.asked)
	require.Equal(t, domain.AgentKind("fake"), place.Agent)
	require.Equal(t, []domain.AgentKind{"fake"}, place.Agents)
	require.Equal(t, []string{r.workspace, r.home}, []string{place.Workspace, place.Home})
	require.Equal(t, domain.AccessReadWriteExec, place.Access)
	require.DirExists(t, place.State)
	require.DirExists(t, place.Temp)

	plan := s.Plan()
	rule, _ := granted(plan, r.workspace)
	require.Equal(t, domain.AccessRead, rule.Access)
	require.Equal(t, "workspace, file:2", rule.Why)
	rule, _ = granted(plan, extra)
	require.Equal(t, "file:1", rule.Why)
	require.Equal(t, []uint16{1, 2}, plan.ConnectTCP())
	require.Equal(t, domain.Limits{WallClock: time.Second, Idle: time.Minute}, plan.Limits())
	require.Equal(t, "file:3", plan.Origins()["tcp connect 1"])
	play(t, s, "say hello")
	require.NoError(t, s.Close(t.Context()))

	// The plan of turn n is that of turn 1, wherever the policy comes from.
	again := application.OpenRequest{Resume: s.ID(), Policy: request.Policy, PolicySource: source}
	s, err = r.Open(t.Context(), again)
	require.NoError(t, err)
	require.NoError(t, s.Close(t.Context()))
	require.Equal(t, r.workspace, source.asked[1].Workspace, "the session's own")
	source.found.Policy.Workspace = domain.AccessReadWrite
	_, err = r.Open(t.Context(), again)
	var changed *domain.PlanChangedError
	require.ErrorAs(t, err, &changed)
	require.Contains(t, changed.Added[0], "read+write "+r.workspace)

	preview, err := r.Plan(t.Context(), request)
	require.NoError(t, err)
	require.Contains(t, preview.Notes, "policy: file")
	source.err = errors.New("file:1:1: unknown key")
	_, err = r.Open(t.Context(), request)
	require.ErrorIs(t, err, source.err, "a policy that is not understood opens nothing")
	_, err = r.Exec(t.Context(), application.ExecRequest{Argv: []string{"cat"}, Dir: "/", PolicySource: source})
	require.ErrorIs(t, err, source.err)
}

func TestAPolicyFromElsewhereForACommand(t *testing.T) {
	r := newRig(t)
	source := &policySource{found: ports.FoundPolicy{Policy: domain.Policy{ConnectTCP: []uint16{1}, Env: []domain.EnvRule{{Name: "A", Value: "x", Literal: true}}}}}
	request := application.ExecRequest{Argv: []string{"cat"}, Dir: r.workspace, PolicySource: source}
	plan, err := r.PlanExec(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, []uint16{1}, plan.ConnectTCP())
	_, ok := granted(plan, r.workspace)
	require.False(t, ok, "a command is granted nothing of the directory by itself")
	require.Zero(t, source.asked[0].Access)
	require.Equal(t, source.asked[0].Temp, source.asked[0].State, "it has one private directory")
	source.found.Policy.Workspace = domain.AccessReadWrite
	plan, err = r.PlanExec(t.Context(), request)
	require.NoError(t, err)
	rule, _ := granted(plan, r.workspace)
	require.Equal(t, domain.AccessReadWrite, rule.Access)

	source.found.Policy.Limits.Idle = time.Second
	source.found.Policy.Origins = map[string]string{"limit idle": "file:7"}
	_, err = r.PlanExec(t.Context(), request)
	require.ErrorContains(t, err, "file:7")
	source.found.Policy.Limits = domain.Limits{WallClock: 10 * time.Millisecond}
	r.commands.run = func(ctx context.Context, _ domain.SpawnLine, _ ports.Stdio) (ports.CommandResult, error) {
		<-ctx.Done()
		return ports.CommandResult{}, context.Cause(ctx)
	}
	_, err = r.Exec(t.Context(), request)
	var timeout *domain.TimeoutError
	require.ErrorAs(t, err, &timeout, "the file's time limit is kept")

	// Nothing would keep what it grants; what the request itself grants is refused.
	request.Sandbox = application.SandboxOff("a test")
	plan, err = r.PlanExec(t.Context(), request)
	require.NoError(t, err)
	require.True(t, plan.IsUnconfined())
	require.Contains(t, plan.Environ(nil), "A=x")
	request.Policy.ConnectTCP = []uint16{2}
	_, err = r.PlanExec(t.Context(), request)
	require.ErrorContains(t, err, "nothing would enforce them")
}

// No plan may let be written what the next policy comes from, and what would be
// there if it were made.
func TestPoliciesAreGuarded(t *testing.T) {
	dir := realPath(t, t.TempDir())
	config, named := filepath.Join(dir, "config", "caisson"), filepath.Join(dir, "dotfiles", "policy.toml")
	r := newRig(t, func(cfg *application.Config) { cfg.Guarded = []string{config} })
	source := &policySource{found: ports.FoundPolicy{Guarded: []string{named}}}
	mkdir(t, filepath.Dir(named))
	mkdir(t, filepath.Dir(config))
	require.NoError(t, os.Symlink(filepath.Dir(config), filepath.Join(dir, "link")))
	for _, path := range []string{filepath.Dir(named), filepath.Dir(config), filepath.Join(dir, "link"), dir} {
		policy := application.Policy{Rules: []domain.PathRule{{Path: path, Access: domain.AccessReadWrite}}}
		request := r.request()
		request.Policy, request.PolicySource = policy, source
		_, err := r.Open(t.Context(), request)
		require.ErrorContains(t, err, "would let it change Caisson's policies and what they trust", path)
		_, err = r.PlanExec(t.Context(), application.ExecRequest{Argv: []string{"cat"}, Dir: "/", Policy: policy, PolicySource: source})
		require.ErrorContains(t, err, "grant a directory that does not contain it", path)
	}
	_, err := r.PlanExec(t.Context(), application.ExecRequest{Argv: []string{"cat"}, Dir: "/", PolicySource: source, Policy: application.Policy{
		Rules: []domain.PathRule{{Path: dir, Access: domain.AccessRead}},
	}})
	require.NoError(t, err, "it may be read")
}
