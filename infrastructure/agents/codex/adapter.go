package codex

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/lookup"
	"github.com/caisson-run/caisson/ports"
)

// Adapter implements ports.AgentAdapter for Codex. It has no state; the zero
// value works.
type Adapter struct{}

var (
	_ ports.AgentAdapter     = (*Adapter)(nil)
	_ ports.InteractiveAgent = (*Adapter)(nil)
)

// New returns the adapter.
func New() *Adapter { return &Adapter{} }

// Kind returns domain.AgentCodex.
func (*Adapter) Kind() domain.AgentKind { return domain.AgentCodex }

// The environment of the host.
const (
	envBaseURL  = "OPENAI_BASE_URL"
	envKey      = "OPENAI_API_KEY"
	envCodexKey = "CODEX_API_KEY"
)

// defaultBaseURL is that of Codex's built-in provider.
const defaultBaseURL = "https://api.openai.com/v1"

// platform is how npm lays out the native program for a kernel and processor,
// as the launcher codex.js of 0.169.0 has it.
type platform struct{ pkg, triple string }

var platforms = map[string]platform{
	"linux/amd64": {"@openai/codex-linux-x64", "x86_64-unknown-linux-musl"},
	"linux/arm64": {"@openai/codex-linux-arm64", "aarch64-unknown-linux-musl"},
}

// Resolve finds Codex's native program: the hint, or `codex` on the host's
// PATH. Behind npm's launcher, a script for node, it finds the program that the
// launcher would start, because killing the launcher leaves that one running.
// Any other executable file is taken as it is. An error is a
// *domain.AgentNotFoundError.
func (a *Adapter) Resolve(hint string, host ports.Host) (ports.AgentInstall, error) {
	notFound := func(path, reason, remedy string, err error) error {
		return &domain.AgentNotFoundError{Kind: a.Kind(), Path: path, Reason: reason, Remedy: remedy, Err: err}
	}
	path := hint
	if path == "" {
		var ok bool
		if path, ok = lookup.OnPath(host, "codex"); !ok {
			return ports.AgentInstall{}, notFound("", "no codex in an absolute entry of PATH",
				"install it (npm install -g @openai/codex), or name the program with --agent-bin", nil)
		}
	}
	program, err := lookup.Executable(path)
	if err != nil {
		return ports.AgentInstall{}, notFound(path, "no program that can be run",
			"name an executable file with --agent-bin", err)
	}
	install := ports.AgentInstall{Path: program, Files: []string{program}}
	if root, ok := launcherRoot(program); ok {
		native, err := behindLauncher(root, runtime.GOOS+"/"+runtime.GOARCH)
		if err != nil {
			return ports.AgentInstall{}, notFound(path, "npm's launcher is there, but not the native program that it starts",
				"reinstall it with its optional dependencies (npm install -g @openai/codex --include=optional), or name the native program with --agent-bin", err)
		}
		install.Path = native
	}
	if vendor, ok := vendorDir(install.Path); ok {
		install.Dirs, install.Files = []string{vendor}, nil
		install.Version = version(vendor)
	}
	install.BaseURL, _ = lookupEnv(host, envBaseURL)
	install.KeyEnv = envKey
	if _, ok := lookupEnv(host, envKey); !ok {
		if _, ok := lookupEnv(host, envCodexKey); ok {
			install.KeyEnv = envCodexKey
		}
	}
	return install, nil
}

// lookupEnv returns a variable of the host; an empty one counts as unset, as
// Codex has it.
func lookupEnv(host ports.Host, name string) (string, bool) {
	if host.LookupEnv == nil {
		return "", false
	}
	v, ok := host.LookupEnv(name)
	return v, ok && v != ""
}

// launcherRoot returns the package directory of npm's launcher, …/bin/codex.js.
func launcherRoot(program string) (string, bool) {
	bin := filepath.Dir(program)
	return filepath.Dir(bin), filepath.Base(program) == "codex.js" && filepath.Base(bin) == "bin"
}

// behindLauncher returns the canonical path of the program that the launcher of
// the package at root starts: in the platform's package, or, as the launcher
// does it, in its own.
func behindLauncher(root, system string) (string, error) {
	p, ok := platforms[system]
	if !ok {
		return "", fmt.Errorf("no native program is known for %s", system)
	}
	dir, ok := lookup.PlatformPackage(root, p.pkg)
	if !ok {
		dir = root
	}
	program, err := lookup.Executable(filepath.Join(dir, "vendor", p.triple, "bin", "codex"))
	if err != nil {
		return "", fmt.Errorf("package %s: %w", p.pkg, err)
	}
	if !lookup.IsELF(program) {
		return "", fmt.Errorf("package %s: %s is no native program", p.pkg, program)
	}
	return program, nil
}

// vendorDir returns the directory <triple> of a native program
// vendor/<triple>/bin/codex. Beside bin it has what Codex starts: the host of
// the JavaScript in which most models call tools, ripgrep, helpers.
func vendorDir(program string) (string, bool) {
	dir := filepath.Dir(filepath.Dir(program))
	for _, p := range platforms {
		if program == filepath.Join(dir, "bin", "codex") && filepath.Base(dir) == p.triple &&
			filepath.Base(filepath.Dir(dir)) == "vendor" {
			return dir, true
		}
	}
	return "", false
}

// version is that of the package around a vendor directory, without the
// platform that npm has in it ("0.169.0-linux-x64").
func version(vendor string) string {
	v := lookup.PackageVersion(filepath.Dir(filepath.Dir(vendor)))
	for _, p := range platforms {
		v = strings.TrimSuffix(v, strings.TrimPrefix(p.pkg, "@openai/codex"))
	}
	return v
}

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
