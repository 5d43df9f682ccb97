package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
)

func (a *app) doctorCommand() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Tell what can be enforced here, and prove it",
		Long: `Tell what the kernel can enforce of the default plan, which agents are there,
and prove it with a confined child that may write in one directory and must not
write in another, and with the same child unconfined.

It also tries whether sessions can be kept in the state directory.

Exit codes: 0 the proof holds; 1 it does, but no session can be kept, or
something failed; 2 usage; 3 it does not.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), out.json) },
	}
	out.add(cmd.Flags())
	return cmd
}

func (a *app) doctor(ctx context.Context, asJSON bool) error {
	d := jsonl.Doctor{OS: runtime.GOOS, Kernel: kernelRelease()}
	var err error
	if d.Agents, err = a.findAgents(ctx); err != nil {
		return failure{err}
	}
	a.examine(ctx, &d)
	if d.State.Path, err = a.tryState(ctx); err != nil {
		d.State.Error = err.Error()
	}

	line := jsonl.AppendDoctor(nil, d)
	if !asJSON {
		line = doctorText(d, os.Geteuid() == 0)
	}
	if err := a.write(line); err != nil {
		return err
	}
	switch {
	case !d.Proof.Holds():
		a.code = exitRefused
	case d.State.Error != "":
		a.code = exitFailed
	}
	return nil
}

// findAgents looks for the agents' programs, and runs none.
func (a *app) findAgents(ctx context.Context) (agents []jsonl.DoctorAgent, err error) {
	dir, err := tempDir("caisson-doctor-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	caisson, err := a.compose(ctx, composition.WithStateRoot(dir))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, caisson.Close(context.WithoutCancel(ctx))) }()
	for _, kind := range caisson.Orchestrator.Agents() {
		found := jsonl.DoctorAgent{Kind: kind}
		if install, err := caisson.Orchestrator.ResolveAgent(kind, ""); err != nil {
			found.Error = err.Error()
		} else {
			found.Path, found.Version = install.Path, install.Version
		}
		agents = append(agents, found)
	}
	return agents, nil
}

// tryState writes a file in the state directory, which it returns, and removes it
// again.
func (a *app) tryState(ctx context.Context) (root string, err error) {
	caisson, err := a.compose(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, caisson.Close(context.WithoutCancel(ctx))) }()
	root = caisson.Orchestrator.StateRoot()
	bad := func(err error) error {
		return &domain.InvalidError{
			What: "state directory", Value: root, Reason: "cannot be written", Err: err,
			Remedy: "make space there, or set XDG_STATE_HOME to a directory that you can write to",
		}
	}
	f, err := os.CreateTemp(root, "doctor-")
	if err != nil {
		return root, bad(err)
	}
	// A full disk may still take an empty file.
	_, err = f.Write(make([]byte, 64<<10))
	if err = errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name())); err != nil {
		return root, bad(err)
	}
	return root, nil
}

// judged says of every property that the plan asks for and that is not enforced
// whether the plan waives it.
func judged(plan domain.SandboxPlan, statuses []domain.PropertyStatus) []domain.PropertyStatus {
	for i, s := range statuses {
		if s.State == domain.StateUnenforceable && plan.Waives(s.Property) {
			statuses[i].State = domain.StateWaived
		}
	}
	return statuses
}

// kernelRelease returns the kernel's release, "" where there is none to read.
func kernelRelease() string {
	data, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// examine fills in what can be enforced of the default plan, and the proof. Its
// own failures become the proof's.
func (a *app) examine(ctx context.Context, d *jsonl.Doctor) {
	failed := func(err error) {
		if err != nil && d.Proof.Error == "" {
			d.Proof.Error = noWaiver(err, "doctor").Error()
		}
	}
	dir, err := tempDir("caisson-doctor-")
	if err != nil {
		failed(err)
		return
	}
	defer func() { failed(os.RemoveAll(dir)) }()
	// The kernel's rules have canonical paths.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		failed(err)
		return
	}
	granted := filepath.Join(dir, "granted")
	if err := os.Mkdir(granted, 0o700); err != nil {
		failed(err)
		return
	}
	// The default plan is that of an agent; the fake is always there.
	caisson, err := a.compose(ctx, composition.WithStateRoot(filepath.Join(dir, "state")),
		composition.WithAgentAdapter(fakecli.NewAdapter(claude.New(), a.Executable)))
	if err != nil {
		failed(err)
		return
	}
	defer func() { failed(caisson.Close(context.WithoutCancel(ctx))) }()
	preview, err := caisson.Orchestrator.Plan(ctx, application.OpenRequest{Agent: domain.AgentClaude, Workspace: granted})
	if err != nil {
		failed(err)
		return
	}
	d.Preset = preview.Plan.Preset()
	d.Properties = judged(preview.Plan, composition.DefaultEnforcer().Supports(preview.Plan))
	failed(prove(ctx, caisson.Orchestrator, dir, granted, d))
}

// attempt writes its two arguments' files; a failure of the one does not keep
// it from the other.
const attempt = `echo caisson >"$1"; echo caisson >"$2"`

// prove runs the attempt confined, and again without the sandbox.
func prove(ctx context.Context, o *application.Orchestrator, dir, granted string, d *jsonl.Doctor) error {
	inside, outside := filepath.Join(granted, "file"), filepath.Join(dir, "file")
	request := application.ExecRequest{
		Argv: []string{"/bin/sh", "-c", attempt, "attempt", inside, outside}, Dir: "/",
		Policy: application.Policy{Rules: []domain.PathRule{{Path: granted, Access: domain.AccessReadWrite, Why: "doctor"}}},
	}
	result, err := o.Exec(ctx, request)
	if err != nil {
		return err
	}
	d.Enforcer, d.ABI = result.Receipt.Enforcer, result.Receipt.ABI
	if d.Proof.Allowed, err = exists(inside); err != nil {
		return err
	}
	written, err := exists(outside)
	if err != nil {
		return err
	}
	d.Proof.Denied = !written
	request.Policy, request.Sandbox = application.Policy{}, application.SandboxOff("the doctor's counter-proof")
	if _, err = o.Exec(ctx, request); err != nil {
		return err
	}
	d.Proof.Unconfined, err = exists(outside)
	return err
}

// tempDir makes a directory below TMPDIR.
func tempDir(prefix string) (string, error) {
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return "", &domain.InvalidError{
			What: "TMPDIR", Value: os.TempDir(), Reason: "no directory can be made there", Err: err,
			Remedy: "set TMPDIR to a directory that you can write to",
		}
	}
	return dir, nil
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func doctorText(d jsonl.Doctor, root bool) []byte {
	var b bytes.Buffer
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-18s %s\n", name, ui.Line(fmt.Sprintf(format, args...)))
	}
	row("system", "%s %s", d.OS, d.Kernel)
	if root {
		row("user", "root, which is advised against: an agent has no capabilities, but what uid 0 owns is its own")
	}
	if d.ABI > 0 {
		row("enforcer", "%s, ABI %d", d.Enforcer, d.ABI)
	} else {
		row("enforcer", "none that works here")
	}
	fmt.Fprintf(&b, "\nthe plan %q\n", d.Preset)
	for _, p := range d.Properties {
		how := p.Mechanism
		if how == "" {
			how = p.Detail
		}
		row("  "+string(p.Property), "%-14s %s", p.State, how)
	}
	fmt.Fprintf(&b, "\nagents\n")
	for _, g := range d.Agents {
		if g.Error != "" {
			row("  "+string(g.Kind), "%s", g.Error)
		} else {
			row("  "+string(g.Kind), "%s", strings.TrimSpace(g.Path+" "+g.Version))
		}
	}
	fmt.Fprintf(&b, "\nsessions\n")
	if d.State.Error != "" {
		row("  state directory", "%s", d.State.Error)
	} else {
		row("  state directory", "%s, which can be written", d.State.Path)
	}
	fmt.Fprintf(&b, "\nproof\n")
	verdict := map[bool]string{true: "yes", false: "NO"}
	if d.Proof.Error != "" {
		name := "  failed"
		for line := range strings.SplitSeq(d.Proof.Error, "\n") {
			row(name, "%s", line)
			name = ""
		}
	} else {
		row("  inside the plan", "a confined child wrote: %s", verdict[d.Proof.Allowed])
		row("  outside of it", "the kernel denied the write: %s", verdict[d.Proof.Denied])
		row("  unconfined", "the same child wrote there: %s", verdict[d.Proof.Unconfined])
	}
	switch {
	case !d.Proof.Holds():
		b.WriteString("\nthe sandbox does NOT hold here: caisson refuses to run agents with it\n")
	case d.State.Error != "":
		b.WriteString("\nthe sandbox holds, but no session can be kept: caisson cannot run agents until the state directory can be written\n")
	default:
		b.WriteString("\nthe sandbox holds\n")
	}
	return b.Bytes()
}
