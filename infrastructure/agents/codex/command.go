package codex

import (
	"slices"
	"strings"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// perTurn are the arguments of a turn, before those that it shares with the
// interface on a terminal.
var perTurn = []string{
	"exec", "--json",
	// The workspace need be no git repository.
	"--skip-git-repo-check",
	// Nothing that an agent can write decides what its next turn starts with.
	"--ignore-user-config", "--ignore-rules",
}

// always are the arguments of every run.
var always = []string{
	// Otherwise a server that cannot be reached is tried for ever.
	"--disable", "unbounded_connection_retries",
	// Both contact other servers than the model's.
	"--disable", "plugins",
	"-c", "analytics.enabled=false",
	// Off by default, and then there is no plan to show.
	"-c", "tools.update_plan.enabled=true",
	// Codex hands tools its whole environment otherwise.
	"-c", `shell_environment_policy.exclude=["` + envKey + `","` + envCodexKey + `"]`,
}

// confined are the arguments of a turn inside a sandbox, see the package
// comment. A -s on the same line would override them.
var confined = []string{
	"-c", `default_permissions="ext"`,
	"-c", `permissions.ext.filesystem={":root"="write"}`,
	"-c", `permissions.ext.network.enabled=false`,
}

// provider is the name of the model provider that the command line defines.
const provider = "caisson"

// Command returns the line of one turn. The prompt goes in by standard input.
// An empty prompt, a base URL that cannot be used and a conversation to resume
// that is no UUID are a *domain.InvalidError: Codex starts a new conversation,
// with exit code 0, for a name that it does not know.
func (*Adapter) Command(turn ports.TurnRequest) (domain.SpawnLine, error) {
	if strings.TrimSpace(turn.Prompt.Text) == "" {
		return domain.SpawnLine{}, &domain.InvalidError{
			What: "prompt", Value: turn.Prompt.Text, Reason: "empty, and codex refuses that", Remedy: "say what is to be done",
		}
	}
	argv, err := arguments(turn, perTurn)
	if err != nil {
		return domain.SpawnLine{}, err
	}
	if turn.Resume {
		if !domain.IsUUID(turn.ConversationID) {
			return domain.SpawnLine{}, &domain.InvalidError{
				What: "conversation id", Value: turn.ConversationID, Reason: "not a UUID, as codex's are",
				Remedy: "open a new session",
			}
		}
		// Options stand before the word: some are refused after it.
		argv = append(argv, "resume", turn.ConversationID)
	}
	return domain.SpawnLine{
		Path: turn.Install.Path,
		Argv: append(argv, "-"),
		Env:  environment(turn),
		Dir:  turn.Workspace,
		// Without KeepStdinOpen: Codex reads to the end of its input.
		Stdin: []byte(turn.Prompt.Text),
	}, nil
}

// Interactive returns the line of Codex's interface for a terminal. It cannot be
// told to ignore its configuration, but what $CODEX_HOME has of that is as new
// as the directory, and that of the workspace it takes only from one whom the
// person at the terminal says to trust. In a confined run it does not ask before
// it acts: the plan confines instead.
func (*Adapter) Interactive(turn ports.TurnRequest) (domain.SpawnLine, error) {
	argv, err := arguments(turn, nil)
	if err != nil {
		return domain.SpawnLine{}, err
	}
	if turn.Confined {
		argv = append(argv, "--ask-for-approval", "never")
	}
	return domain.SpawnLine{Path: turn.Install.Path, Argv: argv, Env: environment(turn), Dir: turn.Workspace}, nil
}

// environment is what the agent needs beside the plan's.
func environment(turn ports.TurnRequest) []string { return []string{"CODEX_HOME=" + turn.Dirs.State} }

// arguments returns the arguments of a run up to those that only one way of
// running has.
func arguments(turn ports.TurnRequest, first []string) ([]string, error) {
	base, _, _, err := endpoint(turn.Install)
	if err != nil {
		return nil, err
	}
	key := turn.Install.KeyEnv
	if key == "" {
		key = envKey
	}
	argv := slices.Concat([]string{turn.Install.Path}, turn.Install.Args, first, always)
	auth := `env_key="` + key + `"`
	if turn.Install.OwnLogin {
		auth = `requires_openai_auth=true`
		argv = append(argv, fileLogin...)
	}
	argv = append(argv,
		"-c", `model_provider="`+provider+`"`,
		"-c", `model_providers.`+provider+`={name="`+provider+`",base_url="`+base+`",`+auth+`,wire_api="responses"}`)
	if turn.Confined {
		argv = append(argv, confined...)
	}
	if turn.Model != "" {
		// In one argument, so that a name with a dash in front is no option.
		argv = append(argv, "--model="+turn.Model)
	}
	return argv, nil
}
