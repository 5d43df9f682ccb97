package claude

import (
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/lookup"
	"github.com/caisson-run/caisson/ports"
)

const (
	programName = "claude"
	npmPackage  = "@anthropic-ai/claude-code"
	remedy      = "install it with npm install -g " + npmPackage + ", or name its program with --agent-bin"
)

// Resolve finds the native program. npm links "claude" to bin/claude.exe of the
// package, which its install script replaces by the program; where that script
// was not run (--ignore-scripts), the program is in the package of the platform
// beside it (install.cjs and cli-wrapper.cjs of the package). Every other
// program is taken as it is.
func (*Adapter) Resolve(hint string, host ports.Host) (ports.AgentInstall, error) {
	fail := func(path, reason string, err error) (ports.AgentInstall, error) {
		return ports.AgentInstall{}, &domain.AgentNotFoundError{
			Kind: domain.AgentClaude, Path: path, Reason: reason, Remedy: remedy, Err: err,
		}
	}
	found := hint
	if found == "" {
		var ok bool
		if found, ok = lookup.OnPath(host, programName); !ok {
			return fail("", "no executable "+programName+" in an absolute directory of PATH", nil)
		}
	}
	program, err := lookup.Executable(found)
	if err != nil {
		return fail(found, "cannot be used", err)
	}
	if isLauncher(program) {
		launcher := program
		if program, err = nativeProgram(launcher); err != nil {
			return fail(launcher, "is only a launcher, and the native program beside it cannot be used", err)
		}
	}
	return ports.AgentInstall{Path: program, Files: []string{program}, Version: version(program)}, nil
}

// isLauncher recognizes the package's two stand-ins by where they are: they
// start the native program, or say that it is missing.
func isLauncher(program string) bool {
	dir, name := filepath.Split(program)
	switch dir = filepath.Clean(dir); name {
	case "claude.exe":
		dir = filepath.Dir(dir) // bin
	case "cli-wrapper.cjs":
	default:
		return false
	}
	return inPackage(dir) && !lookup.IsELF(program)
}

// inPackage reports whether dir is where npm puts the launcher's package.
func inPackage(dir string) bool {
	scope := filepath.Dir(dir)
	return filepath.Join(filepath.Base(scope), filepath.Base(dir)) == filepath.FromSlash(npmPackage)
}

// nativeProgram finds the program in the package of the platform. npm installs
// that for the host's C library alone, so the first one that is there is it.
func nativeProgram(launcher string) (string, error) {
	name := npmPackage + npmPlatform(runtime.GOOS, runtime.GOARCH)
	for _, name := range []string{name, name + "-musl"} {
		if dir, ok := lookup.PlatformPackage(filepath.Dir(launcher), filepath.FromSlash(name)); ok {
			return lookup.Executable(filepath.Join(dir, programName))
		}
	}
	return "", fmt.Errorf("no package %s", name)
}

// npmPlatform returns how npm packages are named for a platform, in Node's
// terms: "-linux-x64".
func npmPlatform(goos, goarch string) string {
	if goarch == "amd64" {
		goarch = "x64"
	}
	return "-" + goos + "-" + goarch
}

// version looks into the package that holds the program: it lies at the top of
// a platform's package and in bin of the launcher's.
func version(program string) string {
	dir := filepath.Dir(program)
	if filepath.Base(dir) == "bin" && inPackage(filepath.Dir(dir)) {
		dir = filepath.Dir(dir)
	}
	return lookup.PackageVersion(dir)
}
