package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// kind is what a value is.
type kind string

// The kinds, as an error names them.
const (
	kindString  kind = "a string"
	kindInteger kind = "an integer"
	kindNumber  kind = "a number"
	kindBool    kind = "true or false"
	kindList    kind = "a list"
	kindTable   kind = "a table"
	kindDate    kind = "a date or a time"
)

// spot is a place in a file.
type spot struct {
	file         string
	line, column int
}

// String is the form that a reason has: it says where to look, and survives
// changes within the line.
func (s spot) String() string {
	if s.line == 0 {
		return s.file
	}
	return fmt.Sprintf("%s:%d", s.file, s.line)
}

// value is a value of a document with its place.
type value struct {
	kind   kind
	at     spot
	text   string  // of a string; otherwise as it is written
	number float64 // of an integer and of a number
	truth  bool
	list   []*value
	table  []*entry // in the document's order
}

// entry is a key with its value.
type entry struct {
	name  string
	at    spot
	value *value
}

func (v *value) get(name string) *value {
	for _, e := range v.table {
		if e.name == name {
			return e.value
		}
	}
	return nil
}

// parse reads a document. go-toml checks that it is TOML, duplicate keys and the
// like included; its parser, which alone tells where a value stands, then gives
// the tree.
func parse(file string, data []byte) (*value, error) {
	if !utf8.Valid(data) {
		return nil, at(file, data, invalidUTF8(data), "not valid UTF-8", "save it as UTF-8")
	}
	if err := toml.Unmarshal(data, &map[string]any{}); err != nil {
		fault := &Error{File: file, Reason: "not TOML", Err: err}
		if decode := (*toml.DecodeError)(nil); errors.As(err, &decode) {
			fault.Line, fault.Column = decode.Position()
			fault.Reason, fault.Err = strings.TrimPrefix(decode.Error(), "toml: "), nil
		}
		return nil, fault
	}
	b := builder{file: file, data: data}
	b.parser.Reset(data)
	root := &value{kind: kindTable, at: spot{file: file, line: 1, column: 1}}
	current := root
	for b.parser.NextExpression() {
		e := b.parser.Expression()
		switch e.Kind {
		case unstable.KeyValue:
			b.put(current, e)
		case unstable.Table:
			current = b.open(root, e, false)
		case unstable.ArrayTable:
			current = b.open(root, e, true)
		}
	}
	if err := b.parser.Error(); err != nil {
		return nil, &Error{File: file, Reason: "not TOML", Err: errors.New(err.Error())}
	}
	return root, nil
}

func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(data)
}

func at(file string, data []byte, offset int, reason, remedy string) *Error {
	s := place(file, data, offset)
	return &Error{File: file, Line: s.line, Column: s.column, Reason: reason, Remedy: remedy}
}

// place counts lines and characters.
func place(file string, data []byte, offset int) spot {
	before := data[:offset]
	line := before[bytes.LastIndexByte(before, '\n')+1:]
	return spot{file: file, line: bytes.Count(before, []byte{'\n'}) + 1, column: utf8.RuneCount(line) + 1}
}

// builder makes the tree. The document is known to be well formed.
type builder struct {
	file   string
	data   []byte
	parser unstable.Parser
}

func (b *builder) spot(n *unstable.Node) spot { return place(b.file, b.data, int(n.Raw.Offset)) }

// open returns the table of a header.
func (b *builder) open(root *value, e *unstable.Node, list bool) *value {
	table := root
	for keys := e.Key(); keys.Next(); {
		key := keys.Node()
		table = b.child(table, key, list && keys.IsLast())
	}
	return table
}

// child returns the table of a key; for a list of tables a new one, if it is to
// be added, and otherwise the last.
func (b *builder) child(table *value, key *unstable.Node, add bool) *value {
	name, where := string(key.Data), b.spot(key)
	v := table.get(name)
	if v == nil {
		v = &value{kind: kindTable, at: where}
		if add {
			v.kind = kindList
		}
		table.table = append(table.table, &entry{name: name, at: where, value: v})
	}
	if v.kind != kindList {
		return v
	}
	if add {
		v.list = append(v.list, &value{kind: kindTable, at: where})
	}
	return v.list[len(v.list)-1]
}

// put adds a key with its value.
func (b *builder) put(table *value, e *unstable.Node) {
	for keys := e.Key(); keys.Next(); {
		key := keys.Node()
		if !keys.IsLast() {
			table = b.child(table, key, false)
			continue
		}
		table.table = append(table.table, &entry{name: string(key.Data), at: b.spot(key), value: b.value(e.Value(), b.spot(key))})
	}
}

// value returns a value. Of lists the parser does not tell the place, so theirs is
// that of the key.
func (b *builder) value(n *unstable.Node, key spot) *value {
	v := &value{text: string(n.Data), at: key}
	if n.Raw.Length > 0 {
		v.at = b.spot(n)
	}
	switch n.Kind {
	case unstable.String:
		v.kind = kindString
	case unstable.Integer:
		v.kind = kindInteger
		i, _ := strconv.ParseInt(strings.ReplaceAll(v.text, "_", ""), 0, 64)
		if plain := strings.ReplaceAll(v.text, "_", ""); !strings.HasPrefix(plain, "0") {
			i, _ = strconv.ParseInt(plain, 10, 64)
		}
		v.number = float64(i)
	case unstable.Float:
		v.kind = kindNumber
		v.number = math.NaN()
		if f, err := strconv.ParseFloat(strings.ReplaceAll(v.text, "_", ""), 64); err == nil {
			v.number = f
		}
	case unstable.Bool:
		v.kind, v.truth = kindBool, v.text == "true"
	case unstable.Array:
		v.kind = kindList
		for items := n.Children(); items.Next(); {
			if items.Node().Kind != unstable.Comment {
				v.list = append(v.list, b.value(items.Node(), key))
			}
		}
	case unstable.InlineTable:
		v.kind = kindTable
		for items := n.Children(); items.Next(); {
			if items.Node().Kind == unstable.KeyValue {
				b.put(v, items.Node())
			}
		}
	default:
		v.kind = kindDate
	}
	return v
}
