package jsonl

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/caisson-run/caisson/domain"
)

// Decode reads one event back. Fields that it does not know are passed over, so
// that an older reader understands a newer writer; an unknown type is an error.
// What the wire does not carry stays zero: a signal's number, and fractions of
// a millisecond. Errors are of the type *domain.InvalidError.
func Decode(line []byte) (domain.Event, error) {
	var w wireEvent
	if err := json.Unmarshal(line, &w, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return domain.Event{}, invalid(line, "not a JSON object of an event", err)
	}
	session, err := domain.ParseSessionID(w.Session)
	if err != nil {
		return domain.Event{}, invalid(line, "its session is none", err)
	}
	reply, err := w.reply()
	if err != nil {
		return domain.Event{}, invalid(line, "its content is not right", err)
	}
	return domain.Event{
		Seq: w.Seq, Session: session, Turn: w.Turn, Time: w.Time.UTC(),
		Agent: domain.AgentKind(w.Agent), Reply: reply,
	}, nil
}

func invalid(line []byte, reason string, err error) error {
	return &domain.InvalidError{What: "event line", Value: string(line), Reason: reason, Err: err}
}

// wireEvent is the union of the fields of all events: no two events use one
// name for different shapes.
type wireEvent struct {
	Type    string    `json:"type"`
	Seq     uint64    `json:"seq"`
	Session string    `json:"session"`
	Turn    int       `json:"turn"`
	Time    time.Time `json:"time"`
	Agent   string    `json:"agent"`

	Receipt        *wireReceipt   `json:"receipt"`
	ConversationID string         `json:"conversation_id"`
	Model          string         `json:"model"`
	AgentVersion   string         `json:"agent_version"`
	Text           string         `json:"text"`
	Parent         string         `json:"parent"`
	ID             string         `json:"id"`
	Name           string         `json:"name"`
	Kind           string         `json:"kind"`
	Input          jsontext.Value `json:"input"`
	Output         string         `json:"output"`
	ElapsedMS      int64          `json:"elapsed_ms"`
	Status         string         `json:"status"`
	ExitCode       *int           `json:"exit_code"`
	Changes        []wireChange   `json:"changes"`
	Planted        []wirePlanted  `json:"planted"`
	Items          []wireItem     `json:"items"`
	RequestID      string         `json:"request_id"`
	ToolID         string         `json:"tool_id"`
	Tool           string         `json:"tool"`
	Decision       string         `json:"decision"`
	Reason         string         `json:"reason"`
	Usage          wireUsage      `json:"usage"`
	Source         string         `json:"source"`
	Requests       int64          `json:"requests"`
	Refused        int64          `json:"refused"`
	Failed         int64          `json:"failed"`
	Class          string         `json:"class"`
	Message        string         `json:"message"`
	Attempt        int            `json:"attempt"`
	DelayMS        int64          `json:"delay_ms"`
	Denied         *wireRefusal   `json:"denied"`
	Stream         string         `json:"stream"`
	Line           string         `json:"line"`
	AgentType      string         `json:"agent_type"`
	Event          jsontext.Value `json:"event"`
	Bytes          int64          `json:"bytes"`
	SHA256         string         `json:"sha256"`
	Head           string         `json:"head"`
	Outcome        string         `json:"outcome"`
	StopReason     string         `json:"stop_reason"`
	CostUSD        *float64       `json:"cost_usd"`
	Exit           *wireExit      `json:"exit"`
	Error          *wireError     `json:"error"`
	DurationMS     int64          `json:"duration_ms"`
	TotalUsage     *wireUsage     `json:"total_usage"`
}

type wirePlanted struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
	Runs string `json:"runs"`
}

type wireRefusal struct {
	Network string `json:"network"`
	Address string `json:"address"`
	Count   uint64 `json:"count"`
}

func (w *wireRefusal) refusal() domain.Refusal {
	if w == nil {
		return domain.Refusal{}
	}
	return domain.Refusal{Network: domain.Network(w.Network), Address: w.Address, Count: w.Count}
}

type wireChange struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
}

type wireItem struct {
	Text   string `json:"text"`
	Status string `json:"status"`
}

