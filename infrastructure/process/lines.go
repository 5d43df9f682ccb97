package process

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"

	"github.com/caisson-run/caisson/domain"
)

// oversizeHead is how much of an over-long line is kept.
const oversizeHead = 4 << 10

// assembler cuts a stream into lines at \n alone. Memory stays bounded by the
// cap: of a longer line only its head, length and digest are kept.
type assembler struct {
	limit   int
	pending []byte    // the start of a line whose end has not come
	over    hash.Hash // of an over-long line, nil otherwise
	overLen int64
}

// feed takes the next bytes and calls line for every line that they end,
// without its newline. The slice is valid during the call only.
func (a *assembler) feed(data []byte, line func(text []byte, over *domain.Oversize)) {
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		if end < 0 {
			a.keep(data)
			return
		}
		head := data[:end]
		data = data[end+1:]
		if a.over == nil && len(a.pending) == 0 && len(head) <= a.limit {
			line(head, nil)
			continue
		}
		a.keep(head)
		a.flush(line)
	}
}

// keep adds to the line that is being assembled.
func (a *assembler) keep(data []byte) {
	if a.over == nil && len(a.pending)+len(data) <= a.limit {
		a.pending = append(a.pending, data...)
		return
	}
	if a.over == nil {
		a.over = sha256.New()
		a.over.Write(a.pending)
		a.overLen = int64(len(a.pending))
		head := min(len(a.pending), oversizeHead)
		a.pending = append([]byte(nil), a.pending[:head]...)
	}
	if room := oversizeHead - len(a.pending); room > 0 {
		a.pending = append(a.pending, data[:min(room, len(data))]...)
	}
	a.over.Write(data)
	a.overLen += int64(len(data))
}

// flush ends the line that is being assembled, if there is one.
func (a *assembler) flush(line func(text []byte, over *domain.Oversize)) {
	if a.over != nil {
		line(nil, &domain.Oversize{Bytes: a.overLen, SHA256: hex.EncodeToString(a.over.Sum(nil)), Head: a.pending})
		a.pending, a.over, a.overLen = nil, nil, 0
		return
	}
	line(a.pending, nil)
	if cap(a.pending) > 2*chunkSize {
		a.pending = nil // one long line must not hold its memory for the whole turn
	} else {
		a.pending = a.pending[:0]
	}
}

// partial reports whether a line has begun and not ended.
func (a *assembler) partial() bool { return a.over != nil || len(a.pending) > 0 }
