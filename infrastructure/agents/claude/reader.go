package claude

import (
	"bytes"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// value is one JSON value as it stands in the line, nil if there is none. Its
// methods convert it where the kind fits and give the zero value otherwise, so
// that a field of a kind that nobody expected costs that field and not the
// event. It is valid as long as the line is.
type value []byte

func (v value) isString() bool { return len(v) >= 2 && v[0] == '"' }
func (v value) isObject() bool { return len(v) > 0 && v[0] == '{' }
func (v value) isArray() bool  { return len(v) > 0 && v[0] == '[' }
func (v value) isTrue() bool   { return string(v) == "true" }

// name returns the contents of a string for a comparison: without a copy if
// nothing is escaped in it, nil if v is no string. Invalid UTF-8 is left in.
func (v value) name() []byte {
	if !v.isString() {
		return nil
	}
	if body := v[1 : len(v)-1]; bytes.IndexByte(body, '\\') < 0 {
		return body
	}
	return []byte(v.str())
}

// str returns the contents of a string, with invalid UTF-8 replaced, "" if v
// is no string.
func (v value) str() string {
	if !v.isString() {
		return ""
	}
	if body := v[1 : len(v)-1]; bytes.IndexByte(body, '\\') < 0 && utf8.Valid(body) {
		return string(body)
	}
	// The syntax was checked when the line was read; all that the error can
	// say is that invalid UTF-8 was replaced.
	plain, _ := jsontext.AppendUnquote(nil, v)
	return string(plain)
}

// float returns a number, false if v is none or too large.
func (v value) float() (float64, bool) {
	if len(v) == 0 || v[0] != '-' && (v[0] < '0' || v[0] > '9') {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(v), 64)
	return f, err == nil
}

// maxCount is the largest count that is believed. It leaves room for sums.
const maxCount = 1 << 53

// count returns a number as a count: rounded down, between 0 and maxCount.
func (v value) count() int64 {
	f, ok := v.float()
	if !ok || f < 0 {
		return 0
	}
	return int64(min(f, maxCount))
}

// duration returns a number of units.
func (v value) duration(unit time.Duration) time.Duration {
	return time.Duration(min(v.count(), math.MaxInt64/int64(unit))) * unit
}

// raw returns a copy of v that is valid UTF-8, and so valid JSON.
func (v value) raw() []byte {
	if v == nil || utf8.Valid(v) {
		return bytes.Clone(v)
	}
	return bytes.ToValidUTF8(v, []byte("\uFFFD"))
}

// lenient takes what real streams have: duplicate names, of which the last
// counts, and invalid UTF-8.
var lenient = []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}

// reader walks JSON text. The first syntax error sticks, and everything after
// it reads as nothing; whoever reads checks err at the end. Nesting deeper than
// 10,000 is a syntax error of jsontext's.
type reader struct {
	text []byte
	src  bytes.Buffer
	dec  jsontext.Decoder
	err  error
}

func (r *reader) reset(text []byte) {
	r.text, r.err = text, nil
	r.src = *bytes.NewBuffer(text)
	r.dec.Reset(&r.src, lenient...)
}

// offset returns how much of the text was read.
func (r *reader) offset() int { return int(r.dec.InputOffset()) }

// value reads any value.
func (r *reader) value() value {
	if r.err != nil {
		return nil
	}
	v, err := r.dec.ReadValue()
	if err != nil {
		r.err = err
		return nil
	}
	// The decoder's own slice is only promised until the next read, but what it
	// read last lies in the text as well.
	return r.since(r.offset() - len(v))
}

// since returns the text from start to what was read last, nil after an error.
func (r *reader) since(start int) value {
	if r.err != nil {
		return nil
	}
	end := r.offset()
	return r.text[start:end:end]
}

// enter reads the beginning of an object or an array, as kind says. Any other
// value is read whole and returned instead.
func (r *reader) enter(kind jsontext.Kind) (bool, value) {
	if r.err != nil {
		return false, nil
	}
	if r.dec.PeekKind() != kind {
		return false, r.value()
	}
	_, r.err = r.dec.ReadToken()
	return r.err == nil, nil
}

// more reports whether the object or array that was entered has another
// element, and reads its end if it has not.
func (r *reader) more() bool {
	if r.err != nil {
		return false
	}
	switch r.dec.PeekKind() {
	case '}', ']', 0:
		_, r.err = r.dec.ReadToken()
		return false
	}
	return true
}

// name reads the name of an object's next member.
func (r *reader) name() []byte { return r.value().name() }

// field is a member of an object that pick looks for.
type field struct {
	name string
	to   *value
}

// pick reads an object for some of its members. What is no object has none.
func (r *reader) pick(object value, fields ...field) {
	if !object.isObject() {
		return
	}
	r.reset(object)
	r.enter('{')
	for r.more() {
		name, v := r.name(), r.value()
		for _, f := range fields {
			if string(name) == f.name {
				*f.to = v
				break
			}
		}
	}
}
