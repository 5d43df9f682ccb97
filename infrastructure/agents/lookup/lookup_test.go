package lookup_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/infrastructure/agents/lookup"
	"github.com/caisson-run/caisson/ports"
)

func write(t *testing.T, path, content string, mode os.FileMode) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), mode))
	require.NoError(t, os.Chmod(path, mode))
	return path
}

// tempDir is canonical, so that results can be compared with it.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	return dir
}

func hostWithPath(path string) ports.Host {
	return ports.Host{LookupEnv: func(name string) (string, bool) {
		if name == "PATH" {
			return path, true
		}
		return "", false
	}}
}

func TestOnPath(t *testing.T) {
	dir := tempDir(t)
	first, second := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	want := write(t, filepath.Join(second, "agent"), "#!/bin/sh\n", 0o755)
	write(t, filepath.Join(first, "agent"), "not executable", 0o644)
	require.NoError(t, os.MkdirAll(filepath.Join(first, "folder"), 0o755))
	write(t, filepath.Join(second, "folder"), "#!/bin/sh\n", 0o755)
	list := func(dirs ...string) ports.Host {
		s := ""
		for i, d := range dirs {
			if i > 0 {
				s += string(filepath.ListSeparator)
			}
			s += d
		}
		return hostWithPath(s)
	}

	t.Run("skips what is not executable", func(t *testing.T) {
		got, ok := lookup.OnPath(list(first, second), "agent")
		require.True(t, ok)
		require.Equal(t, want, got)
	})
	t.Run("skips a directory of that name", func(t *testing.T) {
		got, ok := lookup.OnPath(list(first, second), "folder")
		require.True(t, ok)
		require.Equal(t, filepath.Join(second, "folder"), got)
	})
	t.Run("takes the first entry", func(t *testing.T) {
		third := write(t, filepath.Join(dir, "c", "agent"), "#!/bin/sh\n", 0o755)
		got, ok := lookup.OnPath(list(filepath.Dir(third), second), "agent")
		require.True(t, ok)
		require.Equal(t, third, got)
	})
	t.Run("skips relative and empty entries", func(t *testing.T) {
		t.Chdir(second) // where a relative entry would find it
		for _, entry := range []string{".", "", "../b", "./"} {
			_, ok := lookup.OnPath(list(entry), "agent")
			require.False(t, ok, "entry %q", entry)
			_, ok = lookup.OnPath(list(entry, first), "agent")
			require.False(t, ok, "entry %q", entry)
		}
	})
	t.Run("a name is no path", func(t *testing.T) {
		for _, name := range []string{"", "b/agent", "../b/agent", want} {
			_, ok := lookup.OnPath(list(dir, second), name)
			require.False(t, ok, "name %q", name)
		}
	})
	t.Run("no PATH", func(t *testing.T) {
		_, ok := lookup.OnPath(hostWithPath(""), "agent")
		require.False(t, ok)
		_, ok = lookup.OnPath(ports.Host{}, "agent")
		require.False(t, ok)
	})
}

