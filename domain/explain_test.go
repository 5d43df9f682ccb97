package domain

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseFileOp(t *testing.T) {
	for _, op := range FileOps() {
		parsed, err := ParseFileOp(string(op))
		require.NoError(t, err)
		require.Equal(t, op, parsed)
	}
	_, err := ParseFileOp("chmod")
	require.EqualError(t, err, `operation "chmod": unknown; one of read, write, exec, create, delete, rename`)
}

func TestExplainFileAllowsWhatLacksNothing(t *testing.T) {
	workspace := PathRule{Path: "/w", Access: AccessReadWrite, Why: "workspace"}
	cache := PathRule{Path: "/w/cache", Access: AccessRead, Why: "--ro"}
	e := ExplainFile("read /w/cache/x", []Need{{Place: "/w/cache/x", Access: AccessReadFile, Rules: []PathRule{cache, workspace}}})
	require.True(t, e.Allowed)
	require.Equal(t, "read /w/cache/x", e.Question)
	require.Equal(t, "/w/cache (--ro) grants {read_file} on /w/cache/x", e.Because)
	require.True(t, e.Change.IsZero())
}

func TestExplainFileNamesEachRuleThatIsNeeded(t *testing.T) {
	program := PathRule{Path: "/w/run", Access: AccessExecute, Why: "--run"}
	workspace := PathRule{Path: "/w", Access: AccessRead, Why: "workspace"}
	e := ExplainFile("exec /w/run", []Need{{Place: "/w/run", Access: AccessReadFile | AccessExecute, Rules: []PathRule{program, workspace}}})
	require.Equal(t, "/w/run (--run) grants {execute} on /w/run; /w (workspace) grants {read_file} on /w/run", e.Because)
}

func TestExplainFileProposesTheSmallestChange(t *testing.T) {
	for _, c := range []struct {
		name    string
		needs   []Need
		change  []PathRule
		because string
	}{
		{
			"nothing reaches the place",
			[]Need{{Place: "/a", Access: AccessReadFile, Missing: AccessReadFile}},
			[]PathRule{{Path: "/a", Access: AccessRead}},
			"nothing grants {read_file} on /a",
		},
		{
			"a rule reaches the place and grants something else",
			[]Need{{Place: "/a/b", Access: AccessExecute, Missing: AccessExecute, Rules: []PathRule{{Path: "/a", Access: AccessRead}}}},
			[]PathRule{{Path: "/a/b", Access: AccessReadExec}},
			"nothing grants {execute} on /a/b; the nearest rule grants read on /a",
		},
		{
			"two needs at one place make one rule",
			[]Need{
				{Place: "/a", Access: AccessRemoveFile, Missing: AccessRemoveFile},
				{Place: "/a", Access: AccessExecute, Missing: AccessExecute, Detail: "because"},
			},
			[]PathRule{{Path: "/a", Access: AccessReadWriteExec}},
			"nothing grants {remove_file} on /a; nothing grants {execute} on /a (because)",
		},
		{
			"what is not missing is not granted",
			[]Need{{Place: "/a", Access: AccessReadFile}, {Place: "/b", Access: AccessMakeReg, Missing: AccessMakeReg}},
			[]PathRule{{Path: "/b", Access: AccessReadWrite}},
			"nothing grants {make_reg} on /b",
		},
		{
			"device nodes are in no usual set",
			[]Need{{Place: "/a", Access: AccessMakeChar, Missing: AccessMakeChar}},
			[]PathRule{{Path: "/a", Access: AccessMakeChar}},
			"nothing grants {make_char} on /a",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := ExplainFile("?", c.needs)
			require.False(t, e.Allowed)
			require.Equal(t, Change{Rules: c.change}, e.Change)
			require.False(t, e.Change.IsZero())
			require.Equal(t, c.because, e.Because)
		})
	}
}

func TestChangeIsACopy(t *testing.T) {
	before := Change{}.Grant("/a", AccessReadFile)
	after := before.Grant("/a", AccessExecute)
	require.Equal(t, AccessRead, before.Rules[0].Access)
	require.Equal(t, AccessReadExec, after.Rules[0].Access)
}

func TestHint(t *testing.T) {
	e := ExplainFile(`read "/a b"`, []Need{{Place: "/a b", Access: AccessReadFile, Missing: AccessReadFile}})
	require.Equal(t, `the plan denies to read "/a b": nothing grants {read_file} on /a b; to allow it, grant read on "/a b"`, e.Hint())
	e.Change = Change{}
	require.Equal(t, `the plan denies to read "/a b": nothing grants {read_file} on /a b`, e.Hint())
	require.Equal(t, "the plan allows to x: y", Explanation{Question: "x", Because: "y", Allowed: true}.Hint())
	require.Equal(t, "read on /a, TCP to 127.0.0.1:1, TCP port 2 on every host, unix sockets: own", Change{
		Rules: []PathRule{{Path: "/a", Access: AccessRead}}, Destinations: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")},
		ConnectTCP: []uint16{2}, UnixSockets: UnixSocketsOwn,
	}.String())
}
