package application

import (
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// OpenRequest says which session to open. A new session needs Agent and
// Workspace; one to resume needs Resume, and what else is given must agree with
// its record.
type OpenRequest struct {
	// Agent is the agent. Empty is allowed with Resume: that of the session.
	Agent domain.AgentKind
	// AgentBin is the path of the agent's program, "" to search PATH.
	AgentBin string
	// Workspace is the absolute path of the directory that the agent works in.
	// Empty is allowed with Resume: that of the session.
	Workspace string
	// Resume is an earlier session to go on with, "" for a new one.
	Resume domain.SessionID
	// Model is the agent's model, "" for its default.
	Model string
	// Policy adds to what the preset and the agent's adapter grant.
	Policy Policy
	// PolicySource gives a policy from elsewhere, such as files; Policy comes on
	// top of it. Nil is for none.
	PolicySource ports.PolicySource
	// Tripwires says what becomes of a turn that plants what could run later.
	Tripwires TripwireMode
	// Sandbox says whether there must be one. The zero value is yes.
	Sandbox SandboxMode
	// DirectAPI lets the agent reach its model API by itself, with its own
	// credential, the network that this takes, and DNS. Otherwise, and if its
	// adapter can, it goes through the model gateway of its session. A session
	// without a sandbox has no gateway in any case.
	DirectAPI bool
	// CredentialFiles are files that hold a credential of the model API, by the
	// name of the variable that it could also be in. One that is named comes
	// before the environment; it is read for every request. A file that the plan
	// lets the agent read is refused.
	CredentialFiles map[string]string
	// Login names the agent's own login that it is to hold, in a copy that is in
	// its private state while a turn runs and is taken back after it if it was
	// renewed; DefaultLogin is the only one of most. The agent then reaches its API
	// by itself, and needs the network that this takes. "" is for none.
	Login string
}

// DefaultLogin is the name of an agent's only login.
const DefaultLogin = ports.DefaultLogin

// ExecRequest says which command to run.
type ExecRequest struct {
	// Argv is the command and its arguments. A name without a slash is looked
	// up on the host's PATH, in absolute entries only.
	Argv []string
	// Dir is the absolute path of the directory that the command starts in. It
	// is not granted by that.
	Dir string
	// Policy adds to what the preset grants. A limit on idle time is refused:
	// the command's output is not seen.
	Policy Policy
	// PolicySource is as of OpenRequest.
	PolicySource ports.PolicySource
	// Sandbox says whether there must be one. The zero value is yes.
	Sandbox SandboxMode
	// Stdio is what the command reads and writes.
	Stdio ports.Stdio
}

// TerminalRequest says what to run on a terminal of its own: a command, or with
// Agent the agent's own interface.
type TerminalRequest struct {
	// Argv is the command and its arguments, found as by ExecRequest. Empty is
	// $SHELL, or /bin/sh where that cannot be run. With Agent it must be empty.
	Argv []string
	// Agent is the agent, "" for a command. AgentBin and Model are as of
	// OpenRequest.
	Agent    domain.AgentKind
	AgentBin string
	Model    string
	// Workspace is the absolute path of the directory that the program starts
	// and works in. It is granted, as an agent's is.
	Workspace string
	// Policy adds to what the preset and the agent's adapter grant. A limit on
	// idle time is refused: a person may think.
	Policy Policy
	// PolicySource is as of OpenRequest.
	PolicySource ports.PolicySource
	// Sandbox says whether there must be one. The zero value is yes.
	Sandbox SandboxMode
	// DirectAPI, CredentialFiles and Login are as of OpenRequest, for an agent. A
	// login is lent for as long as the terminal is open.
	DirectAPI       bool
	CredentialFiles map[string]string
	Login           string
	// Size is the terminal's size at the start.
	Size ports.TerminalSize
}

// Policy is what a user adds to a preset; see [domain.Policy].
type Policy = domain.Policy

// TripwireMode says what becomes of a turn that plants what could run later; see
// [domain.TripwireMode].
type TripwireMode = domain.TripwireMode

// The modes of tripwires.
const (
	TripwiresReport = domain.TripwiresReport
	TripwiresFail   = domain.TripwiresFail
	TripwiresOff    = domain.TripwiresOff
)

// SandboxMode says whether a sandbox is required. The zero value requires one;
// the only other one is made by [SandboxOff].
type SandboxMode struct {
	off bool
	why string
}

// SandboxOff asks for no sandbox, for a reason that every receipt repeats. An
// empty reason is refused when the mode is used.
func SandboxOff(why string) SandboxMode { return SandboxMode{off: true, why: why} }

// String is "required" or "off".
func (m SandboxMode) String() string {
	if m.off {
		return "off"
	}
	return "required"
}

func (m SandboxMode) validate() error {
	if m.off && m.why == "" {
		return &domain.InvalidError{What: "sandbox", Value: "off", Reason: "no reason given", Remedy: "say why: every receipt repeats it"}
	}
	return nil
}
