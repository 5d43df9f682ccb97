package application

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

func TestDenialsOfThePlanAreExplained(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	workspace := filepath.Join(dir, "workspace")
	require.NoError(t, os.Mkdir(workspace, 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "tools"), 0o700))
	secret, tool, inside := filepath.Join(dir, "secret"), filepath.Join(dir, "tools", "tool"), filepath.Join(workspace, "file")
	for _, f := range []string{secret, tool, inside, filepath.Join(dir, "with space")} {
		require.NoError(t, os.WriteFile(f, nil, 0o700))
	}
	plan := domain.NewSandboxPlan("test").WithRules(
		domain.PathRule{Path: workspace, Access: domain.AccessReadWriteExec, Why: "workspace"},
		domain.PathRule{Path: filepath.Dir(tool), Access: domain.AccessRead, Why: "--ro"},
	)
	for name, c := range map[string]struct{ output, says string }{
		"cat":           {"cat: " + secret + ": Permission denied", `read "` + secret},
		"ls":            {"ls: cannot open directory '" + dir + "': Permission denied", `read "` + dir},
		"dash":          {"sh: 1: cannot create " + dir + "/new: Permission denied", `create "` + dir + "/new"},
		"touch":         {"touch: cannot touch '" + dir + "/new': Permission denied", `create "` + dir + "/new"},
		"GNU mkdir":     {"mkdir: cannot create directory ‘" + dir + "/new’: Permission denied", `create "` + dir + "/new"},
		"rm":            {"rm: cannot remove '" + secret + "': Permission denied", `delete "` + secret},
		"bash runs":     {"bash: " + tool + ": Permission denied", `write "` + tool}, // or runs: the shell does not say
		"python":        {"PermissionError: [Errno 13] Permission denied: '" + secret + "'", `read "` + secret},
		"node":          {"Error: EACCES: permission denied, open '" + secret + "'\n  errno: -13", `read "` + secret},
		"node runs":     {"Error: spawn " + tool + " EACCES", `exec "` + tool},
		"a space":       {"cat: '" + dir + "/with space': Permission denied", `read "` + dir + "/with space"},
		"go":            {"open " + secret + ": permission denied", `read "` + secret},
		"rust":          {"Error: Os { code: 13, kind: PermissionDenied, message: \"Permission denied\" } " + secret, `read "` + secret},
		"relative":      {"cat: ../secret: Permission denied", `read "` + secret},
		"a shell":       {tool + ": line 1: " + dir + "/new: Permission denied", `create "` + dir + "/new"},
		"a script":      {"./build.sh: line 3: " + secret + ": Permission denied", `read "` + secret},
		"cat by path":   {tool + ": " + secret + ": Permission denied", `read "` + secret},
		"alone":         {secret + ": Permission denied", `read "` + secret},
		"a URL":         {"https://example.org/x: Permission denied", ""},
		"not a denial":  {"cat: " + secret + ": No such file or directory", ""},
		"not the plan":  {"cat: " + inside + ": Permission denied", ""},
		"no such place": {"cat: /nonexistent/at/all: Permission denied", ""},
		"no path":       {"Permission denied", ""},
		"NUL":           {"cat: /\x00/: Permission denied", ""},
		"an open quote": {"it's " + secret + ": Permission denied", `read "` + secret},
	} {
		d := denials{plan: plan, workspace: workspace, said: map[string]bool{}}
		notes := d.notes(c.output)
		if c.says == "" {
			require.Empty(t, notes, name)
			continue
		}
		require.Len(t, notes, 1, "%s: %v", name, notes)
		n, ok := notes[0].(domain.Notice)
		require.True(t, ok)
		require.Equal(t, domain.NoticeDenial, n.Class)
		require.Contains(t, n.Message, "the plan denies to "+c.says, name)
		require.Contains(t, n.Message, "to allow it, grant ", name)
		require.Empty(t, d.notes(c.output), "%s: once is enough", name)
	}
	off := denials{plan: domain.Unconfined("test"), workspace: workspace, said: map[string]bool{}}
	require.Empty(t, off.notes("cat: "+secret+": Permission denied"))
}