type wireUsage struct {
	InputTokens       int64 `json:"input_tokens"`
	CachedInputTokens int64 `json:"cached_input_tokens"`
	CacheWriteTokens  int64 `json:"cache_write_tokens"`
	OutputTokens      int64 `json:"output_tokens"`
	ReasoningTokens   int64 `json:"reasoning_tokens"`
}

type wireExit struct {
	Code   *int   `json:"code"`
	Signal string `json:"signal"`
}

type wireError struct {
	Class      string `json:"class"`
	Message    string `json:"message"`
	StderrTail string `json:"stderr_tail"`
	Retryable  bool   `json:"retryable"`
}

type wireReceipt struct {
	Unconfined       bool             `json:"unconfined"`
	Why              string           `json:"why"`
	Preset           string           `json:"preset"`
	Enforcer         string           `json:"enforcer"`
	ABI              int              `json:"abi"`
	Layers           []string         `json:"layers"`
	Properties       []wireProperty   `json:"properties"`
	Rules            []wireGranted    `json:"rules"`
	ConnectTCP       []uint16         `json:"connect_tcp"`
	Destinations     []netip.AddrPort `json:"destinations"`
	Domains          []string         `json:"domains"`
	UnixDestinations []string         `json:"unix_destinations"`
	BindTCP          []uint16         `json:"bind_tcp"`
	Open             []string         `json:"open"`
	Agent            []string         `json:"agent"`
	PlanDigest       string           `json:"plan_digest"`
	Tree             string           `json:"tree"`
	InheritedFDs     bool             `json:"inherited_fds"`
	Probe            wireProbe        `json:"probe"`
}

type wireProbe struct {
	Skipped string           `json:"skipped"`
	Checks  []wireProbeCheck `json:"checks"`
}

type wireProbeCheck struct {
	Attempt string `json:"attempt"`
	Target  string `json:"target"`
	Result  string `json:"result"`
	Detail  string `json:"detail"`
}

type wireProperty struct {
	Property  string `json:"property"`
	State     string `json:"state"`
	Mechanism string `json:"mechanism"`
	Detail    string `json:"detail"`
}

type wireGranted struct {
	Path      string   `json:"path"`
	Canonical string   `json:"canonical"`
	Access    []string `json:"access"`
	Skipped   string   `json:"skipped"`
	Why       string   `json:"why"`
}

func (w wireEvent) reply() (domain.ReplyEvent, error) {
	switch w.Type {
	case "sandbox":
		if w.Receipt == nil {
			return nil, fmt.Errorf("no receipt")
		}
		receipt, err := w.Receipt.domain()
		return domain.SandboxApplied{Receipt: receipt}, err
	case "session":
		return domain.ConversationStarted{ConversationID: w.ConversationID, Model: w.Model, AgentVersion: w.AgentVersion}, nil
	case "text":
		return domain.Text{Text: w.Text, Parent: w.Parent}, nil
	case "text_delta":
		return domain.TextDelta{Text: w.Text, Parent: w.Parent}, nil
	case "thinking":
		return domain.Thinking{Text: w.Text, Parent: w.Parent}, nil
	case "tool_call":
		return domain.ToolCall{ID: w.ID, Name: w.Name, Kind: domain.ToolKind(w.Kind), Input: orNil(w.Input), Parent: w.Parent}, nil
	case "tool_update":
		return domain.ToolUpdate{ID: w.ID, Output: w.Output, Elapsed: millis(w.ElapsedMS), Parent: w.Parent}, nil
	case "tool_result":
		return domain.ToolResult{ID: w.ID, Status: domain.ToolStatus(w.Status), Output: w.Output, ExitCode: w.ExitCode, Parent: w.Parent}, nil
	case "file_change":
		c := domain.FileChange{ID: w.ID, Status: domain.ToolStatus(w.Status), Parent: w.Parent}
		for _, e := range w.Changes {
			c.Changes = append(c.Changes, domain.FileEdit(e))
		}
		return c, nil
	case "todo":
		var t domain.Todo
		for _, i := range w.Items {
			t.Items = append(t.Items, domain.TodoItem(i))
		}
		return t, nil
	case "permission":
		return domain.Permission{
			RequestID: w.RequestID, ToolID: w.ToolID, Tool: w.Tool, Input: orNil(w.Input),
			Decision: w.Decision, Reason: w.Reason,
		}, nil
	case "usage":
		u := domain.UsageReport{Usage: domain.Usage(w.Usage)}
		if w.Source == "gateway" {
			u.Gateway = &domain.GatewayTraffic{Requests: w.Requests, Refused: w.Refused, Failed: w.Failed}
		}
		return u, nil
	case "tripwires":
		var t domain.Tripwires
		for _, p := range w.Planted {
			t.Changes = append(t.Changes, domain.Planted(p))
		}
		return t, nil
	case "notice":
		return domain.Notice{
			Class: domain.NoticeClass(w.Class), Message: w.Message, Attempt: w.Attempt, Delay: millis(w.DelayMS), Refused: w.Denied.refusal(),
		}, nil
	case "log":
		return domain.Log{Stream: w.Stream, Line: w.Line}, nil
	case "raw":
		return domain.Raw{Type: w.AgentType, JSON: orNil(w.Event)}, nil
	case "oversize":
		return domain.Oversize{Bytes: w.Bytes, SHA256: w.SHA256, Head: []byte(w.Head)}, nil
	case "final":
		return w.final(), nil
	}
	return nil, fmt.Errorf("unknown type %q", w.Type)
}

