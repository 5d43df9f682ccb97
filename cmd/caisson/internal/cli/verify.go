package cli

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/composition/invariants"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/ports/portstest/escape"
)

// verifyFlags are the flags of verify.
type verifyFlags struct {
	policy  policyFlags
	layers  []string
	output  output
	junit   string
	verbose bool
}

func (a *app) verifyCommand() *cobra.Command {
	var flags verifyFlags
	cmd := &cobra.Command{
		Use:   "verify [flags]",
		Short: "Try to get out of the sandbox on this host, and tell whether it holds",
		Long: `Run the escape suite and the invariants on this host: some three hundred attempts
by real child processes to get out of the sandbox, each made twice. Without the
sandbox it must get through, which proves that the attempt is real here; under
it, it must be denied. Ordinary work must succeed. The plan is that of
"caisson exec" with the same flags, with a workspace and a port of the suite's own.

An attempt that does not get through here even without the sandbox is not
provable here: it is listed, counted, and never called held. Root can prove more
than an ordinary user, and an ordinary user other things than root: run it as
both. What the plan grants, what it waives, and the limits that SECURITY.md
states are listed too and are no failures.

No toolchain, network or agent is needed, and nothing is left behind. The suite
works below TMPDIR, which the flags must not grant for writing.

Exit codes: 0 everything holds; 1 something does not, and is named; 2 usage; 3
the sandbox cannot be enforced here.`,
		Example: `  caisson verify
  caisson verify --json --connect-tcp 443 --udp
  caisson verify --layers landlock        # what Landlock alone would let through`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			watch := a.watchPlain(cmd.Context())
			defer watch.stop()
			return a.verify(watch.ctx, flags)
		},
	}
	cmd.Flags().SortFlags = false
	flags.output.add(cmd.Flags())
	cmd.Flags().StringVar(&flags.junit, "junit", "", "also write a JUnit report to `FILE`")
	cmd.Flags().BoolVarP(&flags.verbose, "verbose", "v", false, "print a line for every attempt")
	cmd.Flags().StringSliceVar(&flags.layers, "layers", nil, "use only these `LAYERS` of the sandbox (landlock, seccomp, privileges), and waive what they do not enforce: shows what the others are for")
	flags.policy.add(cmd.Flags())
	return cmd
}

// leftOut returns the layers that are not listed.
func leftOut(layers []string) ([]sandbox.Layer, error) {
	off := sandbox.Layers()
	for _, name := range layers {
		i := slices.Index(off, sandbox.Layer(name))
		if i < 0 {
			return nil, &domain.InvalidError{What: "--layers", Value: name, Reason: "unknown, or said twice", Remedy: "landlock, seccomp and privileges, separated by commas"}
		}
		off = slices.Delete(off, i, i+1)
	}
	return off, nil
}

// verification is a run of verify.
type verification struct {
	app     *app
	flags   verifyFlags
	policy  application.Policy
	source  ports.PolicySource
	partial bool // layers are left out
	stage   *escape.Stage
	caisson *composition.Caisson
	receipt domain.Receipt
	items   []jsonl.VerifyItem
	report  *os.File // of JUnit, nil without
}

func (a *app) verify(ctx context.Context, flags verifyFlags) (err error) {
	v := &verification{app: a, flags: flags}
	var compose []composition.Option
	if mode, err := flags.policy.mode(); err != nil || mode != (application.SandboxMode{}) {
		if err == nil {
			err = &domain.InvalidError{What: "--sandbox", Value: "off", Reason: "there would be nothing to verify", Remedy: "leave it out"}
		}
		return usageError{err}
	}
	if v.policy, err = flags.policy.policy(a.abs); err != nil {
		return usageError{err}
	}
	if source := flags.policy.source(a); source != nil {
		if err := a.needDir(); err != nil {
			return usageError{err}
		}
		if v.source, err = elsewhere(source, a.Dir); err != nil {
			return failure{err}
		}
	}
	if len(flags.layers) > 0 {
		off, err := leftOut(flags.layers)
		if err != nil {
			return usageError{err}
		}
		v.partial = len(off) > 0
		v.policy.Waivers = domain.Properties()
		compose = append(compose, composition.WithSandboxEnforcer(sandbox.NewWithout(off)))
	}
	// What takes a minute should not fail for its last step.
	if flags.junit != "" {
		if v.report, err = os.Create(a.abs(flags.junit)); err != nil {
			return usageError{&domain.InvalidError{
				What: "--junit", Value: flags.junit, Reason: "cannot be written", Remedy: "name a file in a directory that you can write to", Err: err,
			}}
		}
		defer func() {
			if closed := v.report.Close(); closed != nil {
				err = errors.Join(err, failure{fmt.Errorf("the JUnit report: %w", closed)})
			}
		}()
	}
	begun := time.Now()
	if err := v.run(ctx, compose); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return failure{err}
	}
	return v.tell(time.Since(begun))
}

