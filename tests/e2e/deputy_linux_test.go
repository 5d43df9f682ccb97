package e2e

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/testkit"
)

// deputy is what the orchestrator must not be led to do by an agent that
// controls every place it can write, and the tests that try it (in the package's
// own directory, or with their directory).
var deputy = []struct {
	rule  string
	tests []string
}{
	{"opens files below directories that an agent can write through os.Root, and follows no link there", []string{
		"TestWhatAnAgentPlantsLeadsNowhere", "application.TestAWorktreeThatProvesNothingIsNotGranted", "application.TestASubmoduleThatProvesNothingIsNotGranted",
	}},
	{"opens its own state so, and replaces files by rename", []string{
		"infrastructure/store.TestForeignThingsInTheWayAreErrors", "infrastructure/store.TestNothingIsLeftOpenAndNoTemporaryFileStays",
		"infrastructure/store.TestAFailedSaveLeavesTheEarlierRecord", "infrastructure/store.TestRemoveDoesNotTouchWhatIsBegunAnew",
		"infrastructure/store.TestForeignThingsInPlaceOfTheLogAreErrors",
	}},
	{"runs nothing that an agent can write: not git, not the agent for its version, nothing of a PATH entry or the workspace", []string{
		"TestNothingPlantedIsRun", "tests/layering.TestProjectKeepsItsRules",
	}},
	{"its own program and the agent's never lie under a writable grant", []string{
		"TestAPlantedAgentIsRefused", "application.TestWritableGrants",
	}},
	{"a .git that is a file widens the plan only if the git directory points back and the owner matches", []string{
		"TestGitWorksInAWorktreeAndInASubmodule", "application.TestALinkedWorktreeIsGranted", "application.TestAWorktreeThatProvesNothingIsNotGranted",
		"application.TestASubmoduleIsGrantedItsGitDirectory", "application.TestASubmoduleThatProvesNothingIsNotGranted",
	}},
	{"a path of the plan that has become a link is not granted", []string{
		"TestAPlantedLinkGrantsNothing", "application.TestALinkPlantedBetweenTurnsIsRefused", "application.TestALinkOnPATHGrantsNothing",
		"infrastructure/landlock.TestSwappedLinksNeverGrantTheSecret", "infrastructure/landlock.TestLinkThatAppearsIsRefused",
	}},
	{"writable grants that cover Caisson's state or another session are refused, and neither is reached without one", []string{
		"application.TestWritableGrants", "application.TestBadRequests", "TestASessionDoesNotReachAnother",
	}},
	{"ids from a stream are checked before they become arguments, and are never path components", []string{
		"TestIDsOfAStream", "infrastructure/agents/claude.TestCommand", "infrastructure/agents/codex.TestCommandErrors", "infrastructure/session.TestStartRefuses",
		"cmd/caisson/internal/cli.TestBadInput",
	}},
	{"text for a terminal has its control bytes escaped, and Caisson's own lines cannot be imitated", []string{
		"cmd/caisson/internal/ui.TestEscape", "cmd/caisson/internal/ui.TestAnAgentReachesNeitherTheTerminalNorTheFirstColumn",
		"cmd/caisson/internal/ui.TestAnAgentAddsNoLineOfCaissonsOwn",
	}},
	{"of an event only the receipt, the exit and the times are facts, and an agent cannot give them", []string{"TestAnAgentCannotImitateFacts"}},
	{"no variable of the host passes by accident", []string{
		"TestNoVariableOfTheHostPassesByAccident", "TestNoVariableOfTheHostReachesACommandByAccident", "TestASecretIsNowhereButInTheChild",
	}},
}

// The table names tests that there are.
func TestEveryRuleOfTheDeputyHasItsTests(t *testing.T) {
	if _, err := os.Stat("../../go.mod"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("layout: tools/as-user.sh runs the package without the others")
	}
	for _, d := range deputy {
		require.NotEmpty(t, d.tests, d.rule)
		for _, name := range d.tests {
			dir := "."
			if i := strings.LastIndexByte(name, '.'); i >= 0 {
				dir, name = filepath.Join("..", "..", filepath.FromSlash(name[:i])), name[i+1:]
			}
			require.Contains(t, testsIn(t, dir), name, "%s: %s", d.rule, dir)
		}
	}
}

func testsIn(t *testing.T, dir string) (names []string) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, f := range files {
		file, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

// program writes a script that leaves a mark where no plan lets it.
func plantProgram(t *testing.T, file, mark string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\necho \"$0\" >> "+mark+"\n"), 0o700))
}

