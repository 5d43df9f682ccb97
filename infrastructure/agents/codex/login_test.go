package codex_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/infrastructure/agents/codex"
	"github.com/caisson-run/caisson/ports"
)

// With a login of its own Codex asks ChatGPT's API with it, and gets no key.
func TestALoginOfItsOwn(t *testing.T) {
	for base, want := range map[string]struct{ url, domains, tcp, direct string }{
		"":                               {"https://chatgpt.com/backend-api/codex", "[chatgpt.com:443 auth.openai.com:443]", "[]", "[443]"},
		"http://127.0.0.1:99/v1":         {"http://127.0.0.1:99/v1", "[auth.openai.com:443]", "[99]", "[99 443]"},
		"https://models.example:8443/v1": {"https://models.example:8443/v1", "[models.example:8443 auth.openai.com:443]", "[]", "[443 8443]"},
	} {
		install := ports.AgentInstall{Path: "/bin/codex", BaseURL: base, OwnLogin: true, KeyEnv: "OPENAI_API_KEY"}
		needs, err := codex.New().Needs(install, ports.SessionDirs{}, ports.Host{})
		require.NoError(t, err)
		api := needs.ModelAPI
		require.Equal(t, want.url, api.BaseURL)
		require.Equal(t, want.domains, fmt.Sprint(api.ByName.Domains))
		require.Equal(t, want.tcp, fmt.Sprint(api.ByName.ConnectTCP))
		require.Equal(t, want.direct, fmt.Sprint(api.Direct.ConnectTCP))
		require.Empty(t, api.ByName.UDP)
		require.Empty(t, api.ByName.Env)
		require.Empty(t, api.Direct.Env)

		line, err := codex.New().Command(ports.TurnRequest{Prompt: ports.Prompt{Text: "x"}, Install: install, Dirs: ports.SessionDirs{State: "/s"}})
		require.NoError(t, err)
		require.Contains(t, line.Argv, `model_providers.caisson={name="caisson",base_url="`+want.url+`",requires_openai_auth=true,wire_api="responses"}`)
		require.Contains(t, line.Argv, `cli_auth_credentials_store="file"`)
	}
	line, err := codex.New().Command(ports.TurnRequest{Prompt: ports.Prompt{Text: "x"}, Install: ports.AgentInstall{Path: "/bin/codex"}})
	require.NoError(t, err)
	require.NotContains(t, fmt.Sprint(line.Argv), "requires_openai_auth")

	line, err = codex.New().LogIn(ports.TurnRequest{Install: ports.AgentInstall{Path: "/bin/codex"}, Workspace: "/w", Dirs: ports.SessionDirs{State: "/s"}})
	require.NoError(t, err)
	require.Equal(t, []string{"/bin/codex", "login", "--device-auth", "-c", `cli_auth_credentials_store="file"`}, line.Argv)
	require.Equal(t, []string{"CODEX_HOME=/s"}, line.Env)
	require.Equal(t, "/w", line.Dir)
}
