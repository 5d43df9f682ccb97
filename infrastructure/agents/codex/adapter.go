package codex

import (
	"fmt"
	"path/filepath"
	"runtime"
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
			return ports.AgentInstall{}, notFound("", "no executable codex in an absolute directory of PATH",
				"install it with npm install -g @openai/codex, or name its program with --agent-bin", nil)
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
