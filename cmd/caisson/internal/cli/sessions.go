package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
)

func (a *app) sessionsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sessions COMMAND",
		Short: "List, show, replay and remove stored sessions",
		Long: `Every event of a session is kept until the session is removed. An ID may be
shortened to its beginning, and "last" is the session that was used last.

A turn whose Caisson died is settled by the first command that meets it: what is
left of its processes is ended, and it gets its final event. Where that cannot be
done, on a full disk for example, what there is is shown all the same.

The list has of each session as much of its ID as it takes to name it, what its
last turn came to, and the beginning of its first prompt. --output json has the
whole of them, and docs/sessions.md the names.`,
		Args: commandOnly,
		RunE: needsCommand,
	}
	cmd.AddCommand(a.sessionsList(), a.sessionsShow(), a.sessionsReplay(), a.sessionsRemove(), a.sessionsPrune())
	return cmd
}

// with runs f with an orchestrator that is closed afterwards. A signal ends the
// context that f gets.
func (a *app) with(ctx context.Context, f func(context.Context, *application.Orchestrator) error) (err error) {
	watch := a.watchPlain(ctx)
	defer watch.stop()
	caisson, err := a.compose(ctx)
	if err != nil {
		return failure{err}
	}
	defer func() {
		if closed := caisson.Close(context.WithoutCancel(ctx)); closed != nil {
			err = errors.Join(err, failure{closed})
		}
	}()
	if err := f(watch.ctx, caisson.Orchestrator); err != nil {
		return failure{err}
	}
	return nil
}

func (a *app) sessionsList() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use: "list", Short: "List the stored sessions, the last used one first", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *application.Orchestrator) error {
				infos, err := o.Sessions(ctx)
				for _, i := range infos {
					a.tellUnsettled(i)
				}
				return errors.Join(a.write(listing(infos, out.json, time.Now(), a.width())), err)
			})
		},
	}
	out.add(cmd.Flags())
	return cmd
}

// write writes to standard output.
func (a *app) write(text []byte) error {
	if _, err := a.Stdout.Write(text); err != nil {
		return notWritten(err)
	}
	return nil
}

// tellUnsettled says what of a session could not be settled. What there is was read
// all the same.
func (a *app) tellUnsettled(i application.SessionInfo) {
	if i.Unsettled != nil {
		a.tell(i.Unsettled.Error())
	}
}

func unsettled(i application.SessionInfo) string {
	if i.Unsettled == nil {
		return ""
	}
	return i.Unsettled.Error()
}

// promptShown is how many characters of a prompt a line of the listing has.
const promptShown = 40

// listing shows the sessions on lines of that width; 0 for no bound.
func listing(infos []application.SessionInfo, asJSON bool, now time.Time, width int) []byte {
	var text bytes.Buffer
	if asJSON {
		var line []byte
		for _, i := range infos {
			line = jsonl.AppendSession(line[:0], i.SessionRecord, i.Running, unsettled(i))
			text.Write(line)
		}
		return text.Bytes()
	}
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	if len(infos) > 0 {
		fmt.Fprintln(table, "ID\tAGENT\tTURNS\tUSED\tSTATE\tPROMPT\tWORKSPACE")
	}
	short := shortIDs(infos)
	for n, i := range infos {
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n",
			short[n], ui.Line(string(i.Kind)), i.Turns, ago(now.Sub(used(i.SessionRecord))), ui.Line(state(i)),
			ui.Cut(ui.Line(i.Prompt), promptShown), ui.Line(i.Workspace))
	}
	_ = table.Flush() // into memory
	if width <= 0 {
		return text.Bytes()
	}
	var fitted []byte
	for line := range strings.Lines(text.String()) {
		fitted = append(append(fitted, ui.Fit(strings.TrimSuffix(line, "\n"), width)...), '\n')
	}
	return fitted
}

// shortest is how much of an id is shown at least.
const shortest = 8

// shortIDs returns the beginnings of the ids that are needed to tell each session
// from all the others. They begin with the time, so those that were opened within
// a minute take more than the first group.
func shortIDs(infos []application.SessionInfo) []string {
	sorted := make([]string, 0, len(infos))
	for _, i := range infos {
		sorted = append(sorted, string(i.ID))
	}
	slices.Sort(sorted)
	short := make([]string, 0, len(infos))
	for _, i := range infos {
		id := string(i.ID)
		at, _ := slices.BinarySearch(sorted, id)
		need := shortest
		for _, other := range []int{at - 1, at + 1} {
			if other >= 0 && other < len(sorted) {
				need = max(need, common(id, sorted[other])+1)
			}
		}
		short = append(short, id[:min(need, len(id))])
	}
	return short
}

// common is the length of the common beginning.
func common(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// state is how a session stands: what its last turn came to, unless one runs.
func state(i application.SessionInfo) string {
	switch {
	case i.Running:
		return "running"
	case i.Unsettled != nil:
		return "unsettled"
	case i.Outcome != "":
		return string(i.Outcome)
	}
	return "idle" // recorded by an older Caisson, or without a turn
}

func used(r domain.SessionRecord) time.Time {
	if r.Updated.IsZero() {
		return r.Opened
	}
	return r.Updated
}

// ago says roughly how long ago something was.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "now"
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", d/time.Hour)
	}
	return fmt.Sprintf("%dd ago", d/(24*time.Hour))
}

// oneID is for a command that takes one session.
func oneID(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{fmt.Errorf("%s takes one session%s", cmd.Name(), seeHelp(cmd))}
	}
	return nil
}

