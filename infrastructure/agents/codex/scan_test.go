package codex

import (
	"bytes"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
)

// sameAsLibrary holds the scanner against the library's tokenizer: the same
// text is a value, it ends at the same byte, and strings mean the same.
func sameAsLibrary(t *testing.T, text []byte) {
	t.Helper()
	dec := jsontext.NewDecoder(bytes.NewReader(text), lenient)
	want, err := dec.ReadValue()
	s := scanner{text: text}
	got := s.value()
	require.Equal(t, err != nil, s.failed, "%.100q: %v", text, err)
	if err != nil {
		require.Nil(t, got)
		return
	}
	require.Equal(t, []byte(want), got)
	require.Equal(t, int(dec.InputOffset()), s.pos)
	require.Zero(t, s.depth)
	if got[0] == '"' {
		// The error says that something was replaced.
		plain, _ := jsontext.AppendUnquote(nil, want)
		require.Equal(t, string(plain), string(appendUnquoted(nil, got)))
		require.Equal(t, bytes.IndexByte(got, '\\') >= 0, s.escaped)
	}
}

func scannerTexts() (all []string) {
	all = []string{
		"", " ", "{", "[", `{"a":1,}`, "[1,]", "{,}", "[,]", `{"a"}`, `{"a":}`, `{1:2}`, `{"a" : 1 , "a":[ ] }x`, "[1 2]", "]", "}",
		"true", "tru", "truE", "falsex", "null", "nul", "-", "-0", "01", "1.", "1.5e+3", "1e", "1E-", ".5", "+1", "1e5.", "-1.0E-10,", "1\x00",
		"\ufeff{}", "\u00a0{}", "\v1", "{\"a\":1}\xff", "[[{}],{\"\":[null]}]",
	}
	// In every place in a word of eight bytes and around it.
	for _, s := range []string{
		``, `\"`, `\\`, `\/`, `\b\f\n\r\t`, `\x`, `\`, `\u`, `\u12`, `\u12g4`, `\u00e9`, `\u0000\u001F`, `\uD83D\uDE00`, `\ud83d`, `\ude00`,
		`\ud83d\ud83d\ude00`, `\ud83dx`, `\ud83d\n`, `\uFFFF`, "\x00", "\x1f", "\n", "\x20\x7f", "\x80", "\xff", "\xc3\xa9", "\xe2\x82", "\xed\xa0\x80",
		"\xf0\x9f\x98\x80", "!\x01", "\x01!", "#\"", "]\\", "\xa2\xdc",
	} {
		for before := range 10 {
			for after := range 10 {
				all = append(all, `"`+strings.Repeat("a", before)+s+strings.Repeat("b", after)+`"`)
			}
		}
	}
	for _, n := range []int{maxDepth - 1, maxDepth, maxDepth + 1} {
		all = append(all, strings.Repeat("[", n)+strings.Repeat("]", n), strings.Repeat(`{"a":`, n)+"1"+strings.Repeat("}", n))
	}
	return all
}

func TestScanner(t *testing.T) {
	for _, text := range scannerTexts() {
		sameAsLibrary(t, []byte(text))
		// And cut short.
		if text != "" && len(text) < 100 {
			sameAsLibrary(t, []byte(text[:len(text)-1]))
		}
	}
}

func FuzzScanner(f *testing.F) {
	for _, text := range scannerTexts() {
		if len(text) < 20 {
			f.Add([]byte(text))
		}
	}
	f.Fuzz(sameAsLibrary)
}
