package application

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

// change looks at the tripwires of a workspace before and after a change.
func change(t *testing.T, before map[string]string, do func(dir string)) []domain.Planted {
	t.Helper()
	dir := t.TempDir()
	for name, text := range before {
		plant(t, dir, name, text)
	}
	old, err := lookAtTripwires(dir)
	require.NoError(t, err)
	do(dir)
	now, err := lookAtTripwires(dir)
	require.NoError(t, err)
	return now.since(old)
}

func plant(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
}

func TestTripwiresSeeWhatIsPlanted(t *testing.T) {
	for name, text := range map[string]string{
		".git/hooks/post-checkout": "#!/bin/sh\nevil", ".git/config": "[core]\n\tfsmonitor = evil", ".envrc": "evil",
		".vscode/tasks.json": "{}", ".mcp.json": "{}", ".claude/settings.json": "{}", ".claude/commands/deep/er.md": "", ".codex/config.toml": "",
		".husky/pre-commit": "evil", "package.json": `{"scripts":{"postinstall":"evil"}}`, ".github/workflows/ci.yml": "on: push",
		".caisson.toml": "", ".git/config.worktree": "[core]\nsshCommand=evil",
	} {
		got := change(t, nil, func(dir string) { plant(t, dir, name, text) })
		require.Len(t, got, 1, name)
		require.Equal(t, name, got[0].Path)
		require.Equal(t, "add", got[0].Kind)
		require.NotEmpty(t, got[0].Runs)

		got = change(t, map[string]string{name: text}, func(dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, name)))
		})
		require.Len(t, got, 1, name)
		require.Equal(t, "delete", got[0].Kind, name)
		require.Empty(t, change(t, map[string]string{name: text}, func(dir string) { plant(t, dir, name, text) }), "%s is as it was", name)
	}
}

func TestTripwiresSeeChanges(t *testing.T) {
	hook := map[string]string{".git/hooks/pre-commit": "#!/bin/sh\nmake lint\n"}
	for what, do := range map[string]func(dir string){
		"its text": func(dir string) { plant(t, dir, ".git/hooks/pre-commit", "#!/bin/sh\nmake evil\n") },
		"its mode": func(dir string) { require.NoError(t, os.Chmod(filepath.Join(dir, ".git/hooks/pre-commit"), 0o700)) },
		"a link in its place": func(dir string) {
			file := filepath.Join(dir, ".git/hooks/pre-commit")
			require.NoError(t, os.Remove(file))
			require.NoError(t, os.Symlink("../../evil.sh", file))
		},
	} {
		got := change(t, hook, do)
		require.Equal(t, []domain.Planted{{Path: ".git/hooks/pre-commit", Kind: "update", Runs: "git runs hooks"}}, got, what)
	}
	got := change(t, hook, func(dir string) {
		require.NoError(t, os.Rename(filepath.Join(dir, ".git"), filepath.Join(dir, "old")))
		plant(t, dir, ".git", "gitdir: old")
	})
	var paths []string
	for _, p := range got {
		paths = append(paths, p.Path)
	}
	require.Contains(t, paths, ".git", "a file that points elsewhere in place of the directory")
}

func TestTripwiresLetOrdinaryWorkBe(t *testing.T) {
	const config = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n"
	for name, c := range map[string]struct{ file, before, after string }{
		"a branch is tracked":   {".git/config", config, config + "[branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n"},
		"the user has a name":   {".git/config", config, config + "[user]\n\tname = A\n\temail = a@example.org\n"},
		"a dependency is added": {"package.json", `{"scripts":{"test":"x"}}`, `{"scripts":{"test":"x"},"dependencies":{"left-pad":"1"}}`},
		"code":                  {"main.go", "package a", "package b"},
		"an object":             {".git/objects/ab/cd", "", "x"},
	} {
		require.Empty(t, change(t, map[string]string{c.file: c.before}, func(dir string) { plant(t, dir, c.file, c.after) }), name)
	}
}

func TestGitCommandsFindsWhatNamesOne(t *testing.T) {
	for _, config := range []string{
		"[core]\nfsmonitor = x", "[core] fsmonitor = x", "[CORE]\n\tFsMonitor=x", "[core]\nhooksPath = x", "[core]\nsshCommand=x",
		"[alias]\nst = !x", "[include]\npath = x", "[filter \"a\"]\nclean = x", "[remote \"origin\"]\nurl = ext::x",
		"[user]\nname = x\n[core]\npager = x", "[credential]\nhelper = x", "[user \"]\"] pager = x", "[core]\nfsmonitor",
	} {
		require.NotEmpty(t, gitCommands([]byte(config)), config)
	}
	for _, config := range []string{"", "# x", "[core]\n; fsmonitor = x\n\tbare = false", "[branch \"a ] b\"]"} {
		got := strings.TrimSpace(string(gitCommands([]byte(config))))
		if !strings.HasPrefix(config, "[branch") {
			require.Empty(t, got, config)
		}
	}
}

