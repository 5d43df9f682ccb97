package codex

import (
	"errors"
	"net/url"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/lookup"
	"github.com/caisson-run/caisson/ports"
)

// This file is the preset of Codex: what it needs beside the base plan, each with
// its source. Where none is named, it was observed with release 0.169.0.

// The environment of the host.
const (
	envBaseURL  = "OPENAI_BASE_URL"
	envKey      = "OPENAI_API_KEY"
	envCodexKey = "CODEX_API_KEY"
)

// defaultBaseURL is that of Codex's built-in provider.
const defaultBaseURL = "https://api.openai.com/v1"

// routes are the requests that release 0.169.0 makes of a provider that the
// command line defines, and those of later compactions and model lists.
var routes = []ports.APIRoute{
	{Method: "POST", Path: "/responses"},
	{Method: "POST", Path: "/responses/compact"},
	{Method: "GET", Path: "/models"},
}

var credentials = []ports.APICredential{
	{Env: envKey, Header: "Authorization", Scheme: "Bearer"},
	{Env: envCodexKey, Header: "Authorization", Scheme: "Bearer"},
}

// Needs returns the program's own files and the model's API. Of the variables
// with its key both names are always in the plan of an agent without a gateway,
// so that it does not depend on which of the two is set. A base URL that cannot
// be used is a *domain.InvalidError.
func (*Adapter) Needs(install ports.AgentInstall, _ ports.SessionDirs, _ ports.Host) (ports.PlanFragment, error) {
	base, host, port, err := endpoint(install)
	if err != nil {
		return ports.PlanFragment{}, err
	}
	direct := keyNeeds(host, port)
	var byName *ports.PlanFragment
	if install.OwnLogin {
		var named ports.PlanFragment
		if named, direct, err = lookup.LoginNeeds(domain.AgentCodex, host, port, loginHost); err != nil {
			return ports.PlanFragment{}, err
		}
		byName = &named
	}
	f := ports.PlanFragment{
		ModelAPI: &ports.ModelAPI{
			BaseURL: base, Dialect: ports.DialectOpenAI, Routes: routes, Credentials: credentials,
			Direct: direct, ByName: byName,
		},
		Notes: []string{
			"codex: its inner sandbox (bubblewrap) is off, since it cannot mount inside this one; its permission profile leaves the file system to this sandbox, and its seccomp filter leaves tools no sockets but unix ones",
			"codex: configuration in CODEX_HOME and in the workspace, MCP servers and .rules files included, is not read; plugins and analytics are off",
			"codex: a command that fails at once with a denial runs, but codex reports no event of it",
		},
	}
	for _, path := range append(append([]string(nil), install.Dirs...), install.Files...) {
		f.Rules = append(f.Rules, domain.PathRule{Path: path, Access: domain.AccessReadExec, Why: "codex: its program"})
	}
	// Where an administrator sets what Codex must do: out of sight, it would
	// be passed over or end the turn.
	f.Rules = append(f.Rules, domain.PathRule{
		Path: "/etc/codex", Access: domain.AccessRead, Presence: domain.Optional, Why: "codex: the administrator's configuration",
	})
	return f, nil
}

// keyNeeds is what Codex needs to reach the API by itself, with a key.
func keyNeeds(host string, port uint16) ports.PlanFragment {
	return ports.PlanFragment{
		ConnectTCP: []uint16{port},
		UDP:        lookup.WhyUDP(host),
		Env: []domain.EnvRule{
			{Name: envKey, Secret: true, Why: "codex: key of the model API"},
			{Name: envCodexKey, Secret: true, Why: "codex: key of the model API"},
		},
		Notes: []string{
			"codex: the API key is not in the environment of tools, but they can read it in /proc/PID/environ of codex itself",
		},
	}
}

// endpoint returns the base URL as Codex gets it, its host and its TCP port.
func endpoint(install ports.AgentInstall) (base, host string, port uint16, err error) {
	raw := install.BaseURL
	switch {
	case raw == "" && install.OwnLogin:
		raw = loginBaseURL
	case raw == "":
		raw = defaultBaseURL
	}
	bad := func(shown, reason string, err error) (string, string, uint16, error) {
		return "", "", 0, &domain.InvalidError{
			What: envBaseURL, Value: shown, Reason: reason, Err: err,
			Remedy: "set it to http(s)://HOST[:PORT]/PATH, such as " + defaultBaseURL + ", or unset it",
		}
	}
	u, err := url.Parse(raw)
	if err != nil {
		// The error of net/url repeats the URL, in which there may be a password.
		if e := (*url.Error)(nil); errors.As(err, &e) {
			err = e.Err
		}
		return bad("", "not a URL", err)
	}
	shown := u.Redacted()
	port = map[string]uint16{"http": 80, "https": 443}[u.Scheme]
	switch {
	case port == 0:
		return bad(shown, "neither http nor https", nil)
	case u.Hostname() == "":
		return bad(shown, "no host", nil)
	case strings.ContainsFunc(u.Host, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }):
		return bad(shown, "characters that a host name cannot have", nil)
	case u.User != nil:
		return bad(shown, "a user name in the URL would be readable in /proc by every user of the machine", nil)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return bad(shown, "a query or a fragment, but codex appends a path to it", nil)
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return bad(shown, "no TCP port", nil)
		}
		port = uint16(n)
	}
	// What else could end a TOML string, net/url has escaped.
	return strings.TrimRight(u.String(), "/"), u.Hostname(), port, nil
}