// policyElsewhere is a policy for another workspace than the one that is asked
// about.
type policyElsewhere struct {
	source ports.PolicySource
	dir    string
}

// elsewhere returns the policy for a directory, for commands that run in others:
// the suite has a workspace of its own, in which there is no policy.
func elsewhere(source ports.PolicySource, dir string) (ports.PolicySource, error) {
	canonical, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, err
	}
	return policyElsewhere{source, canonical}, nil
}

// FindPolicy implements ports.PolicySource.
func (p policyElsewhere) FindPolicy(ctx context.Context, place ports.PolicyPlace) (ports.FoundPolicy, error) {
	place.Workspace = p.dir
	found, err := p.source.FindPolicy(ctx, place)
	if access := found.Policy.Workspace; access != 0 {
		found.Policy.Rules = append(found.Policy.Rules, domain.PathRule{Path: p.dir, Access: access, Why: "workspace"})
		found.Policy.Workspace = 0
	}
	return found, err
}

// run makes a place, verifies in it, and takes it away again.
func (v *verification) run(ctx context.Context, compose []composition.Option) (err error) {
	dir, err := tempDir("caisson-verify-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// The kernel's rules have canonical paths.
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	stage := filepath.Join(dir, "stage")
	if err := os.Mkdir(stage, 0o700); err != nil {
		return err
	}
	if v.stage, err = escape.NewStage(stage); err != nil {
		return err
	}
	if err := errors.Join(v.escapes(ctx, dir, compose), v.stage.Close()); err != nil {
		return err
	}
	if v.partial {
		return nil // they are about the whole
	}
	return v.invariants(ctx, dir)
}

// invariants checks the invariants with each agent.
func (v *verification) invariants(ctx context.Context, dir string) error {
	dir = filepath.Join(dir, "invariants")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	config := invariants.Config{Program: v.app.Executable, Dir: dir, Waivers: v.policy.Waivers}
	for _, invariant := range invariants.All() {
		for _, agent := range invariants.Agents() {
			item := jsonl.VerifyItem{
				Suite: suiteInvariants, Name: fmt.Sprintf("%s-%s", invariant.Name, agent), Verdict: verdictHolds, Detail: invariant.Shows, Holds: true,
			}
			if err := invariant.Check(ctx, config, agent); err != nil {
				if ctx.Err() != nil {
					return err
				}
				item.Verdict, item.Detail, item.Holds = verdictBroken, err.Error(), false
			}
			v.items = append(v.items, item)
		}
	}
	return nil
}

// The verdicts of invariants.
const (
	verdictHolds  = "holds"
	verdictBroken = "BROKEN"
)

// escapes runs the escape suite in a composition of its own.
func (v *verification) escapes(ctx context.Context, dir string, compose []composition.Option) (err error) {
	v.policy.Rules = append(v.policy.Rules, v.stage.Rules()...)
	v.policy.ConnectTCP = append(v.policy.ConnectTCP, v.stage.ConnectTCP()...)
	if len(v.policy.Destinations) == 0 {
		// The suite asks for one. That is no reason to refuse the user's plan.
		v.policy.Waivers = append(v.policy.Waivers, domain.PropertyDestinations)
	}
	v.policy.Destinations = append(v.policy.Destinations, v.stage.Destinations()...)
	v.caisson, err = v.app.compose(ctx, append(compose, composition.WithStateRoot(filepath.Join(dir, "state")))...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.caisson.Close(context.WithoutCancel(ctx))) }()
	return v.escape(ctx)
}

