package e2e

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
	"github.com/caisson-run/caisson/tests/testkit"
)

// try is a command of an agent's and whether the sandbox lets it succeed. All of
// them succeed without one.
type try struct {
	command string
	allowed bool
}

// requireTries runs the commands confined in the workspace, each in a turn with
// the others, and then the denied ones without a sandbox.
func requireTries(t *testing.T, s *stage, request application.OpenRequest, tries ...try) domain.Receipt {
	t.Helper()
	script := func(of []try) (lines []string) {
		for _, c := range of {
			lines = append(lines, "sh "+c.command)
		}
		return lines
	}
	session := s.open(t, request)
	events := s.run(t, session, script(tries)...)
	require.NoError(t, session.Close(t.Context()))
	results := resultsOf(events)
	require.Len(t, results, len(tries))
	var denied []try
	for i, c := range tries {
		require.Equal(t, c.allowed, results[i].Status == domain.ToolCompleted, "%s: %s", c.command, results[i].Output)
		if !c.allowed {
			denied = append(denied, c)
		}
	}
	native := request
	native.Sandbox, native.Policy.Rules = s.off, nil
	session = s.open(t, native)
	for i, r := range resultsOf(s.run(t, session, script(append(denied, try{command: "true"}))...)) {
		require.Equal(t, domain.ToolCompleted, r.Status, "the companion of %v: %s", denied[min(i, len(denied)-1)], r.Output)
	}
	require.NoError(t, session.Close(t.Context()))
	return receiptOf(events)
}

const gitNames = "GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org "

// git runs git on the host, as the user would have before the session.
func git(t *testing.T, home string, args ...string) {
	t.Helper()
	program, err := exec.LookPath("git")
	if err != nil {
		t.Skip("cli: git is not installed")
	}
	cmd := exec.CommandContext(t.Context(), program, append([]string{
		"-c", "user.name=n", "-c", "user.email=e", "-c", "protocol.file.allow=always", "-c", "init.defaultBranch=main",
	}, args...)...)
	cmd.Env = []string{"HOME=" + home, "GIT_CONFIG_NOSYSTEM=1", "PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "git %v: %s", args, out)
}

func TestGitWorksInAWorktreeAndInASubmodule(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		dir := filepath.Dir(s.workspace)
		main, tree, super := filepath.Join(dir, "main"), filepath.Join(dir, "tree"), filepath.Join(dir, "super")
		git(t, dir, "init", "-q", main)
		git(t, dir, "-C", main, "commit", "-q", "--allow-empty", "-m", "first")
		git(t, dir, "-C", main, "worktree", "add", "-q", tree)
		git(t, dir, "init", "-q", super)
		git(t, dir, "-C", super, "submodule", "--quiet", "add", main, "sub")
		git(t, dir, "-C", super, "commit", "-q", "-m", "with a submodule")
		require.NoError(t, os.WriteFile(filepath.Join(super, "secret"), nil, 0o600))
		work := gitNames + "sh -ec 'echo text > file; git add file; git commit -qm second; git log --oneline | grep -c .; git status --short; git branch side'"
		appendTo := func(file string) string { return "echo '# x' >> " + file }

		s.workspace = tree
		requireTries(
			t, s, application.OpenRequest{},
			try{work, true},
			try{appendTo(main + "/.git/config"), false}, try{"touch " + main + "/.git/hooks/pre-commit", false},
			try{"touch " + main + "/file", false}, try{"git gc -q", false}, // of the whole repository
			try{"touch " + main + "/.git/HEAD.lock && rm " + main + "/.git/HEAD.lock", false},
		)

		s.workspace = filepath.Join(super, "sub")
		receipt := requireTries(
			t, s, application.OpenRequest{},
			try{work, true}, try{"git gc -q && git fsck", true},
			try{appendTo(super + "/.git/config"), false}, try{"touch " + super + "/.git/hooks/pre-commit", false},
			try{"touch " + super + "/.git/index.lock && rm " + super + "/.git/index.lock", false},
			try{"cat " + super + "/secret", false}, try{"ls " + super + "/.git/objects", false},
		)
		require.Contains(t, strings.Join(receipt.Agent, "\n"), "the workspace is a submodule")

		s.workspace = super
		receipt = requireTries(
			t, s, application.OpenRequest{},
			try{"cd sub && echo >> file2 && git add . && " + gitNames + "git commit -qm third", true},
			try{gitNames + "git commit -qam 'move the submodule' && git submodule status", true},
			try{"touch " + main + "/file3", false},
		)
		require.NotContains(t, strings.Join(receipt.Agent, "\n"), "submodule")
	})
}

