package application

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/caisson-run/caisson/domain"
)

// tripped is the message of a turn that failed for it.
func tripped(planted []domain.Planted) string {
	names := make([]string, 0, len(planted))
	for _, p := range planted {
		names = append(names, p.Path)
	}
	return "the turn changed what could run code outside of the sandbox: " + strings.Join(names, ", ")
}

// tripwire is a place in a workspace from which something runs code later, outside
// of the sandbox: by itself, or when its user does something harmless.
type tripwire struct {
	path string // slash-separated; a directory counts with all that is in it
	runs string // who runs it, and when
	// of returns the part of a file that can run something; nil for all of it.
	of func([]byte) []byte
	// not says that a directory there is no tripwire itself.
	not bool
}

// tripwires are looked at in the root of a workspace. Sources: git-config(1) and
// githooks(5), and the documentation of each tool.
var tripwires = []tripwire{
	{path: ".git", runs: "git takes its configuration and hooks from where it points", not: true},
	{path: ".git/hooks", runs: "git runs hooks"},
	{path: ".git/config", runs: "git runs commands from its configuration", of: gitCommands},
	{path: ".git/config.worktree", runs: "git runs commands from its configuration", of: gitCommands},
	{path: ".git/info/attributes", runs: "git runs filters"},
	{path: ".gitmodules", runs: "git fetches submodules from where it says"},
	{path: ".husky", runs: "git runs hooks"},
	{path: "lefthook.yml", runs: "git runs hooks"},
	{path: ".pre-commit-config.yaml", runs: "git runs hooks"},
	{path: ".envrc", runs: "direnv runs it when a shell enters the directory"},
	{path: ".mise.toml", runs: "mise runs its hooks when a shell enters the directory"},
	{path: ".vscode", runs: "VS Code runs tasks and programs from its settings"},
	{path: ".idea", runs: "JetBrains' editors run configurations from it"},
	{path: ".devcontainer", runs: "editors build and run containers from it"},
	{path: ".mcp.json", runs: "agents start the servers that it names"},
	{path: ".claude", runs: "Claude Code runs hooks, and obeys settings, from it"},
	{path: ".codex", runs: "Codex obeys settings from it"},
	{path: ".gemini", runs: "Gemini CLI obeys settings from it"},
	{path: ".cursor", runs: "Cursor obeys settings, and starts servers, from it"},
	{path: ".github/workflows", runs: "GitHub runs it with the repository's secrets"},
	{path: ".gitlab-ci.yml", runs: "GitLab runs it with the project's secrets"},
	{path: ".circleci", runs: "CircleCI runs it with the project's secrets"},
	{path: "package.json", runs: "npm runs its scripts, some of them at every install", of: packageScripts},
	{path: ".npmrc", runs: "npm obeys it: registries, and the shell of scripts"},
	{path: ".yarnrc.yml", runs: "yarn runs the program and the plugins that it names"},
	{path: ".caisson.toml", runs: "Caisson takes the policy of later runs from it"},
}

// The most that is read: of files, and of each. What is beyond counts by its size
// and time alone.
const (
	maxTripwireFiles = 1024
	maxTripwireBytes = 1 << 20
)

// maxTripwireNames is the most names, directories included, that are looked at for
// each tripwire. One that has more counts as changed, because it cannot be told.
const maxTripwireNames = 64 << 10

// maxTripwireDepth is how deep directories are looked into, below the workspace:
// far above what any tool reads. What it takes to get to a name grows with its
// depth, so a deep chain would hold the turn's end for hours. A directory that is
// deeper counts as changed, too.
const maxTripwireDepth = 64

// tooMany stands for what was not looked at as a whole.
const tooMany = "too many files"

// trips is what the tripwires of a workspace looked like: by path, a digest of
// what can run something.
type trips map[string]string

// lookAtTripwires looks at the tripwires of a workspace, without following a link
// out of it: the agent can write there.
func lookAtTripwires(workspace string) (trips, error) {
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	seen := trips{}
	for _, t := range tripwires {
		if err := seen.look(root, t); err != nil {
			return nil, fmt.Errorf("look for what could run later: %w", err)
		}
	}
	return seen, nil
}

