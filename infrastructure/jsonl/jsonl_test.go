package jsonl_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
	"github.com/caisson-run/caisson/tests/testkit"
)

var update = flag.Bool("update", false, "write the golden files")

const session = domain.SessionID("01890a5d-ac96-774b-bcce-b302099a8057")

func ptr[T any](v T) *T { return &v }

func event(r domain.ReplyEvent) domain.Event {
	return domain.Event{
		Seq: 7, Session: session, Turn: 2, Agent: domain.AgentClaude, Reply: r,
		Time: time.Date(2026, 11, 29, 1, 2, 3, 450, time.FixedZone("", 3600)),
	}
}

var usage = domain.Usage{InputTokens: 100, CachedInputTokens: 60, CacheWriteTokens: 20, OutputTokens: 30, ReasoningTokens: 10}

// samples has every event with every field set. The golden file of a sample
// has its name.
var samples = map[string]domain.ReplyEvent{
	"sandbox": domain.SandboxApplied{Receipt: domain.Receipt{
		Unconfined: true, Why: "why", Preset: "coding", Enforcer: "landlock", ABI: 7,
		Layers: []string{"no_new_privs", "landlock"},
		Properties: []domain.PropertyStatus{
			{Property: domain.PropertyFilesystem, State: domain.StateEnforced, Mechanism: "Landlock ABI 1", Detail: "none"},
			{Property: domain.PropertyUDP, State: domain.StateWaived, Mechanism: "-", Detail: "needs ABI 10"},
		},
		Rules: []domain.GrantedRule{
			{Path: "/bin", Canonical: "/usr/bin", Access: domain.AccessReadExec, Skipped: "-", Why: "system"},
			{Path: "/none", Canonical: "-", Access: domain.AccessResolveUnix, Skipped: "does not exist", Why: "preset"},
		},
		ConnectTCP: []uint16{443}, Destinations: []netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:8443")}, UnixDestinations: []string{"/run/a.sock"}, BindTCP: []uint16{8080, 65535},
		// Of which a later Caisson may take the second for none.
		Domains: []string{"*.example.org:8443=10.1.2.3,2001:db8::/32", "*"},
		Open:    []string{"chmod of own files"},
		Agent:   []string{"inner sandbox off"}, PlanDigest: "abc", Tree: domain.TreeKeeper, InheritedFDs: true,
		Probe: domain.Probe{Skipped: "the enforcer wraps the command", Checks: []domain.ProbeCheck{
			{Attempt: domain.ProbeDeniedRead, Target: "/state/probe", Result: domain.ProbeHeld, Detail: "permission denied"},
			{Attempt: domain.ProbeDeniedConnect, Target: "-", Result: domain.ProbeNotAsked, Detail: "tcp: needs ABI 4"},
		}},
	}},
	"session":    domain.ConversationStarted{ConversationID: "conv", Model: "m-1", AgentVersion: "2.1.328"},
	"text":       domain.Text{Text: "hello\n\"world\"\t\\ é 🎉", Parent: "t0"},
	"text_delta": domain.TextDelta{Text: "hel", Parent: "t0"},
	"thinking":   domain.Thinking{Text: "hmm", Parent: "t0"},
	"tool_call": domain.ToolCall{
		ID: "t1", Name: "Bash", Kind: domain.ToolExecute, Input: []byte(`{"command":"ls","n":1.50,"a":[]}`), Parent: "t0",
	},
	"tool_update": domain.ToolUpdate{ID: "t1", Output: "file", Elapsed: 1500 * time.Millisecond, Parent: "t0"},
	"tool_result": domain.ToolResult{ID: "t1", Status: domain.ToolDenied, Output: "no", ExitCode: ptr(126), Parent: "t0"},
	"file_change": domain.FileChange{
		ID: "t2", Status: domain.ToolCompleted, Changes: []domain.FileEdit{{Path: "/a", Kind: "add"}, {Path: "/b", Kind: "delete"}}, Parent: "t0",
	},
	"tripwires": domain.Tripwires{Changes: []domain.Planted{{Path: ".git/hooks/x", Kind: "add", Runs: "git runs hooks"}}},
	"todo":      domain.Todo{Items: []domain.TodoItem{{Text: "one", Status: "pending"}, {Text: "two", Status: "completed"}}},
	"permission": domain.Permission{
		RequestID: "r1", ToolID: "t1", Tool: "Bash", Input: []byte(`[1]`), Decision: "deny", Reason: "policy",
	},
	"usage":    domain.UsageReport{Usage: usage, Gateway: &domain.GatewayTraffic{Requests: 5, Refused: 2, Failed: 1}},
	"notice":   domain.Notice{Class: domain.NoticeRetry, Message: "again", Attempt: 3, Delay: 2 * time.Second, Refused: domain.Refusal{Network: "tcp", Address: "192.0.2.1:443", Count: 2}},
	"log":      domain.Log{Stream: "stderr", Line: "warning: x"},
	"raw":      domain.Raw{Type: "novelty", JSON: []byte(`{"type":"novelty","n":null}`)},
	"oversize": domain.Oversize{Bytes: 70_000_000, SHA256: "00ff", Head: []byte(`{"type":"assi`)},
	"final": domain.Final{
		Outcome: domain.OutcomeFailed, StopReason: domain.StopMaxTokens, Text: "bye", Usage: usage, CostUSD: ptr(0.0123),
		ConversationID: "conv", Exit: domain.ExitStatus{Known: true, Code: 1, Signal: "", SignalNumber: 0},
		Error:    &domain.TurnError{Class: "rate_limit", Message: "slow down", StderrTail: "tail", Retryable: true},
		Duration: 12345 * time.Millisecond, TotalUsage: &domain.Usage{InputTokens: 1, CachedInputTokens: 2, CacheWriteTokens: 3, OutputTokens: 4, ReasoningTokens: 5},
	},
	// Variants: what is null, and what is not there.
	"usage_agent": domain.UsageReport{Usage: usage},
	"final_signal": domain.Final{
		Outcome: domain.OutcomeExited, Exit: domain.ExitStatus{Known: true, Code: -1, Signal: "SIGKILL"},
		Error: &domain.TurnError{Class: "exit", Message: "killed"},
	},
	"final_unknown":      domain.Final{Outcome: domain.OutcomeCancelled, StopReason: domain.StopCancelled},
	"tool_result_plain":  domain.ToolResult{ID: "t1", Status: domain.ToolCompleted},
	"tool_call_plain":    domain.ToolCall{ID: "t1", Name: "Read", Kind: domain.ToolRead},
	"permission_request": domain.Permission{RequestID: "r1", ToolID: "t1", Tool: "Bash"},
	"sandbox_off":        domain.SandboxApplied{Receipt: domain.Receipt{Unconfined: true, Why: "--sandbox off"}},
}

