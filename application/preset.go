package application

import (
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// The names of the presets.
const (
	presetCoding = "coding"
	presetExec   = "exec"
)

// systemDirs hold programs and libraries, and no secrets.
var systemDirs = []string{
	"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store",
}

// etcForRoot is what of /etc programs need. For an ordinary user the whole of
// /etc is granted, because the files' own modes guard the secrets in it. They
// do not guard them from root, which owns shadow, the ssh host keys and the
// private keys below ssl and pki.
var etcForRoot = []string{
	"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
	"/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
	"/etc/hosts", "/etc/host.conf", "/etc/gai.conf", "/etc/protocols", "/etc/services",
	"/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/ca-certificates", "/etc/ca-certificates.conf",
	"/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust/extracted", "/etc/crypto-policies",
	"/etc/gitconfig", "/etc/profile", "/etc/profile.d", "/etc/bash.bashrc", "/etc/bashrc", "/etc/bash.bash_logout", "/etc/inputrc",
	"/etc/alternatives", "/etc/os-release", "/etc/lsb-release", "/etc/debian_version",
	"/etc/mime.types", "/etc/magic", "/etc/terminfo", "/etc/timezone",
}

// etcLinks often lead out of /etc; a rule for the link grants what it leads to.
var etcLinks = []string{"/etc/resolv.conf", "/etc/localtime"}

// passedEnv are the variables that reach the child with the values that they
// have when it is started. None of them leads to a credential, a socket of the
// host's or a place to load code from, as SSH_AUTH_SOCK, DBUS_*, DOCKER_HOST,
// LD_*, GIT_* and NODE_OPTIONS do.
var passedEnv = []string{
	"LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ", "USER", "LOGNAME", "SHELL", "COLORTERM", "NO_COLOR",
}

// defaultPath is what PATH is when the host's has no absolute entry.
var defaultPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

func rules(access domain.Access, presence domain.Presence, why string, paths ...string) []domain.PathRule {
	rs := make([]domain.PathRule, 0, len(paths))
	for _, p := range paths {
		rs = append(rs, domain.PathRule{Path: p, Access: access, Presence: presence, Why: why})
	}
	return rs
}

// systemRules grant what nearly every program needs of the host. Devices are
// granted one by one, never /dev as a directory: root owns the disks in it.
//
// /proc is needed by runtimes and tools, and granting the running process alone
// is not possible in advance. The sandbox keeps the child from reading the memory
// and the environment of processes outside.
func systemRules(euid int) []domain.PathRule {
	const why = "system"
	rs := rules(domain.AccessReadExec, domain.Optional, why, systemDirs...)
	if euid == 0 {
		rs = append(rs, rules(domain.AccessRead, domain.Optional, why, etcForRoot...)...)
	} else {
		rs = append(rs, rules(domain.AccessRead, domain.Optional, why, "/etc")...)
	}
	rs = append(rs, rules(domain.AccessRead, domain.Optional, why, etcLinks...)...)
	rs = append(rs, rules(domain.AccessRead, domain.Optional, why, "/proc", "/sys/devices/system/cpu", "/sys/fs/cgroup")...)
	rs = append(rs, rules(domain.AccessReadWrite, domain.Optional, "device", "/dev/null", "/dev/zero", "/dev/full")...)
	return append(rs, rules(domain.AccessRead, domain.Optional, "device", "/dev/random", "/dev/urandom")...)
}

// presetEnv is the environment of a preset: what is listed, and nothing else of
// the host's. PATH has the host's absolute entries.
func presetEnv(path []string, home domain.EnvRule, temp string) []domain.EnvRule {
	if len(path) == 0 {
		path = defaultPath
	}
	home.Name, home.Why = "HOME", "preset"
	env := []domain.EnvRule{
		{Name: "PATH", Value: strings.Join(path, string(filepath.ListSeparator)), Literal: true, Why: "preset"},
		home,
		{Name: "TMPDIR", Value: temp, Literal: true, Why: "preset"},
	}
	for _, name := range passedEnv {
		env = append(env, domain.EnvRule{Name: name, Why: "preset"})
	}
	return env
}

// xdgEnv leads what programs keep by the XDG base directories into a session's
// private ones, also where a program has another default than $HOME. The runtime
// directory is the temporary one: it is the session's alone, has mode 0700 and
// goes when the session is removed, which is all that is asked of it.
func xdgEnv(home, temp string) []domain.EnvRule {
	var env []domain.EnvRule
	for _, v := range []struct{ name, dir string }{
		{"XDG_CONFIG_HOME", filepath.Join(home, ".config")},
		{"XDG_CACHE_HOME", filepath.Join(home, ".cache")},
		{"XDG_DATA_HOME", filepath.Join(home, ".local", "share")},
		{"XDG_STATE_HOME", filepath.Join(home, ".local", "state")},
		{"XDG_RUNTIME_DIR", temp},
	} {
		env = append(env, domain.EnvRule{Name: v.name, Value: v.dir, Literal: true, Why: "preset"})
	}
	return env
}

// terminalRules grant a program on a terminal the name under which every
// process finds its own. It is no way to the host's terminals: what it leads to
// is the controlling terminal of whoever opens it. ioctl(2) on it is what job
// control takes.
func terminalRules() []domain.PathRule {
	return rules(domain.AccessReadFile|domain.AccessWriteFile|domain.AccessIoctlDev, domain.Optional, "terminal", "/dev/tty")
}

// codingInput is what the coding preset depends on. All paths are canonical.
type codingInput struct {
	euid      int
	workspace string
	access    domain.Access // to the workspace; none for all that the preset grants
	why       string        // who says so
	dirs      ports.SessionDirs
	homePath  []string // PATH entries below $HOME that are safe to grant
}

// codingRules grant an agent what it needs to work on code: the workspace, its
// private directories, the system's programs and the user's own ones that are
// on PATH. $HOME itself, and with it every key and token below it, is not
// granted.
//
// The private directories are executable: tools run what they have just built
// from their temporary directory, and agents unpack helpers into their state.
func codingRules(in codingInput) []domain.PathRule {
	access := in.access
	if access == 0 {
		access = domain.AccessReadWriteExec
	}
	rs := workspaceRules(in.workspace, access, in.why)
	rs = append(rs, rules(domain.AccessReadWriteExec, domain.Required, "private state", in.dirs.State)...)
	rs = append(rs, rules(domain.AccessReadWriteExec, domain.Required, "private home", in.dirs.Home)...)
	rs = append(rs, rules(domain.AccessReadWriteExec, domain.Required, "private temp", in.dirs.Temp)...)
	rs = append(rs, systemRules(in.euid)...)
	return append(rs, rules(domain.AccessReadExec, domain.Optional, "PATH", in.homePath...)...)
}

// workspaceRules grant the directory that a program works in.
func workspaceRules(dir string, access domain.Access, why string) []domain.PathRule {
	if access == 0 {
		return nil
	}
	if why != "" {
		why = ", " + why
	}
	return rules(access, domain.Required, "workspace"+why, dir)
}

// execInput is what the exec preset depends on. All paths are canonical.
type execInput struct {
	euid     int
	program  string
	temp     string
	homePath []string // as of codingInput
}

// execRules grant a command itself, the system's programs, the user's own ones
// that are on PATH, and a private temporary directory. The directory that it starts in is not granted: it may
// well be $HOME.
func execRules(in execInput) []domain.PathRule {
	rs := rules(domain.AccessReadExec, domain.Required, "the command", in.program)
	rs = append(rs, rules(domain.AccessReadWriteExec, domain.Required, "private temp", in.temp)...)
	rs = append(rs, systemRules(in.euid)...)
	return append(rs, rules(domain.AccessReadExec, domain.Optional, "PATH", in.homePath...)...)
}
