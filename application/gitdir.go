package application

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/domain"
)

// maxGitFile and maxGitConfig bound the files of git that are read here. A
// configuration has some hundred bytes for each remote and each branch.
const (
	maxGitFile   = 8 << 10
	maxGitConfig = 256 << 10
)

// gitElsewhere is what a workspace needs whose git directory lies elsewhere.
type gitElsewhere struct {
	rules []domain.PathRule
	// notes are for the receipts: why a ".git" is not followed, or what is granted
	// with it that a person should know.
	notes []string
}

// findGitElsewhere returns what a workspace needs beside itself that is a linked
// git worktree or a submodule (git-worktree(1), gitsubmodules(7),
// gitrepository-layout(5)). Its ".git" is a file that names a git directory
// elsewhere. The agent can write that file, so by itself it proves nothing: the
// plan is widened only if the named directory, which the agent could not write,
// points back to the workspace, and one user owns both ends.
//
// The grant is narrow. Of a worktree's repository the objects, the refs and their
// logs can be written, and the worktree's own git directory; its configuration
// and its hooks, which git runs in the main repository too, can only be read and
// run. Of a submodule it is its own git directory, and nothing of the project
// that it is a part of.
//
// A ".git" that is not followed gives a note that says why. Nothing is run, and
// no symbolic link is followed. refuse says which places are never granted.
func findGitElsewhere(workspace string, refuse func(path string) bool) (gitElsewhere, error) {
	barred := func(err error) error {
		return &domain.InvalidError{
			What: "workspace", Value: workspace, Reason: "cannot be entered",
			Remedy: "pass a directory that you may list and search", Err: err,
		}
	}
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return gitElsewhere{}, barred(err)
	}
	defer root.Close()
	info, err := root.Lstat(".git")
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && info.IsDir():
		return gitElsewhere{}, nil
	case err != nil:
		return gitElsewhere{}, barred(err)
	}
	link, err := followGitFile(root, workspace)
	switch {
	case err != nil:
		return gitElsewhere{notes: []string{".git of the workspace is not followed: " + err.Error()}}, nil
	case covers(workspace, link.common):
		return gitElsewhere{}, nil // granted with the workspace
	case refuse(link.common):
		return gitElsewhere{notes: []string{fmt.Sprintf(".git of the workspace is not followed: %q is a place that is never granted", link.common)}}, nil
	case link.gitDir == link.common:
		return gitElsewhere{
			rules: rules(domain.AccessReadWrite, domain.Required, "git directory of the submodule", link.gitDir),
			notes: []string{fmt.Sprintf("the workspace is a submodule: the agent can write its git directory %q, configuration and hooks included, which git also runs in the project around it", link.gitDir)},
		}, nil
	}
	var git gitElsewhere
	grant := func(access domain.Access, presence domain.Presence, path ...string) {
		git.rules = append(git.rules, rules(access, presence, "linked git worktree", filepath.Join(path...))...)
	}
	grant(domain.AccessReadExec, domain.Required, link.common)
	grant(domain.AccessReadWrite, domain.Required, link.gitDir)
	for _, dir := range []string{"objects", "refs", "reftable", "logs"} {
		grant(domain.AccessReadWrite, domain.Optional, link.common, dir)
	}
	return git, nil
}

// gitLink is where a .git file leads: to a worktree's own git directory and the
// one that it shares with others, or to a submodule's, which is both.
type gitLink struct {
	common, gitDir string
}

// followGitFile returns where the .git file of a workspace leads, or why it is
// not to be believed.
func followGitFile(workspace *os.Root, path string) (gitLink, error) {
	text, fileInfo, err := readGitFile(workspace, ".git", maxGitFile)
	if err != nil {
		return gitLink{}, err
	}
	gitDir, ok := strings.CutPrefix(text, "gitdir: ")
	if !ok {
		return gitLink{}, errors.New("it does not name a git directory")
	}
	gitDir = against(path, gitDir)
	if resolved, err := filepath.EvalSymlinks(gitDir); err != nil || resolved != gitDir {
		return gitLink{}, fmt.Errorf("%q is not the plain path of a directory", gitDir)
	}
	own, err := os.OpenRoot(gitDir)
	if err != nil {
		return gitLink{}, err
	}
	defer own.Close()
	follow := followWorktree
	if _, err := own.Lstat("commondir"); errors.Is(err, fs.ErrNotExist) {
		follow = followSubmodule
	}
	common, others, err := follow(own, gitDir, path)
	if err != nil {
		return gitLink{}, err
	}
	infos := []fs.FileInfo{fileInfo}
	for _, file := range append(others, common, gitDir) {
		info, err := os.Lstat(file)
		if err != nil {
			return gitLink{}, err
		}
		infos = append(infos, info)
	}
	if !sameOwner(infos...) {
		return gitLink{}, fmt.Errorf("%q does not belong to the owner of the workspace's .git", gitDir)
	}
	return gitLink{common, gitDir}, nil
}