func TestGolden(t *testing.T) {
	for name, r := range samples {
		t.Run(name, func(t *testing.T) {
			golden(t, name, jsonl.AppendEvent(nil, event(r)))
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	require.True(t, json.Valid(got), "%s", got)
	require.Equal(t, 1, bytes.Count(got, []byte("\n")), "one line")
	require.True(t, bytes.HasSuffix(got, []byte("\n")))
	file := filepath.Join("testdata", name+".jsonl")
	if *update {
		require.NoError(t, os.WriteFile(file, got, 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

func TestNoStrayGoldenFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.jsonl")
	require.NoError(t, err)
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".jsonl")
		_, ok := samples[name]
		require.True(t, ok || slices.Contains([]string{"plan", "plan_gateway", "plan_unconfined", "doctor", "demo", "verify", "verify_item", "explanation", "explanation_empty", "session_info", "session_info_old"}, name), "%s belongs to no test", f)
	}
}

func TestRoundTrip(t *testing.T) {
	for name, r := range samples {
		t.Run(name, func(t *testing.T) {
			want := event(r)
			got, err := jsonl.Decode(jsonl.AppendEvent(nil, want))
			require.NoError(t, err)
			want.Time = want.Time.UTC()
			require.Equal(t, want, got)
		})
	}
}

// Every type of the sealed sum has a sample whose fields are all set, so that
// the round trip fails for a type or a field that the encoder forgets.
func TestEveryEventAndEveryFieldHasASample(t *testing.T) {
	pkgs := token.NewFileSet()
	files, err := filepath.Glob("../../domain/*.go")
	require.NoError(t, err)
	var declared []string
	for _, file := range files {
		f, err := parser.ParseFile(pkgs, file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == "reply" && fn.Recv != nil {
				declared = append(declared, fn.Recv.List[0].Type.(*ast.Ident).Name)
			}
		}
	}
	require.Greater(t, len(declared), 10)
	var sampled []string
	for name, r := range samples {
		if name != r.EventType() {
			continue
		}
		sampled = append(sampled, reflect.TypeOf(r).Name())
		requireFilled(t, reflect.ValueOf(r), reflect.TypeOf(r).Name())
	}
	require.ElementsMatch(t, declared, sampled)
}

// notOnTheWire are the fields that a sample leaves zero, with the reason.
var notOnTheWire = map[string]string{
	"Final.Exit.Signal":       "a process that exits has none; the sample final_signal has it",
	"Final.Exit.SignalNumber": "its name is on the wire",
}

func requireFilled(t *testing.T, v reflect.Value, where string) {
	t.Helper()
	if notOnTheWire[where] != "" {
		return
	}
	require.False(t, v.IsZero(), "%s is zero in the sample", where)
	if v.Type() == reflect.TypeFor[netip.AddrPort]() {
		return // one value on the wire, whatever it is made of
	}
	switch v.Kind() {
	case reflect.Pointer:
		requireFilled(t, v.Elem(), where)
	case reflect.Struct:
		for i := range v.NumField() {
			requireFilled(t, v.Field(i), where+"."+v.Type().Field(i).Name)
		}
	case reflect.Slice:
		for i := range v.Len() {
			if v.Type().Elem().Kind() == reflect.Struct {
				requireFilled(t, v.Index(i), where)
			}
		}
	}
}

func TestHostileBytes(t *testing.T) {
	for _, text := range []string{
		"\xff\xfe", "a\x00b", "\x1b[2J\x1b]0;t\a", "\u009b2J", "\u202eevil\u2066", "line\u2028sep\u2029", "\x7f",
		"\U000e0041tag", "\u200bzero", strings.Repeat("\xc3", 1000), "\xe2\x80", "\ufeff",
	} {
		for name, r := range map[string]domain.ReplyEvent{
			"text":      domain.Text{Text: text},
			"input":     domain.ToolCall{ID: text, Input: []byte(`{"k":"` + strings.Map(printableASCII, text) + text + `"}`)},
			"no json":   domain.Raw{Type: text, JSON: []byte(text + "{")},
			"log":       domain.Log{Line: text},
			"oversize":  domain.Oversize{Head: []byte(text)},
			"exit code": domain.Final{Exit: domain.ExitStatus{Known: true, Signal: text}},
		} {
			line := jsonl.AppendEvent(nil, event(r))
			require.True(t, json.Valid(line), "%s: %q", name, line)
			require.True(t, utf8.Valid(line), "%s: %q", name, line)
			for _, c := range string(bytes.TrimSuffix(line, []byte("\n"))) {
				require.True(t, jsonl.Harmless(c), "%s: %q has %q", name, line, c)
			}
			back, err := jsonl.Decode(line)
			require.NoError(t, err, "%s: %q", name, line)
			if name == "text" {
				require.Equal(t, string([]rune(text)), back.Reply.(domain.Text).Text)
			}
		}
	}
}

func printableASCII(r rune) rune {
	if r >= ' ' && r < 0x7f && r != '"' && r != '\\' {
		return r
	}
	return -1
}

func TestRawJSON(t *testing.T) {
	for in, want := range map[string]string{
		" {\"a\" : 1,\n \"a\":2.50}\n":   `{"a":1,"a":2.50}`, // duplicate keys and the number's form stay
		`{"a":`:                          `"{\"a\":"`,
		``:                               `""`,
		`1 2`:                            `"1 2"`,
		`123456789012345678901234567890`: `123456789012345678901234567890`,
		strings.Repeat("[", 20000):       `"` + strings.Repeat("[", 20000) + `"`,
	} {
		line := jsonl.AppendEvent(nil, event(domain.ToolCall{Input: []byte(in)}))
		var got struct{ Input json.RawMessage }
		require.NoError(t, json.Unmarshal(line, &got))
		require.Equal(t, want, string(got.Input), "input %.40q", in)
	}
}

func TestAppendsToWhatIsThere(t *testing.T) {
	one := jsonl.AppendEvent(nil, event(domain.Text{Text: "a\u009bb"}))
	require.Equal(t, append([]byte("\u009b before"), one...), jsonl.AppendEvent([]byte("\u009b before"), event(domain.Text{Text: "a\u009bb"})))
}

func TestCostThatIsNoNumberIsNull(t *testing.T) {
	nan := 0.0
	nan /= nan
	line := jsonl.AppendEvent(nil, event(domain.Final{CostUSD: &nan}))
	require.Contains(t, string(line), `"cost_usd":null`)
}

func TestDecodeRefuses(t *testing.T) {
	good := string(jsonl.AppendEvent(nil, event(domain.Text{Text: "x"})))
	_, err := jsonl.Decode([]byte(strings.Replace(good, `"text":"x"`, `"text":"x","later":{"a":[1]}`, 1)))
	require.NoError(t, err, "an unknown field is passed over")
	for name, line := range map[string]string{
		"empty":          "",
		"cut":            good[:len(good)/2],
		"no object":      "[1]",
		"two":            good + good,
		"unknown type":   strings.Replace(good, `"type":"text"`, `"type":"novelty"`, 1),
		"session":        strings.Replace(good, string(session), "../../etc", 1),
		"time":           strings.Replace(good, "2026", "MMXXVI", 1),
		"no receipt":     strings.Replace(good, `"type":"text"`, `"type":"sandbox"`, 1),
		"unknown access": strings.Replace(string(jsonl.AppendEvent(nil, event(samples["sandbox"]))), "resolve_unix", "fly", 1),
	} {
		_, err := jsonl.Decode([]byte(line))
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid, name)
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range samples {
		f.Add(jsonl.AppendEvent(nil, event(r)))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := jsonl.Decode(line)
		if err != nil {
			return
		}
		// What can be read can be written, and what was written is stable.
		once := jsonl.AppendEvent(nil, e)
		again, err := jsonl.Decode(once)
		require.NoError(t, err)
		require.Equal(t, string(once), string(jsonl.AppendEvent(nil, again)))
	})
}

func TestSession(t *testing.T) {
	opened := time.Date(2026, 7, 1, 12, 0, 0, 5, time.UTC)
	r := domain.SessionRecord{
		ID: "01890a5d-ac96-774b-bcce-b302099a8057", Kind: domain.AgentCodex, Workspace: "/w \x1b[31m", PlanDigest: "d",
		Grants: []string{"read /a"}, Prompt: "do \x1b[31m this", Outcome: domain.OutcomeFailed, ConversationID: "c", Lineage: []string{"a", "b"}, Turns: 3, LastSeq: 17,
		Total: usage, Opened: opened, Updated: opened.Add(time.Hour), Epoch: 4,
		Live: &domain.LiveTurn{Turn: 3, Process: domain.ProcessIdentity{Pid: 7, Mark: "mark"}},
	}
	line := jsonl.AppendSession(nil, r, true, "the disk \x1b is full")
	golden(t, "session_info", line)
	require.NotContains(t, string(line), "mark")
	doc, err := os.ReadFile("../../docs/sessions.md")
	require.NoError(t, err)
	var members map[string]any
	require.NoError(t, json.Unmarshal(line, &members))
	for name := range members {
		require.Contains(t, string(doc), "`"+name+"`")
	}
	golden(t, "session_info_old", jsonl.AppendSession(nil, domain.SessionRecord{ID: r.ID, Kind: "claude", Opened: opened}, false, ""))
}

func TestPlan(t *testing.T) {
	plan := domain.NewSandboxPlan("coding").
		WithRules(
			domain.PathRule{Path: "/w", Access: domain.AccessReadWriteExec, Why: "workspace"},
			domain.PathRule{Path: "/opt", Access: domain.AccessRead, Presence: domain.Optional},
		).
		WithConnectTCP(443).WithBindTCP(0, 80).WithUDP(true).WithUnixSockets(domain.UnixSocketsOwn).
		WithEnv(
			domain.EnvRule{Name: "PATH", Why: "preset"},
			domain.EnvRule{Name: "API_KEY", Value: "hunter2", Literal: true, Secret: true},
			domain.EnvRule{Name: "TOKENISH", Value: "hunter3", Literal: true},
		).
		WithLimits(domain.Limits{MemoryBytes: 1 << 30, Pids: 100, CPUs: 1.5, WallClock: time.Minute, Idle: time.Second}).
		WithWaivers(domain.PropertyIPC, domain.PropertyUDP).
		WithOrigins(map[string]string{"udp allow": "--udp", "tcp connect 443": "/w/.caisson.toml:3"})
	require.NoError(t, plan.Validate())
	line := jsonl.AppendPlan(nil, plan, []string{"inner sandbox off"})
	require.NotContains(t, string(line), "hunter", "values of the environment are not shown")
	golden(t, "plan", undigested(t, line, plan))
	gated := domain.NewSandboxPlan("coding").WithEgressDomains(testkit.EgressDomains("example.org")...).
		WithEgressProxy(54322, domain.EnvRule{Name: "HTTPS_PROXY", Value: "secret", Literal: true, Secret: true, Why: "egress proxy"}).WithModelGateway(54321,
		domain.EnvRule{Name: "MODEL_KEY", Value: "hunter4", Literal: true, Secret: true})
	require.NoError(t, gated.Validate())
	line = jsonl.AppendPlan(nil, gated, nil)
	require.NotContains(t, string(line), "hunter4")
	require.NotContains(t, string(line), "54321", "another one each time that a session is opened")
	golden(t, "plan_gateway", undigested(t, line, gated))
	off := domain.Unconfined("--sandbox off")
	golden(t, "plan_unconfined", undigested(t, jsonl.AppendPlan(nil, off, nil), off))
}

func TestExplanation(t *testing.T) {
	rule := domain.PathRule{Path: "/w", Access: domain.AccessRead, Why: "--ro"}
	e := domain.ExplainFile(`write "/w/a\nb"`, []domain.Need{
		{Place: "/w/a\nb", Access: domain.AccessWriteFile, Missing: domain.AccessWriteFile, Rules: []domain.PathRule{rule}},
		{Place: "/w", Access: domain.AccessReadDir, Rules: []domain.PathRule{rule}, Detail: "because"},
	})
	e.Notes = []string{"a note"}
	golden(t, "explanation", jsonl.AppendExplanation(nil, e))
	allowed := domain.Explanation{Question: "?", Allowed: true, Change: domain.Change{ConnectTCP: []uint16{1}, Destinations: []netip.AddrPort{netip.MustParseAddrPort("[::1]:2")}, UnixSockets: domain.UnixSocketsOwn}}
	golden(t, "explanation_empty", jsonl.AppendExplanation(nil, allowed))
}

// undigested takes the digest out: how it is made is the domain's business.
func undigested(t *testing.T, line []byte, plan domain.SandboxPlan) []byte {
	t.Helper()
	digest := []byte(`"digest":"` + plan.Digest() + `"`)
	require.Equal(t, 1, bytes.Count(line, digest))
	return bytes.Replace(line, digest, []byte(`"digest":""`), 1)
}

func TestVerify(t *testing.T) {
	golden(t, "verify_item", jsonl.AppendVerifyItem(nil, jsonl.VerifyItem{
		Suite: "escape", Class: "unix sockets", Name: "docker-socket", Property: domain.PropertyUnixSockets, Verdict: "LEAKED", Detail: "it went\nthrough",
	}))
	golden(t, "verify", jsonl.AppendVerify(nil, jsonl.Verify{
		Enforcer: "landlock+seccomp", ABI: 7, Layers: []string{"no_new_privs", "landlock"}, PlanDigest: "sha256:00",
		Properties: []domain.PropertyStatus{{Property: domain.PropertyTCP, State: domain.StateEnforced, Mechanism: "Landlock ABI 4"}},
		Verdicts:   []jsonl.VerdictCount{{Verdict: "held", Count: 255}, {Verdict: "LEAKED", Count: 1}},
		Duration:   15 * time.Second, Error: "1 does not hold: docker-socket",
	}))
}

func TestDoctor(t *testing.T) {
	d := jsonl.Doctor{
		OS: "linux", Kernel: "6.18.44", Enforcer: "landlock", ABI: 7, Preset: "coding",
		Properties: []domain.PropertyStatus{{Property: domain.PropertyTCP, State: domain.StateEnforced, Mechanism: "Landlock ABI 4"}},
		Agents: []jsonl.DoctorAgent{
			{Kind: domain.AgentClaude, Path: "/usr/bin/claude", Version: "2.1"},
			{Kind: domain.AgentCodex, Error: "not on PATH"},
		},
		Proof: jsonl.Proof{Allowed: true, Denied: true, Unconfined: true},
		State: jsonl.DoctorState{Path: "/home/me/.local/state/caisson"},
	}
	golden(t, "doctor", jsonl.AppendDoctor(nil, d))
	require.True(t, d.Proof.Holds())
	for _, p := range []jsonl.Proof{
		{Denied: true, Unconfined: true},
		{Allowed: true, Unconfined: true},
		{Allowed: true, Denied: true},
		{Allowed: true, Denied: true, Unconfined: true, Error: "x"},
	} {
		require.False(t, p.Holds(), "%+v", p)
	}
}

func TestDemoStep(t *testing.T) {
	s := jsonl.DemoStep{
		Step: "write", Shows: "it writes", Duration: 120 * time.Millisecond,
		Checks: []jsonl.DemoCheck{{Expect: "file is there", Pass: true}, {Expect: "no other", Detail: "found x"}},
	}
	golden(t, "demo", jsonl.AppendDemoStep(nil, s))
	require.False(t, s.Pass())
	s.Checks = s.Checks[:1]
	require.True(t, s.Pass())
	require.False(t, jsonl.DemoStep{}.Pass(), "nothing checked is nothing shown")
}

var sink []byte

func BenchmarkAppendEvent(b *testing.B) {
	for _, name := range []string{"text", "tool_call", "final", "sandbox"} {
		e := event(samples[name])
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sink = jsonl.AppendEvent(sink[:0], e)
			}
			b.SetBytes(int64(len(sink)))
		})
	}
}

func BenchmarkAppendText64KiB(b *testing.B) {
	for name, text := range map[string]string{
		"ascii": strings.Repeat("The quick brown fox. ", 3121), "cjk": strings.Repeat("敏捷的棕色狐狸跳过懒狗。", 1820),
	} {
		e := event(domain.Text{Text: text})
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sink = jsonl.AppendEvent(sink[:0], e)
			}
			b.SetBytes(int64(len(sink)))
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	line := jsonl.AppendEvent(nil, event(samples["tool_call"]))
	b.ReportAllocs()
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		if _, err := jsonl.Decode(line); err != nil {
			b.Fatal(err)
		}
	}
}
