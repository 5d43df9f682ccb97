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
		if rule.Why == "linked git worktree" || rule.Why == "git directory of the submodule" {
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

// submodule lays out a project with a submodule, as git does.
type submodule struct {
	super, gitDir, tree string
}

func newSubmodule(t *testing.T, r *rig, name string) submodule {
	t.Helper()
	m := submodule{super: filepath.Join(r.home, "super", ".git"), tree: filepath.Join(r.home, "super", name)}
	m.gitDir = filepath.Join(m.super, "modules", name)
	for _, dir := range []string{"objects", "refs", "hooks"} {
		mkdir(t, m.gitDir, dir)
	}
	mkdir(t, m.tree)
	write(t, "ref: refs/heads/main\n", m.super, "HEAD")
	write(t, "ref: refs/heads/main\n", m.gitDir, "HEAD")
	m.point(t, "../../../"+name)
	write(t, "gitdir: ../.git/modules/"+name+"\n", m.tree, ".git")
	return m
}

// point writes where the submodule's configuration says that its tree is.
func (m submodule) point(t *testing.T, value string) {
	t.Helper()
	write(t, "[core]\n\trepositoryformatversion = 0\n\tworktree = "+value+"\n[remote \"origin\"]\n\tworktree = no\n", m.gitDir, "config")
}

func (m submodule) want() map[string]domain.Access {
	return map[string]domain.Access{m.gitDir: domain.AccessReadWrite}
}

func TestASubmoduleIsGrantedItsGitDirectory(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, r *rig, m submodule) submodule{
		"as git writes it": func(_ *testing.T, _ *rig, m submodule) submodule { return m },
		"absolute": func(t *testing.T, _ *rig, m submodule) submodule {
			m.point(t, m.tree)
			write(t, "gitdir: "+m.gitDir+"\n", m.tree, ".git")
			return m
		},
		"quoted": func(t *testing.T, _ *rig, m submodule) submodule {
			m.point(t, `"../../../sub"`)
			return m
		},
		"in the git directory of a worktree": func(t *testing.T, r *rig, m submodule) submodule {
			to := filepath.Join(m.super, "worktrees", "w", "modules", "sub")
			mkdir(t, filepath.Dir(to))
			write(t, "ref: x\n", m.super, "worktrees", "w", "HEAD")
			require.NoError(t, os.Rename(m.gitDir, to))
			m.gitDir = to
			m.point(t, m.tree)
			write(t, "gitdir: "+to+"\n", m.tree, ".git")
			return m
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			m := change(t, r, newSubmodule(t, r, "sub"))
			granted, notes := gitGrants(t, r, m.tree)
			require.Equal(t, m.want(), granted, "and nothing of the project around it")
			require.Len(t, notes, 1)
			require.Contains(t, notes[0], "the workspace is a submodule")
			require.Contains(t, notes[0], m.gitDir)
		})
	}
	t.Run("an odd name", func(t *testing.T) {
		r := newRig(t)
		const name = "a #b; \"c\" \\ d"
		m := newSubmodule(t, r, name)
		m.point(t, `"../../../a #b; \"c\" \\ d"`)
		granted, _ := gitGrants(t, r, m.tree)
		require.Equal(t, m.want(), granted)
	})
	t.Run("the project around it needs nothing", func(t *testing.T) {
		r := newRig(t)
		m := newSubmodule(t, r, "sub")
		granted, notes := gitGrants(t, r, filepath.Dir(m.super))
		require.Empty(t, granted)
		require.Empty(t, notes)
	})
}

