package application_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

// worktree lays out a repository and a linked worktree of it, as git does.
type worktree struct {
	common, gitDir, tree string
}

func newWorktree(t *testing.T, r *rig) worktree {
	t.Helper()
	w := worktree{common: filepath.Join(r.home, "main", ".git"), tree: filepath.Join(r.home, "tree")}
	w.gitDir = filepath.Join(w.common, "worktrees", "tree")
	for _, dir := range []string{"objects", "refs", "logs", "hooks"} {
		mkdir(t, w.common, dir)
	}
	mkdir(t, w.tree)
	write(t, "gitdir: "+w.gitDir+"\n", w.tree, ".git")
	write(t, w.tree+"/.git\n", w.gitDir, "gitdir")
	write(t, "../..\n", w.gitDir, "commondir")
	return w
}

// gitGrants returns what the plan of a workspace grants for git, and the notes.
func gitGrants(t *testing.T, r *rig, workspace string) (map[string]domain.Access, []string) {
	t.Helper()
	req := r.request()
	req.Workspace = workspace
	preview, err := r.Plan(t.Context(), req)
	require.NoError(t, err)
	granted := map[string]domain.Access{}
	for _, rule := range preview.Plan.Rules() {
		if rule.Why == "linked git worktree" {
			granted[rule.Path] = rule.Access
		}
	}
	return granted, preview.Notes
}

func (w worktree) want() map[string]domain.Access {
	return map[string]domain.Access{
		w.common: domain.AccessReadExec, w.gitDir: domain.AccessReadWrite,
		filepath.Join(w.common, "objects"): domain.AccessReadWrite, filepath.Join(w.common, "refs"): domain.AccessReadWrite,
		filepath.Join(w.common, "logs"): domain.AccessReadWrite, filepath.Join(w.common, "reftable"): domain.AccessReadWrite,
	}
}

func TestALinkedWorktreeIsGranted(t *testing.T) {
	r := newRig(t)
	w := newWorktree(t, r)
	granted, notes := gitGrants(t, r, w.tree)
	require.Equal(t, w.want(), granted, "the configuration and the hooks of the repository are not written")
	require.Empty(t, notes)

	// Relative links, as git can write them too.
	write(t, "gitdir: ../main/.git/worktrees/tree\n", w.tree, ".git")
	write(t, "../../../../tree/.git\n", w.gitDir, "gitdir")
	granted, notes = gitGrants(t, r, w.tree)
	require.Equal(t, w.want(), granted)
	require.Empty(t, notes)
}

func TestAnOrdinaryRepositoryNeedsNothing(t *testing.T) {
	r := newRig(t)
	granted, notes := gitGrants(t, r, r.workspace)
	require.Empty(t, granted)
	require.Empty(t, notes)
	mkdir(t, r.workspace, ".git", "objects")
	granted, notes = gitGrants(t, r, r.workspace)
	require.Empty(t, granted)
	require.Empty(t, notes)
}

