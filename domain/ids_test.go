package domain_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

const someID = "01890a5d-ac96-774b-bcce-b302099a8057"

var uuids = []struct {
	text          string
	uuid, session bool
}{
	{someID, true, true},
	{"00000000-0000-0000-0000-000000000000", true, true},
	{"ffffffff-ffff-ffff-ffff-ffffffffffff", true, true},
	{strings.ToUpper(someID), true, false},
	{"01890A5d-ac96-774b-bcce-b302099a8057", true, false},
	{"", false, false},
	{someID[:35], false, false},
	{someID + "0", false, false},
	{someID + "\n", false, false},
	{" " + someID[1:], false, false},
	{"\n" + someID[1:], false, false},
	{"{" + someID + "}", false, false},
	{"urn:uuid:" + someID, false, false},
	{strings.ReplaceAll(someID, "-", ""), false, false},
	{strings.ReplaceAll(someID, "-", "_"), false, false},
	{strings.Repeat("0", 36), false, false},
	{strings.Repeat("-", 36), false, false},
	{"-1890a5d-ac96-774b-bcce-b302099a8057", false, false},
	{"g1890a5d-ac96-774b-bcce-b302099a8057", false, false},
	{"/1890a5d-ac96-774b-bcce-b302099a8057", false, false}, // just before '0'
	{":1890a5d-ac96-774b-bcce-b302099a8057", false, false}, // just after '9'
	{"@1890a5d-ac96-774b-bcce-b302099a8057", false, false}, // just before 'A'
	{"`1890a5d-ac96-774b-bcce-b302099a8057", false, false}, // just before 'a'
	{"01890a5dac96-774b-bcce-b302099a8057-", false, false},
	{"01890a5d-ac96-774b-bcceb-302099a8057", false, false},
	{"../../../../../../../../../etc/passwd", false, false},
	{"../../../../../../../../../../passwd", false, false}, // 36 bytes
	{"\x00" + someID[1:], false, false},
	{"é890a5d-ac96-774b-bcce-b302099a8057", false, false}, // 36 bytes, 35 runes
	{"０1890a5d-ac96-774b-bcce-b302099a80", false, false},  // a full-width digit, 36 bytes
	{"\xff\xfe890a5d-ac96-774b-bcce-b302099a8057"[:36], false, false},
}

func TestIsUUID(t *testing.T) {
	for _, c := range uuids {
		require.Equal(t, c.uuid, domain.IsUUID(c.text), "%q", c.text)
	}
}

func TestParseSessionID(t *testing.T) {
	for _, c := range uuids {
		id, err := domain.ParseSessionID(c.text)
		if c.session {
			require.NoError(t, err)
			require.Equal(t, domain.SessionID(c.text), id)
			continue
		}
		require.Empty(t, id)
		requireInvalid(t, err, "session id", c.text, "not a lower-case UUID", "continue with: --resume ID")
	}
}

// FuzzParseSessionID holds the hand-written check against the form's
// definition: an id that passes is one safe path component.
func FuzzParseSessionID(f *testing.F) {
	for _, c := range uuids {
		f.Add(c.text)
	}
	form := regexp.MustCompile(`\A[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\z`)
	f.Fuzz(func(t *testing.T, s string) {
		id, err := domain.ParseSessionID(s)
		require.Equal(t, form.MatchString(s), err == nil, "%q", s)
		if err != nil {
			require.Empty(t, id)
			requireOneLine(t, err.Error())
			return
		}
		require.Equal(t, s, string(id))
		require.True(t, domain.IsUUID(s))
	})
}
