//go:build unix

package fakecli

import (
	"io"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// object is a JSON object as name, value, name, value, … It keeps the order of
// its members, because the order of the real programs' output is part of what
// a parser has to cope with.
type object []any

// MarshalJSONTo implements [json.MarshalerTo].
func (o object) MarshalJSONTo(enc *jsontext.Encoder) error {
	if err := enc.WriteToken(jsontext.BeginObject); err != nil {
		return err
	}
	for _, part := range o {
		if err := json.MarshalEncode(enc, part); err != nil {
			return err
		}
	}
	return enc.WriteToken(jsontext.EndObject)
}

// jsonInvalidUTF8 turns invalid bytes into U+FFFD, as both programs do.
var jsonInvalidUTF8 = jsontext.AllowInvalidUTF8(true)

// list is a JSON array of anything; nil is the empty array.
type list []any

// lines writes whole lines, each with one write, from several goroutines.
type lines struct {
	mu   sync.Mutex
	w    io.Writer
	opts json.Options
	// failed is called if the reader is gone, with the lock held; nil ignores it.
	failed func()
}

// emit writes a value as one line.
func (l *lines) emit(v any) {
	data, err := json.Marshal(v, l.opts, jsonInvalidUTF8)
	if err != nil {
		panic(err) // a line of the fake's own that is no JSON is a bug
	}
	l.write(append(data, '\n'))
}

// write writes bytes as they are.
func (l *lines) write(data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.w.Write(data); err != nil && l.failed != nil {
		l.failed()
	}
}
