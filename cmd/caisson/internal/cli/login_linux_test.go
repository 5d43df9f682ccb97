package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/testkit"
)

// claudeLogin is a file with a login of nobody's.
func claudeLogin(word string) string {
	return fmt.Sprintf(`{"claudeAiOauth":{"accessToken":"access-%s","refreshToken":"refresh-%s","expiresAt":%d,"scopes":[]}}`,
		word, word, time.Now().Add(time.Hour).UnixMilli())
}

func TestALoginFromAFile(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	b := newBench(t)
	got := b.run("login", "--list")
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "no logins are kept")
	got = b.run("run", "--agent", "claude", "--login", fakecli.Script("say hi"))
	require.Equal(t, 2, got.code, got.stderr)
	require.Contains(t, got.stderr, "log in with: caisson login claude")

	dir := t.TempDir()
	file := filepath.Join(dir, "credentials.json")
	require.NoError(t, os.WriteFile(file, []byte(claudeLogin("geheim")), 0o600))
	for _, args := range [][]string{{"claude"}, {"claude", "--name", "work"}} {
		got = b.run(append([]string{"login", "--from", file}, args...)...)
		require.Equal(t, 0, got.code, got.stderr)
		require.Contains(t, got.stdout, "is kept (its access token until ")
	}
	require.Contains(t, got.stdout, "the login of claude (work) is kept")
	require.Contains(t, got.stdout, "--login=work")
	got = b.run("run", "--agent", "claude", "--login=work", fakecli.Script(`sh grep -o access-geheim "$CLAUDE_CONFIG_DIR/.credentials.json" | tr a-z A-Z`))
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "ACCESS-GEHEIM")
	got = b.run("plan", "--agent", "claude", "--login=work")
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, "443")
	require.Contains(t, got.stdout, `it holds the login "work"`)
	require.NotContains(t, got.stdout, "ANTHROPIC_API_KEY")

	got = b.run("login", "--list")
	require.Equal(t, 0, got.code, got.stderr)
	require.Regexp(t, `(?m)^claude +default +20[0-9-]+ [0-9:]+ +until 20[0-9-]+ [0-9:]+$`, got.stdout)
	require.Regexp(t, `(?m)^claude +work +20`, got.stdout)
	require.NoError(t, os.WriteFile(filepath.Join(b.state, "logins", "claude", "work.json"), []byte("{}"), 0o600))
	got = b.run("login", "--list", "--output", "json")
	require.Equal(t, 0, got.code, got.stderr)
	lines := strings.Split(strings.TrimSpace(got.stdout), "\n")
	require.Len(t, lines, 2)
	for i, line := range lines {
		var l map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &l))
		require.Equal(t, "claude", l["agent"])
		require.Equal(t, i == 1, l["kept"] == nil, "what cannot be used has no times")
	}
	require.Contains(t, b.run("login", "--list").stdout, "cannot be used")
	require.NotContains(t, got.stdout+got.stderr, "geheim")

	got = b.run("logout", "claude", "--name", "work")
	require.Equal(t, 0, got.code, got.stderr)
	got = b.run("logout", "claude", "--name", "work")
	require.Equal(t, 2, got.code, got.stderr)
	require.Contains(t, got.stderr, "none is kept")
	require.Equal(t, 0, b.run("logout", "claude").code)
	require.NoFileExists(t, filepath.Join(b.state, "logins", "claude", "default.json"))
	require.FileExists(t, file)
}

func TestALoginThatIsRefused(t *testing.T) {
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "settings.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"hooks":{"a":"geheim"}}`), 0o600))
	for want, args := range map[string][]string{
		"no login has that is known": {"login", "claude", "--from", file},
		"does not exist":             {"login", "claude", "--from", file + ".not"},
		"no such agent":              {"login", "nobody", "--from", file},
		"name one agent":             {"login"},
		"--list stands alone":        {"login", "claude", "--list"},
		"no agent runs":              {"login", "claude", "--from", file, "--agent-bin", "/bin/true"},
		"standard input and output":  {"login", "claude"},
		"none is kept":               {"logout", "claude"},
		"small letters, digits":      {"login", "claude", "--name", "a/b", "--from", file},
	} {
		got := b.run(args...)
		require.Contains(t, got.stderr, want)
		require.NotContains(t, got.stderr, "geheim")
		require.NotZero(t, got.code)
	}
	require.NoDirExists(t, filepath.Join(b.state, "logins", "claude"))
}