func (w wireEvent) final() domain.Final {
	f := domain.Final{
		Outcome: domain.Outcome(w.Outcome), StopReason: domain.StopReason(w.StopReason), Text: w.Text,
		Usage: domain.Usage(w.Usage), CostUSD: w.CostUSD, ConversationID: w.ConversationID,
		Duration: millis(w.DurationMS),
	}
	if e := w.Exit; e != nil {
		f.Exit = domain.ExitStatus{Known: true, Code: -1, Signal: e.Signal}
		if e.Code != nil {
			f.Exit.Code = *e.Code
		}
	}
	if w.Error != nil {
		e := domain.TurnError(*w.Error)
		f.Error = &e
	}
	if w.TotalUsage != nil {
		u := domain.Usage(*w.TotalUsage)
		f.TotalUsage = &u
	}
	return f
}

func (w wireReceipt) domain() (domain.Receipt, error) {
	r := domain.Receipt{
		Unconfined: w.Unconfined, Why: w.Why, Preset: w.Preset, Enforcer: w.Enforcer, ABI: w.ABI,
		Layers: someOrNil(w.Layers), ConnectTCP: someOrNil(w.ConnectTCP), Destinations: someOrNil(w.Destinations), Domains: someOrNil(w.Domains), UnixDestinations: someOrNil(w.UnixDestinations), BindTCP: someOrNil(w.BindTCP),
		Open: someOrNil(w.Open), Agent: someOrNil(w.Agent), PlanDigest: w.PlanDigest,
		Tree: domain.TreeControl(w.Tree), InheritedFDs: w.InheritedFDs,
		Probe: domain.Probe{Skipped: w.Probe.Skipped},
	}
	for _, c := range w.Probe.Checks {
		r.Probe.Checks = append(r.Probe.Checks, domain.ProbeCheck{
			Attempt: domain.ProbeAttempt(c.Attempt), Target: c.Target, Result: domain.ProbeResult(c.Result), Detail: c.Detail,
		})
	}
	for _, p := range w.Properties {
		r.Properties = append(r.Properties, domain.PropertyStatus{
			Property: domain.Property(p.Property), State: domain.PropertyState(p.State),
			Mechanism: p.Mechanism, Detail: p.Detail,
		})
	}
	for _, g := range w.Rules {
		rule := domain.GrantedRule{Path: g.Path, Canonical: g.Canonical, Skipped: g.Skipped, Why: g.Why}
		for _, name := range g.Access {
			right := domain.RightOf(name)
			if right == 0 {
				return domain.Receipt{}, fmt.Errorf("unknown access right %q", name)
			}
			rule.Access |= right
		}
		r.Rules = append(r.Rules, rule)
	}
	return r, nil
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// orNil maps JSON null, which stands for an input that was not there, to nil.
func orNil(v jsontext.Value) []byte {
	if v == nil || v.Kind() == 'n' {
		return nil
	}
	return v
}

func someOrNil[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}
