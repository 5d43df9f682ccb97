package portstest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports/portstest/escape"
)

// escapes makes the attempts of package escape that are about what the enforcer
// must enforce.
func (k *enforcerKit) escapes() {
	if k.features.Spawn == nil {
		k.Skip("no EnforcerFeatures.Spawn given: that nothing gets out is not proved")
	}
	if k.features.Program == "" {
		k.Skip("no EnforcerFeatures.Program given: that nothing gets out is not proved")
	}
	stage, err := escape.NewStage(k.dir)
	require.NoError(k, err)
	defer func() { require.NoError(k, stage.Close()) }()
	plan := stage.Plan(k.features.Program).WithWaivers(k.plan().Waivers()...)
	if !slices.Contains(k.features.Enforces, domain.PropertyDestinations) {
		plan = plan.WithoutDestinations()
	}
	var serial atomic.Int32
	run := func(ctx context.Context, confined bool, dir string, argv []string) (escape.Ended, error) {
		if !confined {
			return escape.RunUnconfined(ctx, dir, argv)
		}
		// Spawn gives no output, so a shell keeps it where the plan lets it.
		out := filepath.Join(dir, "report-"+strconv.Itoa(int(serial.Add(1))))
		line := shellLine(plan, dir, `out=$1; shift; exec "$@" >"$out"`, append([]string{out}, argv...)...)
		c, err := k.e.Prepare(ctx, plan, line)
		if err != nil {
			return escape.Ended{}, err
		}
		defer func() { require.NoError(k, c.Close()) }()
		exit, err := k.features.Spawn(ctx, c)
		if err != nil {
			return escape.Ended{}, err
		}
		text, err := os.ReadFile(out)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil // a child that could not even begin
		}
		return escape.Ended{Stdout: string(text), Exit: exit}, err
	}
	report, err := stage.Run(k.Context(), escape.Target{Program: k.features.Program, Plan: plan, Run: run}, k.attempts())
	require.NoError(k, err)
	require.NoError(k, report.Err())
}

// attempts are those that the enforcer alone must stop, and ordinary work.
func (k *enforcerKit) attempts() []escape.Attempt {
	return slices.DeleteFunc(escape.Attempts(), func(a escape.Attempt) bool {
		work := a.Works && a.Property == ""
		return !work && (!slices.Contains(k.features.Enforces, a.Property) || slices.Contains(a.Alone, escape.Spawner))
	})
}
