package layering

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProjectKeepsItsRules(t *testing.T) {
	root, packages := goList(t)
	sources, err := Load(root)
	require.NoError(t, err)

	seen := map[string]bool{}
	for _, s := range sources {
		if !s.Nested {
			seen[s.dir()] = true
		}
	}
	for _, dir := range packages {
		require.True(t, seen[dir], "the go command knows package %s, and Load does not", dir)
	}

	for _, finding := range Caisson().Check(sources) {
		t.Error(finding)
	}
}

// goList returns the module's root and the directories of its packages.
func goList(t *testing.T) (root string, packages []string) {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	require.NoError(t, err)
	root = strings.TrimSpace(string(out))

	cmd := exec.Command("go", "list", "-e", "-json=Dir", "./...")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err = cmd.Output()
	require.NoError(t, err)
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ Dir string }
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
		rel, err := filepath.Rel(root, p.Dir)
		require.NoError(t, err)
		packages = append(packages, filepath.ToSlash(rel))
	}
	require.Contains(t, packages, "domain")
	return root, packages
}

// good is a small project without findings; each case below adds one thing to
// it and says what must be found. A name that starts with "nested/" belongs to
// a module of its own.
var good = map[string]string{
	"domain/a.go":                 doc("domain") + `import "fmt"; var _ = fmt.Sprint`,
	"ports/a.go":                  doc("ports") + `import ("context"; _ "m.test/m/domain"); var _ context.Context`,
	"infrastructure/process/a.go": doc("process") + `import "os"; var _ = os.StartProcess`,
	"infrastructure/process/internal/tty/a.go": doc("tty"),
	"infrastructure/session/a.go":              doc("session") + `import _ "m.test/m/infrastructure/process"`,
	"infrastructure/agents/claude/a.go":        doc("claude"),
	"infrastructure/seccomp/load.go":           doc("seccomp") + `import _ "unsafe"`,
	"cmd/caisson/main.go":                      doc("main"),
	"tests/e2e/a_test.go":                      doc("e2e"),
}

func doc(pkg string) string {
	start := "Package " + pkg
	if pkg == "main" {
		start = "Command caisson"
	}
	return "// " + start + " is there so that the checker has something to look at.\npackage " + pkg + "\n"
}

func goodRules() Rules {
	r := Caisson()
	r.Module = "m.test/m"
	r.Adapters = []Exception{{"infrastructure/session", "infrastructure/process", "because"}}
	r.Spawners = []Exception{{From: "infrastructure/process", Why: "because"}}
	r.Unsafe = []Exception{{From: "infrastructure/seccomp/load.go", Why: "because"}}
	return r
}

func check(t *testing.T, rules Rules, files map[string]string) []string {
	t.Helper()
	var sources []Source
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := parser.ParseFile(token.NewFileSet(), name, files[name], parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		sources = append(sources, Source{File: name, Nested: strings.HasPrefix(name, "nested/"), AST: f})
	}
	return rules.Check(sources)
}

func TestCheckerAcceptsTheGoodProject(t *testing.T) {
	require.Empty(t, check(t, goodRules(), good))
}

