package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
)

// Process is what a run of the program has around it.
type Process struct {
	Args   []string // without the program's name
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// LookupEnv returns a variable of the environment.
	LookupEnv func(name string) (string, bool)
	// Signals brings the signals that came; nil for none.
	Signals <-chan os.Signal
	// Dir is the absolute working directory, "" if there is none because of NoDir.
	Dir   string
	NoDir error
	// Executable is the path of a program that hosts the fake agent, as this
	// one does; the demonstration runs it.
	Executable string
	// Compose changes the composition.
	Compose []composition.Option
}

// Main runs the program and returns its exit code. It leaves no process, no
// file and no goroutine behind, unless after a second interrupt nobody takes its
// output: then the caller is to end the process at once, whose end ends what is
// left.
func Main(ctx context.Context, p Process) int {
	app := &app{Process: p}
	root := app.root()
	root.SetArgs(append([]string{}, p.Args...)) // for nil cobra would take os.Args
	root.SetIn(p.Stdin)
	help := &remembering{Writer: p.Stdout}
	root.SetOut(help)
	root.SetErr(p.Stderr)
	err := root.ExecuteContext(ctx)
	if help.err != nil && (err == nil || errors.Is(err, help.err)) {
		err = notWritten(help.err)
	}
	code := app.code
	if err != nil {
		code = app.fail(err)
	}
	return code
}

// remembering is a writer for cobra's own output, the help, whose failures it
// takes for nothing.
type remembering struct {
	io.Writer
	err error // the first one
}

func (r *remembering) Write(p []byte) (int, error) {
	n, err := r.Writer.Write(p)
	if r.err == nil {
		r.err = err
	}
	return n, err
}

// app is one run of the program.
type app struct {
	Process

	code int // to exit with, if there is no error
	log  logLevel
}

const long = `Caisson runs coding-agent CLIs as structured sessions under a kernel sandbox.

Every turn's process, and all that it starts, is confined by the kernel to what
a plan grants: the workspace, the system's programs, the agent's own private
directories, and the way to its model. What cannot be enforced is refused, and
every turn begins with a receipt of what was.`

// commandOnly is for a command that only has others below it: what is no command
// of its is an error.
func commandOnly(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("no command %q%s", args[0], cmp.Or(didYouMean(cmd, args[0], ""), seeHelp(cmd)))}
	}
	return nil
}

// needsCommand is what such a command does by itself.
func needsCommand(cmd *cobra.Command, _ []string) error {
	return usageError{fmt.Errorf("no command%s", seeHelp(cmd))}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "caisson",
		Short:         "Run coding agents under a kernel sandbox",
		Long:          long,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          commandOnly,
		RunE:          needsCommand,
		Version:       version(),
	}
	root.SetVersionTemplate(versionLine())
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{flagFault(cmd, err)} })
	root.CompletionOptions.HiddenDefaultCmd = true
	a.log = logLevel(slog.LevelWarn)
	root.PersistentFlags().Var(&a.log, "log-level", "what of Caisson's own working is logged to standard error: debug, info, warn or error, by `LEVEL`")
	root.AddCommand(a.runCommand(), a.execCommand(), a.shellCommand(), a.loginCommand(), a.logoutCommand(), a.planCommand(), a.sessionsCommand(), a.explainCommand(), a.policyCommand(), a.doctorCommand(), a.demoCommand(), a.verifyCommand(), a.versionCommand())
	return root
}

// seeHelp ends the message of a fault in the arguments.
func seeHelp(cmd *cobra.Command) string { return fmt.Sprintf("; see %q", cmd.CommandPath()+" --help") }

// didYouMean names the commands below cmd that are near to what was typed, as they
// are written; it is empty if none is, or many are.
func didYouMean(cmd *cobra.Command, typed, prefix string) string {
	cmd.SuggestionsMinimumDistance = 2
	near := cmd.SuggestionsFor(typed)
	if len(near) == 0 || len(near) > 3 {
		return ""
	}
	return "; did you mean " + prefix + strings.Join(near, " or "+prefix) + "?"
}

