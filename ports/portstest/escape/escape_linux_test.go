//go:build amd64 || arm64

package escape

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/tests/testkit"
)

func TestAttemptsAreWellFormed(t *testing.T) {
	kebab := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	seen, classes, properties := map[string]bool{}, map[Class]int{}, map[domain.Property]int{}
	must := 0
	for _, a := range Attempts() {
		require.Regexp(t, kebab, a.Name)
		require.False(t, seen[a.Name], "two attempts %s", a.Name)
		seen[a.Name] = true
		require.Contains(t, Classes(), a.Class, a.Name)
		require.NotNil(t, a.try, a.Name)
		classes[a.Class]++
		properties[a.Property]++
		require.Equal(t, a.Class == ClassWork, a.Works, a.Name)
		switch {
		case a.Works, a.Limit != "":
			require.Empty(t, a.Alone, "%s is stopped by nothing", a.Name)
		default:
			must++
			require.NotEmpty(t, a.Property, "%s is about nothing", a.Name)
		}
		if a.Property != "" {
			_, err := domain.ParseProperty(string(a.Property))
			require.NoError(t, err, a.Name)
		}
		require.False(t, a.kills && !a.victim, a.Name)
	}
	require.GreaterOrEqual(t, must, 80)
	for _, c := range Classes() {
		require.Positive(t, classes[c], "nothing tries %s", c)
	}
	// The limits on resources cannot be enforced, and ioctl on devices is no way
	// out that could be shown without a device.
	for _, p := range domain.Properties() {
		if !slices.Contains([]domain.Property{domain.PropertyIoctl, domain.PropertyMemory, domain.PropertyPids, domain.PropertyCPU}, p) {
			require.Positive(t, properties[p], "nothing tries %s", p)
		}
	}
}

func exit(code int) domain.ExitStatus { return domain.ExitStatus{Known: true, Code: code} }

func TestAReportIsUnderstood(t *testing.T) {
	s := &Stage{secret: "the secret"}
	for text, c := range map[string]struct {
		attempt Attempt
		end     Ended
		want    outcome
	}{
		"through":              {Attempt{}, Ended{`escaped "how"`, exit(0)}, outcome{through: true, detail: "how"}},
		"the last line counts": {Attempt{}, Ended{"denied EPERM\nescaped \"\"\n", exit(0)}, outcome{through: true}},
		"the secret":           {Attempt{reads: true}, Ended{`escaped "it is the secret"`, exit(0)}, outcome{through: true, detail: "it read the secret"}},
		"no secret":            {Attempt{reads: true}, Ended{`escaped "x"`, exit(0)}, outcome{detail: "what it read is not the secret"}},
		"cut off":              {Attempt{}, Ended{`escaped "ho`, exit(0)}, outcome{detail: "its report is cut off"}},
		"denied":               {Attempt{}, Ended{"denied EACCES", exit(0)}, outcome{denied: true, detail: "EACCES"}},
		"no denial":            {Attempt{}, Ended{"denied ENOENT", exit(0)}, outcome{detail: "ENOENT"}},
		"a denial of its own":  {Attempt{denials: []unix.Errno{unix.EXDEV}}, Ended{"denied EXDEV", exit(0)}, outcome{denied: true, detail: "EXDEV"}},
		"unavailable":          {Attempt{}, Ended{"unavailable no such thing", exit(0)}, outcome{detail: "no such thing"}},
		"failed":               {Attempt{}, Ended{"failed it broke", exit(0)}, outcome{detail: "it broke"}},
		"silence":              {Attempt{}, Ended{"", exit(1)}, outcome{detail: "it ended without a report: exit 1"}},
		"ended by the filter": {Attempt{}, Ended{"", domain.ExitStatus{Known: true, Code: -1, Signal: "SIGSYS"}},
			outcome{denied: true, detail: "it ended without a report: SIGSYS"}},
		"crashed": {Attempt{}, Ended{"", domain.ExitStatus{Known: true, Code: -1, Signal: "SIGSEGV"}}, outcome{detail: "it ended without a report: SIGSEGV"}},
	} {
		require.Equal(t, c.want, s.read(c.attempt, c.end), text)
	}
	require.Equal(t, "escaped \"a\\nb\"", report(nil, "a\nb"))
	require.Equal(t, "denied EPERM", report(unix.EPERM, ""))
	require.Equal(t, "unavailable no", report(unavailableError("no"), ""))
	require.Equal(t, "failed a; b", report(errors.New("a\nb"), ""))
}

