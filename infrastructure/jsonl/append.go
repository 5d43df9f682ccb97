package jsonl

import (
	"bytes"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// timeLayout has a fixed width, so that times sort as text.
const timeLayout = "2006-01-02T15:04:05.000000000Z07:00"

// AppendEvent appends the event as one line, its newline included, and returns
// the extended buffer. It cannot fail. A Reply that is nil, or of a type that
// this package does not know, is written with the common fields alone.
func AppendEvent(dst []byte, e domain.Event) []byte {
	start := len(dst)
	o := object(append(dst, '{'))
	name := ""
	if e.Reply != nil {
		name = e.Reply.EventType()
	}
	o.str("type", name)
	o.uint("seq", e.Seq)
	o.str("session", string(e.Session))
	o.int("turn", int64(e.Turn))
	o.time("time", e.Time)
	o.str("agent", string(e.Agent))
	o.reply(e.Reply)
	return endLine(o, start)
}

// reply writes the event's own fields.
func (o *object) reply(r domain.ReplyEvent) {
	switch r := r.(type) {
	case domain.SandboxApplied:
		o.key("receipt")
		o.receipt(r.Receipt)
	case domain.ConversationStarted:
		o.str("conversation_id", r.ConversationID)
		o.str("model", r.Model)
		o.str("agent_version", r.AgentVersion)
	case domain.Text:
		o.str("text", r.Text)
		o.parent(r.Parent)
	case domain.TextDelta:
		o.str("text", r.Text)
		o.parent(r.Parent)
	case domain.Thinking:
		o.str("text", r.Text)
		o.parent(r.Parent)
	case domain.ToolCall:
		o.str("id", r.ID)
		o.str("name", r.Name)
		o.str("kind", string(r.Kind))
		o.raw("input", r.Input)
		o.parent(r.Parent)
	case domain.ToolUpdate:
		o.str("id", r.ID)
		o.str("output", r.Output)
		o.int("elapsed_ms", r.Elapsed.Milliseconds())
		o.parent(r.Parent)
	case domain.ToolResult:
		o.str("id", r.ID)
		o.str("status", string(r.Status))
		o.str("output", r.Output)
		if o.key("exit_code"); r.ExitCode != nil {
			*o = strconv.AppendInt(*o, int64(*r.ExitCode), 10)
		} else {
			o.null()
		}
		o.parent(r.Parent)
	case domain.FileChange:
		o.str("id", r.ID)
		o.str("status", string(r.Status))
		o.open("changes", '[')
		for _, c := range r.Changes {
			o.open("", '{')
			o.str("path", c.Path)
			o.str("kind", c.Kind)
			o.close('}')
		}
		o.close(']')
		o.parent(r.Parent)
	case domain.Todo:
		o.open("items", '[')
		for _, i := range r.Items {
			o.open("", '{')
			o.str("text", i.Text)
			o.str("status", i.Status)
			o.close('}')
		}
		o.close(']')
	case domain.Permission:
		o.str("request_id", r.RequestID)
		o.str("tool_id", r.ToolID)
		o.str("tool", r.Tool)
		o.raw("input", r.Input)
		o.orNull("decision", r.Decision)
		o.str("reason", r.Reason)
	case domain.UsageReport:
		o.key("usage")
		o.usage(r.Usage)
		if g := r.Gateway; g != nil {
			o.str("source", "gateway")
			o.int("requests", g.Requests)
			o.int("refused", g.Refused)
			o.int("failed", g.Failed)
		}
	case domain.Notice:
		o.str("class", string(r.Class))
		o.str("message", r.Message)
		o.int("attempt", int64(r.Attempt))
		o.int("delay_ms", r.Delay.Milliseconds())
		if o.key("denied"); r.Refused != (domain.Refusal{}) {
			o.open("", '{')
			o.orNull("network", string(r.Refused.Network))
			o.orNull("address", r.Refused.Address)
			o.int("count", int64(r.Refused.Count))
			o.close('}')
		} else {
			o.null()
		}
	case domain.Tripwires:
		o.open("planted", '[')
		for _, c := range r.Changes {
			o.open("", '{')
			o.str("path", c.Path)
			o.str("kind", c.Kind)
			o.str("runs", c.Runs)
			o.close('}')
		}
		o.close(']')
	case domain.Log:
		o.str("stream", r.Stream)
		o.str("line", r.Line)
	case domain.Raw:
		o.orNull("agent_type", r.Type)
		o.raw("event", r.JSON)
	case domain.Oversize:
		o.int("bytes", r.Bytes)
		o.str("sha256", r.SHA256)
		o.str("head", string(r.Head))
	case domain.Final:
		o.final(r)
	}
}

func (o *object) final(f domain.Final) {
	o.str("outcome", string(f.Outcome))
	o.orNull("stop_reason", string(f.StopReason))
	o.str("text", f.Text)
	o.key("usage")
	o.usage(f.Usage)
	if o.key("cost_usd"); f.CostUSD != nil && !math.IsNaN(*f.CostUSD) && !math.IsInf(*f.CostUSD, 0) {
		*o = jsontext.AppendFloat(*o, *f.CostUSD, 64)
	} else {
		o.null()
	}
	o.orNull("conversation_id", f.ConversationID)
	o.key("exit")
	o.exit(f.Exit)
	if o.key("error"); f.Error != nil {
		o.open("", '{')
		o.str("class", f.Error.Class)
		o.str("message", f.Error.Message)
		o.str("stderr_tail", f.Error.StderrTail)
		o.bool("retryable", f.Error.Retryable)
		o.close('}')
	} else {
		o.null()
	}
	o.int("duration_ms", f.Duration.Milliseconds())
	if o.key("total_usage"); f.TotalUsage != nil {
		o.usage(*f.TotalUsage)
	} else {
		o.null()
	}
}

func (o *object) exit(e domain.ExitStatus) {
	switch {
	case !e.Known:
		o.null()
	case e.Signal != "":
		o.open("", '{')
		o.str("signal", e.Signal)
		o.close('}')
	default:
		o.open("", '{')
		o.int("code", int64(e.Code))
		o.close('}')
	}
}

func (o *object) usage(u domain.Usage) {
	o.open("", '{')
	o.int("input_tokens", u.InputTokens)
	o.int("cached_input_tokens", u.CachedInputTokens)
	o.int("cache_write_tokens", u.CacheWriteTokens)
	o.int("output_tokens", u.OutputTokens)
	o.int("reasoning_tokens", u.ReasoningTokens)
	o.close('}')
}

func (o *object) receipt(r domain.Receipt) {
	o.open("", '{')
	o.bool("unconfined", r.Unconfined)
	o.str("why", r.Why)
	o.str("preset", r.Preset)
	o.str("enforcer", r.Enforcer)
	o.int("abi", int64(r.ABI))
	o.strs("layers", r.Layers)
	o.properties("properties", r.Properties)
	o.open("rules", '[')
	for _, g := range r.Rules {
		o.open("", '{')
		o.str("path", g.Path)
		o.orNull("canonical", g.Canonical)
		o.access("access", g.Access)
		o.orNull("skipped", g.Skipped)
		o.str("why", g.Why)
		o.close('}')
	}
	o.close(']')
	o.ports("connect_tcp", r.ConnectTCP)
	o.destinations(r.Destinations)
	o.strs("domains", r.Domains)
	o.strs("unix_destinations", r.UnixDestinations)
	o.ports("bind_tcp", r.BindTCP)
	o.strs("open", r.Open)
	o.strs("agent", r.Agent)
	o.str("plan_digest", r.PlanDigest)
	o.str("tree", string(r.Tree))
	o.bool("inherited_fds", r.InheritedFDs)
	o.open("probe", '{')
	o.orNull("skipped", r.Probe.Skipped)
	o.open("checks", '[')
	for _, c := range r.Probe.Checks {
		o.open("", '{')
		o.str("attempt", string(c.Attempt))
		o.orNull("target", c.Target)
		o.str("result", string(c.Result))
		o.str("detail", c.Detail)
		o.close('}')
	}
	o.close(']')
	o.close('}')
	o.close('}')
}

func (o *object) properties(name string, ps []domain.PropertyStatus) {
	o.open(name, '[')
	for _, p := range ps {
		o.open("", '{')
		o.str("property", string(p.Property))
		o.str("state", string(p.State))
		o.str("mechanism", p.Mechanism)
		o.str("detail", p.Detail)
		o.close('}')
	}
	o.close(']')
}

func (o *object) access(name string, a domain.Access) {
	o.strs(name, a.Names())
}

// AppendExplanation appends the answer to a question about a plan as one line of
// type "explanation".
func AppendExplanation(dst []byte, e domain.Explanation) []byte {
	o := object(append(dst, '{'))
	o.str("type", "explanation")
	o.str("question", e.Question)
	o.bool("allowed", e.Allowed)
	o.str("because", e.Because)
	o.open("needs", '[')
	for _, n := range e.Needs {
		o.open("", '{')
		o.str("place", n.Place)
		o.access("access", n.Access)
		o.access("missing", n.Missing)
		o.rules("rules", n.Rules)
		o.orNull("detail", n.Detail)
		o.close('}')
	}
	o.close(']')
	o.open("change", '{')
	o.rules("rules", e.Change.Rules)
	o.ports("connect_tcp", e.Change.ConnectTCP)
	o.destinations(e.Change.Destinations)
	o.domains(e.Change.Domains)
	o.strs("unix_destinations", e.Change.UnixDestinations)
	o.str("unix_sockets", e.Change.UnixSockets.String())
	o.close('}')
	o.strs("notes", e.Notes)
	return append(o, '}', '\n')
}

func (o *object) destinations(list []netip.AddrPort) {
	o.open("destinations", '[')
	for _, d := range list {
		o.str("", d.String())
	}
	o.close(']')
}

func (o *object) domains(list []domain.EgressDomain) {
	o.open("domains", '[')
	for _, d := range list {
		o.str("", d.String())
	}
	o.close(']')
}

func (o *object) rules(name string, rules []domain.PathRule) {
	o.open(name, '[')
	for _, r := range rules {
		o.open("", '{')
		o.str("path", r.Path)
		o.access("access", r.Access)
		o.str("presence", r.Presence.String())
		o.str("why", r.Why)
		o.close('}')
	}
	o.close(']')
}

// AppendSession appends what is known of a stored session as one line, its
// newline included, and returns the extended buffer. It cannot fail. unsettled is
// why its last turn could not be settled, "" if there is nothing to settle.
func AppendSession(dst []byte, r domain.SessionRecord, running bool, unsettled string) []byte {
	start := len(dst)
	o := object(append(dst, '{'))
	o.str("type", "session_info")
	o.str("session", string(r.ID))
	o.str("agent", string(r.Kind))
	o.str("workspace", r.Workspace)
	o.bool("running", running)
	o.orNull("unsettled", unsettled)
	o.orNull("outcome", string(r.Outcome))
	o.orNull("prompt", r.Prompt)
	o.int("turns", int64(r.Turns))
	o.uint("last_seq", r.LastSeq)
	o.orNull("conversation_id", r.ConversationID)
	o.strs("lineage", r.Lineage)
	o.key("total_usage")
	o.usage(r.Total)
	o.time("opened", r.Opened)
	o.time("updated", r.Updated)
	o.uint("epoch", r.Epoch)
	o.str("plan_digest", r.PlanDigest)
	o.strs("grants", r.Grants)
	return endLine(o, start)
}

// AppendLogin appends what can be shown of a login that is kept, as one line of
// type "login". It cannot fail.
func AppendLogin(dst []byte, l ports.Login) []byte {
	start := len(dst)
	o := object(append(dst, '{'))
	o.str("type", "login")
	o.str("agent", string(l.ID.Agent))
	o.str("name", l.ID.Name)
	o.time("kept", l.Kept)
	o.time("expires", l.Expires)
	return endLine(o, start)
}

// AppendPlan appends the plan as one line of type "plan", with the notes that
// its receipts would have of the agent. Values of environment variables are not
// in it: a plan is made to be shown.
func AppendPlan(dst []byte, p domain.SandboxPlan, agent []string) []byte {
	start := len(dst)
	o := object(append(dst, '{'))
	o.str("type", "plan")
	o.str("digest", p.Digest())
	o.bool("unconfined", p.IsUnconfined())
	o.str("why", p.Why())
	o.str("preset", p.Preset())
	o.rules("rules", p.Rules())
	o.ports("connect_tcp", p.ConnectTCP())
	o.destinations(p.Destinations())
	o.strs("domains", p.EgressNames())
	o.strs("unix_destinations", p.UnixDestinations())
	_, gateway := p.ModelGateway()
	o.bool("model_gateway", gateway)
	o.ports("bind_tcp", p.BindTCP())
	o.bool("udp", p.UDP())
	o.str("unix_sockets", p.UnixSockets().String())
	o.open("env", '[')
	for _, e := range p.Env() {
		source := "host"
		if e.Literal {
			source = "literal"
		}
		o.variable(e, source)
	}
	for _, e := range p.EgressEnv() {
		o.variable(e, "egress")
	}
	for _, e := range p.GatewayEnv() {
		o.variable(e, "gateway")
	}
	o.close(']')
	l := p.Limits()
	o.open("limits", '{')
	o.uint("memory_bytes", l.MemoryBytes)
	o.uint("pids", l.Pids)
	o.key("cpus")
	o = jsontext.AppendFloat(o, l.CPUs, 64)
	o.int("wall_clock_ms", l.WallClock.Milliseconds())
	o.int("idle_ms", l.Idle.Milliseconds())
	o.close('}')
	o.open("waivers", '[')
	for _, w := range p.Waivers() {
		o.str("", string(w))
	}
	o.close(']')
	o.open("origins", '{')
	origins := p.Origins()
	for _, grant := range slices.Sorted(maps.Keys(origins)) {
		o.str(grant, origins[grant])
	}
	o.close('}')
	o.strs("agent", agent)
	return endLine(o, start)
}

// variable writes a variable of a plan, without its value.
func (o *object) variable(e domain.EnvRule, source string) {
	o.open("", '{')
	o.str("name", e.Name)
	o.str("source", source)
	o.bool("secret", e.Secret)
	o.str("why", e.Why)
	o.close('}')
}

// Doctor is what an examination of the host found.
type Doctor struct {
	OS       string // as in runtime.GOOS
	Kernel   string // its release, "" if unknown
	Enforcer string // "landlock", …
	ABI      int    // of Landlock, 0 if there is none
	// Preset names the plan that Properties are about.
	Preset     string
	Properties []domain.PropertyStatus
	Agents     []DoctorAgent
	Proof      Proof
	State      DoctorState
}

// DoctorAgent is one agent that was looked for.
type DoctorAgent struct {
	Kind    domain.AgentKind
	Path    string // "" if it was not found
	Version string
	Error   string // why it was not found
}

// DoctorState is what became of an attempt to write in the state directory.
type DoctorState struct {
	Path  string // "" if there is none
	Error string // why nothing can be kept there, "" if it can
}

// Proof is the result of a confined child's two attempts, and of the same
// second attempt without the sandbox.
type Proof struct {
	Allowed    bool   // it wrote where the plan lets it
	Denied     bool   // it could not write elsewhere
	Unconfined bool   // without the sandbox it could, so the sandbox was the reason
	Error      string // why the proof could not be made, "" if it could
}

// Holds reports whether everything was as it must be.
func (p Proof) Holds() bool { return p.Allowed && p.Denied && p.Unconfined && p.Error == "" }

// AppendDoctor appends the report as one line of type "doctor".
func AppendDoctor(dst []byte, d Doctor) []byte {
	start := len(dst)
	o := object(append(dst, '{'))
	o.str("type", "doctor")
	o.str("os", d.OS)
	o.str("kernel", d.Kernel)
	o.str("enforcer", d.Enforcer)
	o.int("abi", int64(d.ABI))
	o.str("preset", d.Preset)
	o.properties("properties", d.Properties)
	o.open("agents", '[')
	for _, a := range d.Agents {
		o.open("", '{')
		o.str("agent", string(a.Kind))
		o.orNull("path", a.Path)
		o.orNull("version", a.Version)
		o.orNull("error", a.Error)
		o.close('}')
	}
	o.close(']')
	o.open("proof", '{')
	o.bool("allowed", d.Proof.Allowed)
	o.bool("denied", d.Proof.Denied)
	o.bool("unconfined", d.Proof.Unconfined)
	o.orNull("error", d.Proof.Error)
	o.bool("holds", d.Proof.Holds())
	o.close('}')
	o.open("state", '{')
	o.orNull("path", d.State.Path)
	o.orNull("error", d.State.Error)
	o.close('}')
	return endLine(o, start)
}

// DemoStep is the result of one step of the demonstration.
type DemoStep struct {
	Step     string // a short name
	Shows    string // what it shows, one sentence
	Checks   []DemoCheck
	Duration time.Duration
}

// DemoCheck is one expectation of a step.
type DemoCheck struct {
	Expect string
	Pass   bool
	Detail string // what was found, if it was not as expected
}

// Pass reports whether every check passed; a step without checks shows nothing.
func (s DemoStep) Pass() bool {
	for _, c := range s.Checks {
		if !c.Pass {
			return false
		}
	}
	return len(s.Checks) > 0
}

// AppendDemoStep appends the step as one line of type "demo".
func AppendDemoStep(dst []byte, s DemoStep) []byte {
	start := len(dst)
	o := object(append(dst, '{'))
	o.str("type", "demo")
	o.str("step", s.Step)
	o.str("shows", s.Shows)
	o.bool("pass", s.Pass())
	o.open("checks", '[')
	for _, c := range s.Checks {
		o.open("", '{')
		o.str("expect", c.Expect)
		o.bool("pass", c.Pass)
		o.str("detail", c.Detail)
		o.close('}')
	}
	o.close(']')
	o.int("duration_ms", s.Duration.Milliseconds())
	return endLine(o, start)
}

// object is JSON text under construction. A comma is due unless the last byte
// opens an object or an array, or ends a key.
type object []byte

func (o *object) comma() {
	if b := (*o)[len(*o)-1]; b != '{' && b != '[' && b != ':' {
		*o = append(*o, ',')
	}
}

// key writes the key of the next member; "" is an array's next element, or a
// value whose key is already there.
func (o *object) key(name string) {
	o.comma()
	if name != "" {
		*o = append(*o, '"')
		*o = append(*o, name...)
		*o = append(*o, '"', ':')
	}
}

func (o *object) open(name string, bracket byte) {
	o.key(name)
	*o = append(*o, bracket)
}

func (o *object) close(bracket byte) { *o = append(*o, bracket) }

func (o *object) null() { *o = append(*o, "null"...) }

func (o *object) str(name, value string) {
	o.key(name)
	// The error only says that invalid UTF-8 was replaced, which is wanted.
	*o, _ = jsontext.AppendQuote(*o, value)
}

func (o *object) orNull(name, value string) {
	if value != "" {
		o.str(name, value)
		return
	}
	o.key(name)
	o.null()
}

func (o *object) parent(id string) {
	if id != "" {
		o.str("parent", id)
	}
}

// time writes null for the zero time.
func (o *object) time(name string, t time.Time) {
	if o.key(name); t.IsZero() {
		o.null()
		return
	}
	*o = append(*o, '"')
	*o = t.UTC().AppendFormat(*o, timeLayout)
	*o = append(*o, '"')
}

func (o *object) int(name string, v int64) {
	o.key(name)
	*o = strconv.AppendInt(*o, v, 10)
}

func (o *object) uint(name string, v uint64) {
	o.key(name)
	*o = strconv.AppendUint(*o, v, 10)
}

func (o *object) bool(name string, v bool) {
	o.key(name)
	*o = strconv.AppendBool(*o, v)
}

func (o *object) strs(name string, values []string) {
	o.open(name, '[')
	for _, v := range values {
		o.str("", v)
	}
	o.close(']')
}

func (o *object) ports(name string, values []uint16) {
	o.open(name, '[')
	for _, v := range values {
		o.uint("", uint64(v))
	}
	o.close(']')
}

// raw writes JSON as it came, compacted; nil is null, and what is no valid JSON
// becomes a string.
func (o *object) raw(name string, value []byte) {
	o.key(name)
	if value == nil {
		o.null()
		return
	}
	start := len(*o)
	out, err := jsontext.AppendFormat(*o, value, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if err != nil {
		out, _ = jsontext.AppendQuote(out[:start], value)
	}
	*o = out
}

// endLine closes the object that began at start and ends its line. It is also
// where characters that could act on a terminal are escaped: in valid JSON a
// byte above 0x7e can only stand inside a string, so the escape may be put in
// its place wherever it is.
func endLine(o object, start int) []byte {
	b := append(o, '}')
	first := start + firstSuspect(b[start:])
	if first < len(b) {
		tail := bytes.Clone(b[first:])
		b = b[:first]
		for len(tail) > 0 {
			r, n := utf8.DecodeRune(tail)
			if Harmless(r) {
				b = append(b, tail[:n]...)
			} else {
				b = appendEscape(b, r)
			}
			tail = tail[n:]
		}
	}
	return append(b, '\n')
}

// firstSuspect returns the index of the first character that is not harmless,
// or the length.
func firstSuspect(b []byte) int {
	for i := 0; i < len(b); {
		if b[i] < 0x7f {
			i++
			continue
		}
		r, n := utf8.DecodeRune(b[i:])
		if !Harmless(r) {
			return i
		}
		i += n
	}
	return len(b)
}

// Harmless reports whether a character can be shown on a terminal as it is: it
// has a shape of its own, or is one of the two joiners that scripts and emoji
// need. Everything else (controls, bidirectional and other invisible formats,
// line separators, unassigned code points) could hide or move what is shown.
func Harmless(r rune) bool {
	return unicode.IsGraphic(r) || r == '\u200c' || r == '\u200d'
}

const hexDigits = "0123456789abcdef"

func appendEscape(b []byte, r rune) []byte {
	if r > 0xffff {
		r -= 0x10000
		b = appendEscape(b, 0xd800+r>>10)
		r = 0xdc00 + r&0x3ff
	}
	return append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// VerifyItem is one thing that was verified: an attempt of the escape suite, or
// an invariant.
type VerifyItem struct {
	Suite    string // "escape" or "invariants"
	Class    string // of an attempt, "" for an invariant
	Name     string
	Property domain.Property // "" if it is about none
	Verdict  string
	Detail   string
	Holds    bool
}

// AppendVerifyItem appends the item as one line of type "verify_item".
func AppendVerifyItem(dst []byte, v VerifyItem) []byte {
	start := len(dst)
	o := object(append(dst, '{'))
	o.str("type", "verify_item")
	o.str("suite", v.Suite)
	o.orNull("class", v.Class)
	o.str("name", v.Name)
	o.orNull("property", string(v.Property))
	o.str("verdict", v.Verdict)
	o.orNull("detail", v.Detail)
	o.bool("holds", v.Holds)
	return endLine(o, start)
}

// Verify is the outcome of a verification.
type Verify struct {
	Enforcer   string
	ABI        int
	Layers     []string
	PlanDigest string
	Properties []domain.PropertyStatus
	// Verdicts counts the items by verdict, in the order of the list.
	Verdicts []VerdictCount
	Duration time.Duration
	Error    string // why it does not hold, "" if it does
}

// VerdictCount is how many items have a verdict.
type VerdictCount struct {
	Verdict string
	Count   int
}

// AppendVerify appends the outcome as one line of type "verify".
func AppendVerify(dst []byte, v Verify) []byte {
	start := len(dst)
	o := object(append(dst, '{'))
	o.str("type", "verify")
	o.str("enforcer", v.Enforcer)
	o.int("abi", int64(v.ABI))
	o.strs("layers", v.Layers)
	o.str("plan_digest", v.PlanDigest)
	o.properties("properties", v.Properties)
	o.open("verdicts", '{')
	for _, c := range v.Verdicts {
		o.int(c.Verdict, int64(c.Count))
	}
	o.close('}')
	o.int("duration_ms", v.Duration.Milliseconds())
	o.orNull("error", v.Error)
	o.bool("holds", v.Error == "")
	return endLine(o, start)
}
