package codex_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/ports"
)

func hostWith(env map[string]string) ports.Host {
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

func canonicalTemp(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	return dir
}

// npm lays out what `npm install @openai/codex` does, below node_modules, and
// returns the launcher's link, the native program and its vendor directory.
func npm(t *testing.T, dir string) (link, native, vendor string) {
	t.Helper()
	pkg, triple := "codex-linux-x64", "x86_64-unknown-linux-musl"
	if runtime.GOARCH == "arm64" {
		pkg, triple = "codex-linux-arm64", "aarch64-unknown-linux-musl"
	}
	modules := filepath.Join(dir, "node_modules")
	launcher := write(t, filepath.Join(modules, "@openai", "codex", "bin", "codex.js"), "#!/usr/bin/env node\n", 0o755)
	platform := filepath.Join(modules, "@openai", pkg)
	write(t, filepath.Join(platform, "package.json"), `{"version":"0.169.0-`+strings.TrimPrefix(pkg, "codex-")+`"}`, 0o644)
	vendor = filepath.Join(platform, "vendor", triple)
	native = write(t, filepath.Join(vendor, "bin", "codex"), "\x7fELF…", 0o755)
	link = filepath.Join(modules, ".bin", "codex")
	require.NoError(t, os.MkdirAll(filepath.Dir(link), 0o755))
	require.NoError(t, os.Symlink("../@openai/codex/bin/codex.js", link))
	require.FileExists(t, launcher)
	return link, native, vendor
}

func requireLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("cli: npm's layout is only known for Linux")
	}
}

