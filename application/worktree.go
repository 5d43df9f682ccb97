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

// maxGitFile bounds the small files of git that are read here.
const maxGitFile = 8 << 10

// linkedWorktree returns what a workspace that is a linked git worktree needs
// beside itself (git-worktree(1), gitrepository-layout(5)). Its ".git" is a file
// that names a git directory elsewhere, <common>/worktrees/<name>. The agent can
// write that file, so by itself it proves nothing: the plan is widened only if
// the named directory, which the agent could not write, points back to the
// workspace, and one user owns both ends.
//
// The grant is narrow: the worktree's own git directory, and of the common one
// the objects, the refs and their logs can be written; its configuration and its
// hooks, which git runs in the main repository too, can only be read and run.
//
// A ".git" that is not followed gives a note that says why. Nothing is run, and
// no symbolic link is followed. refuse says which places are never granted.
func linkedWorktree(workspace string, refuse func(path string) bool) (rules []domain.PathRule, note string, err error) {
	barred := func(err error) error {
		return &domain.InvalidError{
			What: "workspace", Value: workspace, Reason: "cannot be entered",
			Remedy: "pass a directory that you may list and search", Err: err,
		}
	}
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return nil, "", barred(err)
	}
	defer root.Close()
	info, err := root.Lstat(".git")
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && info.IsDir():
		return nil, "", nil
	case err != nil:
		return nil, "", barred(err)
	}
	common, gitDir, err := followWorktree(root, workspace)
	switch {
	case err != nil:
		return nil, ".git of the workspace is not followed: " + err.Error(), nil
	case covers(workspace, common):
		return nil, "", nil // granted with the workspace
	case refuse(common):
		return nil, fmt.Sprintf(".git of the workspace is not followed: %q is a place that is never granted", common), nil
	}
	grant := func(access domain.Access, presence domain.Presence, path ...string) {
		rules = append(rules, domain.PathRule{
			Path: filepath.Join(path...), Access: access, Presence: presence, Why: "linked git worktree",
		})
	}
	grant(domain.AccessReadExec, domain.Required, common)
	grant(domain.AccessReadWrite, domain.Required, gitDir)
	for _, dir := range []string{"objects", "refs", "reftable", "logs"} {
		grant(domain.AccessReadWrite, domain.Optional, common, dir)
	}
	return rules, "", nil
}

// followWorktree returns the common and the own git directory of the worktree
// at the workspace, or why its .git file is not to be believed.
func followWorktree(workspace *os.Root, path string) (common, gitDir string, err error) {
	text, fileInfo, err := readGitFile(workspace, ".git")
	if err != nil {
		return "", "", err
	}
	gitDir, ok := strings.CutPrefix(text, "gitdir: ")
	if !ok {
		return "", "", errors.New("it does not name a git directory")
	}
	gitDir = against(path, gitDir)
	if resolved, err := filepath.EvalSymlinks(gitDir); err != nil || resolved != gitDir {
		return "", "", fmt.Errorf("%q is not the plain path of a directory", gitDir)
	}
	own, err := os.OpenRoot(gitDir)
	if err != nil {
		return "", "", err
	}
	defer own.Close()
	back, backInfo, err := readGitFile(own, "gitdir")
	if err != nil {
		return "", "", err
	}
	back = against(gitDir, back)
	if home, _, err := canonicalPath(filepath.Dir(back)); err != nil || home != path || filepath.Base(back) != ".git" {
		return "", "", fmt.Errorf("%q does not point back to the workspace", gitDir)
	}
	common, _, err = readGitFile(own, "commondir")
	if err != nil {
		return "", "", err
	}
	common = against(gitDir, common)
	if filepath.Join(common, "worktrees", filepath.Base(gitDir)) != gitDir {
		return "", "", fmt.Errorf("%q is not one of the worktrees of %q", gitDir, common)
	}
	infos := []fs.FileInfo{fileInfo, backInfo}
	for _, dir := range []string{common, gitDir} {
		info, err := os.Lstat(dir)
		if err != nil {
			return "", "", err
		}
		infos = append(infos, info)
	}
	if !sameOwner(infos...) {
		return "", "", fmt.Errorf("%q does not belong to the owner of the workspace's .git", gitDir)
	}
	return common, gitDir, nil
}

// readGitFile reads a small regular file, without the newline at its end. It
// follows no link: what is opened must be what was examined.
func readGitFile(dir *os.Root, name string) (string, fs.FileInfo, error) {
	before, err := dir.Lstat(name)
	if err != nil {
		return "", nil, err
	}
	if !before.Mode().IsRegular() || before.Size() > maxGitFile {
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
	data, err := io.ReadAll(io.LimitReader(f, maxGitFile))
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