// TestAWorktreeThatProvesNothingIsNotGranted has what an agent might plant in its
// workspace in order to be granted more in the next session.
func TestAWorktreeThatProvesNothingIsNotGranted(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(t *testing.T, r *rig, w worktree)
		note  string
	}{
		"no way back": {func(t *testing.T, _ *rig, w worktree) {
			require.NoError(t, os.Remove(filepath.Join(w.gitDir, "gitdir")))
		}, "no such file"},
		"back to another tree": {func(t *testing.T, r *rig, w worktree) {
			mkdir(t, r.home, "tree2")
			write(t, r.home+"/tree2/.git\n", w.gitDir, "gitdir")
		}, "does not point back to the workspace"},
		"back to a likely name": {func(t *testing.T, _ *rig, w worktree) {
			write(t, w.tree+"2/.git\n", w.gitDir, "gitdir")
		}, "does not point back to the workspace"},
		"back to another file": {func(t *testing.T, _ *rig, w worktree) {
			write(t, w.tree+"/git\n", w.gitDir, "gitdir")
		}, "does not point back to the workspace"},
		"a secret directory": {func(t *testing.T, r *rig, w worktree) {
			write(t, "gitdir: "+mkdir(t, r.home, ".ssh")+"\n", w.tree, ".git")
		}, "no such file"},
		"a relative way out": {func(t *testing.T, r *rig, w worktree) {
			mkdir(t, r.home, ".ssh")
			write(t, "gitdir: ../.ssh\n", w.tree, ".git")
		}, "no such file"},
		"a submodule": {func(t *testing.T, r *rig, w worktree) {
			module := mkdir(t, r.home, "main", ".git", "modules", "m")
			write(t, "gitdir: "+module+"\n", w.tree, ".git")
		}, "no such file"},
		"another common directory": {func(t *testing.T, r *rig, w worktree) {
			write(t, r.home+"\n", w.gitDir, "commondir")
		}, "is not one of the worktrees of"},
		"no worktree's place": {func(t *testing.T, r *rig, w worktree) {
			odd := mkdir(t, r.home, "odd")
			write(t, "gitdir: "+odd+"\n", w.tree, ".git")
			write(t, w.tree+"/.git\n", odd, "gitdir")
			write(t, "..\n", odd, "commondir")
		}, "is not one of the worktrees of"},
		"a link on the way": {func(t *testing.T, r *rig, w worktree) {
			require.NoError(t, os.Symlink(filepath.Join(r.home, "main"), filepath.Join(r.home, "alias")))
			write(t, "gitdir: "+r.home+"/alias/.git/worktrees/tree\n", w.tree, ".git")
		}, "is not the plain path of a directory"},
		"a link for the way back": {func(t *testing.T, r *rig, w worktree) {
			require.NoError(t, os.Rename(filepath.Join(w.gitDir, "gitdir"), filepath.Join(w.gitDir, "there")))
			require.NoError(t, os.Symlink("there", filepath.Join(w.gitDir, "gitdir")))
		}, "not a small regular file"},
		"a link for .git": {func(t *testing.T, r *rig, w worktree) {
			require.NoError(t, os.Remove(filepath.Join(w.tree, ".git")))
			require.NoError(t, os.Symlink(filepath.Join(r.home, "main", ".git"), filepath.Join(w.tree, ".git")))
		}, "not a small regular file"},
		"something else": {func(t *testing.T, _ *rig, w worktree) {
			write(t, "hello \x1b[2J\n", w.tree, ".git")
		}, "does not name a git directory"},
		"control bytes": {func(t *testing.T, _ *rig, w worktree) {
			write(t, "gitdir: /no\x1b[2J\x00where\n", w.tree, ".git")
		}, `"/no\x1b[2J\x00where"`},
		"too much": {func(t *testing.T, _ *rig, w worktree) {
			write(t, "gitdir: /"+strings.Repeat("x", 10000)+"\n", w.tree, ".git")
		}, "not a small regular file"},
		"home": {func(t *testing.T, r *rig, w worktree) {
			bare := filepath.Join(r.home, "worktrees", "tree")
			write(t, "gitdir: "+bare+"\n", w.tree, ".git")
			write(t, w.tree+"/.git\n", bare, "gitdir")
			write(t, "../..\n", bare, "commondir")
		}, "a place that is never granted"},
		"the state": {func(t *testing.T, r *rig, w worktree) {
			bare := filepath.Join(r.records.Root(), "x", "worktrees", "tree")
			write(t, "gitdir: "+bare+"\n", w.tree, ".git")
			write(t, w.tree+"/.git\n", bare, "gitdir")
			write(t, "../..\n", bare, "commondir")
		}, "a place that is never granted"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			w := newWorktree(t, r)
			c.plant(t, r, w)
			granted, notes := gitGrants(t, r, w.tree)
			require.Empty(t, granted)
			require.Len(t, notes, 1)
			require.Contains(t, notes[0], ".git of the workspace is not followed")
			require.Contains(t, notes[0], c.note)
			require.NotContains(t, notes[0], "\x1b")
		})
	}
	t.Run("another owner", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("root: only root can give a file away")
		}
		for _, what := range []func(worktree) string{
			func(w worktree) string { return w.common },
			func(w worktree) string { return w.gitDir },
			func(w worktree) string { return filepath.Join(w.gitDir, "gitdir") },
			func(w worktree) string { return filepath.Join(w.tree, ".git") },
		} {
			r := newRig(t)
			w := newWorktree(t, r)
			require.NoError(t, os.Lchown(what(w), 65534, 65534))
			granted, notes := gitGrants(t, r, w.tree)
			require.Empty(t, granted)
			require.Contains(t, notes[0], "does not belong to the owner")
		}
	})
	t.Run("the note is in the receipts", func(t *testing.T) {
		r := newRig(t)
		write(t, "nonsense", r.workspace, ".git")
		receipt := play(t, r.open(t), "say hello")[0].Reply.(domain.SandboxApplied).Receipt
		require.Len(t, receipt.Agent, 1)
		require.Contains(t, receipt.Agent[0], "not followed")
	})
}

func TestARealWorktreeIsGranted(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("cli: git is not installed")
	}
	r := newRig(t)
	main, tree := filepath.Join(r.home, "main"), filepath.Join(r.home, "tree")
	for _, args := range [][]string{
		{"init", "-q", main},
		{"-C", main, "-c", "user.name=n", "-c", "user.email=e", "commit", "-q", "--allow-empty", "-m", "first"},
		{"-C", main, "worktree", "add", "-q", tree},
	} {
		cmd := exec.CommandContext(t.Context(), git, args...)
		cmd.Env = []string{"HOME=" + r.home, "GIT_CONFIG_NOSYSTEM=1", "PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	granted, notes := gitGrants(t, r, tree)
	require.Empty(t, notes)
	common := filepath.Join(main, ".git")
	require.Equal(t, worktree{common: common, gitDir: filepath.Join(common, "worktrees", "tree")}.want(), granted)
}