func TestResolveBehindTheLauncher(t *testing.T) {
	requireLinux(t)
	dir := canonicalTemp(t)
	link, native, vendor := npm(t, dir)
	want := ports.AgentInstall{Path: native, Dirs: []string{vendor}, Version: "0.169.0", KeyEnv: "OPENAI_API_KEY"}

	t.Run("on PATH", func(t *testing.T) {
		got, err := codex.New().Resolve("", hostWith(map[string]string{"PATH": "/nonexistent:" + filepath.Dir(link)}))
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
	t.Run("named", func(t *testing.T) {
		for _, hint := range []string{link, native, filepath.Join(dir, "node_modules/@openai/codex/bin/codex.js")} {
			got, err := codex.New().Resolve(hint, ports.Host{})
			require.NoError(t, err)
			require.Equal(t, want, got, hint)
		}
	})
	t.Run("with the host's API", func(t *testing.T) {
		for _, tt := range []struct {
			env      map[string]string
			url, key string
		}{
			{map[string]string{"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "a", "CODEX_API_KEY": "b"}, "http://127.0.0.1:1/v1", "OPENAI_API_KEY"},
			{map[string]string{"OPENAI_BASE_URL": "", "OPENAI_API_KEY": "", "CODEX_API_KEY": "b"}, "", "CODEX_API_KEY"},
			{map[string]string{}, "", "OPENAI_API_KEY"},
		} {
			got, err := codex.New().Resolve(native, hostWith(tt.env))
			require.NoError(t, err)
			require.Equal(t, tt.url, got.BaseURL)
			require.Equal(t, tt.key, got.KeyEnv)
		}
	})
	t.Run("in the launcher's own package", func(t *testing.T) {
		dir := canonicalTemp(t)
		link, native, vendor := npm(t, dir)
		own := filepath.Join(dir, "node_modules", "@openai", "codex")
		require.NoError(t, os.Rename(filepath.Dir(filepath.Dir(vendor)), filepath.Join(dir, "elsewhere")))
		require.NoError(t, os.Rename(filepath.Join(dir, "elsewhere", "vendor"), filepath.Join(own, "vendor")))
		got, err := codex.New().Resolve(link, ports.Host{})
		require.NoError(t, err)
		require.Equal(t, filepath.Join(own, "vendor", filepath.Base(vendor), "bin", filepath.Base(native)), got.Path)
	})
}

func TestResolveAnyProgram(t *testing.T) {
	dir := canonicalTemp(t)
	script := write(t, filepath.Join(dir, "my codex"), "#!/bin/sh\n", 0o755)
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(script, link))
	got, err := codex.New().Resolve(link, ports.Host{})
	require.NoError(t, err)
	require.Equal(t, ports.AgentInstall{Path: script, Files: []string{script}, KeyEnv: "OPENAI_API_KEY"}, got)
}

func TestResolveErrors(t *testing.T) {
	requireLinux(t)
	dir := canonicalTemp(t)
	link, native, _ := npm(t, dir)
	notELF, script, _ := npm(t, canonicalTemp(t))
	write(t, script, "#!/bin/sh\n", 0o755)
	require.NoError(t, os.Remove(native))

	for name, tt := range map[string]struct{ hint, path, says string }{
		"nothing on PATH":            {"", "", "no executable codex in an absolute directory of PATH"},
		"nothing there":              {dir + "/nothing", dir + "/nothing", "no program that can be run"},
		"a directory":                {dir, dir, "no program that can be run"},
		"not executable":             {write(t, dir+"/plain", "", 0o644), dir + "/plain", "no program that can be run"},
		"a launcher without program": {link, link, "not the native program that it starts"},
		"a launcher of a script":     {notELF, notELF, "not the native program that it starts"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := codex.New().Resolve(tt.hint, hostWith(map[string]string{"PATH": "relative"}))
			var nf *domain.AgentNotFoundError
			require.ErrorAs(t, err, &nf)
			require.Equal(t, domain.AgentCodex, nf.Kind)
			require.Equal(t, tt.path, nf.Path)
			require.Contains(t, err.Error(), tt.says)
			require.Contains(t, nf.Remedy, "--agent-bin")
			require.Zero(t, got)
		})
	}
}

func TestNeeds(t *testing.T) {
	install := ports.AgentInstall{Path: "/opt/v/bin/codex", Dirs: []string{"/opt/v"}, Files: []string{"/opt/x"}}
	got, err := codex.New().Needs(install, ports.SessionDirs{State: "/s"}, ports.Host{})
	require.NoError(t, err)
	require.Empty(t, got.ConnectTCP)
	require.Empty(t, got.UDP)
	require.Empty(t, got.Env, "no credential for an agent behind a gateway")
	api := got.ModelAPI
	require.Equal(t, "https://api.openai.com/v1", api.BaseURL)
	require.Equal(t, ports.DialectOpenAI, api.Dialect)
	require.Empty(t, api.BaseURLEnv, "it is told on its command line")
	require.Contains(t, api.Routes, ports.APIRoute{Method: "POST", Path: "/responses"})
	for _, c := range api.Credentials {
		require.Equal(t, "Authorization: Bearer", c.Header+": "+c.Scheme)
	}

	got = got.With(api.Direct)
	require.Equal(t, []uint16{443}, got.ConnectTCP)
	require.Empty(t, got.Waivers)

	plan := domain.NewSandboxPlan("test").WithRules(got.Rules...).WithEnv(got.Env...).WithConnectTCP(got.ConnectTCP...)
	require.NoError(t, plan.Validate())
	access := map[string]domain.Access{}
	for _, r := range got.Rules {
		require.NotEmpty(t, r.Why)
		access[r.Path] = r.Access
		require.Equal(t, r.Path == "/etc/codex", r.Presence == domain.Optional)
	}
	require.Equal(t, map[string]domain.Access{
		"/opt/v": domain.AccessReadExec, "/opt/x": domain.AccessReadExec, "/etc/codex": domain.AccessRead,
	}, access)

	names := map[string]bool{}
	for _, e := range got.Env {
		require.True(t, e.Secret)
		require.False(t, e.Literal)
		names[e.Name] = true
	}
	require.Equal(t, map[string]bool{"OPENAI_API_KEY": true, "CODEX_API_KEY": true}, names)
	require.Contains(t, strings.Join(got.Notes, "\n"), "inner sandbox")
}

func TestBaseURL(t *testing.T) {
	for url, want := range map[string]struct {
		base string
		port uint16
	}{
		"":                                 {"https://api.openai.com/v1", 443},
		"https://example.com/v1/":          {"https://example.com/v1", 443},
		"http://localhost":                 {"http://localhost", 80},
		"http://127.0.0.1:18080/v1":        {"http://127.0.0.1:18080/v1", 18080},
		"http://[::1]:65535/a%20b":         {"http://[::1]:65535/a%20b", 65535},
		"HTTPS://example.com/ü\"x\\y'z'/$": {`https://example.com/%C3%BC%22x%5Cy%27z%27/$`, 443},
	} {
		install := ports.AgentInstall{Path: "/c", BaseURL: url}
		needs, err := codex.New().Needs(install, ports.SessionDirs{}, ports.Host{})
		require.NoError(t, err, url)
		require.Equal(t, want.base, needs.ModelAPI.BaseURL)
		needs = needs.With(needs.ModelAPI.Direct)
		require.Equal(t, []uint16{want.port}, needs.ConnectTCP, url)
		require.Equal(t, strings.Contains(url, "example.com") || url == "", needs.UDP != "", "DNS for %s", url)
		line, err := codex.New().Command(ports.TurnRequest{Prompt: ports.Prompt{Text: "x"}, Install: install})
		require.NoError(t, err, url)
		require.Contains(t, strings.Join(line.Argv, " "), `,base_url="`+want.base+`",`)
	}
	for _, url := range []string{
		"example.com/v1", "ftp://example.com", "unix:///run/sock", "https://", "https:///v1", "http://h:0/", "http://h:65536/", "http://h:x/",
		"http://user:hunter2@h/", "https://h/v1?key=1", "https://h/v1#a", "https://h/v1?", "://", "http://h\x00/", "http://h/%zz", "http://exämple.com/",
		`http://h"/`, "http://user:hunter2@h:99999/", "http://user:hunter2@h/%zz",
	} {
		install := ports.AgentInstall{Path: "/c", BaseURL: url}
		_, err := codex.New().Needs(install, ports.SessionDirs{}, ports.Host{})
		var invalid *domain.InvalidError
		require.ErrorAs(t, err, &invalid, "%q", url)
		require.Equal(t, "OPENAI_BASE_URL", invalid.What)
		require.NotEmpty(t, invalid.Reason)
		require.NotContains(t, err.Error(), "hunter2")
		_, err = codex.New().Command(ports.TurnRequest{Prompt: ports.Prompt{Text: "x"}, Install: install})
		require.ErrorAs(t, err, &invalid, "%q", url)
	}
}

func TestCommand(t *testing.T) {
	turn := ports.TurnRequest{
		Prompt:    ports.Prompt{Text: "-do it\n"},
		Install:   ports.AgentInstall{Path: "/opt/codex", Args: []string{"pre"}, BaseURL: "http://127.0.0.1:9/v1", KeyEnv: "CODEX_API_KEY"},
		Dirs:      ports.SessionDirs{State: "/state", Home: "/home", Temp: "/tmp/x"},
		Workspace: "/w",
		// Codex cannot be told the id of a new conversation.
		ConversationID: idB,
	}
	common := []string{
		"/opt/codex", "pre", "exec", "--json", "--skip-git-repo-check", "--ignore-user-config", "--ignore-rules",
		"--disable", "unbounded_connection_retries", "--disable", "plugins", "-c", "analytics.enabled=false",
		"-c", "tools.update_plan.enabled=true",
		"-c", `shell_environment_policy.exclude=["OPENAI_API_KEY","CODEX_API_KEY"]`,
		"-c", `model_provider="caisson"`,
		"-c", `model_providers.caisson={name="caisson",base_url="http://127.0.0.1:9/v1",env_key="CODEX_API_KEY",wire_api="responses"}`,
	}
	ext := []string{
		"-c", `default_permissions="ext"`, "-c", `permissions.ext.filesystem={":root"="write"}`, "-c", "permissions.ext.network.enabled=false",
	}
	for name, tt := range map[string]struct {
		change func(*ports.TurnRequest)
		want   []string
	}{
		"unconfined": {func(*ports.TurnRequest) {}, []string{"-"}},
		"confined":   {func(r *ports.TurnRequest) { r.Confined = true }, append(slices.Clone(ext), "-")},
		"a model":    {func(r *ports.TurnRequest) { r.Model = "--gpt" }, []string{"--model=--gpt", "-"}},
		"resumed": {func(r *ports.TurnRequest) {
			r.Confined, r.Model, r.Resume, r.ConversationID = true, "m", true, idA
		}, append(slices.Clone(ext), "--model=m", "resume", idA, "-")},
	} {
		t.Run(name, func(t *testing.T) {
			turn := turn
			tt.change(&turn)
			line, err := codex.New().Command(turn)
			require.NoError(t, err)
			require.Equal(t, domain.SpawnLine{
				Path: "/opt/codex", Argv: append(slices.Clone(common), tt.want...),
				Env: []string{"CODEX_HOME=/state"}, Dir: "/w", Stdin: []byte("-do it\n"),
			}, line)
			line.Sandbox = domain.Unconfined("test")
			require.NoError(t, line.Validate())
		})
	}
}

func TestInteractive(t *testing.T) {
	turn := ports.TurnRequest{
		Install: ports.AgentInstall{Path: "/c", Args: []string{"--first"}, KeyEnv: "CODEX_API_KEY"},
		Dirs:    ports.SessionDirs{State: "/s"}, Workspace: "/w", Model: "-m", Confined: true,
	}
	line, err := codex.New().Interactive(turn)
	require.NoError(t, err)
	require.Equal(t, []string{"CODEX_HOME=/s"}, line.Env)
	require.Equal(t, "/w", line.Dir)
	require.Nil(t, line.Stdin)
	require.Equal(t, []string{"/c", "--first", "--disable"}, line.Argv[:3])
	args := strings.Join(line.Argv, " ")
	require.Contains(t, args, `env_key="CODEX_API_KEY"`)
	require.Contains(t, args, `default_permissions="ext"`)
	require.Contains(t, args, "--model=-m --ask-for-approval never")
	require.NotContains(t, args, "exec")
	turn.Confined = false
	line, err = codex.New().Interactive(turn)
	require.NoError(t, err)
	require.NotContains(t, strings.Join(line.Argv, " "), "approval", "what it asks by itself it still asks")
	turn.Install.BaseURL = "none"
	_, err = codex.New().Interactive(turn)
	var invalid *domain.InvalidError
	require.ErrorAs(t, err, &invalid)
}

func TestCommandErrors(t *testing.T) {
	good := ports.TurnRequest{Prompt: ports.Prompt{Text: "x"}, Install: ports.AgentInstall{Path: "/c"}, Resume: true, ConversationID: idA}
	_, err := codex.New().Command(good)
	require.NoError(t, err)
	for name, change := range map[string]func(*ports.TurnRequest){
		"no prompt":        func(r *ports.TurnRequest) { r.Prompt.Text = " \n" },
		"no conversation":  func(r *ports.TurnRequest) { r.ConversationID = "" },
		"an option as id":  func(r *ports.TurnRequest) { r.ConversationID = "--last" },
		"a name as id":     func(r *ports.TurnRequest) { r.ConversationID = "my thread" },
		"something behind": func(r *ports.TurnRequest) { r.ConversationID = idA + "/" },
		"an unusable API":  func(r *ports.TurnRequest) { r.Install.BaseURL = "x" },
	} {
		t.Run(name, func(t *testing.T) {
			turn := good
			change(&turn)
			line, err := codex.New().Command(turn)
			var invalid *domain.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.NotEmpty(t, invalid.Remedy)
			require.Zero(t, line)
		})
	}
}

func TestKind(t *testing.T) {
	require.Equal(t, domain.AgentCodex, codex.New().Kind())
}
