package ports

import (
	"context"
	"time"

	"github.com/caisson-run/caisson/domain"
)

// LoginAgent is an optional ability of an AgentAdapter: the agent can hold a
// login of its own, in one file of its state directory, in place of a credential
// that the gateway keeps. Needs and Command of an install whose OwnLogin is true
// are those of an agent that has it.
type LoginAgent interface {
	// LoginFormat says which file it is, and what the agent writes there.
	LoginFormat() LoginFormat
	// LogIn returns the line of the agent's own login, which a person goes through
	// on a terminal. Env and Sandbox are as of AgentAdapter.Command, and there is
	// no Stdin.
	LogIn(turn TurnRequest) (domain.SpawnLine, error)
}

// LoginFormat is the form of the file with an agent's login: a JSON object. A
// path names a member of an object in it, with a dot for each level.
type LoginFormat struct {
	// File is the file's name, directly below SessionDirs.State.
	File string
	// Keep are the top-level members that make up the login. Drop are those that
	// the agent may have beside it, of which nothing is kept. A file with any other
	// one is refused.
	Keep, Drop []string
	// Secrets are the paths of strings that must be there. Their values are taken
	// out of events.
	Secrets []string
	// Account are the paths of strings that say whose login it is. A login that is
	// renewed must have them as they were.
	Account []string
	// Expires is the path of the time from which the access token has to be
	// renewed: a number, of milliseconds since 1970, or a string, a JSON Web Token
	// (RFC 7519) with the time in "exp".
	Expires string
}

// LoginID names a login that is kept, by small letters, digits, - and _. Name is ""
// or [DefaultLogin] for the agent's only one.
type LoginID struct {
	Agent domain.AgentKind
	Name  string
}

// DefaultLogin is the name of an agent's only login.
const DefaultLogin = "default"

// String is the agent, and the name if it is another than [DefaultLogin].
func (id LoginID) String() string {
	if id.Name == "" || id.Name == DefaultLogin {
		return string(id.Agent)
	}
	return string(id.Agent) + " (" + id.Name + ")"
}

// Login is what can be shown of a login that is kept.
type Login struct {
	ID LoginID
	// Kept is when it was stored or renewed.
	Kept time.Time
	// Expires is when its access token has to be renewed; zero if it does not say.
	// With most agents the login itself lasts for longer.
	Expires time.Time
}

// LoginStore keeps the logins of agents: of each its one file, for the user
// alone, and never more of it than the format names. It is safe for concurrent
// use, also by several processes. A file that is not in the format, no regular
// file of the user's own, readable by others, known under a second name, or too
// large is refused with a *domain.InvalidError, which holds nothing of what is
// in it but the names of members; so is an id that is none. With a context that has
// ended nothing is changed. There is nothing to close.
type LoginStore interface {
	// Dir is the directory below which everything is kept. It need not exist.
	Dir() string
	// Import keeps a copy of a file, in place of an earlier login of that id.
	Import(ctx context.Context, id LoginID, format LoginFormat, path string) (Login, error)
	// Login returns a login; one that is not kept is a *domain.InvalidError.
	Login(ctx context.Context, id LoginID, format LoginFormat) (Login, error)
	// List returns the ids of all logins, sorted by agent and name.
	List(ctx context.Context) ([]LoginID, error)
	// Delete forgets a login; one that is not kept is a *domain.InvalidError.
	Delete(ctx context.Context, id LoginID) error
	// Lend puts a copy of a login into the private directories of a session, in
	// place of whatever is there under the file's name, and returns the secrets in
	// it. Until Return the session is known to have it, also after the end of this
	// process.
	Lend(ctx context.Context, id LoginID, format LoginFormat, dirs SessionDirs) (secrets []string, err error)
	// Lent returns which login a session is known to have, the zero value for none.
	Lent(ctx context.Context, dirs SessionDirs) (LoginID, error)
	// Return takes a copy out of the private directories again, once nothing of the
	// agent runs any more, and keeps it if the agent has renewed it and nobody else
	// has renewed it further. A copy that is to be refused is no error but a
	// Problem: then the login stays as it was. Without a loan it does nothing.
	Return(ctx context.Context, format LoginFormat, dirs SessionDirs) (LoginReturn, error)
}

// LoginReturn is what became of a copy. The zero value is for one that was not
// changed, or not lent.
type LoginReturn struct {
	ID LoginID
	// Renewed says that the copy was kept.
	Renewed bool
	// Problem is why it was not, "" if there was nothing to keep.
	Problem string
}
