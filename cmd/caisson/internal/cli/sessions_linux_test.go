package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
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
	require.Regexp(t, `^ID +AGENT +TURNS +USED +STATE +WORKSPACE$`, lines[0])
	require.Regexp(t, `^`+string(second)+` +codex +1 +now +idle +/`, lines[1], "the last used one first")
	require.Regexp(t, `^`+string(first)+` +claude +1 +now +idle +/`, lines[2])
	var info map[string]any
	require.NoError(t, json.Unmarshal([]byte(strings.Split(ok("sessions", "list", "--output", "json"), "\n")[0]), &info))
	require.Equal(t, string(second), info["session"])
	require.Equal(t, false, info["running"])

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
		if len(fields) < 11 || fields[9] != "running" && fields[10] != "running" {
			return false
		}
		id = fields[6]
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