// Programs and hooks that an agent may have planted, under every name that a
// tool around an agent likes to run.
func TestNothingPlantedIsRun(t *testing.T) {
	forEachAgent(t, func(t *testing.T, native *stage) {
		env := map[string]string{"HOME": "/nonexistent"}
		s := newStage(t, native.agent, composition.WithEnviron(func(name string) (string, bool) { v, ok := env[name]; return v, ok }))
		mark := filepath.Join(s.outside, "mark")
		bins := []string{filepath.Join(s.workspace, "bin"), filepath.Join(s.workspace, "node_modules", ".bin"), s.workspace}
		env["PATH"] = strings.Join(append(bins, ".", "bin", "/usr/bin", "/bin"), ":")
		for _, dir := range bins {
			for _, name := range []string{
				"git", "sh", "bash", "dash", "env", "node", "npm", "npx", "bun", "python3", "claude", "codex", "caisson", "caisson-keeper",
				"uname", "id", "ps", "pgrep", "pkill", "kill", "true", "cat", "grep", "ls", "stat", "readlink", "realpath", "getent", "which",
				"go", "bwrap", "systemd-run", "setpriv", "unshare", "nsenter", "strace", "gdb", "tmux", "docker", "ssh", "gpg", "security", "xdg-open",
			} {
				plantProgram(t, filepath.Join(dir, name), mark)
			}
		}
		git(t, s.outside, "init", "-q", s.workspace)
		for _, hook := range []string{"post-checkout", "pre-commit", "post-index-change", "reference-transaction", "fsmonitor-watchman"} {
			plantProgram(t, filepath.Join(s.workspace, ".git", "hooks", hook), mark)
		}
		config, err := os.OpenFile(filepath.Join(s.workspace, ".git", "config"), os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = fmt.Fprintf(config, "[core]\n\tfsmonitor = %[1]s/git\n\tpager = %[1]s/cat\n\tsshCommand = %[1]s/ssh\n[diff]\n\texternal = %[1]s/git\n", bins[0])
		require.NoError(t, err)
		require.NoError(t, config.Close())
		require.NoError(t, os.WriteFile(filepath.Join(s.workspace, ".envrc"), []byte("echo x >> "+mark+"\n"), 0o700))

		request := application.OpenRequest{Agent: s.agent, Workspace: s.workspace}
		_, err = s.Orchestrator.Plan(t.Context(), request)
		require.NoError(t, err)
		session := s.open(t, request)
		s.run(t, session, "say one")
		s.run(t, session, "sh git status", "sh claude --version") // in the sandbox, where it is the agent's business
		require.NoError(t, session.Close(t.Context()))
		again := s.open(t, application.OpenRequest{Resume: session.ID()})
		s.run(t, again, "say two")
		require.NoError(t, again.Close(t.Context()))
		_, err = s.Orchestrator.Exec(t.Context(), application.ExecRequest{Argv: []string{"true"}, Dir: s.workspace})
		require.NoError(t, err)
		for _, kind := range s.Orchestrator.Agents() {
			_, err := s.Orchestrator.ResolveAgent(kind, "")
			require.NoError(t, err)
		}
		require.NoFileExists(t, mark)

		// The companion: they would.
		require.NoError(t, exec.Command(filepath.Join(bins[0], "git"), "status").Run())
		require.FileExists(t, mark)
		require.NoError(t, os.Remove(mark))
		git(t, s.outside, "-C", s.workspace, "status")
		require.FileExists(t, mark, "git runs what its configuration names")
	})
}

// A program on PATH below the workspace would be the agent's to replace.
func TestAPlantedAgentIsRefused(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	for _, kind := range agents {
		s := newStage(t, kind)
		mark := filepath.Join(s.outside, "mark")
		bin := filepath.Join(s.workspace, "node_modules", ".bin")
		plantProgram(t, filepath.Join(bin, string(kind)), mark)
		// The adapters of the real programs.
		c, err := composition.New(t.Context(), composition.WithStateRoot(s.root), composition.WithEnviron(func(name string) (string, bool) {
			v, ok := map[string]string{"PATH": bin + ":/usr/bin:/bin", "HOME": "/nonexistent"}[name]
			return v, ok
		}))
		require.NoError(t, err)
		for _, hint := range []string{"", filepath.Join(bin, string(kind))} {
			_, err = c.Orchestrator.Open(t.Context(), application.OpenRequest{Agent: kind, AgentBin: hint, Workspace: s.workspace})
			var invalid *domain.InvalidError
			require.ErrorAs(t, err, &invalid)
			require.ErrorContains(t, err, "would let it change the program of "+string(kind))
		}
		require.NoFileExists(t, mark)
		require.NoError(t, c.Close(t.Context()))
	}
}

// snapshot is what a directory holds: names, modes, times and content.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		content := ""
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			content = string(data)
		}
		found[path] = fmt.Sprintf("%s %s %q", info.Mode(), info.ModTime().Format(time.RFC3339Nano), content)
		return nil
	}))
	return found
}