// stageOf makes a stage and a target whose children say what the test wants.
func stageOf(t *testing.T, child func(s *Stage, confined bool) Ended) (*Stage, Target) {
	t.Helper()
	testkit.NoLeaks(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	s, err := NewStage(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, Target{Program: "/bin/true", Run: func(_ context.Context, confined bool, _ string, _ []string) (Ended, error) {
		return child(s, confined), nil
	}}
}

// says is a child that answers with one thing unconfined and another confined.
func says(free, confined string) func(*Stage, bool) Ended {
	return func(_ *Stage, c bool) Ended {
		if c {
			return Ended{confined, exit(0)}
		}
		return Ended{free, exit(0)}
	}
}

const through = `escaped ""`

func TestVerdicts(t *testing.T) {
	granted := func(yes bool) func(domain.SandboxPlan, *Stage) bool {
		return func(domain.SandboxPlan, *Stage) bool { return yes }
	}
	waived := []domain.PropertyStatus{{Property: domain.PropertyUDP, State: domain.StateWaived}}
	for name, c := range map[string]struct {
		attempt    Attempt
		child      func(*Stage, bool) Ended
		properties []domain.PropertyStatus
		want       Verdict
	}{
		"held":                      {Attempt{}, says(through, "denied EPERM"), nil, Held},
		"leaked":                    {Attempt{}, says(through, through), nil, Leaked},
		"not provable":              {Attempt{}, says("denied EPERM", "denied EPERM"), nil, NotProvable},
		"not provable, not leaked":  {Attempt{}, says("unavailable no", through), nil, NotProvable},
		"unclear":                   {Attempt{}, says(through, "denied ENOENT"), nil, Unclear},
		"silent":                    {Attempt{}, says(through, ""), nil, Unclear},
		"worked":                    {Attempt{Works: true}, says(through, through), nil, Worked},
		"broken":                    {Attempt{Works: true}, says(through, "denied EPERM"), nil, Broken},
		"granted":                   {Attempt{granted: granted(true)}, says(through, through), nil, Granted},
		"not granted":               {Attempt{granted: granted(false)}, says(through, through), nil, Leaked},
		"granted, but denied":       {Attempt{granted: granted(true)}, says(through, "denied EPERM"), nil, Held},
		"waived":                    {Attempt{Property: domain.PropertyUDP}, says(through, through), waived, Waived},
		"another waived":            {Attempt{Property: domain.PropertyTCP}, says(through, through), waived, Leaked},
		"a limit":                   {Attempt{Limit: "stated"}, says(through, through), nil, Limit},
		"a limit that is none here": {Attempt{Limit: "stated"}, says(through, "denied EPERM"), nil, Held},
		// What the host sees goes before what the child says.
		"seen, although denied":       {Attempt{effect: seen(true, true)}, says(through, "denied EPERM"), nil, Leaked},
		"claimed, and nothing seen":   {Attempt{effect: seen(true, false)}, says(through, through), nil, Unclear},
		"the companion only claims":   {Attempt{effect: seen(false, false)}, says(through, "denied EPERM"), nil, NotProvable},
		"the child cannot tell":       {Attempt{effect: seen(true, false), silent: true}, says(through, through), nil, Held},
		"the child cannot tell, leak": {Attempt{effect: seen(true, true), silent: true}, says(through, through), nil, Leaked},
	} {
		t.Run(name, func(t *testing.T) {
			s, target := stageOf(t, c.child)
			target.Properties = c.properties
			report, err := s.Run(t.Context(), target, []Attempt{c.attempt})
			require.NoError(t, err)
			require.Equal(t, c.want, report.Results[0].Verdict, report.Results[0].Detail)
			require.Equal(t, 1, report.Count(c.want))
			require.Equal(t, c.want.Failed(), report.Failures() != nil)
		})
	}
}

// seen is an effect that is looked for twice: after the companion and after the
// confined child.
func seen(free, confined bool) func(*Stage) (bool, error) {
	calls := 0
	return func(*Stage) (bool, error) {
		calls++
		return calls == 1 && free || calls > 1 && confined, nil
	}
}

func TestWhatArrivesLateIsALeak(t *testing.T) {
	a := Attempt{Name: "late", sends: true}
	s, target := stageOf(t, func(s *Stage, confined bool) Ended {
		if !confined {
			s.arrive([]byte(token(false, a)))
			return Ended{through, exit(0)}
		}
		time.AfterFunc(50*time.Millisecond, func() { s.arrive([]byte("x " + token(true, a) + "\n")) })
		return Ended{"denied EPERM", exit(0)}
	})
	wait := Attempt{Name: "wait", effect: func(*Stage) (bool, error) { time.Sleep(60 * time.Millisecond); return false, nil }}
	report, err := s.Run(t.Context(), target, []Attempt{a, wait})
	require.NoError(t, err)
	require.Equal(t, Leaked, report.Results[0].Verdict, report.Results[0].Detail)
}

func TestReports(t *testing.T) {
	require.ErrorIs(t, Report{}.Err(), ErrNothingProvable)
	require.ErrorIs(t, Report{Results: []Result{{Verdict: NotProvable}, {Verdict: Worked}}}.Err(), ErrNothingProvable)
	require.NoError(t, Report{Results: []Result{{Verdict: Held}, {Verdict: Limit}, {Verdict: NotProvable}}}.Err())
	err := Report{Results: []Result{
		{Verdict: Held}, {Attempt: Attempt{Name: "docker-socket"}, Verdict: Leaked, Detail: "how"}, {Attempt: Attempt{Name: "work"}, Verdict: Broken},
	}}.Err()
	var leak *LeakError
	require.ErrorAs(t, err, &leak)
	require.Equal(t, "2 attempts do not hold:\ndocker-socket: LEAKED: how\nwork: BROKEN", err.Error())
}

func TestAFailingRunEndsTheSuite(t *testing.T) {
	broken := errors.New("broken")
	s, target := stageOf(t, nil)
	target.Run = func(context.Context, bool, string, []string) (Ended, error) { return Ended{}, broken }
	_, err := s.Run(t.Context(), target, []Attempt{{Name: "any"}})
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "attempt any")
	_, err = s.Run(t.Context(), target, []Attempt{{Name: "any", victim: true}})
	require.ErrorContains(t, err, "no victim to attack could be started")
}

func TestCovered(t *testing.T) {
	plan := domain.NewSandboxPlan("test").WithRules(domain.PathRule{Path: "/a/b", Access: domain.AccessRead})
	require.True(t, covered(plan, domain.AccessReadFile, "/a/b"))
	require.True(t, covered(plan, domain.AccessReadFile, "/a/b/c"))
	require.False(t, covered(plan, domain.AccessReadFile, "/a/bc"))
	require.False(t, covered(plan, domain.AccessWriteFile, "/a/b/c"))
	require.False(t, covered(plan, noAccess, "/a/b/c"))
	require.True(t, covered(plan.WithRules(domain.PathRule{Path: "/", Access: domain.AccessRead}), domain.AccessReadFile, "/x"))
}

// The programs that are made by hand are what they should be to others too.
func TestHandMadePrograms(t *testing.T) {
	for _, code := range [][]byte{tellEffectiveUser, socketByInt80, socketByX32} {
		f, err := elf.NewFile(bytes.NewReader(makeELF(code)))
		require.NoError(t, err)
		require.Equal(t, elf.EM_X86_64, f.Machine)
		require.Equal(t, elf.ET_EXEC, f.Type)
		require.Len(t, f.Progs, 1)
		text := make([]byte, f.Progs[0].Filesz)
		_, err = f.Progs[0].ReadAt(text, 0)
		require.NoError(t, err)
		require.True(t, bytes.HasSuffix(text, code))
		require.Equal(t, uint64(len(text)-len(code)), f.Entry-f.Progs[0].Vaddr)
	}
}

func TestTheArenaIsWhatTheKernelSees(t *testing.T) {
	testkit.NoLeaks(t)
	m, err := newArena()
	require.NoError(t, err)
	defer unix.Close(m.fd)
	at, err := m.put([]byte("/proc/self/status\x00"))
	require.NoError(t, err)
	fd, err := raw(unix.SYS_OPENAT, ^uintptr(99), at, unix.O_RDONLY|unix.O_CLOEXEC) // AT_FDCWD
	require.NoError(t, err)
	into, err := m.page()
	require.NoError(t, err)
	require.Zero(t, into%4096)
	_, err = raw(unix.SYS_READ, fd, into, 64)
	require.NoError(t, err)
	require.NoError(t, unix.Close(int(fd)))
	text, err := m.get(into, 5)
	require.NoError(t, err)
	require.Equal(t, "Name:", string(text))
	_, err = m.put(make([]byte, arenaSize))
	require.ErrorIs(t, err, unix.ENOMEM)
	_, err = raw(unix.SYS_MUNMAP, m.addr, arenaSize)
	require.NoError(t, err)
}

func TestTheStageNeedsNoShortPath(t *testing.T) {
	testkit.NoLeaks(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	dir = filepath.Join(dir, strings.Repeat("long", 40))
	require.NoError(t, unix.Mkdir(dir, 0o700))
	s, err := NewStage(dir)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
}