func TestExecutable(t *testing.T) {
	dir := tempDir(t)
	file := write(t, filepath.Join(dir, "real", "tool"), "#!/bin/sh\n", 0o755)
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(filepath.Join("real", "tool"), link))
	linked := filepath.Join(dir, "linkeddir")
	require.NoError(t, os.Symlink("real", linked))

	for _, path := range []string{file, link, filepath.Join(linked, "tool"), filepath.Join(dir, "real", "..", "link")} {
		got, err := lookup.Executable(path)
		require.NoError(t, err, path)
		require.Equal(t, file, got, path)
	}
	t.Run("relative", func(t *testing.T) {
		t.Chdir(dir)
		got, err := lookup.Executable("link")
		require.NoError(t, err)
		require.Equal(t, file, got)
	})
	t.Run("missing", func(t *testing.T) {
		_, err := lookup.Executable(filepath.Join(dir, "none"))
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("dangling link", func(t *testing.T) {
		dangling := filepath.Join(dir, "dangling")
		require.NoError(t, os.Symlink("none", dangling))
		_, err := lookup.Executable(dangling)
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("directory", func(t *testing.T) {
		_, err := lookup.Executable(dir)
		require.ErrorContains(t, err, "no regular file")
	})
	t.Run("no execute bit", func(t *testing.T) {
		_, err := lookup.Executable(write(t, filepath.Join(dir, "plain"), "x", 0o644))
		require.ErrorContains(t, err, "not executable")
		require.ErrorIs(t, err, os.ErrPermission)
	})
}

func TestIsELF(t *testing.T) {
	dir := tempDir(t)
	self, err := os.Executable()
	require.NoError(t, err)
	require.True(t, lookup.IsELF(self), "the test binary itself")
	for name, content := range map[string]string{
		"script": "#!/bin/sh\n", "short": "\x7fEL", "empty": "", "other": "MZ\x90\x00",
	} {
		require.False(t, lookup.IsELF(write(t, filepath.Join(dir, name), content, 0o755)), name)
	}
	require.False(t, lookup.IsELF(dir))
	require.False(t, lookup.IsELF(filepath.Join(dir, "none")))
}

func TestPlatformPackage(t *testing.T) {
	dir := tempDir(t)
	modules := filepath.Join(dir, "node_modules")
	sibling := filepath.Join(modules, "@scope", "tool-linux-x64")
	require.NoError(t, os.MkdirAll(sibling, 0o755))
	launcher := write(t, filepath.Join(modules, "@scope", "tool", "bin", "tool.js"), "", 0o755)
	plain := filepath.Join(modules, "plain")
	require.NoError(t, os.MkdirAll(plain, 0o755))

	for name, tc := range map[string]struct{ from, pkg, want string }{
		"sibling, from the launcher":      {launcher, "@scope/tool-linux-x64", sibling},
		"sibling, from node_modules":      {modules, "@scope/tool-linux-x64", sibling},
		"from the directory above":        {dir, "plain", plain},
		"from a missing directory below":  {filepath.Join(dir, "a", "b"), "plain", plain},
		"unscoped, from a scoped package": {launcher, "plain", plain},
		"not there":                       {launcher, "@scope/tool-linux-arm64", ""},
		"relative start":                  {"node_modules", "plain", ""},
		"a name that leads out":           {launcher, "../../etc", ""},
		"a file is no package":            {filepath.Join(modules, "@scope", "tool"), "@scope/tool/bin/tool.js", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := lookup.PlatformPackage(tc.from, tc.pkg)
			require.Equal(t, tc.want != "", ok)
			require.Equal(t, tc.want, got)
		})
	}
	t.Run("the nearest wins", func(t *testing.T) {
		nested := filepath.Join(modules, "@scope", "tool", "node_modules", "@scope", "tool-linux-x64")
		require.NoError(t, os.MkdirAll(nested, 0o755))
		got, ok := lookup.PlatformPackage(launcher, "@scope/tool-linux-x64")
		require.True(t, ok)
		require.Equal(t, nested, got)
	})
}

func TestPackageVersion(t *testing.T) {
	for name, tc := range map[string]struct{ content, want string }{
		"a version":      {`{"name":"x","version":"2.1.328"}`, "2.1.328"},
		"none":           {`{"name":"x"}`, ""},
		"not a string":   {`{"version":3}`, ""},
		"no JSON":        {`version: 1`, ""},
		"cut":            {`{"version":"1.0`, ""},
		"far too long":   {`{"version":"1.0.0","x":"` + string(make([]byte, 2<<20)) + `"}`, ""},
		"empty manifest": {``, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "package.json"), tc.content, 0o644)
			require.Equal(t, tc.want, lookup.PackageVersion(dir))
		})
	}
	require.Empty(t, lookup.PackageVersion(t.TempDir()))
	require.Empty(t, lookup.PackageVersion(filepath.Join(t.TempDir(), "none")))
}