func TestCheckerFindsWhatBreaksTheRules(t *testing.T) {
	cases := []struct {
		name, file, source string
		want               string // the one finding; "" if there must be none
	}{
		{"domain opens files", "domain/b.go", `package domain; import _ "os"`, "domain/b.go: imports os, which layer domain does not allow"},
		{"domain encodes", "domain/b.go", `package domain; import _ "encoding/json"`, "domain/b.go: imports encoding/json, which layer domain does not allow"},
		{"domain on another system", "domain/b_windows.go", `package domain; import _ "syscall"`, "domain/b_windows.go: imports syscall, which layer domain does not allow"},
		{"domain uses a module", "domain/b.go", `package domain; import _ "golang.org/x/sys/unix"`, "domain/b.go: imports golang.org/x/sys/unix, which layer domain does not allow"},
		{"domain imports ports", "domain/b.go", `package domain; import _ "m.test/m/ports"`, "domain/b.go: imports m.test/m/ports, which layer domain does not allow"},
		{"domain has tags", "domain/b.go", "package domain; type T struct { A int `json:\"a\"` }", "domain/b.go: struct tag `json:\"a\"`: encodings belong to adapters"},
		{"domain's tests may do more", "domain/b_test.go", `package domain; import _ "os"`, ""},
		{"a port speaks of the system", "ports/b.go", `package ports; import "golang.org/x/sys/unix"; type P interface { Run(unix.Signal) }`, "ports/b.go: imports golang.org/x/sys/unix, which layer ports does not allow"},
		{"a port speaks of a file", "ports/b.go", `package ports; import "os"; type P interface { Run(*os.File) }`, "ports/b.go: imports os, which layer ports does not allow"},
		{"a port knows an adapter", "ports/b.go", `package ports; import _ "m.test/m/infrastructure/process"`, "ports/b.go: imports m.test/m/infrastructure/process, which layer ports does not allow"},
		{"a port knows its kit", "ports/b.go", `package ports; import _ "m.test/m/ports/portstest"`, "ports/b.go: imports m.test/m/ports/portstest, which layer ports does not allow"},
		{"a kit may use a test library", "ports/portstest/b.go", doc("portstest") + `import _ "github.com/stretchr/testify/require"`, ""},
		{"a path is compared by components", "domainextra/b.go", doc("domainextra"), "domainextra/b.go: in no layer: say in the rules what it may import"},
		{"application knows an adapter", "application/b.go", doc("application") + `import _ "m.test/m/infrastructure/process"`, "application/b.go: imports m.test/m/infrastructure/process, which layer application does not allow"},
		{"application knows the container", "application/b.go", doc("application") + `import _ "go.uber.org/fx"`, "application/b.go: imports go.uber.org/fx, which layer application does not allow"},
		{"application opens sockets", "application/b.go", doc("application") + `import _ "net/http"`, "application/b.go: imports net/http, which layer application does not allow"},
		{"an adapter knows another", "infrastructure/session/b.go", `package session; import _ "m.test/m/infrastructure/seccomp"`, "infrastructure/session/b.go: imports m.test/m/infrastructure/seccomp, which layer infrastructure does not allow"},
		{"one agent knows another", "infrastructure/agents/codex/b.go", doc("codex") + `import _ "m.test/m/infrastructure/agents/claude"`, "infrastructure/agents/codex/b.go: imports m.test/m/infrastructure/agents/claude, which layer infrastructure/agents does not allow"},
		{"an adapter has packages below it", "infrastructure/process/b.go", `package process; import _ "m.test/m/infrastructure/process/internal/tty"`, ""},
		{"an adapter knows the application", "infrastructure/session/b.go", `package session; import _ "m.test/m/application"`, "infrastructure/session/b.go: imports m.test/m/application, which layer infrastructure does not allow"},
		{"an adapter knows the container", "infrastructure/session/b.go", `package session; import _ "go.uber.org/fx/fxevent"`, "infrastructure/session/b.go: imports go.uber.org/fx/fxevent, which layer infrastructure does not allow"},
		{"composition knows the command", "composition/b.go", doc("composition") + `import _ "m.test/m/cmd/caisson"`, "composition/b.go: imports m.test/m/cmd/caisson, which layer composition does not allow"},
		{"composition has the container", "composition/b.go", doc("composition") + `import _ "go.uber.org/fx"`, ""},
		{"an agent makes system calls", "infrastructure/agents/claude/b.go", `package claude; import _ "syscall"`, "infrastructure/agents/claude/b.go: imports syscall, which layer infrastructure/agents does not allow"},
		{"a session runs a command", "infrastructure/session/b.go", `package session; import _ "os/exec"`, "infrastructure/session/b.go: imports os/exec: only the listed packages may start a process"},
		{"the application starts a process", "application/b.go", doc("application") + `import "os"; var _ = os.StartProcess`, "application/b.go: os.StartProcess: only the listed packages may start a process"},
		{"under another name", "application/b.go", doc("application") + `import sys "syscall"; var _ = sys.ForkExec`, "application/b.go: sys.ForkExec: only the listed packages may start a process"},
		{"the name alone is harmless", "application/b.go", doc("application") + `type o struct{ StartProcess int }; var os o; var _ = os.StartProcess`, ""},
		{"a test may run commands", "infrastructure/session/b_test.go", `package session; import _ "os/exec"`, ""},
		{"unsafe", "infrastructure/session/b.go", `package session; import _ "unsafe"`, "infrastructure/session/b.go: imports unsafe"},
		{"unsafe beside the allowed file", "infrastructure/seccomp/b.go", `package seccomp; import _ "unsafe"`, "infrastructure/seccomp/b.go: imports unsafe"},
		{"unsafe in a test", "tests/e2e/b_test.go", `package e2e; import _ "unsafe"`, "tests/e2e/b_test.go: imports unsafe"},
		{"unsafe in a nested module", "nested/b.go", `package nested; import _ "unsafe"`, "nested/b.go: imports unsafe"},
		{"a nested module has no layer", "nested/b.go", `package nested; import _ "os/exec"`, ""},
		{"cgo", "infrastructure/session/b.go", `package session; import "C"`, "infrastructure/session/b.go: cgo"},
		{"linkname", "infrastructure/session/b.go", "package session\n\n//go:linkname f runtime.f\nfunc f()\n", "infrastructure/session/b.go: go:linkname"},
		{"work put off", "infrastructure/session/b.go", "package session\n\n// F: TODO(somebody) write it.\nfunc F() {}\n", "infrastructure/session/b.go: TODO in a comment"},
		{"a list of things to do", "infrastructure/session/b.go", "package session\n\n// Todo is the agent's plan.\nfunc Todo() {}\n", ""},
		{"no package comment", "infrastructure/store/b.go", "package store", "infrastructure/store: no file has a package comment"},
		{"two package comments", "ports/b.go", doc("ports"), "ports: several package comments: ports/a.go, ports/b.go"},
		{"a comment about something else", "infrastructure/store/b.go", "// Copyright somebody, and some more words to make it long enough to pass.\npackage store", "infrastructure/store/b.go: the package comment does not start with \"Package store \""},
		{"an empty comment", "infrastructure/store/b.go", "// Package store stores.\npackage store", "infrastructure/store/b.go: the package comment does not say what the package is for"},
		{"a licence on top is no package comment", "infrastructure/store/b.go", "// Copyright somebody.\n\n" + doc("store"), ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			files := maps.Clone(good)
			require.NotContains(t, files, c.file)
			files[c.file] = c.source
			findings := check(t, goodRules(), files)
			if c.want == "" {
				require.Empty(t, findings)
				return
			}
			require.Equal(t, []string{c.want}, findings)
		})
	}
}