// followWorktree returns the common git directory of a linked worktree's own
// one, if that points back to the workspace. others are the files besides whose
// owner counts.
func followWorktree(own *os.Root, gitDir, workspace string) (common string, others []string, err error) {
	back, _, err := readGitFile(own, "gitdir", maxGitFile)
	if err != nil {
		return "", nil, err
	}
	back = against(gitDir, back)
	if home, _, err := canonicalPath(filepath.Dir(back)); err != nil || home != workspace || filepath.Base(back) != ".git" {
		return "", nil, fmt.Errorf("%q does not point back to the workspace", gitDir)
	}
	common, _, err = readGitFile(own, "commondir", maxGitFile)
	if err != nil {
		return "", nil, err
	}
	common = against(gitDir, common)
	if filepath.Join(common, "worktrees", filepath.Base(gitDir)) != gitDir {
		return "", nil, fmt.Errorf("%q is not one of the worktrees of %q", gitDir, common)
	}
	return common, []string{filepath.Join(gitDir, "gitdir")}, nil
}

// followSubmodule returns the git directory of a submodule, if it lies where git
// puts them, in "modules" of another git directory, and its configuration points
// back to the workspace.
func followSubmodule(own *os.Root, gitDir, workspace string) (common string, others []string, err error) {
	config, _, err := readGitFile(own, "config", maxGitConfig)
	if err != nil {
		return "", nil, err
	}
	back, err := coreWorktree(config)
	if err != nil {
		return "", nil, fmt.Errorf("the configuration in %q %w", gitDir, err)
	}
	if home, _, err := canonicalPath(against(gitDir, back)); err != nil || home != workspace {
		return "", nil, fmt.Errorf("%q does not point back to the workspace", gitDir)
	}
	for dir := filepath.Dir(gitDir); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if filepath.Base(dir) != "modules" {
			continue
		}
		super := filepath.Dir(dir)
		if info, err := os.Lstat(filepath.Join(super, "HEAD")); err == nil && info.Mode().IsRegular() {
			return gitDir, []string{super, filepath.Join(gitDir, "config")}, nil
		}
	}
	return "", nil, fmt.Errorf("%q is not among the modules of a git directory", gitDir)
}

// coreWorktree returns the value of core.worktree in a git configuration, as far
// as git writes it itself (git-config(1), "Syntax"). It follows no include, and
// of two values it takes neither.
func coreWorktree(config string) (string, error) {
	inCore, found, value := false, false, ""
	for line := range strings.Lines(config) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			inCore = strings.EqualFold(line, "[core]")
			continue
		}
		key, rest, ok := strings.Cut(line, "=")
		if !inCore || !ok || !strings.EqualFold(strings.TrimSpace(key), "worktree") {
			continue
		}
		if found {
			return "", errors.New("names two worktrees")
		}
		if value, ok = unquoteGit(strings.TrimSpace(rest)); !ok {
			return "", errors.New("names a worktree in a way that is not understood")
		}
		found = true
	}
	if !found {
		return "", errors.New("names no worktree")
	}
	return value, nil
}

// unquoteGit takes quotes and escapes from a value of a git configuration.
func unquoteGit(s string) (string, bool) {
	var b strings.Builder
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && i+1 < len(s):
			i++
			plain, ok := map[byte]byte{'\\': '\\', '"': '"', 'n': '\n', 't': '\t', 'b': '\b'}[s[i]]
			if !ok {
				return "", false
			}
			b.WriteByte(plain)
		case c == '\\', !quoted && (c == '#' || c == ';'):
			return "", false
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), !quoted && b.Len() > 0
}

// readGitFile reads a small regular file, without the newline at its end. It
// follows no link: what is opened must be what was examined.
func readGitFile(dir *os.Root, name string, limit int64) (string, fs.FileInfo, error) {
	before, err := dir.Lstat(name)
	if err != nil {
		return "", nil, err
	}
	if !before.Mode().IsRegular() || before.Size() > limit {
		return "", nil, fmt.Errorf("%s is not a small regular file", name)
	}
	f, err := dir.OpenFile(name, os.O_RDONLY|noWait, 0)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	after, err := f.Stat()
	if err != nil {
		return "", nil, err
	}
	if !os.SameFile(before, after) {
		return "", nil, fmt.Errorf("%s changed while it was being read", name)
	}
	data, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return "", nil, err
	}
	return strings.TrimRight(string(data), "\r\n"), after, nil
}

// against returns a clean path, a relative one as seen from dir.
func against(dir, path string) string {
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	return filepath.Clean(path)
}
