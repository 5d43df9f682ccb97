package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/testkit"
)

// sesame is in every value that must not get anywhere.
const sesame = "open-sesame-4711"

// hostile are variables of a host that lead to a credential, to a socket of the
// host's, to code that a program loads, or to another server, by what they do.
var hostile = map[string][]string{
	"sockets of the host": {
		"SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "DBUS_SYSTEM_BUS_ADDRESS",
		"DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "CONTAINER_HOST", "PODMAN_HOST", "CONTAINERD_ADDRESS", "KUBECONFIG",
		"DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "PULSE_SERVER", "TMUX", "STY", "VSCODE_IPC_HOOK_CLI", "NOTIFY_SOCKET", "LISTEN_FDS",
	},
	"the dynamic loader": {
		"LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "LD_BIND_NOW", "LD_DEBUG_OUTPUT", "LD_PROFILE", "LD_ORIGIN_PATH", "GLIBC_TUNABLES",
		"GCONV_PATH", "LOCPATH", "NLSPATH", "MALLOC_TRACE", "RES_OPTIONS", "LOCALDOMAIN", "HOSTALIASES",
	},
	"git": {
		"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR",
		"GIT_CONFIG", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0", "GIT_CONFIG_PARAMETERS",
		"GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "SSH_ASKPASS", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "GIT_PAGER", "GIT_EXTERNAL_DIFF",
		"GIT_PROXY_COMMAND", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR", "GIT_TRACE",
	},
	"shells and their like": {
		"BASH_ENV", "ENV", "PROMPT_COMMAND", "PS4", "SHELLOPTS", "BASHOPTS", "BASH_FUNC_ls%%", "IFS", "CDPATH", "ZDOTDIR", "FPATH",
		"EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "LESSOPEN", "LESSCLOSE", "LESS", "AWKPATH", "TERMINFO", "TERMINFO_DIRS", "TERMCAP",
	},
	"runtimes": {
		"NODE_OPTIONS", "NODE_PATH", "NODE_EXTRA_CA_CERTS", "NODE_TLS_REJECT_UNAUTHORIZED", "NODE_REPL_EXTERNAL_MODULE", "NPM_CONFIG_PREFIX",
		"npm_config_registry", "BUN_INSTALL", "DENO_DIR", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONINSPECT", "PYTHONUSERBASE",
		"PYTHONBREAKPOINT", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "VIRTUAL_ENV", "PERL5OPT", "PERL5LIB", "PERL5DB", "PERLLIB",
		"RUBYOPT", "RUBYLIB", "GEM_HOME", "GEM_PATH", "BUNDLE_GEMFILE", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH",
		"MAVEN_OPTS", "GRADLE_OPTS", "PHPRC", "PHP_INI_SCAN_DIR", "LUA_PATH", "LUA_INIT", "R_PROFILE", "GOFLAGS", "GOPROXY", "GOENV", "GOROOT",
		"RUSTFLAGS", "RUSTC_WRAPPER", "CARGO_HOME", "CARGO_REGISTRY_TOKEN", "CC", "CXX", "MAKEFLAGS", "CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH",
	},
	"credentials": {
		"GITHUB_TOKEN", "GH_TOKEN", "GH_ENTERPRISE_TOKEN", "GITLAB_TOKEN", "CI_JOB_TOKEN", "BITBUCKET_TOKEN", "ACTIONS_RUNTIME_TOKEN",
		"ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_URL", "NPM_TOKEN", "NODE_AUTH_TOKEN", "PYPI_TOKEN", "TWINE_PASSWORD",
		"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
		"AWS_CONTAINER_CREDENTIALS_FULL_URI", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_API_KEY", "GEMINI_API_KEY", "CLOUDSDK_CONFIG",
		"AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "AZURE_CONFIG_DIR", "VAULT_TOKEN", "VAULT_ADDR", "HF_TOKEN", "SLACK_TOKEN", "SENTRY_AUTH_TOKEN",
		"DATABASE_URL", "PGPASSWORD", "PGPASSFILE", "MYSQL_PWD", "REDIS_URL", "SONAR_TOKEN", "KRB5CCNAME", "SUDO_ASKPASS", "SUDO_USER",
		"NETRC", "CURL_HOME", "MISTRAL_API_KEY", "DASHSCOPE_API_KEY", "OPENROUTER_API_KEY",
	},
	"the network": {
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "FTP_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GRPC_PROXY", "SSLKEYLOGFILE", "OTEL_EXPORTER_OTLP_ENDPOINT",
	},
	"directories of the host": {
		"XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_DIRS", "XDG_DATA_DIRS", "XDG_SESSION_ID",
		"TMP", "TEMP", "TEMPDIR", "PWD", "OLDPWD", "MAIL", "HISTFILE", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "CLAUDE_CODE_TMPDIR",
	},
	"an agent's own switches": {
		"CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "ANTHROPIC_BEDROCK_BASE_URL", "ANTHROPIC_VERTEX_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS",
		"CLAUDECODE", "CLAUDE_CODE_SIMPLE", "CLAUDE_CODE_SHELL_PREFIX", "OPENAI_ORGANIZATION", "RUST_LOG", "CODEX_SANDBOX", "CAISSON_SPAWN", "IS_SANDBOX",
	},
}

