// Package sandbox is the one place that says which layers make up the default
// enforcer, so that a composition asks for it here, on every system, and not
// for a layer by name. Today the default is the Landlock layer alone: a plan
// must waive by name what that cannot guarantee. A layer that is added here
// reaches every composition.
//
// It may import domain, ports and the packages of the layers.
package sandbox

import (
	"github.com/caisson-run/caisson/infrastructure/landlock"
	"github.com/caisson-run/caisson/ports"
)

// Default returns the enforcer for the running host. It is never nil and never
// one that enforces nothing: where the host has no Landlock, it refuses every
// plan and says why. It holds no resources and is safe for concurrent use.
func Default() ports.SandboxEnforcer { return landlock.New() }