// escape runs the escape suite.
func (v *verification) escape(ctx context.Context) error {
	target := escape.Target{Program: v.app.Executable, Run: v.child}
	var err error
	target.Plan, err = v.caisson.Orchestrator.PlanExec(ctx, v.request([]string{target.Program}, v.stage.Workspace()))
	if err != nil {
		return err
	}
	// One child first, for its receipt; it also shows whether there can be any.
	request := v.request([]string{"/bin/true"}, v.stage.Workspace())
	result, err := v.caisson.Orchestrator.Exec(ctx, request)
	if err != nil {
		return err
	}
	v.receipt = result.Receipt
	if v.receipt.Unconfined {
		return fmt.Errorf("there is no sandbox to verify: %w", domain.ErrNoEnforcer)
	}
	if !v.partial {
		// Where layers are left out, the waivers are not the user's.
		target.Properties = v.receipt.Properties
	}
	report, err := v.stage.Run(ctx, target, escape.Attempts())
	if err != nil {
		return err
	}
	for _, r := range report.Results {
		v.items = append(v.items, jsonl.VerifyItem{
			Suite: suiteEscape, Class: string(r.Attempt.Class), Name: r.Attempt.Name, Property: r.Attempt.Property,
			Verdict: string(r.Verdict), Detail: r.Detail, Holds: !r.Verdict.Failed(),
		})
	}
	return nil
}

// The suites, as the items name them.
const (
	suiteEscape     = "escape"
	suiteInvariants = "invariants"
)

func (v *verification) request(argv []string, dir string) application.ExecRequest {
	return application.ExecRequest{Argv: argv, Dir: dir, Policy: v.policy, PolicySource: v.source}
}

// child runs a child of the suite.
func (v *verification) child(ctx context.Context, confined bool, dir string, argv []string) (escape.Ended, error) {
	request := v.request(argv, dir)
	if !confined {
		request.Policy, request.PolicySource = application.Policy{}, nil
		request.Sandbox = application.SandboxOff("the companion of an attempt")
	}
	var out bytes.Buffer
	request.Stdio = ports.Stdio{Out: &out}
	result, err := v.caisson.Orchestrator.Exec(ctx, request)
	return escape.Ended{Stdout: out.String(), Exit: result.Exit}, err
}

// verdicts are in the order of the summary.
var verdicts = []escape.Verdict{
	escape.Held, escape.Worked, escape.Leaked, escape.Broken, escape.Unclear,
	escape.Limit, escape.Granted, escape.Waived, escape.NotProvable,
}

func (v *verification) count(suite, class, verdict string) (n int) {
	for _, i := range v.items {
		if i.Suite == suite && (class == "" || i.Class == class) && i.Verdict == verdict {
			n++
		}
	}
	return n
}

// fault says why it does not hold, "" if it does.
func (v *verification) fault() string {
	var names []string
	for _, i := range v.items {
		if !i.Holds {
			names = append(names, i.Name)
		}
	}
	switch {
	case len(names) > 0:
		return fmt.Sprintf("%d do not hold: %s", len(names), strings.Join(names, ", "))
	case v.count(suiteEscape, "", string(escape.Held)) == 0:
		return escape.ErrNothingProvable.Error()
	}
	return ""
}

// tell prints the outcome.
func (v *verification) tell(took time.Duration) error {
	fault := v.fault()
	if fault != "" {
		v.app.code = exitFailed
	}
	text := v.text(fault, took)
	if v.flags.output.json {
		text = v.lines(fault, took)
	}
	if err := v.app.write(text); err != nil {
		return err
	}
	if v.report == nil {
		return nil
	}
	report, err := v.junit(took)
	if err == nil {
		_, err = v.report.Write(report)
	}
	if err != nil {
		return failure{fmt.Errorf("the JUnit report: %w", err)}
	}
	return nil
}