func TestCheckerFindsExceptionsOutOfUse(t *testing.T) {
	for file, want := range map[string]string{
		"infrastructure/session/a.go":    "exception infrastructure/session → infrastructure/process is not used: remove it",
		"infrastructure/process/a.go":    "exception infrastructure/process →  is not used: remove it",
		"infrastructure/seccomp/load.go": "exception infrastructure/seccomp/load.go →  is not used: remove it",
	} {
		files := maps.Clone(good)
		delete(files, file)
		require.Equal(t, []string{want}, check(t, goodRules(), files))
	}
	rules := goodRules()
	rules.Unsafe[0].Why = ""
	require.Equal(t, []string{"exception infrastructure/seccomp/load.go →  gives no reason"}, check(t, rules, good))
}

func TestLoad(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(root, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	write("go.mod", "module m.test/m")
	write("a/a_plan9.go", "//go:build plan9\n\npackage a")
	write("a/a_test.go", "package a")
	write("a/testdata/x.go", "no Go at all")
	write("node_modules/x.go", "no Go at all")
	write(".hidden/x.go", "no Go at all")
	write("nested/go.mod", "module m.test/nested")
	write("nested/deep/b.go", "package b")

	sources, err := Load(root)
	require.NoError(t, err)
	got := map[string]bool{}
	for _, s := range sources {
		got[s.File] = s.Nested
	}
	require.Equal(t, map[string]bool{"a/a_plan9.go": false, "a/a_test.go": false, "nested/deep/b.go": true}, got)

	write("a/broken.go", "no Go at all")
	_, err = Load(root)
	require.ErrorContains(t, err, "broken.go")

	write("a/broken.go", "package a")
	write("a/fast_amd64.s", "TEXT")
	_, err = Load(root)
	require.ErrorContains(t, err, "a/fast_amd64.s")
}
