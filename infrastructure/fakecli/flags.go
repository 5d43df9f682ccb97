//go:build unix

package fakecli

import (
	"errors"
	"maps"
	"strings"
)

// flagSet says which options a program knows: false for one that stands alone,
// true for one that takes a value.
type flagSet map[string]bool

// parsed is a command line.
type parsed struct {
	values map[string]string
	rest   []string // what is no option
}

func (p parsed) has(name string) bool { _, ok := p.values[name]; return ok }

func (p parsed) value(name string) string { return p.values[name] }

// parseFlags parses options that may stand anywhere. The error's text is the
// option that is not known, or has no value. Behind a word that has a flag set
// of its own in after, the options of that set are known instead.
func parseFlags(args []string, known flagSet, after map[string]flagSet) (parsed, error) {
	p := parsed{values: map[string]string{}}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if arg == "-" || !strings.HasPrefix(arg, "-") {
			p.rest = append(p.rest, arg)
			if set, ok := after[arg]; ok {
				known = set
			}
			continue
		}
		if arg == "--" {
			p.rest = append(p.rest, args...)
			break
		}
		name, value, assigned := strings.Cut(arg, "=")
		takesValue, ok := known[name]
		if !ok {
			return p, errors.New(name)
		}
		if takesValue && !assigned {
			if len(args) == 0 {
				return p, errors.New(name)
			}
			value, args = args[0], args[1:]
		}
		p.values[name] = value
	}
	return p, nil
}

// claudeFlags are the options of Claude Code that a headless run may have, as
// far as the fake takes them ("claude --help", 2.1.328).
var claudeFlags = flagSet{
	"-p": false, "--print": false, "--verbose": false, "--strict-mcp-config": false,
	"--dangerously-skip-permissions": false, "--include-partial-messages": false, "--include-hook-events": false,
	"--safe-mode": false, "--restricted": false, "--bare": false, "--disable-slash-commands": false,
	"--output-format": true, "--input-format": true, "--permission-prompt-tool": true,
	"--setting-sources": true, "--session-id": true, "--resume": true, "--model": true,
	"--permission-mode": true, "--allowedTools": true, "--disallowedTools": true, "--tools": true,
	"--mcp-config": true, "--system-prompt": true, "--append-system-prompt": true, "--add-dir": true,
	"--settings": true, "--max-turns": true, "--effort": true, "--fallback-model": true,
}

// codexFlags are the options of "codex exec"; codexResumeFlags those that may
// stand after the word "resume" (their --help, 0.169.0).
var (
	codexFlags = codexResumeFlags.with(flagSet{
		"--oss": false, "--local-provider": true, "-p": true, "--profile": true, "-s": true, "--sandbox": true,
		"--approve-for-me": false, "-C": true, "--cd": true, "--add-dir": true, "--color": true,
	})
	codexResumeFlags = flagSet{
		"--json": false, "--skip-git-repo-check": false, "--dangerously-bypass-approvals-and-sandbox": false,
		"--dangerously-bypass-hook-trust": false, "--ephemeral": false, "--ignore-user-config": false,
		"--ignore-rules": false, "--trust": false, "--strict-config": false, "--worktree": false,
		"-c": true, "--config": true, "--enable": true, "--disable": true, "-m": true, "--model": true,
		"-i": true, "--image": true, "--output-schema": true, "-o": true, "--output-last-message": true,
	}
)

// with returns the options of both sets.
func (s flagSet) with(more flagSet) flagSet {
	all := maps.Clone(s)
	maps.Copy(all, more)
	return all
}