func TestPackageScripts(t *testing.T) {
	require.Equal(t, `{"a":"evil"}`, string(packageScripts([]byte(`{"scripts":{"a":"evil"},"SCRIPTS":{"a":"good"}}`))), "npm minds the case")
	require.Empty(t, packageScripts([]byte(`{"name":"x"}`)))
	require.Equal(t, "\ufeff{}", string(packageScripts([]byte("\ufeff{}"))), "what cannot be read counts as a whole")
}

// The agent can write there: what it puts in the way must neither stop the turn
// nor lead the orchestrator elsewhere.
func TestTripwiresMindNothingThatIsPutInTheWay(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("hunter2"), 0o600))
	got := change(t, nil, func(dir string) {
		require.NoError(t, os.Symlink(filepath.Dir(secret), filepath.Join(dir, ".claude")))
		require.NoError(t, os.Symlink(secret, filepath.Join(dir, ".envrc")))
		require.NoError(t, os.Symlink("loop", filepath.Join(dir, "loop")))
		require.NoError(t, os.Symlink("loop", filepath.Join(dir, ".vscode")))
		plant(t, dir, ".husky", "a file where a directory should be")
		plant(t, dir, ".npmrc", strings.Repeat("x", maxTripwireBytes+1))
	})
	paths := map[string]bool{}
	for _, p := range got {
		paths[p.Path] = true
	}
	for _, want := range []string{".claude", ".envrc", ".vscode", ".husky", ".npmrc"} {
		require.True(t, paths[want], "%s: %v", want, got)
	}
	require.Len(t, got, 5, "and nothing behind the links")
}

// Many files in one place keep nothing that is in another from being seen, nor
// what comes behind them.
func TestTripwiresAreBounded(t *testing.T) {
	crowd := func(dir string, n int) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, ".idea"), 0o700))
		for i := range n {
			f, err := os.Create(filepath.Join(dir, ".idea", strconv.Itoa(i)))
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
	}
	got := change(t, nil, func(dir string) { crowd(dir, 10) })
	require.Len(t, got, 10, "the companion")

	dir := t.TempDir()
	crowd(dir, maxTripwireFiles+10)
	before, err := lookAtTripwires(dir)
	require.NoError(t, err)
	plant(t, dir, ".idea/zzz", "evil")
	plant(t, dir, "package.json", `{"scripts":{"postinstall":"evil"}}`)
	plant(t, dir, ".github/workflows/ci.yml", "on: push")
	plant(t, dir, ".npmrc", "registry=evil")
	now, err := lookAtTripwires(dir)
	require.NoError(t, err)
	var paths []string
	for _, p := range now.since(before) {
		paths = append(paths, p.Path)
	}
	require.Equal(t, []string{".github/workflows/ci.yml", ".idea/zzz", ".npmrc", "package.json"}, paths)

	_, err = lookAtTripwires(filepath.Join(dir, "gone"))
	require.Error(t, err)
}

// What is too much to be looked at is not taken for what it was.
func TestATripwireWithTooManyFilesCountsAsChanged(t *testing.T) {
	before := trips{".idea": tooMany, ".idea/a": "same"}
	now := trips{".idea": tooMany, ".idea/a": "same"}
	got := now.since(before)
	require.Len(t, got, 1)
	require.Equal(t, ".idea", got[0].Path)
	require.Equal(t, "update", got[0].Kind)
}

// A chain of directories must not hold the turn's end: what it takes to get to the
// last one grows with the square of their number.
func TestDeepTripwiresAreBounded(t *testing.T) {
	dir := t.TempDir()
	deepest, err := os.OpenRoot(dir)
	require.NoError(t, err)
	down := func(name string) {
		require.NoError(t, deepest.Mkdir(name, 0o700))
		next, err := deepest.OpenRoot(name)
		require.NoError(t, err)
		require.NoError(t, deepest.Close())
		deepest = next
	}
	down(".vscode")
	const depth = 1500
	for range depth {
		down("d")
	}
	require.NoError(t, deepest.Close())
	begun := time.Now()
	seen, err := lookAtTripwires(dir)
	require.NoError(t, err)
	require.Less(t, time.Since(begun), 3*time.Second)
	changes := seen.since(seen)
	require.Len(t, changes, 1, "it cannot be told, so it counts as changed")
	require.Equal(t, ".vscode"+strings.Repeat("/d", maxTripwireDepth), changes[0].Path)
}
