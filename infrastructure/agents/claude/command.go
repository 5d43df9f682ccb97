package claude

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/lookup"
	"github.com/caisson-run/caisson/ports"
)

const (
	envBaseURL     = "ANTHROPIC_BASE_URL"
	defaultBaseURL = "https://api.anthropic.com"
	why            = "claude"
)

// routes are the requests to the API that release 2.1.328 makes: it asks the
// model, counts tokens for /context, and looks whether the server is there.
var routes = []ports.APIRoute{
	{Method: "POST", Path: "/v1/messages"},
	{Method: "POST", Path: "/v1/messages/count_tokens"},
	{Method: "GET", Path: "/v1/models"},
	{Method: "HEAD", Path: "/"},
}

// credentials are by the agent's own precedence (code.claude.com/docs/en/iam,
// "Authentication precedence"). With the token of a subscription the agent says
// other things than with a key, so it is given the gateway's token under the
// name of what there is.
var credentials = []ports.APICredential{
	{Env: "ANTHROPIC_AUTH_TOKEN", Header: "Authorization", Scheme: "Bearer"},
	{Env: "ANTHROPIC_API_KEY", Header: "X-Api-Key"},
	{Env: "CLAUDE_CODE_OAUTH_TOKEN", Header: "Authorization", Scheme: "Bearer"},
}

// Needs returns what Claude Code needs beside the base plan: its program and
// the model's API. The names of the variables are documented at
// code.claude.com/docs/en/settings, "Environment variables". The only error is a
// *domain.InvalidError for an ANTHROPIC_BASE_URL that is none.
//
// The base URL is always set, to the gateway's, the orchestrator's own or the
// default, so that no settings file can lead the agent, and its key, to another
// server.
func (*Adapter) Needs(install ports.AgentInstall, _ ports.SessionDirs, surroundings ports.Host) (ports.PlanFragment, error) {
	base, ok := "", false
	if surroundings.LookupEnv != nil {
		base, ok = surroundings.LookupEnv(envBaseURL)
	}
	if !ok || base == "" {
		base = defaultBaseURL
	}
	host, port, secret, err := apiHost(base)
	if err != nil {
		return ports.PlanFragment{}, err
	}
	direct := ports.PlanFragment{
		ConnectTCP: []uint16{port},
		UDP:        lookup.WhyUDP(host),
		Env: []domain.EnvRule{
			{Name: "ANTHROPIC_API_KEY", Secret: true, Why: why},
			{Name: "ANTHROPIC_AUTH_TOKEN", Secret: true, Why: why},
			{Name: "CLAUDE_CODE_OAUTH_TOKEN", Secret: true, Why: why},
			{Name: envBaseURL, Value: base, Literal: true, Secret: secret, Why: why},
		},
	}
	var byName *ports.PlanFragment
	if install.OwnLogin {
		var named ports.PlanFragment
		if named, direct, err = loginNeeds(host, port, direct); err != nil {
			return ports.PlanFragment{}, err
		}
		byName = &named
	}
	need := ports.PlanFragment{
		ModelAPI: &ports.ModelAPI{
			BaseURL: base, Dialect: ports.DialectAnthropic, Routes: routes, Credentials: credentials,
			BaseURLEnv: envBaseURL, Direct: direct, ByName: byName,
		},
		Env: []domain.EnvRule{
			{Name: "ANTHROPIC_MODEL", Why: why},
			{Name: "API_TIMEOUT_MS", Why: why},
			{Name: "CLAUDE_CODE_MAX_RETRIES", Why: why},
		},
		Notes: []string{
			"claude: its own permission prompts are bypassed in a confined turn; the plan confines instead. In an unconfined one they are answered with a denial",
			"claude: hooks, settings, MCP servers and CLAUDE.md of the workspace are off (--setting-sources user --strict-mcp-config)",
			"claude: updates, telemetry and background tasks are off",
		},
	}
	for _, path := range append(append([]string(nil), install.Files...), install.Dirs...) {
		need.Rules = append(need.Rules, domain.PathRule{Path: path, Access: domain.AccessReadExec, Why: why})
	}
	return need, nil
}

