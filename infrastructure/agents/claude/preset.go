package claude

import (
	"net/url"
	"strconv"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/lookup"
	"github.com/caisson-run/caisson/ports"
)

// This file is the preset of Claude Code: what it needs beside the base plan, each
// with its source. Where none is named, it was observed with release 2.1.328.

const (
	envBaseURL     = "ANTHROPIC_BASE_URL"
	defaultBaseURL = "https://api.anthropic.com"
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
			{Name: "ANTHROPIC_API_KEY", Secret: true, Why: "claude: key of the model API"},
			{Name: "ANTHROPIC_AUTH_TOKEN", Secret: true, Why: "claude: key of the model API"},
			{Name: "CLAUDE_CODE_OAUTH_TOKEN", Secret: true, Why: "claude: key of the model API"},
			{Name: envBaseURL, Value: base, Literal: true, Secret: secret, Why: "claude: address of the model API"},
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
			{Name: "ANTHROPIC_MODEL", Why: "claude: its model and its patience"},
			{Name: "API_TIMEOUT_MS", Why: "claude: its model and its patience"},
			{Name: "CLAUDE_CODE_MAX_RETRIES", Why: "claude: its model and its patience"},
		},
		Notes: []string{
			"claude: its own permission prompts are bypassed in a confined turn; the plan confines instead. In an unconfined one they are answered with a denial",
			"claude: hooks, settings, MCP servers and CLAUDE.md of the workspace are off (--setting-sources user --strict-mcp-config)",
			"claude: updates, telemetry and background tasks are off",
		},
	}
	for _, path := range append(append([]string(nil), install.Files...), install.Dirs...) {
		need.Rules = append(need.Rules, domain.PathRule{Path: path, Access: domain.AccessReadExec, Why: "claude: its program"})
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
