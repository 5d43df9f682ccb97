package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
)

// demoLimit bounds the whole demonstration, demoTimeout the turn that hangs.
const (
	demoLimit   = 15 * time.Second
	demoTimeout = 700 * time.Millisecond
)

func (a *app) demoCommand() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the whole idea, without an agent and without tokens",
		Long: `Run a scripted fake agent, a real child process, through real confined sessions
in a temporary workspace: it works inside the workspace, is kept from writing
outside of it, is ended when it hangs, and continues a conversation. Every
expectation is checked on the file system or the process table.

Exit codes: 0 all expectations hold; 1 one does not; 3 the sandbox cannot be
enforced here.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			watch := a.watch(cmd.Context())
			defer watch.stop()
			ctx, cancel := context.WithTimeout(watch.ctx, demoLimit)
			defer cancel()
			return a.demo(ctx, out.json)
		},
	}
	out.add(cmd.Flags())
	return cmd
}

// demo is a running demonstration.
type demo struct {
	app       *app
	caisson   *composition.Caisson
	give      sink
	printer   *ui.Printer // nil for JSON
	workspace string
	outside   string
	failed    bool
}

func (a *app) demo(ctx context.Context, asJSON bool) (err error) {
	dir, err := tempDir("caisson-demo-")
	if err != nil {
		return failure{err}
	}
	defer func() {
		if removed := os.RemoveAll(dir); removed != nil {
			err = errors.Join(err, failure{removed})
		}
	}()
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return failure{err}
	}
	d := &demo{app: a, give: a.sink(true), workspace: filepath.Join(dir, "workspace"), outside: filepath.Join(dir, "outside")}
	if !asJSON {
		d.printer = a.printer()
		d.give = func(e domain.Event) error {
			e.Session = "" // it is gone in a moment: nothing to continue
			return d.printer.Event(e)
		}
	}
	for _, made := range []string{d.workspace, d.outside} {
		if err := os.Mkdir(made, 0o700); err != nil {
			return failure{err}
		}
	}
	d.caisson, err = a.compose(ctx,
		composition.WithStateRoot(filepath.Join(dir, "state")),
		composition.WithAgentAdapter(fakecli.NewAdapter(claude.New(), a.Executable)))
	if err != nil {
		return failure{err}
	}
	defer func() {
		if closed := d.caisson.Close(context.WithoutCancel(ctx)); closed != nil {
			err = errors.Join(err, failure{closed})
		}
	}()

	for i, s := range demoSteps {
		if err := d.step(ctx, i+1, s); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return failure{noWaiver(err, "demo")}
		}
	}
	verdict := "PASS: everything is as it should be"
	if d.failed {
		a.code = exitFailed
		verdict = "FAIL: see above"
	}
	if d.printer != nil {
		if err := d.printer.Own("%s", verdict); err != nil {
			return failure{err}
		}
	}
	return nil
}

// demoStep is one step: it runs turns and says what it expected of them.
type demoStep struct {
	name  string
	shows string
	run   func(*demo, context.Context) ([]jsonl.DemoCheck, error)
}

var demoSteps = []demoStep{
	{"work", "an agent works inside its workspace, confined by the kernel", (*demo).work},
	{"blocked write", "the kernel keeps it from writing outside of it", (*demo).blockedWrite},
	{"no sandbox", "without the sandbox the very same script succeeds", (*demo).noSandbox},
	{"timeout", "a turn that hangs is ended, with all that it started", (*demo).timeout},
	{"resume", "a later turn continues the conversation, under the same plan", (*demo).resume},
}

func (d *demo) step(ctx context.Context, number int, s demoStep) error {
	if d.printer != nil {
		if err := d.printer.Own("%d. %s: %s", number, s.name, s.shows); err != nil {
			return err
		}
	}
	start := time.Now()
	checks, err := s.run(d, ctx)
	if err != nil {
		return err
	}
	result := jsonl.DemoStep{Step: s.name, Shows: s.shows, Checks: checks, Duration: time.Since(start)}
	d.failed = d.failed || !result.Pass()
	if d.printer == nil {
		return d.app.write(jsonl.AppendDemoStep(nil, result))
	}
	for _, c := range checks {
		verdict := "PASS"
		if !c.Pass {
			verdict = "FAIL"
		}
		if err := d.printer.Own("%s %s", verdict, strings.TrimSuffix(c.Expect+": "+c.Detail, ": ")); err != nil {
			return err
		}
	}
	return nil
}

// turn is what a turn of the demonstration gave.
type turn struct {
	session domain.SessionID
	receipt domain.Receipt
	text    string // all the agent's text
	tools   []domain.ToolResult
	final   domain.Final
}

// run runs a script in a session of its own.
func (d *demo) run(ctx context.Context, change func(*application.OpenRequest), script ...string) (got turn, err error) {
	request := application.OpenRequest{Agent: domain.AgentClaude, Workspace: d.workspace}
	if change != nil {
		change(&request)
	}
	session, err := d.caisson.Orchestrator.Open(ctx, request)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, session.Close(context.WithoutCancel(ctx))) }()
	running, err := session.Send(ctx, fakecli.Script(script...))
	if err != nil {
		return got, err
	}
	got.session = session.ID()
	for e, err := range running.Events() {
		if err != nil {
			return got, err
		}
		switch r := e.Reply.(type) {
		case domain.SandboxApplied:
			got.receipt = r.Receipt
		case domain.Text:
			got.text += r.Text + "\n"
		case domain.ToolResult:
			got.tools = append(got.tools, r)
		case domain.Final:
			got.final = r
		default:
			// Shown, but not checked.
		}
		if err := d.give(e); err != nil {
			return got, err
		}
	}
	return got, context.Cause(ctx)
}

// check makes the result of one expectation.
func check(expect string, pass bool, found string, args ...any) jsonl.DemoCheck {
	c := jsonl.DemoCheck{Expect: expect, Pass: pass}
	if !pass {
		c.Detail = fmt.Sprintf(found, args...)
	}
	return c
}

func completed(t turn) jsonl.DemoCheck {
	return check("the turn is completed", t.final.Outcome == domain.OutcomeCompleted, "it is %s: %+v", t.final.Outcome, t.final.Error)
}

func confined(t turn) jsonl.DemoCheck {
	return check("the receipt says that it was confined", !t.receipt.Unconfined && len(t.receipt.Rules) > 0, "%s", t.receipt)
}

// fileCheck looks for a file.
func fileCheck(path string, want bool) (jsonl.DemoCheck, error) {
	there, err := exists(path)
	is := map[bool]string{true: "is there", false: "is not there"}
	return check("the file "+filepath.Base(path)+" "+is[want], there == want, "%s %s", path, is[there]), err
}

func (d *demo) work(ctx context.Context) ([]jsonl.DemoCheck, error) {
	file := filepath.Join(d.workspace, "hello.txt")
	t, err := d.run(ctx, nil, "say I will write a file.", "write "+file+" hello", "say Done.")
	if err != nil {
		return nil, err
	}
	there, err := fileCheck(file, true)
	return []jsonl.DemoCheck{confined(t), completed(t), there}, err
}

// outsideScript tries to write outside of the workspace.
func (d *demo) outsideScript() (file string, script []string) {
	file = filepath.Join(d.outside, "escaped.txt")
	return file, []string{"say I will write outside of my workspace.", "write " + file + " escaped"}
}

func (d *demo) blockedWrite(ctx context.Context) ([]jsonl.DemoCheck, error) {
	file, script := d.outsideScript()
	t, err := d.run(ctx, nil, script...)
	if err != nil {
		return nil, err
	}
	gone, err := fileCheck(file, false)
	denied := len(t.tools) == 1 && t.tools[0].Status != domain.ToolCompleted && strings.Contains(t.tools[0].Output, "permission denied")
	return []jsonl.DemoCheck{confined(t), gone, check("the agent was told: permission denied", denied, "%+v", t.tools)}, err
}

func (d *demo) noSandbox(ctx context.Context) ([]jsonl.DemoCheck, error) {
	file, script := d.outsideScript()
	t, err := d.run(ctx, func(r *application.OpenRequest) {
		r.Sandbox = application.SandboxOff("the demonstration's counter-proof")
	}, script...)
	if err != nil {
		return nil, err
	}
	there, err := fileCheck(file, true)
	return []jsonl.DemoCheck{
		check("the receipt says that it was not confined", t.receipt.Unconfined, "%s", t.receipt), completed(t), there,
	}, err
}

func (d *demo) timeout(ctx context.Context) ([]jsonl.DemoCheck, error) {
	pidFile := filepath.Join(d.workspace, "daemon.pid")
	t, err := d.run(ctx, func(r *application.OpenRequest) { r.Policy.Limits.WallClock = demoTimeout },
		"say I will start a daemon that hides, and hang.", "daemon "+pidFile, "hang")
	if err != nil {
		return nil, err
	}
	checks := []jsonl.DemoCheck{
		check("the turn is timed out", t.final.Outcome == domain.OutcomeTimedOut, "it is %s: %+v", t.final.Outcome, t.final.Error),
	}
	data, err := readInside(d.workspace, filepath.Base(pidFile))
	if err != nil {
		return append(checks, check("the daemon was started", false, "%v", err)), nil
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return nil, fmt.Errorf("the daemon's process id: %w", err)
	}
	lives := alive(pid)
	if lives {
		err = endDaemon(pid)
	}
	return append(checks, check("the daemon is gone", !lives, "process %d still lived", pid)), err
}

// endDaemon ends a daemon that Caisson left, which the demonstration must not.
// The number comes from a file that the agent wrote, so it is looked at first.
func endDaemon(pid int) error {
	if name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm"); strings.TrimSpace(string(name)) != "sleep" {
		return nil
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return errors.Join(process.Kill(), process.Release())
}

// alive reports whether a process exists and is no zombie, which is dead but
// that init has not looked yet (proc(5), /proc/pid/stat).
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	// The name stands in parentheses and may hold anything.
	_, state, _ := strings.Cut(string(stat[max(0, bytes.LastIndexByte(stat, ')')):]), " ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// readInside reads a file of a directory that an agent can write to: a link
// does not lead out of it.
func readInside(dir, name string) ([]byte, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return root.ReadFile(name)
}

func (d *demo) resume(ctx context.Context) ([]jsonl.DemoCheck, error) {
	first, err := d.run(ctx, nil, "say The word is caisson.")
	if err != nil {
		return nil, err
	}
	second, err := d.run(ctx, func(r *application.OpenRequest) { r.Resume = first.session }, "recall")
	if err != nil {
		return nil, err
	}
	id := first.final.ConversationID
	return []jsonl.DemoCheck{
		completed(second),
		check("it is the same conversation", id != "" && id == second.final.ConversationID, "%q, then %q", id, second.final.ConversationID),
		check("it remembers the first turn", strings.Contains(second.text, "The word is caisson."), "it says %q", second.text),
		check("the plan is the same", first.receipt.PlanDigest == second.receipt.PlanDigest && !second.receipt.Unconfined,
			"%s, then %s", first.receipt.PlanDigest, second.receipt.PlanDigest),
	}, nil
}
