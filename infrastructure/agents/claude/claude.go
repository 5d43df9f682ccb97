// Package claude is the agent adapter for Anthropic's Claude Code: where its
// program is, what it needs, its command line, and what its output means. What
// is said here about the CLI was observed with release 2.1.328; the recordings
// in testdata are of it.
//
// Claude Code runs once per turn, as
//
//	claude -p --output-format stream-json --input-format stream-json …
//
// with the prompt as one JSON line on its standard input, which stays open so
// that the turn can be interrupted and permission requests can be answered. It
// is closed as soon as the agent has given its result.
//
// The package runs nothing. It may import domain, ports, the sibling lookup
// and the JSON library.
package claude

import (
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Adapter is the [ports.AgentAdapter] for Claude Code. It has no state and is
// safe for concurrent use.
type Adapter struct{}

var _ ports.InteractiveAgent = (*Adapter)(nil)

// New returns the adapter.
func New() ports.AgentAdapter { return &Adapter{} }

// Kind returns [domain.AgentClaude].
func (*Adapter) Kind() domain.AgentKind { return domain.AgentClaude }

// NewParser is part of [ports.AgentAdapter].
func (*Adapter) NewParser(turn ports.TurnRequest) ports.Parser { return newParser(turn) }
