package claude

import (
	"slices"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/lookup"
	"github.com/caisson-run/caisson/ports"
)

var _ ports.LoginAgent = (*Adapter)(nil)

// LoginFormat is that of .credentials.json in the configuration directory, as
// release 2.1.328 writes it where there is no keychain. Beside the login it keeps
// credentials there of MCP servers, of plugins and of other services.
func (*Adapter) LoginFormat() ports.LoginFormat {
	return ports.LoginFormat{
		File: ".credentials.json",
		Keep: []string{"claudeAiOauth", "organizationUuid"},
		Drop: []string{
			"mcpOAuth", "mcpOAuthClientConfig", "mcpXaaIdp", "mcpXaaIdpConfig", "pluginSecrets", "trustedDeviceToken",
			"cloudSessionsOauth", "cloudSessionsSignInEnded", "coworkRemoteDevice", "designOauth",
		},
		Secrets: []string{"claudeAiOauth.accessToken", "claudeAiOauth.refreshToken"},
		Account: []string{"organizationUuid", "claudeAiOauth.accountUuid"},
		Expires: "claudeAiOauth.expiresAt",
	}
}

// loginHost is where release 2.1.328 logs in and renews a login, beside the API
// itself.
const loginHost = "platform.claude.com"

// loginNeeds is what Claude Code needs to reach the API with a login of its own:
// of what it needs with a key, not the variables with a credential, which would
// come before it.
func loginNeeds(host string, port uint16, key ports.PlanFragment) (byName, direct ports.PlanFragment, err error) {
	if byName, direct, err = lookup.LoginNeeds(domain.AgentClaude, host, port, loginHost); err != nil {
		return byName, direct, err
	}
	env := slices.DeleteFunc(slices.Clone(key.Env), func(e domain.EnvRule) bool {
		return slices.ContainsFunc(credentials, func(c ports.APICredential) bool { return c.Env == e.Name })
	})
	byName.Env, direct.Env = env, env
	return byName, direct, nil
}

// LogIn returns the line of "claude auth login", which prints an address to open
// and asks for the code that is shown there.
func (*Adapter) LogIn(turn ports.TurnRequest) (domain.SpawnLine, error) {
	line, err := run(turn, nil, nil)
	line.Argv = slices.Concat([]string{turn.Install.Path}, turn.Install.Args, []string{"auth", "login", "--claudeai"})
	return line, err
}