// plantLinks puts links, a pipe and odd modes into the current directory, under
// names that a program may want to read or to write.
const plantLinks = `for f in config.toml settings.json .claude.json .config .cache .gitconfig .caisson-probe record.json; do ln -s "$SECRET" $f || ln -s "$SECRET" $f.link || exit 1; done; ln -s "$OUTSIDE/dir" dir && mkfifo pipe && mkdir -p locked/in && ln -s "$OUTSIDE/dir" locked/in/dir && chmod 000 locked/in && chmod 500 locked || exit 1; `

// What an agent plants in its own directories, and in its configuration above
// all, leads the orchestrator nowhere: in the next turn, at a resume, and when the
// directories are removed.
func TestWhatAnAgentPlantsLeadsNowhere(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		secret := filepath.Join(s.outside, "secret")
		require.NoError(t, os.WriteFile(secret, []byte("model = 'evil'\n"), 0o600))
		require.NoError(t, os.MkdirAll(filepath.Join(s.outside, "dir", "deep"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(s.outside, "dir", "file"), []byte("x"), 0o644))
		before := snapshot(t, s.outside)
		policy := application.Policy{Env: []domain.EnvRule{
			{Name: "SECRET", Value: secret, Literal: true}, {Name: "OUTSIDE", Value: s.outside, Literal: true},
		}}

		session := s.open(t, application.OpenRequest{Policy: policy})
		events := s.run(t, session,
			`sh for d in "$HOME/../agent" "$HOME" "$TMPDIR" .; do (cd "$d" && `+plantLinks+`) || exit 1; done; chmod 500 "$TMPDIR" "$HOME"`,
			`sh mv "$TMPDIR" "$TMPDIR.away" && ln -s "$OUTSIDE" "$TMPDIR"`, `sh rmdir "$HOME/../spool"; ln -s "$OUTSIDE" "$HOME/../spool"`)
		results := resultsOf(events)
		require.Equal(t, domain.ToolCompleted, results[0].Status, results[0].Output)
		require.Equal(t, domain.ToolFailed, results[1].Status, "the directory itself is not the agent's to replace")
		require.Equal(t, domain.ToolFailed, results[2].Status)
		require.Equal(t, domain.OutcomeCompleted, finalOf(s.run(t, session, "say two")).Outcome)
		require.NoError(t, session.Close(t.Context()))
		again := s.open(t, application.OpenRequest{Resume: session.ID(), Policy: policy})
		require.Equal(t, domain.OutcomeCompleted, finalOf(s.run(t, again, "say three")).Outcome)
		require.NoError(t, again.Close(t.Context()))
		require.Equal(t, before, snapshot(t, s.outside))

		// The directory of a command is removed with all that is in it.
		sessions := filepath.Join(s.root, "sessions")
		kept, err := os.ReadDir(sessions)
		require.NoError(t, err)
		result, err := s.Orchestrator.Exec(t.Context(), application.ExecRequest{
			Argv: []string{"sh", "-c", `cd "$TMPDIR" && ` + plantLinks + `chmod 000 "$TMPDIR"`}, Dir: "/", Policy: policy,
		})
		require.NoError(t, err)
		require.True(t, result.Exit.Success())
		require.NoError(t, result.CleanUp)
		left, err := os.ReadDir(sessions)
		require.NoError(t, err)
		require.Len(t, left, len(kept))
		require.Equal(t, before, snapshot(t, s.outside))

		// For the test's own clean-up.
		locked, err := filepath.Glob(filepath.Join(sessions, "*", "*", "locked"))
		require.NoError(t, err)
		temps, err := filepath.Glob(filepath.Join(s.root, "t", "*"))
		require.NoError(t, err)
		require.Len(t, temps, len(kept), "those of the sessions")
		for _, temp := range temps {
			if dir := filepath.Join(temp, "locked"); exists(dir) {
				locked = append(locked, dir)
			}
		}
		for _, dir := range append(locked, filepath.Join(s.workspace, "locked")) {
			require.NoError(t, os.Chmod(dir, 0o700))
			require.NoError(t, os.Chmod(filepath.Join(dir, "in"), 0o700))
		}
	})
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// tempOf returns the temporary directory of a session.
func tempOf(t *testing.T, s *application.Session) string {
	t.Helper()
	for _, e := range s.Plan().Env() {
		if e.Name == "TMPDIR" {
			return e.Value
		}
	}
	require.Fail(t, "no TMPDIR in the plan")
	return ""
}

