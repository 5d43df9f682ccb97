//go:build !linux

package landlock

import (
	"context"
	"runtime"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

func detect() kernel {
	return kernel{note: "Landlock exists on Linux only, and this is " + runtime.GOOS}
}

func (e *Enforcer) prepare(context.Context, domain.SandboxPlan, domain.SpawnLine) (ports.Confinement, error) {
	return nil, e.absent()
}