// TestASubmoduleThatProvesNothingIsNotGranted has what an agent might plant.
func TestASubmoduleThatProvesNothingIsNotGranted(t *testing.T) {
	for name, c := range map[string]struct {
		plant func(t *testing.T, r *rig, m submodule)
		note  string
	}{
		"another submodule's directory": {func(t *testing.T, r *rig, m submodule) {
			other := newSubmodule(t, r, "other")
			write(t, "gitdir: "+other.gitDir+"\n", m.tree, ".git")
		}, "does not point back to the workspace"},
		"the project's own directory": {func(t *testing.T, _ *rig, m submodule) {
			write(t, "[core]\n\tbare = false\n", m.super, "config")
			write(t, "gitdir: "+m.super+"\n", m.tree, ".git")
		}, "names no worktree"},
		"a likely name": {func(t *testing.T, _ *rig, m submodule) { m.point(t, "../../../sub2") }, "does not point back"},
		"above":         {func(t *testing.T, _ *rig, m submodule) { m.point(t, "../../..") }, "does not point back"},
		"no worktree":   {func(t *testing.T, _ *rig, m submodule) { write(t, "[core]\n\tbare = true\n", m.gitDir, "config") }, "names no worktree"},
		"in another section": {func(t *testing.T, _ *rig, m submodule) {
			write(t, "[core \"x\"]\n\tworktree = ../../../sub\n[other]\nworktree = ../../../sub\n", m.gitDir, "config")
		}, "names no worktree"},
		"in an include": {func(t *testing.T, _ *rig, m submodule) {
			write(t, "[include]\n\tpath = more\n", m.gitDir, "config")
			write(t, "[core]\n\tworktree = ../../../sub\n", m.gitDir, "more")
		}, "names no worktree"},
		"two": {func(t *testing.T, _ *rig, m submodule) {
			write(t, "[core]\n\tworktree = ../../../sub\n\tworktree = ../../../sub\n", m.gitDir, "config")
		}, "names two worktrees"},
		"a comment":           {func(t *testing.T, _ *rig, m submodule) { m.point(t, "../../../sub # x") }, "not understood"},
		"an unknown escape":   {func(t *testing.T, _ *rig, m submodule) { m.point(t, `../../../su\x`) }, "not understood"},
		"a line that goes on": {func(t *testing.T, _ *rig, m submodule) { m.point(t, `../../../su\`) }, "not understood"},
		"an open quote":       {func(t *testing.T, _ *rig, m submodule) { m.point(t, `"../../../sub`) }, "not understood"},
		"nothing":             {func(t *testing.T, _ *rig, m submodule) { m.point(t, "") }, "not understood"},
		"not among modules": {func(t *testing.T, r *rig, m submodule) {
			odd := filepath.Join(r.home, "odd")
			require.NoError(t, os.Rename(m.gitDir, odd))
			write(t, "[core]\n\tworktree = "+m.tree+"\n", odd, "config")
			write(t, "gitdir: "+odd+"\n", m.tree, ".git")
		}, "not among the modules"},
		"modules of no git directory": {func(t *testing.T, _ *rig, m submodule) {
			require.NoError(t, os.Remove(filepath.Join(m.super, "HEAD")))
		}, "not among the modules"},
		"a link for the configuration": {func(t *testing.T, _ *rig, m submodule) {
			require.NoError(t, os.Rename(filepath.Join(m.gitDir, "config"), filepath.Join(m.gitDir, "there")))
			require.NoError(t, os.Symlink("there", filepath.Join(m.gitDir, "config")))
		}, "not a small regular file"},
		"a directory for the configuration": {func(t *testing.T, _ *rig, m submodule) {
			require.NoError(t, os.Remove(filepath.Join(m.gitDir, "config")))
			mkdir(t, m.gitDir, "config")
		}, "not a small regular file"},
		"too much of it": {func(t *testing.T, _ *rig, m submodule) {
			m.point(t, "../../../sub\n"+strings.Repeat("# x\n", 100_000))
		}, "not a small regular file"},
		"a link on the way": {func(t *testing.T, r *rig, m submodule) {
			require.NoError(t, os.Symlink(filepath.Dir(m.super), filepath.Join(r.home, "alias")))
			write(t, "gitdir: "+r.home+"/alias/.git/modules/sub\n", m.tree, ".git")
		}, "is not the plain path of a directory"},
		"the state": {func(t *testing.T, r *rig, m submodule) {
			in := filepath.Join(r.records.Root(), "modules", "sub")
			mkdir(t, in)
			write(t, "x", r.records.Root(), "HEAD")
			write(t, "[core]\n\tworktree = "+m.tree+"\n", in, "config")
			write(t, "gitdir: "+in+"\n", m.tree, ".git")
		}, "a place that is never granted"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			m := newSubmodule(t, r, "sub")
			c.plant(t, r, m)
			granted, notes := gitGrants(t, r, m.tree)
			require.Empty(t, granted)
			require.Len(t, notes, 1)
			require.Contains(t, notes[0], ".git of the workspace is not followed")
			require.Contains(t, notes[0], c.note)
		})
	}
	t.Run("another owner", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("root: only root can give a file away")
		}
		for _, what := range []func(submodule) string{
			func(m submodule) string { return m.super },
			func(m submodule) string { return m.gitDir },
			func(m submodule) string { return filepath.Join(m.gitDir, "config") },
			func(m submodule) string { return filepath.Join(m.tree, ".git") },
		} {
			r := newRig(t)
			m := newSubmodule(t, r, "sub")
			require.NoError(t, os.Lchown(what(m), 65534, 65534))
			granted, notes := gitGrants(t, r, m.tree)
			require.Empty(t, granted)
			require.Contains(t, notes[0], "does not belong to the owner")
		}
	})
}
