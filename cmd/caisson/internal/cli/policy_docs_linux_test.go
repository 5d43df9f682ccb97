package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/tests/testkit"
)

// documented are the examples of docs/policy.md: what a command can do under each,
// as a script that fails if something is otherwise.
var documented = map[string]string{
	"review": `cat code.go && ! echo > code.go && ! echo > new && echo > "$TMPDIR/x" && [ "$GIT_CONFIG_GLOBAL" = "$HOME/.gitconfig" ]`,
	"node": `echo > new && [ "$npm_config_cache" = "$TMPDIR/cache/npm" ] && mkdir -p "$npm_config_cache" && [ "$NODE_ENV" = development ] &&
		case $HTTPS_PROXY in http://caisson:*@127.0.0.1:*) ;; *) false;; esac && [ "$https_proxy" = "$HTTPS_PROXY" ] && ! cat ../outside`,
	"go": `! echo > code.go && ! echo > new && echo > internal/new && echo > tests/new && cp /bin/true internal/t && internal/t &&
		[ "$GOMODCACHE" = "$TMPDIR/cache/go-mod" ] && mkdir -p "$GOCACHE"`,
	"python": `echo > new && [ "$VIRTUAL_ENV" = "$PWD/.venv" ] && mkdir -p "$PIP_CACHE_DIR" && ! cat ../outside &&
		if [ -d /dev/shm ]; then echo > "/dev/shm/caisson-$$" && rm "/dev/shm/caisson-$$"; fi`,
	"ci": `echo > new && ! cat ../outside`,
}

func TestTheDocumentedPoliciesWork(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.RequireCheckout(t, "../../../..")
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "policy.md"))
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```toml\n# example: ([a-z]+)\n(.*?)```").FindAllSubmatch(text, -1)
	require.Len(t, blocks, len(documented))
	for _, block := range blocks {
		name := string(block[1])
		script, ok := documented[name]
		require.True(t, ok, "no script for %q", name)
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			configured(t, b)
			root := b.workspace
			require.NoError(t, os.WriteFile(filepath.Join(root, "outside"), nil, 0o600))
			b.workspace = filepath.Join(root, "w")
			for _, dir := range []string{"internal", "tests"} {
				require.NoError(t, os.MkdirAll(filepath.Join(b.workspace, dir), 0o700))
			}
			b.write("code.go", "package code\n")
			policy := b.write(name+".toml", string(block[2]))
			requireSuccess := func(args ...string) result {
				t.Helper()
				got := b.run(args...)
				require.Zero(t, got.code, "%v: %s%s", args, got.stdout, got.stderr)
				return got
			}
			requireSuccess("policy", "check", policy)
			requireSuccess("policy", "show", "--agent", "codex", policy)
			requireSuccess("plan", "--policy", policy, "--agent", "claude")
			requireSuccess("run", "--policy", policy, "--agent", "claude", "hello")
			requireSuccess("exec", "--policy", policy, "--", "/bin/sh", "-c", script)
			// The script tells something: without the policy it fails.
			require.NotZero(t, b.run("exec", "--policy", "none", "--", "/bin/sh", "-c", script).code)
			planted := b.run("run", "--policy", policy, "--agent", "claude", "#caisson-script\nwrite .envrc x\n")
			switch name {
			case "ci":
				require.Equal(t, 1, planted.code, planted.stdout)
				require.Contains(t, planted.stdout, "the turn changed what could run code")
			case "review", "go":
				require.NoFileExists(t, filepath.Join(b.workspace, ".envrc"))
			default:
				require.Contains(t, planted.stdout, "made .envrc")
			}
		})
	}
}
