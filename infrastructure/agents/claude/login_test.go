package claude_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/ports"
)

// With a login of its own the agent gets no variable with a credential, which would
// come before it, and by name reaches two hosts and nothing else.
func TestNeedsWithALogin(t *testing.T) {
	for base, want := range map[string]struct{ domains, tcp, direct string }{
		"":                                    {"[api.anthropic.com:443 platform.claude.com:443]", "[]", "[443]"},
		"https://models.example:8443/x":       {"[models.example:8443 platform.claude.com:443]", "[]", "[443 8443]"},
		"http://127.0.0.1:1234":               {"[platform.claude.com:443]", "[1234]", "[443 1234]"},
		"http://localhost:1234":               {"[platform.claude.com:443]", "[1234]", "[443 1234]"},
		"https://user:geheim@models.example/": {"[models.example:443 platform.claude.com:443]", "[]", "[443]"},
	} {
		needs, err := claude.New().Needs(ports.AgentInstall{OwnLogin: true}, ports.SessionDirs{}, host(map[string]string{"ANTHROPIC_BASE_URL": base, "ANTHROPIC_API_KEY": "set"}))
		require.NoError(t, err)
		api := needs.ModelAPI
		require.Equal(t, want.domains, fmt.Sprint(api.ByName.Domains), base)
		require.Equal(t, want.tcp, fmt.Sprint(api.ByName.ConnectTCP), base)
		require.Empty(t, api.ByName.UDP)
		require.Equal(t, want.direct, fmt.Sprint(api.Direct.ConnectTCP), base)
		require.NotEmpty(t, api.Direct.UDP)
		for _, f := range []ports.PlanFragment{*api.ByName, api.Direct} {
			require.Len(t, f.Env, 1)
			require.Equal(t, "ANTHROPIC_BASE_URL", f.Env[0].Name)
			require.NotContains(t, fmt.Sprint(f.Notes), "geheim")
			require.Contains(t, f.Notes[0], "platform.claude.com")
		}
	}
	needs, err := claude.New().Needs(ports.AgentInstall{}, ports.SessionDirs{}, host(nil))
	require.NoError(t, err)
	require.Nil(t, needs.ModelAPI.ByName)
}

func TestLogIn(t *testing.T) {
	agent, ok := claude.New().(ports.LoginAgent)
	require.True(t, ok)
	line, err := agent.LogIn(ports.TurnRequest{
		Install: ports.AgentInstall{Path: "/bin/claude", Args: []string{"first"}}, Workspace: "/w", Confined: true,
		Dirs: ports.SessionDirs{State: "/s", Temp: "/t"},
	})
	require.NoError(t, err)
	require.Equal(t, []string{"/bin/claude", "first", "auth", "login", "--claudeai"}, line.Argv)
	require.Contains(t, line.Env, "CLAUDE_CONFIG_DIR=/s")
	require.Equal(t, "/w", line.Dir)
	require.Empty(t, line.Stdin)
}