// Names with bytes that need care, in the workspace and as grants.
func TestOddNames(t *testing.T) {
	for what, name := range map[string]string{
		"spaces": "a  b ", "a newline": "a\nb", "quotes": `a"b'c\d`, "a dash": "-rf", "an escape": "a\x1b[31mb", "no UTF-8": "a\xff\xfeb",
		"a dollar": "$HOME `x` *",
	} {
		t.Run(what, func(t *testing.T) {
			forEachAgent(t, func(t *testing.T, s *stage) {
				outside := filepath.Join(s.outside, name)
				require.NoError(t, os.Mkdir(outside, 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(outside, "file"), []byte("granted"), 0o600))
				require.NoError(t, os.WriteFile(filepath.Join(s.outside, "beside"), []byte("not"), 0o600))
				require.NoError(t, os.Mkdir(filepath.Join(s.workspace, name), 0o700))
				session := s.open(t, application.OpenRequest{Policy: application.Policy{
					Rules: []domain.PathRule{{Path: outside, Access: domain.AccessRead, Why: "--ro"}},
					// A prompt is text, so the name goes in by a variable.
					Env: []domain.EnvRule{{Name: "ODD", Value: name, Literal: true}, {Name: "OUTSIDE", Value: s.outside, Literal: true}},
				}})
				events := s.run(
					t, session, `sh echo x > "./$ODD/made" && mv "./$ODD/made" "./$ODD/moved"`,
					`sh cat "$OUTSIDE/$ODD/file"`, `sh cat "$OUTSIDE/beside"`, `sh echo x > "$OUTSIDE/$ODD/new"`)
				results := resultsOf(events)
				require.Len(t, results, 4)
				require.Equal(t, domain.ToolCompleted, results[0].Status, results[0].Output)
				require.FileExists(t, filepath.Join(s.workspace, name, "moved"))
				require.Contains(t, results[1].Output, "granted")
				require.Equal(t, domain.ToolFailed, results[2].Status)
				require.Equal(t, domain.ToolFailed, results[3].Status)
				require.NotContains(t, session.Plan().String(), "\x1b")
				for _, e := range events {
					line := jsonl.AppendEvent(nil, e)
					require.Equal(t, 1, strings.Count(string(line), "\n"))
				}
				require.NoError(t, session.Close(t.Context()))

				// As the workspace itself.
				s.workspace = filepath.Join(s.workspace, name)
				if what == "no UTF-8" {
					_, err := s.Orchestrator.Open(t.Context(), application.OpenRequest{Agent: s.agent, Workspace: s.workspace})
					var invalid *domain.InvalidError
					require.ErrorAs(t, err, &invalid)
					require.ErrorContains(t, err, `a\xff\xfeb": not valid UTF-8`)
					return
				}
				session = s.open(t, application.OpenRequest{})
				results = resultsOf(s.run(t, session, "sh cat moved && echo y > moved", "sh echo > ../up"))
				require.Equal(t, domain.ToolCompleted, results[0].Status, results[0].Output)
				require.Equal(t, domain.ToolFailed, results[1].Status)
				require.NoError(t, session.Close(t.Context()))
				again := s.open(t, application.OpenRequest{Resume: session.ID()})
				require.Equal(t, s.workspace, again.Workspace())
			})
		})
	}
}

// A workspace by a link is the place itself, under either name; links in it that
// lead out are not followed by the sandbox.
func TestLinksOfAWorkspace(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		real := s.workspace
		link := filepath.Join(filepath.Dir(real), "link")
		require.NoError(t, os.Symlink(real, link))
		dotfile := filepath.Join(s.outside, "env")
		require.NoError(t, os.WriteFile(dotfile, []byte("KEY=1"), 0o600))
		require.NoError(t, os.Symlink(dotfile, filepath.Join(real, ".env")))
		require.NoError(t, os.Symlink(s.outside, filepath.Join(real, ".config")))

		s.workspace = link
		session := s.open(t, application.OpenRequest{})
		require.Equal(t, real, session.Workspace())
		events := s.run(t, session, "sh pwd -P; echo x > made", "sh cat .env", "sh echo x > .config/planted")
		results := resultsOf(events)
		require.Equal(t, domain.ToolCompleted, results[0].Status)
		require.Contains(t, results[0].Output, real)
		require.Equal(t, domain.ToolFailed, results[1].Status)
		require.Equal(t, domain.ToolFailed, results[2].Status)
		require.NoFileExists(t, filepath.Join(s.outside, "planted"))
		require.NoError(t, session.Close(t.Context()))
		for _, name := range []string{"", link, real} {
			again, err := s.Orchestrator.Open(t.Context(), application.OpenRequest{Resume: session.ID(), Workspace: name})
			require.NoError(t, err, name)
			require.NoError(t, again.Close(t.Context()))
		}

		// A dotfile that was granted by its link: resolved, and shown as both.
		session = s.open(t, application.OpenRequest{Policy: application.Policy{
			Rules: []domain.PathRule{{Path: filepath.Join(real, ".env"), Access: domain.AccessRead, Why: "--ro"}},
		}})
		require.Contains(t, session.Plan().String(), dotfile+"  # --ro "+filepath.Join(real, ".env"))
		results = resultsOf(s.run(t, session, "sh cat .env", "sh cat .config/env", "sh echo x > .env"))
		require.Contains(t, results[0].Output, "KEY=1")
		require.Contains(t, results[1].Output, "KEY=1", "the same file")
		require.Equal(t, domain.ToolFailed, results[2].Status)
	})
}

