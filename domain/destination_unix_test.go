package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

func TestUnixDestinations(t *testing.T) {
	for s, want := range map[string]string{"unix:/run/a.sock": "/run/a.sock", "unix:/run/with space": "/run/with space"} {
		path, ok, err := domain.ParseUnixDestination(s)
		require.NoError(t, err, s)
		require.True(t, ok)
		require.Equal(t, want, path)
	}
	for _, s := range []string{"127.0.0.1:80", "unixx:/a", "/run/a.sock", ""} {
		_, ok, err := domain.ParseUnixDestination(s)
		require.NoError(t, err, s)
		require.False(t, ok, s)
	}
	for _, s := range []string{"unix:", "unix:a.sock", "unix:/", "unix:/run/../a", "unix:/a/", "unix:@abstract", "unix:/a\x00b"} {
		_, ok, err := domain.ParseUnixDestination(s)
		require.True(t, ok, s)
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid, s)
		require.NotEmpty(t, invalid.Remedy)
	}

	plain := domain.NewSandboxPlan("p")
	plan := plain.WithUnixDestinations("/run/b c", "/run/a").WithUnixDestinations("/run/a").
		WithOrigins(map[string]string{domain.UnixDestinationGrant("/run/b c"): "--connect"})
	require.Equal(t, []string{"/run/a", "/run/b c"}, plan.UnixDestinations())
	require.NoError(t, plan.Validate())
	require.Error(t, plain.WithUnixDestinations("run/a").Validate())
	require.Error(t, domain.Unconfined("why").WithUnixDestinations("/run/a").Validate())
	require.True(t, plan.Requests(domain.PropertyDestinations))
	require.True(t, plan.Requests(domain.PropertyUnixSockets), "all others are denied")
	require.NotEqual(t, plain.Digest(), plan.Digest())
	require.NotEqual(t, plain.WithUnixDestinations("/run/a").Digest(), plan.Digest())
	require.Equal(t, plain.Digest(), plan.WithoutDestinations().Digest())
	require.Equal(t, []string{"unix connect /run/a", `unix connect "/run/b c"`}, plan.Grants())
	require.Contains(t, plan.String(), `  unix connect to  /run/a "/run/b c"  # "/run/b c": --connect`)
	require.NotContains(t, plain.String(), "unix connect")

	policy := domain.Policy{UnixDestinations: []string{"/run/a"}}.With(domain.Policy{UnixDestinations: []string{"/run/b"}})
	require.Equal(t, []string{"/run/a", "/run/b"}, policy.Apply(plain).UnixDestinations())
	require.Empty(t, policy.WithoutGrants().UnixDestinations)

	r := domain.Receipt{Enforcer: "e", UnixDestinations: []string{"/run/a", "/run/b c"}}
	require.Contains(t, r.String(), `; tcp none; unix /run/a "/run/b c"`)
	change := domain.Change{UnixDestinations: []string{"/run/a"}}
	require.False(t, change.IsZero())
	require.Equal(t, "the unix socket /run/a", change.String())
}

// A name is refused with what can be done instead.
func TestANameIsNoDestination(t *testing.T) {
	for _, s := range []string{"example.org:443", "db:5432", "Localhost:1"} {
		_, err := domain.ParseDestination(s)
		require.ErrorContains(t, err, "a host's name", s)
		require.ErrorContains(t, err, "--allow-domain", s)
	}
	for _, s := range []string{"1.2.3:80", "[fe80::1]:80", "example.org", "[a]:1", "localhost:x", "fe80::1:80", ":80", "http://x:80"} {
		_, err := domain.ParseDestination(s)
		require.Error(t, err, s)
		require.NotContains(t, err.Error(), "a host's name", s)
	}
}