func (a *app) sessionsShow() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show what is known of a session", Args: oneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *application.Orchestrator) error {
				id, err := o.FindSession(ctx, args[0], "")
				if err != nil {
					return err
				}
				info, err := o.Session(ctx, id)
				if err != nil {
					return err
				}
				a.tellUnsettled(info)
				if out.json {
					return a.write(jsonl.AppendSession(nil, info.SessionRecord, info.Running, unsettled(info)))
				}
				return a.write(description(info))
			})
		},
	}
	out.add(cmd.Flags())
	return cmd
}

func description(i application.SessionInfo) []byte {
	var text []byte
	line := func(name, format string, args ...any) {
		text = fmt.Appendf(text, "%-13s %s\n", name, ui.Line(fmt.Sprintf(format, args...)))
	}
	line("session", "%s", i.ID)
	line("agent", "%s", i.Kind)
	line("workspace", "%s", i.Workspace)
	line("prompt", "%s", i.Prompt)
	line("state", "%s", state(i))
	line("opened", "%s", i.Opened.Local().Format(time.RFC3339))
	line("used", "%s", used(i.SessionRecord).Local().Format(time.RFC3339))
	line("turns", "%d", i.Turns)
	line("events", "%d", i.LastSeq)
	line("conversation", "%s", i.ConversationID)
	for _, earlier := range i.Lineage {
		line("  earlier", "%s", earlier)
	}
	line("tokens", "%d in (%d cached), %d out", i.Total.InputTokens, i.Total.CachedInputTokens, i.Total.OutputTokens)
	line("plan", "%s", i.PlanDigest)
	for _, grant := range i.Grants {
		line("", "%s", grant)
	}
	return text
}

func (a *app) sessionsReplay() *cobra.Command {
	var (
		out    output
		from   uint64
		follow bool
	)
	cmd := &cobra.Command{
		Use: "replay ID", Short: "Print the events of a session again",
		Long: `Print the events of a session again, also while a turn of it runs. With --follow
it goes on with what comes until no turn runs any more.`,
		Args: oneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *application.Orchestrator) error {
				id, err := o.FindSession(ctx, args[0], "")
				if err != nil {
					return err
				}
				give := a.sink(out.json)
				for e, err := range o.Replay(ctx, id, from, follow) {
					if unsettled := (*application.UnsettledError)(nil); errors.As(err, &unsettled) {
						a.tell(unsettled.Error())
						return nil
					}
					if err != nil {
						return err
					}
					if err := give(e); err != nil {
						return notWritten(err)
					}
				}
				return nil
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Uint64Var(&from, "from", 1, "begin with the event of this `SEQ`")
	flags.BoolVar(&follow, "follow", false, "go on with what comes")
	out.add(flags)
	return cmd
}

func (a *app) sessionsRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID…", Short: "Remove sessions, with the agent's own copy of the conversation",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{fmt.Errorf("no session%s", seeHelp(cmd))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.with(cmd.Context(), func(ctx context.Context, o *application.Orchestrator) error {
				// All are looked up first: a slip in one of them removes none.
				var ids []domain.SessionID
				for _, arg := range args {
					id, err := o.FindSession(ctx, arg, "")
					if err != nil {
						return err
					}
					ids = append(ids, id)
				}
				var errs []error
				for _, id := range ids {
					errs = append(errs, o.RemoveSession(ctx, id))
				}
				return errors.Join(errs...)
			})
		},
	}
}

func (a *app) sessionsPrune() *cobra.Command {
	var keep application.Retention
	cmd := &cobra.Command{
		Use: "prune", Short: "Remove the sessions that were not used for some time, and print their ids",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if keep == (application.Retention{}) {
				return usageError{fmt.Errorf("say which: --older-than TIME, --keep N%s", seeHelp(cmd))}
			}
			return a.with(cmd.Context(), func(ctx context.Context, o *application.Orchestrator) error {
				removed, err := o.Prune(ctx, keep)
				var text []byte
				for _, id := range removed {
					text = fmt.Appendln(text, id)
				}
				return errors.Join(a.write(text), err)
			})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Var((*age)(&keep.MaxAge), "older-than", "remove what was last used longer ago than this `TIME`, for example 30d or 12h")
	flags.Var((*count)(&keep.MaxCount), "keep", "keep only the last used `N`")
	return cmd
}

// age is a positive duration, which may be in days.
type age time.Duration

func (d *age) Set(s string) error {
	parsed, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		parsed = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || parsed <= 0 {
		return errors.New("no time: write 30d or 12h")
	}
	*d = age(parsed)
	return nil
}

func (d *age) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

func (*age) Type() string { return "time" }

// count is a positive number.
type count int

func (c *count) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || n == 0 {
		return errors.New("no number from 1")
	}
	*c = count(n)
	return nil
}

func (c *count) String() string {
	if *c == 0 {
		return ""
	}
	return strconv.Itoa(int(*c))
}

func (*count) Type() string { return "number" }

// findResume makes an id of what --resume said, which may be short, or "last":
// the last session of the workspace.
func (a *app) findResume(ctx context.Context, o *application.Orchestrator, request *application.OpenRequest) error {
	if request.Resume == "" {
		return nil
	}
	workspace := request.Workspace
	if workspace == "" {
		workspace = a.Dir
	}
	if canonical, err := filepath.EvalSymlinks(workspace); err == nil {
		workspace = canonical
	}
	id, err := o.FindSession(ctx, string(request.Resume), workspace)
	if err != nil {
		return fmt.Errorf("--resume: %w", err)
	}
	request.Resume = id
	return nil
}
