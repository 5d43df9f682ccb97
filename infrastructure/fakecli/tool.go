//go:build unix

package fakecli

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

type toolKind uint8

const (
	commandTool toolKind = iota
	writeTool
	readTool
)

// toolCall is one use of a tool, and after run how it ended.
type toolCall struct {
	kind    toolKind
	id      string // the dialect's own
	command string // of a command, as it is shown
	path    string // absolute, of a file tool
	content string // that is written, or was read
	existed bool   // the file that is written was there before

	run func(ctx context.Context)

	output   string // of a command
	exitCode int    // of a command
	failure  string // of a file tool: the errno's name and text
}

// shellCall runs a shell command.
func shellCall(line string) *toolCall {
	c := &toolCall{kind: commandTool, command: line}
	c.run = func(ctx context.Context) { c.output, c.exitCode = runShell(ctx, line) }
	return c
}

// funcCall is shown as a command, but done by the fake itself.
func funcCall(shown string, do func() (string, error)) *toolCall {
	c := &toolCall{kind: commandTool, command: shown}
	c.run = func(context.Context) {
		output, err := do()
		if err != nil {
			output, c.exitCode = errnoText(err), 1
		}
		c.output = output + "\n"
	}
	return c
}

func connectCall(addr string) *toolCall {
	c := &toolCall{kind: commandTool, command: "connect " + addr}
	c.run = func(ctx context.Context) {
		d := net.Dialer{Timeout: 5 * time.Second}
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			c.output, c.exitCode = errnoText(err)+"\n", 1
			return
		}
		_ = conn.Close() // nothing was written that could be lost
		c.output = "connected to " + addr + "\n"
	}
	return c
}

func writeCall(path, text string) *toolCall {
	path, absErr := filepath.Abs(path)
	_, statErr := os.Lstat(path)
	c := &toolCall{kind: writeTool, path: path, content: text, existed: statErr == nil}
	c.run = func(context.Context) {
		err := absErr
		if err == nil {
			err = writeFile(path, text)
		}
		if err != nil {
			c.failure = errnoText(err)
		}
	}
	return c
}

func writeFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

func readCall(path string) *toolCall {
	path, absErr := filepath.Abs(path)
	c := &toolCall{kind: readTool, path: path}
	c.run = func(context.Context) {
		err := absErr
		if err == nil {
			var data []byte
			data, err = os.ReadFile(path)
			c.content = string(data)
		}
		if err != nil {
			c.failure = errnoText(err)
		}
	}
	return c
}

// shellQuote quotes a word for a POSIX shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// numbered renders a file as Claude's Read does.
func numbered(content string) string {
	var b strings.Builder
	for i, line := range strings.Split(content, "\n") {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%d\t%s", i+1, line)
	}
	return b.String()
}
