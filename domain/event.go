package domain

import "time"

// ReplyEvent is one normalized thing that an agent said or did, or that
// Caisson found out about a turn. It is a sealed sum: the types below are all
// there are, so a switch over them can be checked for completeness. What an
// agent reports is the agent's claim; facts are [SandboxApplied], a
// [UsageReport] of the gateway's, the exit status in [Final] and the times.
//
//sumtype:decl
type ReplyEvent interface {
	// EventType is the name on the wire: "text", "tool_call", …
	EventType() string
	reply()
}

// Event is a reply event with its place in the session, as the application
// gives it out.
type Event struct {
	Seq     uint64 // 1, 2, 3 … without gaps per session
	Session SessionID
	Turn    int // from 1
	Time    time.Time
	Agent   AgentKind
	Reply   ReplyEvent
}

// SandboxApplied is the receipt; always the first event of a turn.
type SandboxApplied struct{ Receipt Receipt }

// ConversationStarted carries the agent's own id of the conversation.
type ConversationStarted struct {
	ConversationID string
	Model          string
	AgentVersion   string
}

// Text is one complete block of the assistant's text.
type Text struct {
	Text   string
	Parent string // the tool call that a subagent's text belongs to
}

// TextDelta is a piece of a text block that is still being written.
type TextDelta struct {
	Text   string
	Parent string
}

// Thinking is one block of the model's reasoning, as far as it is shown.
type Thinking struct {
	Text   string
	Parent string
}

// ToolKind classifies a tool by the kinds of the Agent Client Protocol.
type ToolKind string

// The kinds (agentclientprotocol.com, schema "ToolKind").
const (
	ToolRead    ToolKind = "read"
	ToolEdit    ToolKind = "edit"
	ToolDelete  ToolKind = "delete"
	ToolMove    ToolKind = "move"
	ToolSearch  ToolKind = "search"
	ToolExecute ToolKind = "execute"
	ToolThink   ToolKind = "think"
	ToolFetch   ToolKind = "fetch"
	ToolOther   ToolKind = "other"
)

// ToolCall is a tool that the agent starts.
type ToolCall struct {
	ID     string // unique within the turn
	Name   string
	Kind   ToolKind
	Input  []byte // JSON, or nil
	Parent string
}

// ToolUpdate is progress of a running tool call.
type ToolUpdate struct {
	ID      string
	Output  string
	Elapsed time.Duration
	Parent  string
}

// ToolStatus is how a tool call ended.
type ToolStatus string

// The ends of a tool call.
const (
	ToolCompleted ToolStatus = "completed"
	ToolFailed    ToolStatus = "failed"
	ToolDenied    ToolStatus = "denied"
)

// ToolResult is the end of a tool call.
type ToolResult struct {
	ID       string
	Status   ToolStatus
	Output   string
	ExitCode *int // of a command, if the agent says it
	Parent   string
}

// FileEdit is one changed file.
type FileEdit struct {
	Path string
	Kind string // "add", "update", "delete"
}

// FileChange says that the agent changed files through its own tool.
type FileChange struct {
	ID      string // of the tool call
	Status  ToolStatus
	Changes []FileEdit
	Parent  string
}

// TodoItem is one entry of the agent's plan.
type TodoItem struct {
	Text   string
	Status string // "pending", "in_progress", "completed"
}

// Todo is the agent's plan, whole.
type Todo struct{ Items []TodoItem }

// Permission is a request of the agent for permission, or the decision on one.
type Permission struct {
	RequestID string
	ToolID    string
	Tool      string
	Input     []byte // JSON, or nil
	Decision  string // "" for a request, "allow" or "deny"
	Reason    string
}

// UsageReport gives the tokens of the turn so far: as the agent claims, or, with
// Gateway, as the model gateway counted them in the API's answers.
type UsageReport struct {
	Usage Usage
	// Gateway is what passed through the model gateway; nil in a report of the
	// agent's. No parser sets it.
	Gateway *GatewayTraffic
}

// GatewayTraffic counts the requests of a turn to the model gateway.
type GatewayTraffic struct {
	Requests int64 // went on to the model API
	Refused  int64 // were answered by the gateway: a path, method or token that is not the agent's, or no credential
	Failed   int64 // of Requests: those that the API answered with an error, or that did not reach it
}

