package ports

import (
	"slices"

	"github.com/caisson-run/caisson/domain"
)

// AgentAdapter knows one agent's CLI: its command line and its output. It
// never spawns anything, so a new agent cannot bypass the sandbox. It is safe
// for concurrent use.
type AgentAdapter interface {
	Kind() domain.AgentKind
	// Resolve finds the agent's native program, looking behind launchers. It
	// reads files and runs nothing. The hint is a path from the user, or "" to
	// search the host's PATH. Failure is a *domain.AgentNotFoundError.
	Resolve(hint string, host Host) (AgentInstall, error)
	// Needs returns what the agent needs beside the base plan: its own files,
	// its private directories, its environment, and its model API.
	Needs(install AgentInstall, dirs SessionDirs, host Host) (PlanFragment, error)
	// Command returns the line that runs one turn. Its Env holds only what the
	// agent itself needs beside the plan's environment; its Sandbox is zero and
	// filled in by the session.
	Command(turn TurnRequest) (domain.SpawnLine, error)
	// NewParser returns a parser for the output of that one turn.
	NewParser(turn TurnRequest) Parser
}

// InteractiveAgent is an optional ability of an AgentAdapter: the agent's own
// interface, which a person drives on a terminal.
type InteractiveAgent interface {
	// Interactive returns the line that runs the interface. Of the request the
	// prompt and the conversation mean nothing. Env and Sandbox are as of
	// AgentAdapter.Command, and there is no Stdin.
	Interactive(turn TurnRequest) (domain.SpawnLine, error)
}

// Host is what an adapter may know of the orchestrator's own surroundings.
type Host struct {
	// LookupEnv returns a variable of the orchestrator's environment.
	LookupEnv func(name string) (string, bool)
}

// AgentInstall is a resolved agent.
type AgentInstall struct {
	// Path is the absolute, canonical path of the native program.
	Path string
	// Args stand between the program's name and the adapter's own arguments.
	Args []string
	// Dirs must be readable and executable for the program to run.
	Dirs []string
	// Files must be readable and executable for the program to run.
	Files []string
	// Version as found in the package's metadata, "" if unknown.
	Version string
	// BaseURL is the model API that the host's environment points the agent to,
	// for an agent that must be told so on its command line: Command does not
	// see the host. It is as found there, unchecked; "" is the agent's default.
	// Of an open session with a model gateway it is the gateway's.
	BaseURL string
	// KeyEnv names the variable that holds the API's key, for an agent that must
	// be told so on its command line; "" is the agent's default.
	KeyEnv string
	// OwnLogin says that the agent of this session holds a login of its own, see
	// LoginAgent. Resolve leaves it false.
	OwnLogin bool
}

// SessionDirs are the private directories of one session, canonical paths. No
// two overlap.
type SessionDirs struct {
	State string // the agent's own state and configuration; writable by it
	Home  string // its $HOME; writable by it
	Temp  string // its $TMPDIR; writable by it
	Spool string // of the orchestrator; never granted
}

// PlanFragment is what an agent adds to a plan.
type PlanFragment struct {
	Rules      []domain.PathRule
	ConnectTCP []uint16
	// Domains are reached by name, through an egress proxy.
	Domains []domain.EgressDomain
	Env     []domain.EnvRule
	Waivers []domain.Property
	// UDP says why the agent needs UDP, which a plan otherwise denies: nearly
	// always because the host of its API is a name that has to be resolved. ""
	// means that it does not. The reason is shown with the plan and repeated in
	// every receipt.
	UDP string
	// Receipt lines: what the adapter switches off or on in the agent by
	// itself, such as the agent's inner sandbox.
	Notes []string
	// ModelAPI is the agent's API, for the model gateway to stand in for. Nil
	// means that none can: the agent reaches its API by itself, with the ports
	// above, and holds its own credential.
	ModelAPI *ModelAPI
	// OwnCredential says why, for an agent without a ModelAPI that must hold its
	// own credential. The reason is repeated in every receipt.
	OwnCredential string
}

// With returns the fragment with all of another one added, but for its API.
func (f PlanFragment) With(more PlanFragment) PlanFragment {
	f.Rules = slices.Concat(f.Rules, more.Rules)
	f.ConnectTCP = slices.Concat(f.ConnectTCP, more.ConnectTCP)
	f.Domains = slices.Concat(f.Domains, more.Domains)
	f.Env = slices.Concat(f.Env, more.Env)
	f.Waivers = slices.Concat(f.Waivers, more.Waivers)
	f.Notes = slices.Concat(f.Notes, more.Notes)
	if f.UDP == "" {
		f.UDP = more.UDP
	}
	return f
}

// Prompt is what the user asks.
type Prompt struct {
	Text string
	// Mark is put into the environment of the turn's processes, by which they can
	// be found when their orchestrator has died. "" lets the session choose one.
	Mark string
}

// TurnRequest is one turn, for an adapter.
type TurnRequest struct {
	Prompt  Prompt
	Install AgentInstall
	Dirs    SessionDirs
	// Workspace is the canonical path of the workspace, and the directory in
	// which the agent runs.
	Workspace string
	Model     string // "" for the agent's default
	// ConversationID is the conversation to resume if Resume is true, and
	// otherwise a fresh UUID that the agent is asked to use if it can.
	ConversationID string
	Resume         bool
	// Confined is true if a sandbox plan is enforced. Only then does an adapter
	// switch off the agent's own permission prompts.
	Confined bool
	// UsageBefore is the conversation's usage before this turn, for an agent
	// that reports it cumulatively.
	UsageBefore domain.Usage
}

// Parser turns the output of one turn into events. Parsing is isolated in it:
// a change of the agent's schema touches one file. It is used by one goroutine.
type Parser interface {
	// ParseEvent takes one line of stdout without its newline. It never fails
	// on hostile input: what is no JSON becomes a Log, what is unknown a Raw.
	// The line is only valid during the call. An error means a fault of the
	// parser's own and ends the turn.
	ParseEvent(line []byte) (Parsed, error)
	// Interrupt returns what to write to stdin to interrupt the turn, nil if the
	// protocol has nothing for it. It is asked once, before the first line.
	Interrupt() []byte
	// Finish is called once, after the last line. It returns events that were
	// held back, and, if the agent gave one, its own final as a claim: a
	// domain.Final in last place. domain.Conclude makes the turn's final of it.
	Finish(exit domain.ExitStatus) []domain.ReplyEvent
}

// Parsed is what one line meant.
type Parsed struct {
	Events []domain.ReplyEvent
	// Write goes to the agent's stdin.
	Write []byte
	// CloseStdin closes the agent's stdin, after Write.
	CloseStdin bool
	// Done says that the agent has given its final: it has a grace to exit.
	Done bool
}
