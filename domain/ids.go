package domain

import (
	"fmt"
	"strings"
)

// AgentKind names a coding-agent CLI, for example "claude" or "codex". The
// zero value names no agent.
type AgentKind string

// The agents that Caisson ships adapters for.
const (
	AgentClaude AgentKind = "claude" // Anthropic's Claude Code
	AgentCodex  AgentKind = "codex"  // OpenAI's Codex CLI
)

// SessionID identifies one session of Caisson's: a UUID (version 7 when
// Caisson made it). It is not the agent's own id, see [AgentSession]. The
// zero value identifies nothing.
type SessionID string

// ParseSessionID checks that s is a canonical lower-case UUID and returns it.
// The check matters: a session id becomes a directory name.
func ParseSessionID(s string) (SessionID, error) {
	if !IsUUID(s) || s != strings.ToLower(s) {
		return "", &InvalidError{
			What: "session id", Value: s,
			Reason: "not a lower-case UUID",
			Remedy: "pass the id that an earlier run printed (\"continue with: --resume ID\", or the field \"session\" of its events)",
		}
	}
	return SessionID(s), nil
}

// IsUUID reports whether s has the 8-4-4-4-12 hexadecimal form of RFC 9562.
// Ids that come from an agent's stream are checked with it before they become
// arguments of a command line.
func IsUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch i {
		case 8, 13, 18, 23:
			if s[i] != '-' {
				return false
			}
		default:
			if !isHex(s[i]) {
				return false
			}
		}
	}
	return true
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// quote renders a value for an error message: every control byte escaped, and
// cut to a length that a person can read.
func quote(s string) string {
	const most = 120
	if len(s) > most {
		return fmt.Sprintf("%q… (%d bytes)", s[:most], len(s))
	}
	return fmt.Sprintf("%q", s)
}