// Sub returns t − v, field by field.
func (t GatewayTraffic) Sub(v GatewayTraffic) GatewayTraffic {
	return GatewayTraffic{t.Requests - v.Requests, t.Refused - v.Refused, t.Failed - v.Failed}
}

// NoticeClass classifies a notice.
type NoticeClass string

// The classes.
const (
	NoticeRetry      NoticeClass = "retry"
	NoticeRateLimit  NoticeClass = "rate_limit"
	NoticeCompaction NoticeClass = "compaction"
	NoticeWarning    NoticeClass = "warning"
	NoticeInfo       NoticeClass = "info"
	// NoticeDenial: a permission error that a tool printed is the plan's doing, or a
	// connection was refused. It is Caisson's own.
	NoticeDenial NoticeClass = "denial"
	// NoticeEgress: the egress proxy of the session allowed or refused a connection.
	// It is Caisson's own.
	NoticeEgress NoticeClass = "egress"
)

// Notice is something that the agent tells about its own working, the model
// gateway about the agent's requests, or Caisson about a denial.
type Notice struct {
	Class   NoticeClass
	Message string
	Attempt int           // of a retry, from 1
	Delay   time.Duration // until the retry
	// Refused is the connection that a denial is about; the zero value for every
	// other notice.
	Refused Refusal
}

// Planted is one change of a file from which something runs code later, outside of
// any sandbox.
type Planted struct {
	Path string // in the workspace, slash-separated
	Kind string // "add", "update", "delete"
	Runs string // what runs it, and when
}

// Tripwires lists what a turn has changed of such files. It comes before the
// final, and only if there is something in it.
type Tripwires struct{ Changes []Planted }

// Log is a line that is no event of the agent's protocol.
type Log struct {
	Stream string // "stdout" or "stderr"
	Line   string // invalid UTF-8 replaced
}

// Raw is a valid event of the agent's that Caisson does not know, verbatim.
type Raw struct {
	Type string // the agent's name for it, "" if it has none
	JSON []byte
}

// Oversize replaces a line that is longer than the cap.
type Oversize struct {
	Bytes  int64
	SHA256 string // of the whole line, hexadecimal
	Head   []byte // its first bytes
}

// EventType returns "sandbox".
func (SandboxApplied) EventType() string { return "sandbox" }

// EventType returns "session".
func (ConversationStarted) EventType() string { return "session" }

// EventType returns "text".
func (Text) EventType() string { return "text" }

// EventType returns "text_delta".
func (TextDelta) EventType() string { return "text_delta" }

// EventType returns "thinking".
func (Thinking) EventType() string { return "thinking" }

// EventType returns "tool_call".
func (ToolCall) EventType() string { return "tool_call" }

// EventType returns "tool_update".
func (ToolUpdate) EventType() string { return "tool_update" }

// EventType returns "tool_result".
func (ToolResult) EventType() string { return "tool_result" }

// EventType returns "file_change".
func (FileChange) EventType() string { return "file_change" }

// EventType returns "todo".
func (Todo) EventType() string { return "todo" }

// EventType returns "permission".
func (Permission) EventType() string { return "permission" }

// EventType returns "usage".
func (UsageReport) EventType() string { return "usage" }

// EventType returns "notice".
func (Notice) EventType() string { return "notice" }

// EventType returns "tripwires".
func (Tripwires) EventType() string { return "tripwires" }

// EventType returns "log".
func (Log) EventType() string { return "log" }

// EventType returns "raw".
func (Raw) EventType() string { return "raw" }

// EventType returns "oversize".
func (Oversize) EventType() string { return "oversize" }

// EventType returns "final".
func (Final) EventType() string { return "final" }

func (SandboxApplied) reply()      {}
func (ConversationStarted) reply() {}
func (Text) reply()                {}
func (TextDelta) reply()           {}
func (Thinking) reply()            {}
func (ToolCall) reply()            {}
func (ToolUpdate) reply()          {}
func (ToolResult) reply()          {}
func (FileChange) reply()          {}
func (Todo) reply()                {}
func (Permission) reply()          {}
func (UsageReport) reply()         {}
func (Notice) reply()              {}
func (Tripwires) reply()           {}
func (Log) reply()                 {}
func (Raw) reply()                 {}
func (Oversize) reply()            {}
func (Final) reply()               {}