// hostEnv is the environment of a host with everything hostile in it, and what
// tests need.
func hostEnv(t *testing.T) map[string]string {
	env := map[string]string{
		"PATH": "/usr/bin:relative:.:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", "TERM": "dumb", "USER": "somebody", "SHELL": "/bin/sh", "TZ": "UTC",
		"TMPDIR": "/tmp/of-the-host-" + sesame,
	}
	for _, names := range hostile {
		for _, name := range names {
			require.NotContains(t, env, name)
			env[name] = "/" + sesame + "/" + name
		}
	}
	return env
}

// environ parses the output of env(1), without what the shell adds that runs it.
func environ(t *testing.T, out string) map[string]string {
	env := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		require.True(t, ok, "%q", line)
		if name != "_" && name != "SHLVL" && name != "PWD" && name != "OLDPWD" {
			env[name] = value
		}
	}
	return env
}

func keys(m map[string]string) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Nothing of the host's environment reaches an agent but what the preset and
// the adapter name, also if the orchestrator's own process has it.
func TestNoVariableOfTheHostPassesByAccident(t *testing.T) {
	env := hostEnv(t)
	for name, value := range env {
		if name != "TMPDIR" { // which the test needs itself
			t.Setenv(name, value)
		}
	}
	lookup := composition.WithEnviron(func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	for _, mode := range []string{"confined", "unconfined"} {
		t.Run(mode, func(t *testing.T) {
			forEachAgent(t, func(t *testing.T, s *stage) {
				request := application.OpenRequest{}
				if mode == "unconfined" {
					request.Sandbox = s.off
				}
				session := s.open(t, request)
				events := s.run(t, session, "sh env")
				got := environ(t, resultsOf(events)[0].Output)
				for name, value := range got {
					require.NotContains(t, value, sesame, name)
				}
				own := map[domain.AgentKind][]string{
					domain.AgentClaude: {
						"ANTHROPIC_BASE_URL", "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
						"CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS", "CLAUDE_CODE_STARTUP_FAILURE_RESULTS", "CLAUDE_CODE_TMPDIR", "CLAUDE_CONFIG_DIR", "DISABLE_AUTOUPDATER",
					},
					domain.AgentCodex: {"CODEX_HOME"},
				}[s.agent]
				if mode == "confined" && s.agent == domain.AgentClaude {
					own = append(own, "IS_SANDBOX")
				}
				if mode == "confined" { // the token of the model gateway
					own = append(own, map[domain.AgentKind]string{domain.AgentClaude: "ANTHROPIC_AUTH_TOKEN", domain.AgentCodex: "OPENAI_API_KEY"}[s.agent])
				}
				require.ElementsMatch(t, append(own, "CAISSON_SPAWN", "HOME", "LANG", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER",
					"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"), keys(got))

				require.Equal(t, "/usr/bin:/bin", got["PATH"])
				mine, temp := filepath.Join(s.root, "sessions", string(session.ID())), tempOf(t, session)
				for _, name := range []string{
					"HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME",
					"CLAUDE_CONFIG_DIR", "CLAUDE_CODE_TMPDIR", "CODEX_HOME",
				} {
					if dir, ok := got[name]; ok {
						require.True(t, strings.HasPrefix(dir, mine+"/") || dir == temp || strings.HasPrefix(dir, temp+"/"), "%s=%s", name, dir)
						// It can be used: made if need be, and written.
						results := resultsOf(s.run(t, session, fmt.Sprintf(`sh mkdir -p "$%[1]s" && echo x > "$%[1]s/try" && rm "$%[1]s/try"`, name)))
						require.Equal(t, domain.ToolCompleted, results[0].Status, "%s: %s", name, results[0].Output)
					}
				}
			}, lookup)
		})
	}
}

func TestNoVariableOfTheHostReachesACommandByAccident(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	env := hostEnv(t)
	s := newStage(t, domain.AgentClaude, composition.WithEnviron(func(name string) (string, bool) { v, ok := env[name]; return v, ok }))
	var out bytes.Buffer
	run := func(policy application.Policy) map[string]string {
		out.Reset()
		result, err := s.Orchestrator.Exec(t.Context(), application.ExecRequest{
			Argv: []string{"env"}, Dir: "/", Policy: policy, Stdio: ports.Stdio{Out: &out, Err: &out},
		})
		require.NoError(t, err)
		require.True(t, result.Exit.Success(), out.String())
		return environ(t, out.String())
	}
	got := run(application.Policy{})
	require.ElementsMatch(t, []string{"CAISSON_SPAWN", "HOME", "LANG", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}, keys(got))
	require.NotContains(t, out.String(), sesame)
	require.True(t, strings.HasPrefix(got["TMPDIR"], s.root+"/"))

	// The companion: what is named passes, and nothing beside it.
	got = run(application.Policy{Env: []domain.EnvRule{{Name: "GITHUB_TOKEN", Secret: true}}})
	require.Contains(t, got["GITHUB_TOKEN"], sesame)
	require.Equal(t, 1, strings.Count(out.String(), sesame))
}

// A secret that was let through by its name is in the child's environment, and
// nowhere else: not in events, receipts, records, plans or errors.
func TestASecretIsNowhereButInTheChild(t *testing.T) {
	forEachAgent(t, func(t *testing.T, base *stage) {
		env := map[string]string{
			"PATH": "/usr/bin:/bin", "HOME": "/nonexistent",
			"TOKEN": sesame, "ANTHROPIC_API_KEY": sesame, "OPENAI_API_KEY": sesame,
		}
		s := newStage(t, base.agent, composition.WithEnviron(func(name string) (string, bool) { v, ok := env[name]; return v, ok }))
		policy := application.Policy{Env: []domain.EnvRule{{Name: "TOKEN", Secret: true}, {Name: "LITERAL", Value: sesame, Literal: true, Secret: true}}}
		request := application.OpenRequest{Agent: s.agent, Workspace: s.workspace, Policy: policy}

		// Its length comes out, so the child has it.
		session := s.open(t, request)
		events := s.run(t, session, `sh echo "${#TOKEN} ${#LITERAL}"`)
		require.Equal(t, fmt.Sprintf("%d %[1]d", len(sesame)), strings.TrimSpace(resultsOf(events)[0].Output))
		var said []string
		for _, e := range events {
			said = append(said, string(jsonl.AppendEvent(nil, e)))
		}
		said = append(said, receiptOf(events).String(), fmt.Sprintf("%#v", receiptOf(events)))

		preview, err := s.Orchestrator.Plan(t.Context(), request)
		require.NoError(t, err)
		said = append(said, preview.Plan.String(), string(jsonl.AppendPlan(nil, preview.Plan, preview.Notes)),
			fmt.Sprintf("%+v %#v", preview, preview), fmt.Sprintf("%#v", preview.Plan.Env()), strings.Join(preview.Plan.Grants(), "\n"))

		// Errors of every step that has seen the values.
		require.NoError(t, session.Close(t.Context()))
		_, err = s.Orchestrator.Open(t.Context(), application.OpenRequest{Resume: session.ID()})
		var changed *domain.PlanChangedError
		require.ErrorAs(t, err, &changed)
		said = append(said, err.Error())
		env["TOKEN"] = sesame + "\x00"
		session = s.open(t, request)
		_, err = session.SendBlocking(t.Context(), "x")
		require.ErrorContains(t, err, `"TOKEN"`)
		said = append(said, err.Error())
		env["TOKEN"] = strings.Repeat(sesame, domain.MaxArg/len(sesame)+1)
		_, err = session.SendBlocking(t.Context(), "x")
		require.ErrorContains(t, err, `"TOKEN"`)
		said = append(said, err.Error())
		request.Policy.Env = []domain.EnvRule{{Name: "LITERAL", Value: sesame + "\x00", Literal: true}}
		_, err = s.Orchestrator.Open(t.Context(), request)
		require.ErrorContains(t, err, `"LITERAL"`)
		said = append(said, err.Error())

		for _, text := range said {
			require.NotContains(t, text, sesame)
		}
		files := 0
		require.NoError(t, filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			require.NotContains(t, string(data), sesame, path)
			files++
			return err
		}))
		require.NotZero(t, files, "there are records to look into")
	})
}
