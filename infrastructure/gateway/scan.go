package gateway

// name is a member's name in a JSON text that matters here.
type name uint8

const (
	nameOther name = iota // also the elements of an array
	nameMessage
	nameResponse
	nameUsage
	nameInput
	nameOutput
	nameCacheRead
	nameCacheCreation
	nameInputDetails
	nameOutputDetails
	nameCached
	nameCacheWrite
	nameReasoning
)

func nameOf(text []byte) name {
	switch string(text) {
	case "message":
		return nameMessage
	case "response":
		return nameResponse
	case "usage":
		return nameUsage
	case "input_tokens":
		return nameInput
	case "output_tokens":
		return nameOutput
	case "cache_read_input_tokens":
		return nameCacheRead
	case "cache_creation_input_tokens":
		return nameCacheCreation
	case "input_tokens_details":
		return nameInputDetails
	case "output_tokens_details":
		return nameOutputDetails
	case "cached_tokens":
		return nameCached
	case "cache_write_tokens":
		return nameCacheWrite
	case "reasoning_tokens", "thinking_tokens":
		return nameReasoning
	}
	return nameOther
}

const (
	maxPath   = 4       // no report stands deeper
	maxDepth  = 512     // a text that nests deeper is not looked at
	maxName   = 32      // no name that matters is longer
	maxNumber = 1 << 50 // nor any number of tokens
)

// scanner finds the whole numbers in a JSON text that comes in pieces, and where
// they stand. It has a fixed size, copies nothing but short names, and cannot
// fail: of a text that is no JSON it finds fewer numbers, or wrong ones, and
// goes on at the next reset. Numbers in a string are no numbers, so the text of
// an answer cannot pretend to be its report.
type scanner struct {
	// number gets every whole number that is not negative and stands in an
	// object, with the names that lead to it. The slice is only valid during the
	// call.
	number func(path []name, value int64)

	depth  int
	object [maxDepth / 64]uint64 // which of the open containers are objects
	path   [maxPath]name
	lost   bool // too deep

	inString, escaped bool
	wantName, isName  bool // in an object, before the colon
	text              [maxName]byte
	length            int // of the string; more than maxName if it is longer

	digits bool // in a number
	whole  bool // that may count
	value  int64
}

func (s *scanner) reset() { *s = scanner{number: s.number} }

// byte takes the next byte.
func (s *scanner) byte(b byte) {
	switch {
	case s.lost:
	case s.inString:
		s.inText(b)
	case b >= '0' && b <= '9':
		if !s.digits {
			s.digits, s.whole, s.value = true, true, 0
		}
		if s.value = s.value*10 + int64(b-'0'); s.value > maxNumber {
			s.whole, s.value = false, 0
		}
	case b == ' ' || b == '\t' || b == '\n' || b == '\r':
		s.endNumber()
	case b == '"':
		s.inString, s.isName, s.length = true, s.wantName, 0
	case b == ':':
		s.wantName = false
	case b == ',':
		s.endNumber()
		s.wantName = s.inObject()
	case b == '{' || b == '[':
		s.open(b == '{')
	case b == '}' || b == ']':
		s.endNumber()
		s.depth = max(0, s.depth-1)
		s.wantName = false
	default:
		// A minus, a point, an exponent, or true, false and null.
		s.digits, s.whole = true, false
	}
}

func (s *scanner) inText(b byte) {
	switch {
	case s.escaped:
		// No name that matters has an escape.
		s.escaped, s.length = false, maxName+1
	case b == '\\':
		s.escaped = true
	case b == '"':
		s.inString = false
		if s.isName && s.depth <= maxPath {
			s.path[s.depth-1] = nameOther
			if s.length <= maxName {
				s.path[s.depth-1] = nameOf(s.text[:s.length])
			}
		}
	case s.isName && s.length < maxName:
		s.text[s.length] = b
		s.length++
	default:
		s.length = maxName + 1
	}
}

func (s *scanner) open(object bool) {
	if s.depth == maxDepth {
		s.lost = true
		return
	}
	word, bit := s.depth/64, uint64(1)<<(s.depth%64)
	if s.object[word] &^= bit; object {
		s.object[word] |= bit
	}
	if s.depth < maxPath {
		s.path[s.depth] = nameOther
	}
	s.depth++
	s.wantName = object
}

// inObject reports whether the innermost container is an object.
func (s *scanner) inObject() bool {
	if s.depth == 0 {
		return false
	}
	at := s.depth - 1
	return s.object[at/64]&(1<<(at%64)) != 0
}

func (s *scanner) endNumber() {
	if s.digits && s.whole && s.depth <= maxPath && s.inObject() {
		s.number(s.path[:s.depth], s.value)
	}
	s.digits = false
}
