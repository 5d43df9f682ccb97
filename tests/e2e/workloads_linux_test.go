package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/tests/testkit"
)

// workloads are what agents do all day. Each has to work under the default plan,
// plus what its tools need beyond it, as it works without a sandbox.
var workloads = []struct {
	name string
	// tools must be on PATH; where says what prints the directory to grant, for
	// tools that live outside the system's directories.
	tools []string
	where []string
	rules []domain.PathRule
	// script runs in an empty directory and ends with 0 if all is well.
	script string
}{
	{name: "git", tools: []string{"git"}, script: `
		export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
		git init -q repo && cd repo && echo text > file && git add . && git commit -qm first
		git clone -q . ../clone && git -C ../clone log --oneline | grep first
		git worktree add -q ../tree -b side && echo more >> ../tree/file && git -C ../tree commit -qam second
		git merge -q side && git gc -q && git fsck && grep more file`},
	{name: "node", tools: []string{"node"}, script: `
		node -e '
		const { execFileSync, spawn } = require("child_process");
		const { Worker } = require("worker_threads");
		require("assert").strictEqual(execFileSync("echo", ["out"]).toString(), "out\n");
		require("os").networkInterfaces();
		require("fs").promises.writeFile("made", "x").then(() => {
			const child = spawn("cat", { stdio: ["pipe", "pipe", "inherit"] });
			child.stdout.once("data", () => new Worker("process.exit(0)", { eval: true }).once("exit", () => child.stdin.end()));
			child.once("close", code => process.exit(code));
			child.stdin.write("x");
		})' && test -s made`},
	{name: "npm ci", tools: []string{"node", "npm"}, script: `
		mkdir dep && echo '{"name":"dep","version":"1.0.0","bin":"cli.js"}' > dep/package.json
		printf '#!/usr/bin/env node\nconsole.log("dep runs")\n' > dep/cli.js
		echo '{"name":"top","version":"1.0.0","dependencies":{"dep":"file:dep"},"scripts":{"start":"dep","postinstall":"echo x > hook"}}' > package.json
		npm install --offline --no-audit --no-fund --package-lock-only && npm ci --offline --no-audit --no-fund && test -s hook && npm start | grep "dep runs"`},
	{name: "python multiprocessing", tools: []string{"python3"}, where: []string{"python3", "-c", "import sys; print(sys.base_prefix)"},
		rules: []domain.PathRule{{Path: "/dev/shm", Access: domain.AccessReadWrite}}, script: `
		cat > pool.py <<'END'
import multiprocessing, os, socket, subprocess, tempfile, threading
def square(n): return n * n
if __name__ == "__main__":
    with multiprocessing.Pool(3) as pool:
        assert pool.map(square, range(20)) == [n * n for n in range(20)]
    for method in "fork", "spawn":
        queue = multiprocessing.get_context(method).Queue()
        process = multiprocessing.get_context(method).Process(target=queue.put, args=(7,))
        process.start()
        assert queue.get() == 7
        process.join()
    assert subprocess.run(["echo", "x"], capture_output=True).stdout == b"x\n"
    a, b = socket.socketpair()
    threading.Thread(target=a.sendall, args=(b"hello",)).start()
    assert b.recv(5) == b"hello"
    with tempfile.TemporaryDirectory() as d:
        os.rename(tempfile.mkstemp(dir=d)[1], "moved")
END
		python3 pool.py && test -f moved`},
	{name: "go build", tools: []string{"go"}, where: []string{"go", "env", "GOROOT"}, script: `
		export GOTOOLCHAIN=local GOPROXY=off GOFLAGS=-mod=mod CGO_ENABLED=0
		printf 'module hello\n\ngo 1.20\n' > go.mod
		printf 'package main\n\nimport ("fmt"; "os/exec")\n\nfunc main() { out, err := exec.Command("echo", "hello").Output(); fmt.Print(string(out), err) }\n' > main.go
		go build -o hello . && ./hello | grep hello`},
	{name: "cargo build", tools: []string{"cargo", "rustc", "cc"}, where: []string{"rustc", "--print", "sysroot"}, script: `
		export CARGO_NET_OFFLINE=true PATH="$TOOLS/bin:$PATH"
		cargo init -q --vcs none --name hello . && cargo build -q && ./target/debug/hello | grep Hello`},
	{name: "make and cc", tools: []string{"make", "cc"}, script: `
		printf '#include <stdio.h>\nint main(void) { return puts("hello") < 0; }\n' > hello.c
		printf 'all: hello\n\t./hello\n' > Makefile
		make -j2 | grep hello`},
	{name: "archives", tools: []string{"tar", "gzip", "cp"}, script: `
		mkdir -p a/b && echo text > a/b/file && chmod 700 a/b && ln -s b a/link && ln a/b/file a/hard
		tar czf a.tgz a && mkdir out && tar xzpf a.tgz -C out && cp -a out copy && mv copy/a/b copy/c && test -s copy/c/file`},
}

func TestWorkloadsWorkUnderTheDefaultPlan(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for _, w := range workloads {
		t.Run(w.name, func(t *testing.T) {
			testkit.NoLeaks(t)
			s := newStage(t, domain.AgentClaude)
			var path []string
			for _, tool := range w.tools {
				found, err := exec.LookPath(tool)
				if err != nil {
					t.Skipf("the host has no %s for this user", tool)
				}
				path = append(path, filepath.Dir(found))
			}
			policy := application.Policy{Rules: w.rules}
			tools := ""
			if w.where != nil {
				out, err := exec.Command(w.where[0], w.where[1:]...).Output()
				require.NoError(t, err)
				tools, err = filepath.EvalSymlinks(strings.TrimSpace(string(out)))
				require.NoError(t, err)
				policy.Rules = append(policy.Rules, domain.PathRule{Path: tools, Access: domain.AccessReadExec})
				path = append([]string{filepath.Join(tools, "bin")}, path...)
			}
			policy.Env = []domain.EnvRule{
				{Name: "PATH", Literal: true, Value: strings.Join(append(path, "/usr/local/bin", "/usr/bin", "/bin"), ":")},
				{Name: "TOOLS", Literal: true, Value: tools},
			}
			for name, mode := range map[string]application.SandboxMode{"confined": {}, "unconfined": s.off} {
				dir := filepath.Join(s.workspace, name)
				require.NoError(t, os.Mkdir(dir, 0o700))
				file := filepath.Join(dir, "workload.sh")
				require.NoError(t, os.WriteFile(file, []byte("set -e\nmkdir work && cd work\n"+w.script+"\n"), 0o600))
				request := application.OpenRequest{Policy: policy, Sandbox: mode}
				if mode != (application.SandboxMode{}) {
					request.Policy.Rules = nil
				}
				session := s.open(t, request)
				events := s.run(t, session, "sh cd "+dir+" && sh workload.sh 2>&1")
				require.NoError(t, session.Close(t.Context()))
				receipt := receiptOf(events)
				require.Equal(t, mode != (application.SandboxMode{}), receipt.Unconfined)
				require.Empty(t, receipt.InState(domain.StateWaived), "the default plan waives nothing")
				results := resultsOf(events)
				require.Len(t, results, 1)
				require.Equal(t, domain.ToolCompleted, results[0].Status, "%s: %s", name, results[0].Output)
			}
		})
	}
}
