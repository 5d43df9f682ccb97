package codex

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner walks JSON text (RFC 8259), strictly but for two things that real
// streams have: duplicate names and invalid UTF-8, which are its caller's to
// deal with. It is there because a general tokenizer costs more than all the
// rest of the parser. The first error sticks: after it there is nothing left to
// read.
type scanner struct {
	text    []byte
	pos     int
	depth   int  // of objects and arrays
	escaped bool // whether there is a backslash in the latest string
	failed  bool
}

// maxDepth bounds the nesting, and with it the stack.
const maxDepth = 10_000

func (s *scanner) fail() { s.pos, s.failed = len(s.text), true }

// peek skips white space and returns the byte after it, 0 at the end.
func (s *scanner) peek() byte {
	for ; s.pos < len(s.text); s.pos++ {
		if c := s.text[s.pos]; c > ' ' || c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			return c
		}
	}
	return 0
}

// enter reads the byte that begins an object or an array, which peek has seen.
func (s *scanner) enter() {
	s.pos++
	s.depth++
	if s.depth > maxDepth {
		s.fail()
	}
}

// more reports whether the object or array has an element after its first n,
// and reads what stands before it: the comma, or the end if there is none.
func (s *scanner) more(n int, end byte) bool {
	c := s.peek()
	switch {
	case s.failed:
		return false
	case c == end:
		s.pos++
		s.depth--
		return false
	case n == 0:
		return true
	case c == ',':
		s.pos++
		return true
	}
	s.fail()
	return false
}

// name reads the name of a member, which it returns as it is quoted, and the
// colon. It is empty after an error.
func (s *scanner) name() []byte {
	s.peek()
	start := s.pos
	s.str()
	name := s.text[start:s.pos]
	if s.peek() != ':' {
		s.fail()
		return nil
	}
	s.pos++
	return name
}

// value reads any value and returns it as it stands in the text, nil after an
// error.
func (s *scanner) value() []byte {
	first := s.peek()
	start := s.pos
	s.skip(first)
	if s.failed {
		return nil
	}
	return s.text[start:s.pos:s.pos]
}

// skip reads the value that begins with that byte, which peek has seen.
func (s *scanner) skip(first byte) {
	switch first {
	case '"':
		s.str()
	case '{':
		s.enter()
		for n := 0; s.more(n, '}'); n++ {
			s.name()
			s.skip(s.peek())
		}
	case '[':
		s.enter()
		for n := 0; s.more(n, ']'); n++ {
			s.skip(s.peek())
		}
	case 't':
		s.literal("true")
	case 'f':
		s.literal("false")
	case 'n':
		s.literal("null")
	default:
		s.number()
	}
}

func (s *scanner) literal(word string) {
	if end := s.pos + len(word); end <= len(s.text) && string(s.text[s.pos:end]) == word {
		s.pos = end
		return
	}
	s.fail()
}

func (s *scanner) number() {
	s.accept('-')
	if !s.accept('0') {
		s.digits()
	}
	if s.accept('.') {
		s.digits()
	}
	if s.accept('e') || s.accept('E') {
		_ = s.accept('+') || s.accept('-')
		s.digits()
	}
}

func (s *scanner) accept(c byte) bool {
	if s.pos < len(s.text) && s.text[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

// digits reads one digit or more.
func (s *scanner) digits() {
	start := s.pos
	for s.pos < len(s.text) && '0' <= s.text[s.pos] && s.text[s.pos] <= '9' {
		s.pos++
	}
	if s.pos == start {
		s.fail()
	}
}

// str reads a string. It does not look for UTF-8: no byte of a longer character
// is one of those that matter here, valid or not.
func (s *scanner) str() {
	text, i := s.text, s.pos+1
	if i > len(text) || text[i-1] != '"' {
		s.fail()
		return
	}
	s.escaped = false
	for {
		// Eight bytes at once, while there are no others than plain ones.
		for i+8 <= len(text) {
			n := plainBytes(binary.LittleEndian.Uint64(text[i:]))
			i += n
			if n < 8 {
				break
			}
		}
		for i < len(text) && plain[text[i]] {
			i++
		}
		if i < len(text) && text[i] == '"' {
			s.pos = i + 1
			return
		}
		n := escapeLen(text[i:])
		if n == 0 {
			s.fail()
			return
		}
		// Where one escape is, there are often more.
		for ; n > 0; n = escapeLen(text[i:]) {
			i += n
		}
		s.escaped = true
	}
}

// escapeLen returns the length of the escape that the text begins with, 0 if it
// begins with none.
func escapeLen(text []byte) int {
	switch {
	case len(text) < 2 || text[0] != '\\':
		return 0
	case escapes[text[1]] != 0:
		return 2
	case text[1] == 'u' && len(text) >= 6 && hex[text[2]]|hex[text[3]]|hex[text[4]]|hex[text[5]] <= 0xf:
		return 6
	}
	return 0
}

// plain says which bytes of a string stand for themselves.
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return t
}()

// plainBytes is how many of the eight bytes of a word are plain before the first
// that is not. The subtractions set the highest bit of a byte that was 0 or, in
// the first term, less than a space. The lowest bit that is set is right; those
// above it may be from a borrow.
func plainBytes(word uint64) int {
	const each, high = 0x0101010101010101, 0x8080808080808080
	quote, backslash := word^each*'"', word^each*'\\'
	stops := (word-each*' ')&^word | (quote-each)&^quote | (backslash-each)&^backslash
	return bits.TrailingZeros64(stops&high) / 8
}

// escapes is what stands for a byte behind a backslash, 0 for none.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// hex is the value of a hexadecimal digit, more than 0xf for what is none.
var hex = func() (t [256]rune) {
	for c := range t {
		t[c] = 0x10
	}
	for i := range rune(10) {
		t['0'+i] = i
	}
	for i := range rune(6) {
		t['a'+i], t['A'+i] = 10+i, 10+i
	}
	return t
}()

// appendUnquoted appends the text of a string that a scanner has read; U+FFFD
// for every byte that is not UTF-8 and for every surrogate without the other.
func appendUnquoted(dst, quoted []byte) []byte {
	in := quoted[1 : len(quoted)-1]
	dst = slices.Grow(dst, len(in))
	for len(in) > 0 {
		if in[0] != '\\' {
			n := bytes.IndexByte(in, '\\')
			if n < 0 {
				n = len(in)
			}
			dst = appendValid(dst, in[:n])
			in = in[n:]
			continue
		}
		if in[1] != 'u' {
			dst = append(dst, escapes[in[1]])
			in = in[2:]
			continue
		}
		r := unit(in)
		in = in[6:]
		switch {
		case r < utf8.RuneSelf:
			dst = append(dst, byte(r))
			continue
		case utf16.IsSurrogate(r):
			r2 := rune(0)
			if len(in) >= 6 && in[0] == '\\' && in[1] == 'u' {
				r2 = unit(in)
			}
			if r = utf16.DecodeRune(r, r2); r != utf8.RuneError {
				in = in[6:]
			}
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst
}

// unit is the UTF-16 code unit that an escape with a 'u' stands for.
func unit(escape []byte) rune {
	return hex[escape[2]]<<12 | hex[escape[3]]<<8 | hex[escape[4]]<<4 | hex[escape[5]]
}

// appendValid appends text, U+FFFD for every byte of it that is not UTF-8.
func appendValid(dst, text []byte) []byte {
	if utf8.Valid(text) {
		return append(dst, text...)
	}
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		dst = utf8.AppendRune(dst, r)
		text = text[n:]
	}
	return dst
}
