package ports

import (
	"context"

	"github.com/caisson-run/caisson/domain"
)

// PolicySource finds the policy of a launch outside of the request that asks for
// it, such as in a user's files. It is asked when the places that a policy may
// speak of are known, each time that a session is opened. It changes nothing, and
// is safe for concurrent use.
type PolicySource interface {
	// FindPolicy returns the policy for the place. Anything in a policy that is
	// not understood is an error, and never a narrower or a wider policy.
	FindPolicy(ctx context.Context, place PolicyPlace) (FoundPolicy, error)
}

// PolicyPlace is where a policy is to be used. All paths are canonical.
type PolicyPlace struct {
	Agent domain.AgentKind // "" for a command
	// Agents are all agents that there are adapters for.
	Agents []domain.AgentKind
	// Workspace is the directory that the program works in, and Access what the
	// preset grants of it, which may be nothing.
	Workspace string
	Access    domain.Access
	Home      string // the user's home directory, "" if there is none
	State     string // private to the session, writable
	Temp      string // the same; what is in it is of no use later
}

// FoundPolicy is a policy, and what else its source says.
type FoundPolicy struct {
	Policy    domain.Policy
	Tripwires domain.TripwireMode
	// DirectAPI lets an agent reach its model API without the model gateway.
	DirectAPI bool
	// Notes tell people where the policy comes from, and what was not used.
	Notes []string
	// Guarded are canonical paths that no plan may let be written, since the next
	// policy comes from them.
	Guarded []string
}