// What Python 3.11 prints names no path, or one that is none.
func TestDeniedSharedMemoryIsRecognised(t *testing.T) {
	const (
		semaphore = `  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__
    sl = self._semlock = _multiprocessing.SemLock(
                         ^^^^^^^^^^^^^^^^^^^^^^^^^
PermissionError: [Errno 13] Permission denied
`
		memory = `  File "/usr/lib/python3.11/multiprocessing/shared_memory.py", line 93, in __init__
    self._fd = _posixshmem.shm_open(
               ^^^^^^^^^^^^^^^^^^^^^
PermissionError: [Errno 13] Permission denied: '/psm_5988b714'
`
	)
	if _, err := os.Stat("/dev/shm"); err != nil {
		t.Skip("there is no /dev/shm")
	}
	plan := domain.NewSandboxPlan("test")
	secret, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for name, c := range map[string]struct {
		plan   domain.SandboxPlan
		output string
		says   string
	}{
		"semaphore":      {plan, semaphore, "/dev/shm"},
		"shared memory":  {plan, memory, "/dev/shm"},
		"in C":           {plan, "sem_open: Permission denied\n", "/dev/shm"},
		"granted":        {plan.WithRules(domain.PathRule{Path: "/dev/shm", Access: domain.AccessReadWrite}), semaphore + memory, ""},
		"something else": {plan, "sem_open: ok\nls: cannot open directory '" + secret + "': Permission denied\n", `read "` + secret},
		"much later":     {plan, "sem_open: ok\n\n\n\n\n\nPermission denied\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := denials{plan: c.plan, workspace: secret, said: map[string]bool{}}
			notes := d.notes(c.output)
			if c.says == "" {
				require.Empty(t, notes)
				return
			}
			require.Len(t, notes, 1, "%v", notes)
			n, ok := notes[0].(domain.Notice)
			require.True(t, ok)
			require.Contains(t, n.Message, c.says)
			if c.says == "/dev/shm" {
				require.Contains(t, n.Message, "to allow them, grant read+write on /dev/shm")
			}
			require.Empty(t, d.notes(c.output), "once is enough")
		})
	}
}

func TestDenialsAreBounded(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	var output strings.Builder
	for i := range 1000 {
		output.WriteString("touch: " + filepath.Join(dir, strings.Repeat("x", i%50+1)) + ": Permission denied\n")
	}
	d := denials{plan: domain.NewSandboxPlan("test"), workspace: dir, said: map[string]bool{}}
	require.Len(t, d.notes(output.String()), maxDenialNotes)
	require.Empty(t, d.notes("cat: "+dir+": Permission denied"))
	d = denials{plan: domain.NewSandboxPlan("test"), workspace: dir, said: map[string]bool{}}
	require.Empty(t, d.notes(strings.Repeat(" ", maxDenialText)+"\ncat: "+dir+": Permission denied"), "too far behind")
}

func TestRefusedConnectionsAreExplained(t *testing.T) {
	plan := domain.NewSandboxPlan("test").WithConnectTCP(80).WithDestinations(netip.MustParseAddrPort("127.0.0.1:9"))
	explained := func(plan domain.SandboxPlan, r domain.Refusal) string {
		d := denials{plan: plan}
		n := d.explained(domain.Notice{Class: domain.NoticeDenial, Message: "as it came", Refused: r})
		require.Equal(t, r, n.Refused)
		return n.Message
	}
	elsewhere := domain.Refusal{Network: domain.NetworkTCP, Address: "192.0.2.1:443", Count: 3}
	require.Equal(t, "the sandbox refused a connection to tcp:192.0.2.1:443 (3 times): "+
		`the plan denies to connect to TCP port 443 of "192.0.2.1": the plan grants TCP connections to port 80, 127.0.0.1:9 alone; `+
		"to allow it, grant TCP to 192.0.2.1:443", explained(plan, elsewhere))
	require.Contains(t, explained(plan, domain.Refusal{Network: domain.NetworkTCP, Address: "[2001:db8::1]:443", Count: 1}), "grant TCP to [2001:db8::1]:443")
	udp := domain.Refusal{Network: domain.NetworkUDP, Count: 1}
	require.Contains(t, explained(plan, udp), "the plan denies UDP")
	for name, c := range map[string]struct {
		plan    domain.SandboxPlan
		refusal domain.Refusal
	}{
		"unconfined":       {domain.Unconfined("test"), elsewhere},
		"no refusal":       {plan, domain.Refusal{}},
		"others":           {plan, domain.Refusal{Count: 7}},
		"what is allowed":  {plan, domain.Refusal{Network: domain.NetworkTCP, Address: "192.0.2.1:80", Count: 1}},
		"no address":       {plan, domain.Refusal{Network: domain.NetworkTCP, Address: "x", Count: 1}},
		"UDP, now allowed": {plan.WithUDP(true), udp},
	} {
		require.Equal(t, "as it came", explained(c.plan, c.refusal), name)
	}
}