// What one session keeps is out of reach for another one, of the same user.
func TestASessionDoesNotReachAnother(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		first := s.open(t, application.OpenRequest{})
		s.run(t, first, `sh echo secret > "$HOME/key"; echo secret > "$TMPDIR/key"`)
		dir := filepath.Join(s.root, "sessions", string(first.ID()))
		var tries []try
		temp := tempOf(t, first)
		for _, path := range []string{dir + "/record.json", dir + "/lock", dir + "/home/key", temp + "/key"} {
			require.FileExists(t, path)
			tries = append(tries, try{"cat " + path, false})
		}
		for _, path := range []string{dir + "/agent", dir + "/home", dir + "/spool", dir, filepath.Dir(dir), temp, filepath.Dir(temp)} {
			require.DirExists(t, path)
			made := filepath.Join(path, "made")
			tries = append(tries, try{"touch " + made + " && rm " + made, false}, try{"ls " + path, false})
		}
		requireTries(t, s, application.OpenRequest{}, tries...)
	})
}

// An agent names its conversation as it likes.
func TestIDsOfAStream(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		line := map[domain.AgentKind]string{
			domain.AgentClaude: `{"type":"system","subtype":"init","cwd":"/","session_id":%q,"tools":[],"model":"m"}`,
			domain.AgentCodex:  `{"type":"thread.started","thread_id":%q}`,
		}[s.agent]
		for _, id := range []string{
			"../../../../outside", "/etc/passwd", "--help", "-c", "", ".", "a/b", "x\x00y", "x\ny", "\x1b[2J", strings.Repeat("x", 100_000),
			"{01890a5d-ac96-774b-bcce-b302099a8057}", "urn:uuid:01890a5d-ac96-774b-bcce-b302099a8057",
		} {
			raw := "raw " + fmt.Sprintf(line, "@")
			raw = strings.Replace(raw, `"@"`, quoteJSON(id), 1)
			session := s.open(t, application.OpenRequest{})
			events := s.run(t, session, raw, "noresult")
			for _, kept := range []string{session.ConversationID(), finalOf(events).ConversationID} {
				require.True(t, kept == "" || domain.IsUUID(kept), "%q for %.40q", kept, id)
			}
			// The next turn's arguments are those of a well-behaved conversation.
			next := s.run(t, session, `sh tr "\0" "\n" < /proc/$PPID/cmdline`)
			results := resultsOf(next)
			require.Len(t, results, 1, "%.40q: %+v %q", id, finalOf(next), session.ConversationID())
			require.Equal(t, domain.ToolCompleted, results[0].Status)
			for _, argument := range strings.Split(results[0].Output, "\n") {
				if id != "" && id != "-c" && id != "." {
					require.NotContains(t, argument, id)
				}
			}
			require.NoError(t, session.Close(t.Context()))
			again, err := s.Orchestrator.Open(t.Context(), application.OpenRequest{Resume: session.ID()})
			if err == nil {
				require.True(t, domain.IsUUID(again.ConversationID()))
				require.NoError(t, again.Close(t.Context()))
			}
			sessions, err := os.ReadDir(filepath.Join(s.root, "sessions"))
			require.NoError(t, err)
			for _, d := range sessions {
				require.True(t, domain.IsUUID(d.Name()), d.Name())
			}
		}
		require.Len(t, snapshot(t, s.outside), 1, "nothing but the directory itself")
	})
}

func quoteJSON(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		if r < ' ' || r == '"' || r == '\\' {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// An agent prints what Caisson would, in every form.
func TestAnAgentCannotImitateFacts(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		start := time.Now()
		session := s.open(t, application.OpenRequest{})
		turn, err := session.Send(t.Context(), fakecli.Script(
			`raw {"type":"sandbox","seq":1,"receipt":{"unconfined":true,"why":"evil"}}`,
			`raw {"type":"final","seq":9,"outcome":"completed","exit":{"code":0},"time":"2001-01-01T00:00:00Z"}`,
			`raw {"type":"session","session":"01890a5d-ac96-774b-bcce-b302099a8057"}`,
			"raw caisson: confined by nothing", "stderr caisson: UNCONFINED", "say caisson: completed",
			"exit 3"))
		require.NoError(t, err)
		events := s.read(t, session, turn, nil) // one final, last; no gaps
		receipts := 0
		for _, e := range events {
			if r, ok := e.Reply.(domain.SandboxApplied); ok {
				receipts++
				require.False(t, r.Receipt.Unconfined)
			}
			require.WithinRange(t, e.Time, start.Add(-time.Second), time.Now().Add(time.Second))
			require.Equal(t, session.ID(), e.Session)
		}
		require.Equal(t, 1, receipts)
		require.Equal(t, domain.ExitStatus{Known: true, Code: 3}, finalOf(events).Exit)
		require.NotEqual(t, domain.OutcomeCompleted, finalOf(events).Outcome)
	})
}
