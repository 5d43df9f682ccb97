package ui

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/caisson-run/caisson/infrastructure/jsonl"
)

// Escape makes text from an agent harmless for a terminal: every byte that is
// not UTF-8 and every character that is neither graphic, nor a newline, nor a
// tab becomes visible as \xNN, \uNNNN or \UNNNNNNNN.
func Escape(s string) string { return escape(s, "\n\t") }

// Line is Escape for what must stay on one line: newlines and tabs become
// visible too.
func Line(s string) string { return escape(s, "") }

func escape(s, keep string) string {
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case jsonl.Harmless(r) || strings.ContainsRune(keep, r):
			b.WriteString(s[i : i+n])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		i += n
	}
	return b.String()
}

// Cut shortens a line to at most that many characters.
func Cut(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	r := []rune(s)
	return string(r[:most-1]) + "…"
}

// Fit cuts a line so that it takes less than width columns: some terminals go to
// the next line in the last one.
func Fit(line string, width int) string {
	used := 0
	for i, r := range line {
		if used += columns(r); used >= width {
			return line[:i]
		}
	}
	return line
}

// columns says how many columns a character takes at most. Terminals differ
// about everything but ASCII; too much only breaks a line early, too little
// would let the terminal break it.
func columns(r rune) int {
	switch {
	case r == '\t':
		return 8
	case r < 0x80:
		return 1
	}
	return 2
}

// wrap splits a line into pieces of at most width columns, at a space where
// one is near the end; width 0 or less does not split.
func wrap(line string, width int) []string {
	var pieces []string
	if width <= 0 {
		return []string{line}
	}
	width = max(width, 8)
	start, space, used := 0, -1, 0
	for i, r := range line {
		c := columns(r)
		if used+c > width {
			end := i
			if space > start+(i-start)/2 {
				end = space
			}
			pieces = append(pieces, line[start:end])
			start, used, space = end, 0, -1
			for _, q := range line[start:i] {
				used += columns(q)
			}
		}
		used += c
		if r == ' ' {
			space = i + 1
		}
	}
	return append(pieces, line[start:])
}
