package claude

import (
	"slices"
	"strings"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// Command returns the line for one turn. The prompt goes in by standard input,
// because arguments are limited in length and can be read by everyone on the
// host; in it, invalid UTF-8 is replaced. A prompt that begins with a slash is
// a command of the agent's own, such as /compact.
func (*Adapter) Command(turn ports.TurnRequest) (domain.SpawnLine, error) {
	// The id may come from an agent's stream, and must not become an option.
	if !domain.IsUUID(turn.ConversationID) {
		return domain.SpawnLine{}, &domain.InvalidError{
			What: "conversation id", Value: turn.ConversationID, Reason: "not a UUID", Remedy: "open a new session",
		}
	}
	conversation := []string{"--session-id", turn.ConversationID}
	if turn.Resume {
		conversation = []string{"--resume", turn.ConversationID}
	}
	line, err := run(turn, slices.Concat([]string{
		"-p", "--output-format", "stream-json", "--verbose", "--input-format", "stream-json", "--permission-prompt-tool", "stdio",
	}, settings, conversation), []string{
		// One process gives one result, and ends with it.
		"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1",
		// The end of a turn can be told without its result.
		"CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS=1",
		// A failed start is a result with its reason, not only a line on stderr.
		"CLAUDE_CODE_STARTUP_FAILURE_RESULTS=1",
	})
	line.Stdin, line.KeepStdinOpen = userLine(turn.Prompt.Text), true
	return line, err
}

// settings keep what the workspace has of settings, hooks and servers out.
var settings = []string{"--setting-sources", "user", "--strict-mcp-config"}

// Interactive returns the line of Claude Code's interface for a terminal, with
// the settings and the bypassed permission prompts of a turn. In an unconfined
// run its first screens ask what every new configuration directory asks, whether
// to trust the workspace among it.
func (*Adapter) Interactive(turn ports.TurnRequest) (domain.SpawnLine, error) {
	var env []string
	if turn.Confined {
		// Skips those screens: one of them needs a connection to api.anthropic.com,
		// whatever the base URL is, and ends the program without it.
		env = []string{"IS_DEMO=1"}
	}
	return run(turn, settings, env)
}

// run returns the line of a run with the arguments and the environment that only
// one way of running has.
func run(turn ports.TurnRequest, args, more []string) (domain.SpawnLine, error) {
	if strings.HasPrefix(turn.Model, "-") {
		return domain.SpawnLine{}, &domain.InvalidError{
			What: "model", Value: turn.Model, Reason: "would be read as an option", Remedy: "name a model, such as sonnet",
		}
	}
	argv := slices.Concat([]string{turn.Install.Path}, turn.Install.Args, args)
	if turn.Model != "" {
		argv = append(argv, "--model", turn.Model)
	}
	env := append([]string{
		"CLAUDE_CONFIG_DIR=" + turn.Dirs.State,
		"CLAUDE_CODE_TMPDIR=" + turn.Dirs.Temp,
		"DISABLE_AUTOUPDATER=1",
		"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
	}, more...)
	if turn.Confined {
		argv = append(argv, "--dangerously-skip-permissions")
		// As root the option is refused unless the agent is told of a sandbox.
		env = append(env, "IS_SANDBOX=1")
	}
	return domain.SpawnLine{Path: turn.Install.Path, Argv: argv, Env: env, Dir: turn.Workspace}, nil
}

// userLine returns the prompt as the line that the agent reads.
func userLine(prompt string) []byte {
	const head, tail = `{"type":"user","message":{"role":"user","content":`, "}}\n"
	line := make([]byte, 0, len(head)+len(prompt)+len(prompt)/16+2+len(tail))
	return append(appendQuoted(append(line, head...), prompt), tail...)
}