// Grants add up: a narrow one within a wide one widens, and never narrows.
func TestNestedGrants(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		in := filepath.Join(s.outside, "in")
		require.NoError(t, os.MkdirAll(filepath.Join(in, "deep"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(s.outside, "file"), nil, 0o600))
		require.NoError(t, os.Mkdir(filepath.Join(s.workspace, "ro"), 0o700))
		missing := filepath.Join(s.outside, "missing")
		rule := func(access domain.Access, path string) domain.PathRule {
			return domain.PathRule{Path: path, Access: access, Why: "--flag"}
		}
		receipt := requireTries(
			t, s, application.OpenRequest{Policy: application.Policy{Rules: []domain.PathRule{
				rule(domain.AccessRead, s.outside), rule(domain.AccessReadWrite, in), rule(domain.AccessRead, in),
				rule(domain.AccessRead, filepath.Join(in, "deep")), rule(domain.AccessRead, filepath.Join(s.workspace, "ro")),
				{Path: missing, Access: domain.AccessRead, Presence: domain.Optional, Why: "--optional-ro"},
			}}},
			try{"cat " + s.outside + "/file", true}, try{"touch " + s.outside + "/made", false},
			try{"touch " + in + "/deep/made", true}, try{"mv " + in + "/deep/made " + in + "/moved", true},
			try{"mkdir -p " + in + "/x && mv " + in + "/x " + s.outside + "/x", false},
			try{"touch ro/made", true},
		)
		// What a host does not have is in the receipt, with the reason.
		skipped := map[string]string{}
		for _, r := range receipt.Rules {
			if r.Skipped != "" {
				skipped[r.Path] = r.Skipped
			}
		}
		require.Contains(t, skipped, "/gnu/store", "a directory that this host does not have")
		for path, why := range skipped {
			require.NoDirExists(t, path)
			require.Contains(t, why, "no such file or directory")
		}
	})
}

var readOnlyWorkspace = flag.String("readonly-workspace", "", "run by TestAWorkspaceOnAReadOnlyMount: a directory on a read-only mount")

// A turn in a workspace that is mounted read-only runs, and the agent is told
// what any program would be.
func TestAWorkspaceOnAReadOnlyMount(t *testing.T) {
	if *readOnlyWorkspace != "" {
		forEachAgent(t, func(t *testing.T, s *stage) {
			s.workspace = *readOnlyWorkspace
			session := s.open(t, application.OpenRequest{})
			events := s.run(t, session, "sh cat file", "sh echo x > new", "sh echo x > $TMPDIR/new")
			results := resultsOf(events)
			require.Contains(t, results[0].Output, "content")
			require.Equal(t, domain.ToolFailed, results[1].Status)
			require.Contains(t, results[1].Output, "Read-only file system")
			require.Equal(t, domain.ToolCompleted, results[2].Status)
			require.Equal(t, domain.OutcomeCompleted, finalOf(events).Outcome)
			require.Equal(t, "probed: 4 of 4 held", receiptOf(events).Probe.String())
		})
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("root: only root can mount")
	}
	testkit.RequireLandlock(t, 6)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o600))
	exe, err := os.Executable()
	require.NoError(t, err)
	// In a mount namespace of its own, which ends with it.
	out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-ec",
		`mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; exec "$@"`, "sh", dir,
		exe, "-test.run=^TestAWorkspaceOnAReadOnlyMount$", "-test.v", "-readonly-workspace="+dir, "-fakehost="+testkit.FakeProgram()).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestAWorkspaceOnAReadOnlyMount/codex")
}

// The state may be on a disk that is full or read-only, which must be told before
// anything runs.
func TestAStateThatCannotBeWritten(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("user: root writes everywhere")
	}
	testkit.RequireLandlock(t, 6)
	root := filepath.Join(t.TempDir(), "state")
	require.NoError(t, os.Mkdir(root, 0o500))
	s := newStage(t, domain.AgentClaude, composition.WithStateRoot(root))
	_, err := s.Orchestrator.Open(t.Context(), application.OpenRequest{Agent: s.agent, Workspace: s.workspace})
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, root)
	require.Empty(t, testkit.Children())
}
