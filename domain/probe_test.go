package domain_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

func TestProbeString(t *testing.T) {
	all := make([]domain.ProbeCheck, 0, len(domain.ProbeAttempts()))
	for _, a := range domain.ProbeAttempts() {
		all = append(all, domain.ProbeCheck{Attempt: a, Result: domain.ProbeHeld})
	}
	require.Len(t, all, 4)
	require.Equal(t, "probed: 4 of 4 held", domain.Probe{Checks: all}.String())
	all[3].Result = domain.ProbeNotAsked
	require.Equal(t, "probed: 3 of 4 held, denied connect not asked", domain.Probe{Checks: all}.String())
	require.Equal(t, `not probed: "a\x1bb"`, domain.Probe{Skipped: "a\x1bb"}.String())
	require.Empty(t, domain.Probe{}.String())
}

func TestProbeError(t *testing.T) {
	cause := errors.New("too many open files")
	for want, e := range map[string]domain.ProbeError{
		`the sandbox was tried and does not hold: denied write of "/s/x" succeeded [landlock, Landlock ABI 7]; report it`: {
			Attempt: domain.ProbeDeniedWrite, Target: "/s/x", Enforcer: "landlock", ABI: 7, Remedy: "report it",
		},
		`the sandbox was tried and does not hold: granted write of "/t\n/x" failed: too many open files ["mine\x1b"]`: {
			Attempt: domain.ProbeGrantedWrite, Target: "/t\n/x", Enforcer: "mine\x1b", Err: cause,
		},
		`the sandbox was tried and does not hold: denied connect of "127.0.0.1:5" proves nothing: too many open files [x]`: {
			Attempt: domain.ProbeDeniedConnect, Target: "127.0.0.1:5", Enforcer: "x", Err: cause,
		},
	} {
		require.Equal(t, want, e.Error())
		require.Equal(t, e.Err, errors.Unwrap(&e))
	}
}