func (v *verification) lines(fault string, took time.Duration) []byte {
	var b []byte
	for _, i := range v.items {
		b = jsonl.AppendVerifyItem(b, i)
	}
	outcome := jsonl.Verify{
		Enforcer: v.receipt.Enforcer, ABI: v.receipt.ABI, Layers: v.receipt.Layers, PlanDigest: v.receipt.PlanDigest,
		Properties: v.receipt.Properties, Duration: took, Error: fault,
	}
	for _, verdict := range verdicts {
		outcome.Verdicts = append(outcome.Verdicts, jsonl.VerdictCount{Verdict: string(verdict), Count: v.count(suiteEscape, "", string(verdict))})
	}
	return jsonl.AppendVerify(b, outcome)
}

// text is a table by class, and a line for whatever needs one.
func (v *verification) text(fault string, took time.Duration) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s, as uid %d\n\n", ui.Line(v.receipt.String()), os.Geteuid())
	fmt.Fprintf(&b, "%-20s %6s %6s %7s %8s %13s %s\n", "escape suite", "held", "worked", "limit", "granted", "not provable", "DO NOT HOLD")
	row := func(name, class string) {
		of := func(list ...escape.Verdict) (n int) {
			for _, verdict := range list {
				n += v.count(suiteEscape, class, string(verdict))
			}
			return n
		}
		fmt.Fprintf(&b, "%-20s %6d %6d %7d %8d %13d %d\n", name, of(escape.Held), of(escape.Worked), of(escape.Limit),
			of(escape.Granted, escape.Waived), of(escape.NotProvable), of(escape.Leaked, escape.Broken, escape.Unclear))
	}
	for _, class := range escape.Classes() {
		row("  "+string(class), string(class))
	}
	row("  all", "")
	b.WriteByte('\n')
	for _, i := range v.items {
		if !i.Holds || v.flags.verbose || i.Suite == suiteInvariants {
			fmt.Fprintf(&b, "%-18s %-36s %s\n", i.Verdict, i.Name, ui.Line(i.Detail))
		}
	}
	b.WriteByte('\n')
	if n := v.count(suiteEscape, "", string(escape.NotProvable)); n > 0 && !v.flags.verbose {
		fmt.Fprintf(&b, "%d attempts are not provable here; -v lists them with the reasons\n", n)
	}
	if fault == "" {
		fmt.Fprintf(&b, "the sandbox holds (%s)\n", took.Round(100*time.Millisecond))
	} else {
		fmt.Fprintf(&b, "the sandbox does NOT hold: %s\n", ui.Line(fault))
	}
	return b.Bytes()
}

// The JUnit report, as CI systems read it: attempts that are not provable are
// skipped cases.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Time     string       `xml:"time,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name    string        `xml:"name,attr"`
		Class   string        `xml:"classname,attr"`
		Failure *junitMessage `xml:"failure,omitempty"`
		Skipped *junitMessage `xml:"skipped,omitempty"`
		Output  string        `xml:"system-out,omitempty"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
	}
)

func (v *verification) junit(took time.Duration) ([]byte, error) {
	report := junitSuites{Name: "caisson verify", Time: fmt.Sprintf("%.3f", took.Seconds())}
	for _, i := range v.items {
		name := i.Suite
		if i.Class != "" {
			name += "." + strings.ReplaceAll(i.Class, " ", "-")
		}
		at := slices.IndexFunc(report.Suites, func(s junitSuite) bool { return s.Name == name })
		if at < 0 {
			at = len(report.Suites)
			report.Suites = append(report.Suites, junitSuite{Name: name})
		}
		s := &report.Suites[at]
		c := junitCase{Name: i.Name, Class: name}
		message := &junitMessage{Message: strings.TrimSuffix(i.Verdict+": "+i.Detail, ": ")}
		switch {
		case !i.Holds:
			c.Failure = message
			s.Failures++
			report.Failures++
		case i.Verdict == string(escape.NotProvable):
			c.Skipped = message
			s.Skipped++
		default:
			c.Output = message.Message
		}
		s.Cases = append(s.Cases, c)
		s.Tests++
		report.Tests++
	}
	text, err := xml.MarshalIndent(report, "", "  ")
	return append([]byte(xml.Header), append(text, '\n')...), err
}
