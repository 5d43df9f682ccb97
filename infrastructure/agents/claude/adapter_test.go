package claude_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/ports"
)

func host(env map[string]string) ports.Host {
	return ports.Host{LookupEnv: func(name string) (string, bool) {
		v, ok := env[name]
		return v, ok
	}}
}

func write(t *testing.T, path, content string, mode os.FileMode) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(content), mode))
	return path
}

func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	return dir
}

const (
	elf  = "\x7fELF and so on"
	stub = "echo \"Error: claude native binary not installed.\" >&2\nexit 1\n"
)

// npmInstall lays out node_modules as npm does, and returns it with the link
// that PATH leads to.
func npmInstall(t *testing.T, launcher string, packages map[string]string) (modules, link string) {
	t.Helper()
	modules = filepath.Join(tempDir(t), "node_modules")
	scope := filepath.Join(modules, "@anthropic-ai")
	write(t, filepath.Join(scope, "claude-code", "package.json"), `{"version":"2.1.328"}`, 0o644)
	write(t, filepath.Join(scope, "claude-code", "bin", "claude.exe"), launcher, 0o755)
	write(t, filepath.Join(scope, "claude-code", "cli-wrapper.cjs"), "#!/usr/bin/env node\n", 0o755)
	for name, program := range packages {
		write(t, filepath.Join(scope, name, "package.json"), `{"version":"2.1.327"}`, 0o644)
		write(t, filepath.Join(scope, name, "claude"), program, 0o755)
	}
	link = filepath.Join(modules, ".bin", "claude")
	require.NoError(t, os.MkdirAll(filepath.Dir(link), 0o755))
	require.NoError(t, os.Symlink(filepath.Join("..", "@anthropic-ai", "claude-code", "bin", "claude.exe"), link))
	return modules, link
}

// platformPackage is the name of the native package here.
func platformPackage() string {
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	return "claude-code-" + runtime.GOOS + "-" + arch
}

