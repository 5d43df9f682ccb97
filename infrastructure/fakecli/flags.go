//go:build unix

package fakecli

import (
	"errors"
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
// option that is not known. After a word of rest, only the options are known
// that its flag set has, if it has one.
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

// claudeFlags are the options of Claude Code that a headless run may have.
var claudeFlags = flagSet{
	"-p": false, "--print": false, "--verbose": false, "--strict-mcp-config": false,
	"--dangerously-skip-permissions": false, "--include-partial-messages": false,
	"--output-format": true, "--input-format": true, "--permission-prompt-tool": true,
	"--setting-sources": true, "--session-id": true, "--resume": true, "--model": true,
	"--permission-mode": true, "--allowedTools": true, "--disallowedTools": true, "--mcp-config": true,
	"--append-system-prompt": true, "--add-dir": true, "--settings": true, "--max-turns": true,
}

// codexFlags are the options of "codex exec"; codexResumeFlags those that may
// stand after the word "resume".
var (
	codexFlags = flagSet{
		"--json": false, "--skip-git-repo-check": false, "--dangerously-bypass-approvals-and-sandbox": false,
		"--ephemeral": false, "--ignore-rules": false, "--trust": false,
		"-c": true, "--config": true, "--enable": true, "--disable": true, "-m": true, "--model": true,
		"-p": true, "--profile": true, "-s": true, "--sandbox": true, "-C": true, "--cd": true,
		"--add-dir": true, "--output-schema": true, "-o": true, "--output-last-message": true, "--color": true,
	}
	codexResumeFlags = flagSet{
		"--json": false, "--skip-git-repo-check": false, "--dangerously-bypass-approvals-and-sandbox": false,
		"--ephemeral": false, "--ignore-rules": false,
		"-c": true, "--config": true, "--enable": true, "--disable": true, "-m": true, "--model": true,
		"--output-schema": true, "-o": true, "--output-last-message": true,
	}
)
