package domain_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

// goodLine is a spawn line without fault.
func goodLine() domain.SpawnLine {
	return domain.SpawnLine{
		Path: "/bin/agent", Argv: []string{"agent", "-p", ""}, Env: []string{"PATH=/bin", "EMPTY=", "EQ=a=b"},
		Dir: "/w", Stdin: []byte("a prompt with a NUL \x00"), Sandbox: domain.NewSandboxPlan("p"),
	}
}

func TestSpawnLineValidate(t *testing.T) {
	require.NoError(t, goodLine().Validate())
	long := strings.Repeat("x", domain.MaxArg)
	for name, c := range map[string]struct {
		change                      func(*domain.SpawnLine)
		what, value, reason, remedy string
	}{
		"no program":       {func(l *domain.SpawnLine) { l.Path = "" }, "program", "", "not an absolute path", "resolve it first"},
		"relative program": {func(l *domain.SpawnLine) { l.Path = "agent" }, "program", "agent", "not an absolute path", "resolve it first"},
		"dot program":      {func(l *domain.SpawnLine) { l.Path = "./agent" }, "program", "./agent", "not an absolute path", "resolve it first"},
		"no directory":     {func(l *domain.SpawnLine) { l.Dir = "" }, "working directory", "", "not an absolute path", "resolve it first"},
		"relative directory": {
			func(l *domain.SpawnLine) { l.Dir = "w" }, "working directory", "w", "not an absolute path", "resolve it first",
		},
		"no argv":    {func(l *domain.SpawnLine) { l.Argv = nil }, "arguments", "", "empty", "the program's name comes first"},
		"empty argv": {func(l *domain.SpawnLine) { l.Argv = []string{} }, "arguments", "", "empty", "the program's name comes first"},

		"NUL in program":   {func(l *domain.SpawnLine) { l.Path = "/a\x00b" }, "argument", "/a\x00b", "NUL", "standard input"},
		"NUL in directory": {func(l *domain.SpawnLine) { l.Dir = "/w\x00" }, "argument", "/w\x00", "NUL", "standard input"},
		"NUL in argument":  {func(l *domain.SpawnLine) { l.Argv[2] = "a\x00b" }, "argument", "a\x00b", "NUL", "standard input"},
		"NUL in argv0":     {func(l *domain.SpawnLine) { l.Argv[0] = "\x00" }, "argument", "\x00", "NUL", "standard input"},

		"long program":   {func(l *domain.SpawnLine) { l.Path = "/" + long[1:] }, "argument", "/" + long[1:], "131072 bytes, and Linux takes at most 131071", "standard input"},
		"long directory": {func(l *domain.SpawnLine) { l.Dir = "/" + long[1:] }, "argument", "/" + long[1:], "131072 bytes, and Linux takes at most 131071", "standard input"},
		"long argument":  {func(l *domain.SpawnLine) { l.Argv[1] = long }, "argument", long, "131072 bytes, and Linux takes at most 131071", "standard input"},

		"no variable":        {func(l *domain.SpawnLine) { l.Env[1] = "" }, "environment variable", "", "not NAME=VALUE", "a name and a value"},
		"variable without =": {func(l *domain.SpawnLine) { l.Env[1] = "PATH" }, "environment variable", "PATH", "not NAME=VALUE", "a name and a value"},
		"variable of no name": {
			func(l *domain.SpawnLine) { l.Env[1] = "=hunter2" }, "environment variable", "", "not NAME=VALUE", "a name and a value",
		},
		"NUL in value":         {func(l *domain.SpawnLine) { l.Env[2] = "A=hunter2\x00" }, "environment variable", "A", "NUL", "remove it"},
		"NUL in variable name": {func(l *domain.SpawnLine) { l.Env[2] = "A\x00=hunter2" }, "environment variable", "A\x00", "NUL", "remove it"},
		"long value": {
			func(l *domain.SpawnLine) { l.Env[2] = "A=hunter2" + long[9:] }, "environment variable", "A", "131072 bytes, and Linux takes at most 131071", "shorten it",
		},

		"bad plan": {
			func(l *domain.SpawnLine) { l.Sandbox = l.Sandbox.WithConnectTCP(0) }, "port", "0", "port 0 cannot be connected to", "1 to 65535",
		},
	} {
		t.Run(name, func(t *testing.T) {
			line := goodLine()
			c.change(&line)
			err := line.Validate()
			require.Error(t, err)
			requireInvalid(t, err, c.what, c.value, c.reason, c.remedy)
			require.NotContains(t, err.Error(), "hunter2", "a value may be a secret")
			require.Less(t, len(err.Error()), 1000, "a long value is cut")
		})
	}
}