func TestResolve(t *testing.T) {
	adapter := claude.New()
	t.Run("the launcher is the program, after npm's install script", func(t *testing.T) {
		modules, link := npmInstall(t, elf, map[string]string{platformPackage(): elf})
		want := filepath.Join(modules, "@anthropic-ai", "claude-code", "bin", "claude.exe")
		for _, hint := range []string{link, ""} {
			got, err := adapter.Resolve(hint, host(map[string]string{"PATH": "relative:" + filepath.Dir(link)}))
			require.NoError(t, err)
			require.Equal(t, ports.AgentInstall{Path: want, Files: []string{want}, Version: "2.1.328"}, got)
		}
	})
	t.Run("a stub, with the program beside it", func(t *testing.T) {
		modules, link := npmInstall(t, stub, map[string]string{platformPackage(): elf})
		want := filepath.Join(modules, "@anthropic-ai", platformPackage(), "claude")
		for _, hint := range []string{link, filepath.Join(modules, "@anthropic-ai", "claude-code", "cli-wrapper.cjs"), want} {
			got, err := adapter.Resolve(hint, host(nil))
			require.NoError(t, err)
			require.Equal(t, ports.AgentInstall{Path: want, Files: []string{want}, Version: "2.1.327"}, got)
		}
	})
	t.Run("a stub, with the program for another C library", func(t *testing.T) {
		modules, link := npmInstall(t, stub, map[string]string{platformPackage() + "-musl": elf})
		got, err := adapter.Resolve(link, host(nil))
		require.NoError(t, err)
		require.Equal(t, filepath.Join(modules, "@anthropic-ai", platformPackage()+"-musl", "claude"), got.Path)
	})
	t.Run("a script is taken as it is", func(t *testing.T) {
		script := write(t, filepath.Join(tempDir(t), "my-claude"), "#!/bin/sh\n", 0o755)
		got, err := adapter.Resolve(script, host(nil))
		require.NoError(t, err)
		require.Equal(t, ports.AgentInstall{Path: script, Files: []string{script}}, got)
		elsewhere := write(t, filepath.Join(tempDir(t), "bin", "claude.exe"), "#!/bin/sh\n", 0o755)
		got, err = adapter.Resolve(elsewhere, host(nil))
		require.NoError(t, err)
		require.Equal(t, elsewhere, got.Path, "the name alone makes no launcher")
	})
	notFound := func(t *testing.T, err error) *domain.AgentNotFoundError {
		t.Helper()
		var e *domain.AgentNotFoundError
		require.ErrorAs(t, err, &e)
		require.Equal(t, domain.AgentClaude, e.Kind)
		require.Contains(t, e.Remedy, "npm install -g @anthropic-ai/claude-code")
		require.Contains(t, e.Remedy, "--agent-bin")
		return e
	}
	t.Run("not on PATH", func(t *testing.T) {
		_, err := adapter.Resolve("", host(map[string]string{"PATH": tempDir(t)}))
		require.Empty(t, notFound(t, err).Path)
	})
	t.Run("a hint that leads nowhere", func(t *testing.T) {
		_, err := adapter.Resolve(filepath.Join(tempDir(t), "none"), host(nil))
		notFound(t, err)
		require.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("a hint that is not executable", func(t *testing.T) {
		_, err := adapter.Resolve(write(t, filepath.Join(tempDir(t), "x"), "x", 0o644), host(nil))
		notFound(t, err)
		require.ErrorIs(t, err, os.ErrPermission)
	})
	t.Run("a stub and no program", func(t *testing.T) {
		_, link := npmInstall(t, stub, nil)
		_, err := adapter.Resolve(link, host(nil))
		require.Contains(t, notFound(t, err).Reason, "launcher")
	})
	t.Run("a stub and a program that cannot be run", func(t *testing.T) {
		modules, link := npmInstall(t, stub, nil)
		write(t, filepath.Join(modules, "@anthropic-ai", platformPackage(), "claude"), elf, 0o644)
		_, err := adapter.Resolve(link, host(nil))
		notFound(t, err)
		require.ErrorIs(t, err, os.ErrPermission)
	})
}

// direct is what the agent needs without a gateway.
func direct(t *testing.T, f ports.PlanFragment) ports.PlanFragment {
	t.Helper()
	require.NotNil(t, f.ModelAPI)
	return f.With(f.ModelAPI.Direct)
}

func TestNeeds(t *testing.T) {
	install := ports.AgentInstall{Path: "/opt/claude/claude", Files: []string{"/opt/claude/claude"}, Dirs: []string{"/opt/lib"}}
	dirs := ports.SessionDirs{State: "/s/state", Home: "/s/home", Temp: "/s/temp", Spool: "/s/spool"}
	need := func(env map[string]string) (ports.PlanFragment, error) {
		return claude.New().Needs(install, dirs, host(env))
	}
	variable := func(t *testing.T, f ports.PlanFragment, name string) domain.EnvRule {
		t.Helper()
		i := slices.IndexFunc(f.Env, func(e domain.EnvRule) bool { return e.Name == name })
		require.NotEqual(t, -1, i, name)
		return f.Env[i]
	}
	t.Run("defaults", func(t *testing.T) {
		f, err := need(nil)
		require.NoError(t, err)
		f = direct(t, f)
		require.Equal(t, []uint16{443}, f.ConnectTCP)
		require.Contains(t, f.UDP, "api.anthropic.com")
		base := variable(t, f, "ANTHROPIC_BASE_URL")
		require.True(t, base.Literal, "a settings file must not be able to say otherwise")
		require.Equal(t, "https://api.anthropic.com", base.Value)
		require.False(t, base.Secret)
		for _, name := range []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"} {
			key := variable(t, f, name)
			require.True(t, key.Secret, name)
			require.False(t, key.Literal, name)
			require.Empty(t, key.Value, name)
		}
		require.Len(t, f.Rules, 2)
		for _, r := range f.Rules {
			require.Equal(t, domain.AccessReadExec, r.Access)
			require.Equal(t, domain.Required, r.Presence)
			require.NotEmpty(t, r.Why)
		}
		require.Equal(t, "/opt/claude/claude", f.Rules[0].Path)
		require.Equal(t, "/opt/lib", f.Rules[1].Path)
		require.Empty(t, f.Waivers)
		notes := strings.Join(f.Notes, "\n")
		require.Contains(t, notes, "permission prompts are bypassed")
		require.Contains(t, notes, "hooks")
		require.NoError(t, domain.NewSandboxPlan("t").WithRules(f.Rules...).WithConnectTCP(f.ConnectTCP...).WithEnv(f.Env...).Validate())
	})
	t.Run("without an environment", func(t *testing.T) {
		f, err := claude.New().Needs(install, dirs, ports.Host{})
		require.NoError(t, err)
		require.Equal(t, []uint16{443}, direct(t, f).ConnectTCP)
	})
	t.Run("behind a gateway", func(t *testing.T) {
		f, err := need(map[string]string{"ANTHROPIC_BASE_URL": "https://proxy.example/claude"})
		require.NoError(t, err)
		require.Empty(t, f.ConnectTCP)
		require.Empty(t, f.UDP)
		api := f.ModelAPI
		require.Equal(t, "https://proxy.example/claude", api.BaseURL)
		require.Equal(t, ports.DialectAnthropic, api.Dialect)
		require.Equal(t, "ANTHROPIC_BASE_URL", api.BaseURLEnv)
		require.Contains(t, api.Routes, ports.APIRoute{Method: "POST", Path: "/v1/messages"})
		for _, c := range api.Credentials {
			require.False(t, slices.ContainsFunc(f.Env, func(e domain.EnvRule) bool { return e.Name == c.Env }), "%s is not for the agent", c.Env)
		}
	})
	t.Run("the values of keys are not kept", func(t *testing.T) {
		f, err := need(map[string]string{"ANTHROPIC_API_KEY": "sk-geheim"})
		require.NoError(t, err)
		data, err := json.Marshal(f)
		require.NoError(t, err)
		require.NotContains(t, string(data), "geheim")
	})
	for url, port := range map[string]uint16{
		"http://127.0.0.1:8123": 8123, "https://gateway.example": 443, "http://gateway.example/v1": 80,
		"https://[::1]:9/x": 9, "HTTPS://Gateway.example": 443, "": 443, "http://h:65535": 65535,
	} {
		t.Run("url "+url, func(t *testing.T) {
			f, err := need(map[string]string{"ANTHROPIC_BASE_URL": url})
			require.NoError(t, err)
			f = direct(t, f)
			require.Equal(t, []uint16{port}, f.ConnectTCP)
			require.Equal(t, strings.Contains(url, "127.0.0.1") || strings.Contains(url, "[::1]"), f.UDP == "", "an address needs no DNS")
			if url != "" {
				require.Equal(t, url, variable(t, f, "ANTHROPIC_BASE_URL").Value)
			}
		})
	}
	for _, url := range []string{
		"127.0.0.1:8080", "ftp://h", "https://", "https://:8080", "http://h:0", "http://h:65536", "http://h:x",
		"http://user:geheim@h:x", "http://[::1", "/v1", "http://h\x00",
	} {
		t.Run("malformed "+url, func(t *testing.T) {
			_, err := need(map[string]string{"ANTHROPIC_BASE_URL": url})
			var e *domain.InvalidError
			require.ErrorAs(t, err, &e)
			require.Equal(t, "ANTHROPIC_BASE_URL", e.Value)
			require.NotEmpty(t, e.Remedy)
			require.NotContains(t, err.Error(), "geheim")
		})
	}
	t.Run("a password makes the URL a secret", func(t *testing.T) {
		f, err := need(map[string]string{"ANTHROPIC_BASE_URL": "https://u:p@h"})
		require.NoError(t, err)
		require.True(t, variable(t, direct(t, f), "ANTHROPIC_BASE_URL").Secret)
	})
}

func turnRequest() ports.TurnRequest {
	return ports.TurnRequest{
		Prompt:    ports.Prompt{Text: "hello"},
		Install:   ports.AgentInstall{Path: "/opt/claude/claude"},
		Dirs:      ports.SessionDirs{State: "/s/state", Home: "/s/home", Temp: "/s/temp", Spool: "/s/spool"},
		Workspace: "/w", ConversationID: conversationA, Confined: true,
	}
}

func TestInteractive(t *testing.T) {
	adapter, ok := claude.New().(ports.InteractiveAgent)
	require.True(t, ok)
	turn := turnRequest()
	turn.Prompt, turn.ConversationID, turn.Model, turn.Install.Args = ports.Prompt{}, "", "sonnet", []string{"--first"}
	line, err := adapter.Interactive(turn)
	require.NoError(t, err)
	require.Equal(t, domain.SpawnLine{
		Path: "/opt/claude/claude",
		Argv: []string{
			"/opt/claude/claude", "--first", "--setting-sources", "user", "--strict-mcp-config", "--model", "sonnet", "--dangerously-skip-permissions",
		},
		Env: []string{
			"CLAUDE_CONFIG_DIR=/s/state", "CLAUDE_CODE_TMPDIR=/s/temp", "DISABLE_AUTOUPDATER=1",
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "IS_DEMO=1", "IS_SANDBOX=1",
		},
		Dir: "/w",
	}, line)
	turn.Confined = false
	line, err = adapter.Interactive(turn)
	require.NoError(t, err)
	require.NotContains(t, strings.Join(append(line.Argv, line.Env...), " "), "dangerously")
	require.NotContains(t, strings.Join(line.Env, " "), "IS_", "whether to trust the workspace is asked")
	turn.Model = "--mcp-config=x"
	_, err = adapter.Interactive(turn)
	require.ErrorContains(t, err, "option")
}

func TestCommand(t *testing.T) {
	adapter := claude.New()
	t.Run("a new conversation, confined", func(t *testing.T) {
		line, err := adapter.Command(turnRequest())
		require.NoError(t, err)
		require.Equal(t, domain.SpawnLine{
			Path: "/opt/claude/claude",
			Argv: []string{
				"/opt/claude/claude", "-p", "--output-format", "stream-json", "--verbose", "--input-format", "stream-json",
				"--permission-prompt-tool", "stdio", "--setting-sources", "user", "--strict-mcp-config",
				"--session-id", conversationA, "--dangerously-skip-permissions",
			},
			Env: []string{
				"CLAUDE_CONFIG_DIR=/s/state", "CLAUDE_CODE_TMPDIR=/s/temp", "DISABLE_AUTOUPDATER=1",
				"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1",
				"CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS=1", "CLAUDE_CODE_STARTUP_FAILURE_RESULTS=1", "IS_SANDBOX=1",
			},
			Dir:           "/w",
			Stdin:         []byte("{\"type\":\"user\",\"message\":{\"role\":\"user\",\"content\":\"hello\"}}\n"),
			KeepStdinOpen: true,
		}, line)
		line.Sandbox = domain.NewSandboxPlan("t")
		require.NoError(t, line.Validate())
	})
	t.Run("resumed, unconfined, with a model and the install's own arguments", func(t *testing.T) {
		turn := turnRequest()
		turn.Resume, turn.Confined, turn.Model, turn.Install.Args = true, false, "sonnet", []string{"--first"}
		line, err := adapter.Command(turn)
		require.NoError(t, err)
		require.Equal(t, []string{"/opt/claude/claude", "--first", "-p"}, line.Argv[:3])
		args := strings.Join(line.Argv, " ")
		require.Contains(t, args, "--resume "+conversationA+" --model sonnet")
		require.NotContains(t, args, "--session-id")
		require.NotContains(t, args, "dangerously")
		require.NotContains(t, strings.Join(line.Env, " "), "IS_SANDBOX")
		require.Equal(t, []string{"--first"}, turn.Install.Args, "the install is left alone")
	})
	t.Run("what would be an option is refused", func(t *testing.T) {
		for _, id := range []string{"", "--help", "../x", conversationA + "x", "last"} {
			for _, resume := range []bool{false, true} {
				turn := turnRequest()
				turn.ConversationID, turn.Resume = id, resume
				_, err := adapter.Command(turn)
				var e *domain.InvalidError
				require.ErrorAs(t, err, &e, "%q", id)
				require.Equal(t, id, e.Value)
			}
		}
		turn := turnRequest()
		turn.Model = "--mcp-config=x"
		_, err := adapter.Command(turn)
		require.ErrorContains(t, err, "option")
	})
	t.Run("any prompt is one line of JSON", func(t *testing.T) {
		for name, prompt := range map[string]string{
			"newlines": "a\nb\r\n\u2028c\n", "quotes": `"}}\` + "\n" + `{"type":"user"}`, "NUL": "a\x00b",
			"invalid UTF-8": "a\xffb", "empty": "", "dash": "--help", "5 MB": strings.Repeat("x\"\n", 5<<20/3),
		} {
			turn := turnRequest()
			turn.Prompt.Text = prompt
			line, err := adapter.Command(turn)
			require.NoError(t, err, name)
			require.Equal(t, 1, strings.Count(string(line.Stdin), "\n"), name)
			require.True(t, strings.HasSuffix(string(line.Stdin), "\n"), name)
			var got struct {
				Type    string
				Message struct{ Role, Content string }
			}
			require.NoError(t, json.Unmarshal(line.Stdin, &got), name)
			require.Equal(t, "user", got.Type)
			require.Equal(t, "user", got.Message.Role)
			require.True(t, strings.ToValidUTF8(prompt, "\uFFFD") == got.Message.Content, name)
			for _, a := range line.Argv {
				require.Less(t, len(a), 100, "the prompt is no argument")
			}
		}
	})
}

func TestKind(t *testing.T) {
	require.Equal(t, domain.AgentClaude, claude.New().Kind())
	require.IsType(t, &claude.Adapter{}, claude.New())
}