func (s trips) look(root *os.Root, t tripwire) error {
	names := 0
	return fs.WalkDir(root.FS(), t.path, func(name string, entry fs.DirEntry, err error) error {
		if names++; names > maxTripwireNames {
			s[t.path] = tooMany
			return fs.SkipAll
		}
		switch {
		case err != nil:
			s.unreadable(name, err)
			return nil
		case entry.IsDir() && t.not:
			return fs.SkipDir
		case entry.IsDir() && strings.Count(name, "/") >= maxTripwireDepth:
			s[name] = tooMany
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		digest, err := digestOf(root, name, entry, t.of, len(s) < maxTripwireFiles)
		if err != nil {
			s.unreadable(name, err)
		} else if digest != "" {
			s[name] = digest
		}
		return nil
	})
}

// unreadable notes a name that cannot be looked at: a file where a directory should
// be, or a link that leads out. What is not there, or not the user's to read, is
// not there for an agent either.
func (s trips) unreadable(name string, err error) {
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		s[name] = "unreadable: " + err.Error()
	}
}

// digestOf says what a file is, "" if nothing in it can run something. Without
// read, its content is not looked at.
func digestOf(root *os.Root, name string, entry fs.DirEntry, of func([]byte) []byte, read bool) (string, error) {
	info, err := entry.Info()
	if err != nil {
		return "", err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		to, err := root.Readlink(name)
		return "link to " + to, err
	}
	if !info.Mode().IsRegular() {
		return info.Mode().Type().String(), nil
	}
	mode := info.Mode().Perm().String()
	if !read || info.Size() > maxTripwireBytes {
		return fmt.Sprint(mode, info.Size(), info.ModTime().UnixNano()), nil
	}
	// A pipe that has taken its place since must not make us wait.
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxTripwireBytes))
	if err != nil {
		return "", err
	}
	if of != nil {
		// Its mode says nothing of what is read by another program.
		if content, mode = of(content), ""; len(content) == 0 {
			return "", nil
		}
	}
	return fmt.Sprintf("%s %x", mode, sha256.Sum256(content)), nil
}

// since returns what has changed, sorted by path.
func (s trips) since(before trips) []domain.Planted {
	var changes []domain.Planted
	add := func(name, kind string) {
		for _, t := range tripwires {
			if name == t.path || !t.not && strings.HasPrefix(name, t.path+"/") {
				changes = append(changes, domain.Planted{Path: name, Kind: kind, Runs: t.runs})
				return
			}
		}
	}
	for name, digest := range s {
		switch old, ok := before[name]; {
		case !ok:
			add(name, "add")
		case old != digest, digest == tooMany:
			add(name, "update")
		}
	}
	for name := range before {
		if _, ok := s[name]; !ok {
			add(name, "delete")
		}
	}
	slices.SortFunc(changes, func(a, b domain.Planted) int { return strings.Compare(a.Path, b.Path) })
	return changes
}

// harmlessGitKeys are the keys of git's configuration that git itself and its
// everyday commands write, and that name no command. All others count.
var harmlessGitKeys = []string{
	"core.repositoryformatversion", "core.filemode", "core.bare", "core.logallrefupdates", "core.ignorecase",
	"core.precomposeunicode", "core.symlinks", "core.autocrlf", "core.eol", "core.sparsecheckout",
	"extensions.objectformat", "extensions.refstorage", "extensions.worktreeconfig",
	"branch.remote", "branch.merge", "branch.rebase", "remote.fetch", "remote.tagopt", "remote.prune",
	"user.name", "user.email", "init.defaultbranch", "pull.rebase", "push.default", "merge.conflictstyle",
}

// gitCommands returns the lines of git's configuration that may name a command,
// or a place to get code from.
func gitCommands(config []byte) []byte {
	var out bytes.Buffer
	section := ""
	lines := bufio.NewScanner(bytes.NewReader(config))
	lines.Buffer(nil, maxTripwireBytes+1)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if rest, ok := strings.CutPrefix(line, "["); ok {
			name, after, _ := strings.Cut(rest, "]")
			section, _, _ = strings.Cut(name, " ")
			section, _, _ = strings.Cut(section, ".") // the old form of a subsection
			section = strings.ToLower(section)
			// A key may stand on the section's line.
			line = strings.TrimSpace(after)
		}
		key, _, _ := strings.Cut(line, "=")
		key = strings.ToLower(strings.TrimSpace(key))
		if key == "" || key[0] == '#' || key[0] == ';' || slices.Contains(harmlessGitKeys, section+"."+key) {
			continue
		}
		fmt.Fprintf(&out, "%s.%s\n", section, line)
	}
	return out.Bytes()
}

// packageScripts returns the scripts of a package.json, and the whole of one that
// cannot be read.
func packageScripts(text []byte) []byte {
	// A map, because the keys of a struct match in any case, and npm's do not.
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return text
	}
	return fields["scripts"]
}