// apiHost returns the host and the TCP port of a base URL, and whether the URL
// holds a password. Errors do not repeat the URL for that reason.
func apiHost(base string) (host string, port uint16, secret bool, err error) {
	bad := func(reason string) (string, uint16, bool, error) {
		return "", 0, false, &domain.InvalidError{
			What: "environment variable", Value: envBaseURL, Reason: reason,
			Remedy: "set it to the URL of the model's API, for example " + defaultBaseURL + ", or unset it",
		}
	}
	u, err := url.Parse(base)
	switch {
	case err != nil:
		return bad("not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("neither an http nor an https URL")
	case u.Hostname() == "":
		return bad("a URL without a host")
	}
	switch p := u.Port(); {
	case p != "":
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return bad("its port is none from 1 to 65535")
		}
		port = uint16(n)
	case u.Scheme == "http":
		port = 80
	default:
		port = 443
	}
	return u.Hostname(), port, u.User != nil, nil
}

// Command returns the line for one turn. The prompt goes in by standard input,
// because arguments are limited in length and can be read by everyone on the
// host; in it, invalid UTF-8 is replaced. A prompt that begins with a slash is
// a command of the agent's own, such as /compact.
func (*Adapter) Command(turn ports.TurnRequest) (domain.SpawnLine, error) {
	// The id may come from an agent's stream, and must not become an option.
	if !domain.IsUUID(turn.ConversationID) {
		return domain.SpawnLine{}, &domain.InvalidError{
			What: "conversation id", Value: turn.ConversationID, Reason: "not a UUID", Remedy: "open a new session",
		}
	}
	conversation := []string{"--session-id", turn.ConversationID}
	if turn.Resume {
		conversation = []string{"--resume", turn.ConversationID}
	}
	line, err := run(turn, slices.Concat([]string{
		"-p", "--output-format", "stream-json", "--verbose", "--input-format", "stream-json", "--permission-prompt-tool", "stdio",
	}, settings, conversation), []string{
		// One process gives one result, and ends with it.
		"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1",
		// The end of a turn can be told without its result.
		"CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS=1",
		// A failed start is a result with its reason, not only a line on stderr.
		"CLAUDE_CODE_STARTUP_FAILURE_RESULTS=1",
	})
	line.Stdin, line.KeepStdinOpen = userLine(turn.Prompt.Text), true
	return line, err
}

// settings keep what the workspace has of settings, hooks and servers out.
var settings = []string{"--setting-sources", "user", "--strict-mcp-config"}

// Interactive returns the line of Claude Code's interface for a terminal, with
// the settings and the bypassed permission prompts of a turn. In an unconfined
// run its first screens ask what every new configuration directory asks, whether
// to trust the workspace among it.
func (*Adapter) Interactive(turn ports.TurnRequest) (domain.SpawnLine, error) {
	var env []string
	if turn.Confined {
		// Skips those screens: one of them needs a connection to api.anthropic.com,
		// whatever the base URL is, and ends the program without it.
		env = []string{"IS_DEMO=1"}
	}
	return run(turn, settings, env)
}

// run returns the line of a run with the arguments and the environment that only
// one way of running has.
func run(turn ports.TurnRequest, args, more []string) (domain.SpawnLine, error) {
	if strings.HasPrefix(turn.Model, "-") {
		return domain.SpawnLine{}, &domain.InvalidError{
			What: "model", Value: turn.Model, Reason: "would be read as an option", Remedy: "name a model, such as sonnet",
		}
	}
	argv := slices.Concat([]string{turn.Install.Path}, turn.Install.Args, args)
	if turn.Model != "" {
		argv = append(argv, "--model", turn.Model)
	}
	env := append([]string{
		"CLAUDE_CONFIG_DIR=" + turn.Dirs.State,
		"CLAUDE_CODE_TMPDIR=" + turn.Dirs.Temp,
		"DISABLE_AUTOUPDATER=1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
	}, more...)
	if turn.Confined {
		argv = append(argv, "--dangerously-skip-permissions")
		// As root the option is refused unless the agent is told of a sandbox.
		env = append(env, "IS_SANDBOX=1")
	}
	return domain.SpawnLine{Path: turn.Install.Path, Argv: argv, Env: env, Dir: turn.Workspace}, nil
}

// userLine returns the prompt as the line that the agent reads.
func userLine(prompt string) []byte {
	const head, tail = `{"type":"user","message":{"role":"user","content":`, "}}\n"
	line := make([]byte, 0, len(head)+len(prompt)+len(prompt)/16+2+len(tail))
	return append(appendQuoted(append(line, head...), prompt), tail...)
}
