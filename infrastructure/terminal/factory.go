package terminal

import (
	"github.com/caisson-run/caisson/infrastructure/process"
	"github.com/caisson-run/caisson/ports"
)

var _ ports.TerminalSessionFactory = (*Factory)(nil)

// Factory implements ports.TerminalSessionFactory, on Linux. Elsewhere it
// refuses every session.
type Factory struct {
	spawner *process.Spawner
	graces  process.Graces
}

// NewFactory returns a factory that starts its programs with the spawner. Of
// the graces Terminate is the one between the hang-up and the kill.
func NewFactory(spawner *process.Spawner, graces process.Graces) *Factory {
	return &Factory{spawner: spawner, graces: graces}
}