// flagFault is what is said of a fault in a command's flags.
func flagFault(cmd *cobra.Command, err error) error {
	var (
		unknown *pflag.NotExistError
		invalid *pflag.InvalidValueError
		number  *strconv.NumError
	)
	switch {
	case errors.As(err, &unknown):
		// Cobra measures the distance between the names of commands alone.
		var flags cobra.Command
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			flags.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		})
		if meant := didYouMean(&flags, unknown.GetSpecifiedName(), "--"); meant != "" {
			return fmt.Errorf("%w%s", err, meant)
		}
	case errors.As(err, &invalid) && errors.As(err, &number): // Go's words, which name its functions
		reason := "no such number"
		if invalid.GetFlag().Value.Type() == "bool" {
			reason = "neither true nor false"
		}
		err = fmt.Errorf("invalid argument %q for %q flag: %s", invalid.GetValue(), "--"+invalid.GetFlag().Name, reason)
	}
	return fmt.Errorf("%w%s", err, seeHelp(cmd))
}

// noArgs is for a command that takes flags alone.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes flags alone, not %q%s", cmd.Name(), args[0], seeHelp(cmd))}
	}
	return nil
}

// compose makes the composition for this process.
func (a *app) compose(ctx context.Context, opts ...composition.Option) (*composition.Caisson, error) {
	logger := slog.New(logHandler{
		Handler: slog.NewTextHandler(a.Stderr, &slog.HandlerOptions{Level: slog.Level(a.log)}), tell: a.tell,
	})
	all := []composition.Option{composition.WithEnviron(a.LookupEnv), composition.WithLogger(logger)}
	return composition.New(ctx, append(append(all, a.Compose...), opts...)...)
}

// needDir says why there is no working directory, nil if there is one.
func (a *app) needDir() error {
	if a.NoDir == nil {
		return nil
	}
	return &domain.InvalidError{
		What: "working directory", Value: ".", Reason: "there is none any more, or it cannot be told",
		Remedy: "cd to a directory that exists", Err: a.NoDir,
	}
}

// abs makes a path absolute; a relative one starts at the working directory.
func (a *app) abs(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(a.Dir, path)
}

// fail prints the error and returns its exit code.
func (a *app) fail(err error) int {
	code := exitCode(err)
	if silent := (quiet{}); errors.As(err, &silent) {
		return code
	}
	text := strings.TrimRight(ui.Escape(err.Error()), "\n")
	fmt.Fprintf(a.Stderr, "caisson: %s\n", strings.ReplaceAll(text, "\n", "\n  "))
	return code
}

// tell says something on standard error, on one line of Caisson's own.
func (a *app) tell(text string) { fmt.Fprintf(a.Stderr, "caisson: %s\n", ui.Line(text)) }

// logHandler logs what goes well for whoever reads logs, and says what does not as
// everything else that a person is told.
type logHandler struct {
	slog.Handler
	tell  func(string)
	attrs []slog.Attr
}

func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return h.Handler.Handle(ctx, r)
	}
	about := make([]string, 0, len(h.attrs)+r.NumAttrs())
	add := func(at slog.Attr) bool {
		about = append(about, at.Key+" "+at.Value.Resolve().String())
		return true
	}
	for _, at := range h.attrs {
		add(at)
	}
	r.Attrs(add)
	text := r.Message
	if len(about) > 0 {
		text += " (" + strings.Join(about, ", ") + ")"
	}
	h.tell(text)
	return nil
}

func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.Handler, h.attrs = h.Handler.WithAttrs(attrs), slices.Concat(h.attrs, attrs)
	return h
}

func (h logHandler) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	return h
}

// logLevel is the level of a flag.
type logLevel slog.Level

func (l *logLevel) Set(s string) error {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	level, ok := levels[s]
	if !ok {
		return errors.New("none of debug, info, warn and error")
	}
	*l = logLevel(level)
	return nil
}

func (l *logLevel) String() string { return strings.ToLower(slog.Level(*l).String()) }

func (*logLevel) Type() string { return "level" }
