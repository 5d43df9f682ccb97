package codex

import (
	"slices"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

var _ ports.LoginAgent = (*Adapter)(nil)

const (
	// loginBaseURL is where Codex's built-in provider asks the model with a ChatGPT
	// login, and loginHost where release 0.169.0 logs in and renews the login.
	loginBaseURL = "https://chatgpt.com/backend-api/codex"
	loginHost    = "auth.openai.com"
)

// fileLogin makes Codex look for its login in its file and nowhere else.
var fileLogin = []string{"-c", `cli_auth_credentials_store="file"`}

// LoginFormat is that of auth.json in $CODEX_HOME, as release 0.169.0 writes it
// for a ChatGPT login. A key in it is not kept: the gateway can keep that.
func (*Adapter) LoginFormat() ports.LoginFormat {
	return ports.LoginFormat{
		File:    "auth.json",
		Keep:    []string{"auth_mode", "tokens", "last_refresh"},
		Drop:    []string{"OPENAI_API_KEY", "agent_identity", "personal_access_token", "bedrock_api_key", "bedrock_access_keys"},
		Secrets: []string{"tokens.access_token", "tokens.refresh_token", "tokens.id_token"},
		Account: []string{"tokens.account_id"},
		Expires: "tokens.access_token",
	}
}

// LogIn returns the line of "codex login --device-auth", which prints an address
// to open and a code to type there.
func (*Adapter) LogIn(turn ports.TurnRequest) (domain.SpawnLine, error) {
	return domain.SpawnLine{
		Path: turn.Install.Path,
		Argv: slices.Concat([]string{turn.Install.Path}, turn.Install.Args, []string{"login", "--device-auth"}, fileLogin),
		Env:  environment(turn), Dir: turn.Workspace,
	}, nil
}