// MAX_ARG_STRLEN counts the NUL at the end.
func TestSpawnLineTakesTheLongestThatLinuxTakes(t *testing.T) {
	require.Equal(t, 131072, domain.MaxArg)
	longest := strings.Repeat("x", domain.MaxArg-1)
	line := goodLine()
	line.Argv = append(line.Argv, longest, longest)
	line.Env = append(line.Env, "A="+longest[2:])
	line.Stdin = make([]byte, 4*domain.MaxArg)
	require.NoError(t, line.Validate())
}

func TestSpawnLineAccepts(t *testing.T) {
	for name, change := range map[string]func(*domain.SpawnLine){
		"unconfined":     func(l *domain.SpawnLine) { l.Sandbox = domain.Unconfined("asked for") },
		"no environment": func(l *domain.SpawnLine) { l.Env = nil },
		"no stdin":       func(l *domain.SpawnLine) { l.Stdin = nil },
		"any bytes":      func(l *domain.SpawnLine) { l.Argv = []string{hostile}; l.Path = hostile; l.Dir = hostile },
		"empty argv0":    func(l *domain.SpawnLine) { l.Argv = []string{""} },
	} {
		line := goodLine()
		change(&line)
		require.NoError(t, line.Validate(), name)
	}
}

func TestASpawnLineWithoutAPlanIsRefusedFirst(t *testing.T) {
	line := goodLine()
	line.Sandbox, line.Path, line.Argv = domain.SandboxPlan{}, "", nil
	require.ErrorIs(t, line.Validate(), domain.ErrNoSandbox)
}

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		status  domain.ExitStatus
		success bool
		want    string
	}{
		{domain.ExitStatus{}, false, "unknown"},
		{domain.ExitStatus{Code: 7, Signal: "SIGKILL"}, false, "unknown"},
		{domain.ExitStatus{Known: true}, true, "exit 0"},
		{domain.ExitStatus{Known: true, Code: 1}, false, "exit 1"},
		{domain.ExitStatus{Known: true, Code: 255}, false, "exit 255"},
		{domain.ExitStatus{Known: true, Code: -1, Signal: "SIGKILL", SignalNumber: 9}, false, "SIGKILL"},
		{domain.ExitStatus{Known: true, Signal: "SIGTERM", SignalNumber: 15}, false, "SIGTERM"},
	} {
		require.Equal(t, c.success, c.status.Success(), "%+v", c.status)
		require.Equal(t, c.want, c.status.String())
	}
}

// Whatever verb prints them, values of variables, arguments and input do not
// show: what is printed ends up in logs.
func TestNothingSecretIsPrinted(t *testing.T) {
	rule := domain.EnvRule{Name: "TOKEN", Value: "sesame", Literal: true, Secret: true}
	plan := domain.NewSandboxPlan("test").WithEnv(rule)
	line := domain.SpawnLine{
		Path: "/bin/x", Argv: []string{"x", "sesame"}, Dir: "/a b", Env: []string{"TOKEN=sesame", "A\nB=sesame"},
		Stdin: []byte("sesame"), Sandbox: plan,
	}
	for _, v := range []any{rule, plan, line, &rule, &plan, &line, []domain.EnvRule{rule}, struct{ L domain.SpawnLine }{line}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
			require.NotContains(t, fmt.Sprintf(verb, v), "sesame", "%s of %T", verb, v)
		}
	}
	require.Equal(t, `/bin/x (1 arguments) in "/a b" with TOKEN "A\nB"`, line.String())
	require.Equal(t, `"" (0 arguments) in "" with `, domain.SpawnLine{}.String())
	require.Equal(t, "TOKEN", rule.String())
}

func TestMergeEnv(t *testing.T) {
	require.Equal(t, []string{"B=2", "A=3", "C=4"}, domain.MergeEnv([]string{"A=1", "B=2"}, []string{"A=3", "C=4"}))
	require.Equal(t, []string{"A=1"}, domain.MergeEnv([]string{"A=1"}, nil))
}
