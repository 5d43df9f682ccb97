// Package codex speaks to OpenAI's Codex CLI: it finds the program, says what
// the program needs of a sandbox, builds the line that runs one turn of
// `codex exec --json`, and turns the lines that come back into events. All that
// it knows of Codex was observed on version 0.169.0; the recordings are in
// testdata. It starts nothing.
//
// # How a turn is set up
//
// Codex reads configuration from $CODEX_HOME/config.toml, from .codex in the
// workspace, from .rules files and from the command line. An agent can write
// the first three, and would so decide which servers and commands its next turn
// starts with. So the command line says everything, and --ignore-user-config
// and --ignore-rules shut the rest out.
//
// The built-in provider of Codex takes its address from that configuration, its
// key from a login, and talks WebSocket first. Here a provider of our own,
// "caisson", is defined on the command line: the address is that of the
// session's model gateway, or without one OPENAI_BASE_URL of the host or
// https://api.openai.com/v1, and the gateway's token or the key is read by Codex
// itself from OPENAI_API_KEY, or from CODEX_API_KEY if only that is set. Neither
// is in an argument or a file.
//
// Codex's inner sandbox is bubblewrap, which cannot mount inside a Landlock
// domain; commands then vanish without an item in the stream. A confined turn
// therefore uses a permission profile with the whole file system and no network
// ("ext"): Codex then starts no bubblewrap, but still puts its seccomp filter on
// the tools, which leaves them no socket but unix ones. An unconfined turn keeps
// Codex's own default, which is read-only.
//
// With that filter on, Codex takes a command that exits with an error within
// about 100 ms, and whose output reads like a denial ("Permission denied"), for
// one that its own sandbox stopped: the model gets the output, but the stream
// has no item of the command. Without the filter it would have one, but then
// every tool could connect where Codex itself may. The events of a Codex turn
// are its claims; this is one that it does not make.
//
// The package may import domain, ports, the lookup package beside it, a JSON
// decoder and the standard library.
package codex