// On a terminal the login is lent until the end, and taken back as after a turn.
func TestAnInterfaceWithALogin(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for name, tt := range map[string]struct {
		script string
		code   int
		kept   string
	}{
		"unchanged": {"exit 7", 7, "access-first"},
		"renewed":   {`cat renewed > "$file"; exit 7`, 7, "access-second"},
		"a link":    {`ln -sf "$PWD/renewed" "$file"; exit 7`, 125, "access-first"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			b := newBench(t)
			file := filepath.Join(t.TempDir(), "credentials.json")
			require.NoError(t, os.WriteFile(file, []byte(claudeLogin("first")), 0o600))
			got := b.run("login", "claude", "--from", file)
			require.Equal(t, 0, got.code, got.stderr)
			require.NoError(t, os.WriteFile(filepath.Join(b.workspace, "renewed"), []byte(claudeLogin("second")), 0o600))
			agent := filepath.Join(t.TempDir(), "claude")
			require.NoError(t, os.WriteFile(agent, []byte(`#!/bin/sh
file="$CLAUDE_CONFIG_DIR/.credentials.json"
grep -q access-first "$file" && test -z "$ANTHROPIC_API_KEY" || exit 9
`+tt.script+"\n"), 0o700))
			ours, tty, err := pty.Open()
			require.NoError(t, err)
			printed := make(chan string)
			go func() {
				data, _ := io.ReadAll(ours) // EIO at its end
				printed <- string(data)
			}()
			b.real, b.stdin, b.tty = true, tty, tty
			got = b.run("shell", "--agent", "claude", "--agent-bin", agent, "--login")
			require.NoError(t, tty.Close())
			out := <-printed
			require.NoError(t, ours.Close())
			require.Equal(t, tt.code, got.code, got.stderr+out)
			data, err := os.ReadFile(filepath.Join(b.state, "logins", "claude", "default.json"))
			require.NoError(t, err)
			require.Contains(t, string(data), tt.kept)
			if tt.code == 125 {
				require.Contains(t, got.stderr, "not a regular file")
			}
			sessions, err := os.ReadDir(filepath.Join(b.state, "sessions"))
			require.NoError(t, err)
			require.Empty(t, sessions)
		})
	}
}

// The agent's own login, on a terminal: of what it leaves there is the login, and
// nothing of the user's was there for it.
func TestTheAgentsOwnLogin(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for name, tt := range map[string]struct {
		script string
		code   int
		says   string
	}{
		"good": {`read -r code; test "$code" = 1234 || exit 7
echo '` + claudeLogin("geheim") + `' > "$CLAUDE_CONFIG_DIR/.credentials.json"; chmod 600 "$CLAUDE_CONFIG_DIR/.credentials.json"
echo '{"hooks":{}}' > "$CLAUDE_CONFIG_DIR/settings.json"`, 0, "is kept"},
		"failed":   {`exit 1`, 1, "did not succeed"},
		"no file":  {`exit 0`, 2, "does not exist"},
		"no login": {`echo '{"hooks":{}}' > "$CLAUDE_CONFIG_DIR/.credentials.json"; chmod 600 "$CLAUDE_CONFIG_DIR/.credentials.json"`, 2, "no login has that is known"},
		"a link":   {`ln -s /etc/passwd "$CLAUDE_CONFIG_DIR/.credentials.json"`, 2, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.NoLeaks(t)
			t.Setenv("TMPDIR", t.TempDir())
			t.Setenv("HOME", t.TempDir())
			require.NoError(t, os.MkdirAll(filepath.Join(os.Getenv("HOME"), ".claude"), 0o700))
			agent := filepath.Join(t.TempDir(), "claude")
			require.NoError(t, os.WriteFile(agent, []byte(`#!/bin/sh
test "$*" = "auth login --claudeai" || { echo "called with $*"; exit 9; }
test ! -e "$HOME/.claude" && test -z "$(ls -A)" && ! ls `+os.Getenv("HOME")+` && ! mkdir -p in/it || { echo "sees too much"; exit 8; }
`+tt.script+"\n"), 0o700))
			ours, tty, err := pty.Open()
			require.NoError(t, err)
			printed := make(chan string)
			go func() {
				data, _ := io.ReadAll(ours) // EIO at its end
				printed <- string(data)
			}()
			_, err = io.WriteString(ours, "1234\r")
			require.NoError(t, err)
			b := newBench(t)
			b.real, b.stdin, b.tty = true, tty, tty
			got := b.run("login", "claude", "--agent-bin", agent)
			require.NoError(t, tty.Close())
			out := <-printed
			require.NoError(t, ours.Close())
			require.Equal(t, tt.code, got.code, got.stderr+out)
			require.Contains(t, got.stderr+out, tt.says)
			require.NotContains(t, got.stderr+out, "geheim")
			kept := filepath.Join(b.state, "logins", "claude", "default.json")
			if tt.code == 0 {
				data, err := os.ReadFile(kept)
				require.NoError(t, err)
				require.Contains(t, string(data), "access-geheim")
			} else {
				require.NoFileExists(t, kept)
			}
			sessions, err := os.ReadDir(filepath.Join(b.state, "sessions"))
			require.NoError(t, err)
			require.Empty(t, sessions)
			left, err := os.ReadDir(os.TempDir())
			require.NoError(t, err)
			require.Empty(t, left, "the empty workspace is gone")
		})
	}
}
