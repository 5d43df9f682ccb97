package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/tests/testkit"
)

// say runs a turn and returns its session.
func (b *bench) say(args ...string) (domain.SessionID, []domain.Event) {
	b.t.Helper()
	got := b.run(append([]string{"run", "--output", "json"}, args...)...)
	require.Equal(b.t, 0, got.code, got.stderr)
	require.Empty(b.t, got.stderr)
	events := b.events(got.stdout)
	return events[0].Session, events
}

func TestSessions(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	b := newBench(t)
	require.Equal(t, result{}, b.run("sessions", "list"), "none")

	first, events := b.say("--agent", "claude", fakecli.Script("say one", "sh echo tool"))
	second, _ := b.say("--agent", "codex", fakecli.Script("say two"))
	ok := func(args ...string) string {
		t.Helper()
		got := b.run(args...)
		require.Equal(t, 0, got.code, got.stderr)
		require.Empty(t, got.stderr)
		return got.stdout
	}

	lines := strings.Split(strings.TrimSuffix(ok("sessions", "list"), "\n"), "\n")
	require.Len(t, lines, 3)
	require.Regexp(t, `^ID +AGENT +TURNS +USED +STATE +PROMPT +WORKSPACE$`, lines[0])
	require.Regexp(t, `^`+string(second)[:8]+`[-0-9a-f]* +codex +1 +now +completed +\S.* /`, lines[1], "the last used one first")
	require.Regexp(t, `^`+string(first)[:8]+`[-0-9a-f]* +claude +1 +now +completed +\S.* /`, lines[2])
	for i, want := range []domain.SessionID{second, first} {
		shown := strings.Fields(lines[i+1])[0]
		require.Contains(t, ok("sessions", "show", shown), string(want), "what is listed is enough to name it")
	}
	var info map[string]any
	require.NoError(t, json.Unmarshal([]byte(strings.Split(ok("sessions", "list", "--output", "json"), "\n")[0]), &info))
	require.Equal(t, string(second), info["session"])
	require.Equal(t, false, info["running"])
	require.Equal(t, "completed", info["outcome"])
	require.Nil(t, info["unsettled"])
	require.NotEmpty(t, info["prompt"])

	// Session ids of one run differ in their ends alone, so a test shortens little.
	short := string(first)[:30]
	shown := ok("sessions", "show", short)
	require.Contains(t, shown, string(first))
	require.Contains(t, shown, b.workspace)
	require.NoError(t, json.Unmarshal([]byte(ok("sessions", "show", short, "--output", "json")), &info))
	require.Equal(t, string(first), info["session"])
	require.InDelta(t, float64(len(events)), info["last_seq"], 0)

	// What was printed when it happened is printed again, to the byte.
	var live []string
	for _, e := range events {
		live = append(live, e.Reply.EventType())
	}
	again := b.events(ok("sessions", "replay", short, "--output", "json"))
	require.Equal(t, events, again)
	require.Contains(t, live, "tool_result")
	require.Equal(t, events[2:], b.events(ok("sessions", "replay", short, "--from", "3", "--follow", "--output", "json")))
	require.Contains(t, ok("sessions", "replay", "last"), "two")

	third, events := b.say("--resume", short, fakecli.Script("recall"))
	require.Equal(t, first, third)
	require.Equal(t, 2, events[0].Turn)
	third, _ = b.say("--resume", "last", fakecli.Script("recall"))
	require.Equal(t, first, third, "the last used one of this workspace")
	other := newBench(t)
	other.state = b.state
	got := other.run("run", "--resume", "last", "hello")
	require.Equal(t, 2, got.code)
	require.Contains(t, got.stderr, "--resume")
	require.Contains(t, got.stderr, "no session of the workspace")

	require.Empty(t, ok("sessions", "prune", "--older-than", "1h"))
	require.Equal(t, string(second)+"\n", ok("sessions", "prune", "--keep", "1"))
	require.Empty(t, ok("sessions", "rm", string(first)))
	left, err := os.ReadDir(filepath.Join(b.state, "sessions"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestBadInputOfSessions(t *testing.T) {
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"nothing":             {nil, []string{"no command", "sessions --help"}},
		"unknown":             {[]string{"sell"}, []string{`"sell"`}},
		"list with argument":  {[]string{"list", "x"}, []string{`"x"`}},
		"show nothing":        {[]string{"show"}, []string{"one session"}},
		"show two":            {[]string{"show", "a", "b"}, []string{"one session"}},
		"show unknown":        {[]string{"show", id}, []string{id, "no such session"}},
		"show a path":         {[]string{"show", "../../etc"}, []string{"../../etc", "UUID"}},
		"show a short one":    {[]string{"show", "01"}, []string{`"01"`, "4 characters"}},
		"show last of none":   {[]string{"show", "last"}, []string{"no session is stored"}},
		"replay unknown":      {[]string{"replay", id}, []string{"no such session"}},
		"replay from nowhere": {[]string{"replay", id, "--from", "-1"}, []string{"--from"}},
		"rm nothing":          {[]string{"rm"}, []string{"no session"}},
		"rm unknown":          {[]string{"rm", id}, []string{"no such session"}},
		"prune nothing":       {[]string{"prune"}, []string{"--older-than", "--keep"}},
		"prune soon":          {[]string{"prune", "--older-than", "soon"}, []string{"--older-than", "30d"}},
		"prune negative":      {[]string{"prune", "--older-than", "-3h"}, []string{"--older-than", "30d"}},
		"prune all":           {[]string{"prune", "--keep", "0"}, []string{"--keep"}},
		"log level":           {[]string{"list", "--log-level", "loud"}, []string{"--log-level", "debug"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			got := b.run(append([]string{"sessions"}, c.args...)...)
			require.Equal(t, 2, got.code, got.stderr)
			require.Empty(t, got.stdout)
			require.True(t, strings.HasPrefix(got.stderr, "caisson: "))
			for _, s := range c.says {
				require.Contains(t, got.stderr, s)
			}
			b.requireUntouched()
		})
	}
}

// A second process can look on while a turn runs, and is refused what would
// disturb it.
func TestFollowARunningTurn(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	testkit.NoLeaks(t)
	b := newBench(t)
	gate := filepath.Join(b.workspace, "gate")
	ran := make(chan result, 1)
	go func() {
		runner := *b
		ran <- runner.run("run", "--agent", "claude", "--output", "json",
			fakecli.Script("say begun", "sh while ! [ -e "+gate+" ]; do sleep 0.01; done", "say done"))
	}()
	var id string
	require.Eventually(t, func() bool {
		fields := strings.Fields(b.run("sessions", "list").stdout)
		if len(fields) < 7 || !slices.Contains(fields, "running") {
			return false
		}
		id = fields[7]
		return strings.Contains(b.run("sessions", "replay", id).stdout, "begun")
	}, 20*time.Second, 20*time.Millisecond)
	got := b.run("sessions", "rm", id)
	require.Equal(t, 4, got.code)
	require.Contains(t, got.stderr, "in use")
	got = b.run("run", "--resume", id, "hello")
	require.Equal(t, 4, got.code)
	followed := make(chan result, 1)
	go func() {
		follower := *b
		followed <- follower.run("sessions", "replay", id, "--follow", "--output", "json")
	}()
	time.Sleep(700 * time.Millisecond)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	live, seen := <-ran, <-followed
	require.Equal(t, 0, live.code, live.stderr)
	require.Equal(t, 0, seen.code, seen.stderr)
	require.Equal(t, live.stdout, seen.stdout)
}

// What happens inside is logged to standard error, as far as one asks for it.
func TestLogLevel(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	b := newBench(t)
	got := b.run("run", "--log-level", "info", "--agent", "claude", fakecli.Script("say hello"))
	require.Equal(t, 0, got.code)
	require.Contains(t, got.stderr, "level=INFO")
	require.Contains(t, got.stderr, "turn=1")
	require.NotContains(t, got.stderr, "hello", "what is said is no business of the log")
	got = b.run("run", "--log-level", "error", "--agent", "claude", fakecli.Script("say hello"))
	require.Empty(t, got.stderr)
}

// What is dead and cannot be settled does not keep anybody from reading.
func TestReadingWhereADeadTurnCannotBeSettled(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	b := newBench(t)
	id, events := b.say("--agent", "claude", fakecli.Script("say one"))
	dir := filepath.Join(b.state, "sessions", string(id))
	record, err := os.ReadFile(filepath.Join(dir, "record.json"))
	require.NoError(t, err)
	live := strings.Replace(string(record), `"turns": 1,`, `"turns": 2, "live": {"turn": 2, "first_seq": 99, "pid": 0, "start": 0, "boot": "", "mark": "none such"},`, 1)
	require.NotEqual(t, string(record), live)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "record.json"), []byte(live), 0o600))
	// Something that root cannot do either stands for a full disk.
	require.NoError(t, os.Remove(filepath.Join(dir, "lock")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "lock"), 0o700))

	for name, args := range map[string][]string{
		"list": {"list"}, "show": {"show", string(id)}, "replay": {"replay", string(id)}, "follow": {"replay", "--follow", string(id)},
	} {
		t.Run(name, func(t *testing.T) {
			got := b.run(append([]string{"sessions"}, args...)...)
			require.Equal(t, 0, got.code, got.stderr)
			require.Equal(t, 1, strings.Count(got.stderr, "\n"), got.stderr)
			require.True(t, strings.HasPrefix(got.stderr, "caisson: turn 2 of session "+string(id)+" has no end on record"), got.stderr)
			require.Contains(t, got.stderr, "not a regular file", "and why")
			if args[0] == "replay" {
				require.Contains(t, got.stdout, "one")
			} else {
				require.Contains(t, got.stdout, "unsettled")
			}
		})
	}
	got := b.run("sessions", "list", "--output", "json")
	var info map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &info))
	require.Contains(t, info["unsettled"], "turn 2")
	require.Equal(t, events, b.events(b.run("sessions", "replay", string(id), "--output", "json").stdout))

	// Where it can be, that is said as everything else is, and without a time that
	// nobody took.
	require.NoError(t, os.Remove(filepath.Join(dir, "lock")))
	got = b.run("sessions", "list")
	require.Equal(t, 0, got.code)
	require.Equal(t, "caisson: ended a turn whose Caisson had died (session "+string(id)+", turn 2)\n", got.stderr)
	require.Contains(t, got.stdout, " exited ")
	shown := b.run("sessions", "replay", string(id)).stdout
	require.Contains(t, shown, "caisson: exited; ")
	require.NotContains(t, shown, "in 0s")
}

// A prompt is text of somebody's, and secrets in it are not kept.
func TestTheListingShowsPromptsHarmlessly(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	b := newBench(t)
	b.say("--agent", "claude", "--env", "TOKEN=a-long-secret-value", "\x1b[31mred a-long-secret-value\n"+fakecli.Script("say one"))
	got := b.run("sessions", "list")
	require.Equal(t, 0, got.code, got.stderr)
	require.Contains(t, got.stdout, `\x1b[31mred [value of TOKEN]`)
	require.NotContains(t, got.stdout, "\x1b")
	record, err := filepath.Glob(filepath.Join(b.state, "sessions", "*", "record.json"))
	require.NoError(t, err)
	data, err := os.ReadFile(record[0])
	require.NoError(t, err)
	require.NotContains(t, string(data), "a-long-secret")
}
