package store

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// maxLine bounds a line. Each byte of an agent's longest line, 64 MiB, may
	// take six.
	maxLine = 512 << 20
	// block is how much is searched at once, and probe how much to find a line.
	block = 64 << 10
	probe = 4 << 10
	// readAhead is how much a reader of events holds, also one that stalls in the
	// middle: a thousand of them are to cost less than their sessions.
	readAhead = 8 << 10
)

// readers holds readers for the events: whoever falls behind a turn that runs
// begins to read again and again.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readAhead) }}

// tail finds the end of the last whole event of a log, and its head; what
// follows was left unfinished. A line that ends with a newline and is no event
// all the same comes from a loss of power, after which a file may have gaps.
func tail(file io.ReaderAt, size int64) (end int64, last head, err error) {
	first, err := checkHeader(file, size)
	if err != nil || first == 0 {
		return 0, head{}, err
	}
	end, err = lineEnd(file, first, size)
	for err == nil && end > first {
		var start int64
		if start, err = lineEnd(file, first, end-1); err != nil {
			break
		}
		var line []byte
		if line, err = readAt(file, start, end); err != nil {
			break
		}
		if h, ok := parseHead(line); ok && bytes.HasSuffix(line, []byte("}\n")) && jsontext.Value(line).IsValid() {
			return end, h, nil
		}
		end = start
	}
	return end, head{}, err
}

// lineEnd returns where the last line that is whole before an offset ends, not
// below first.
func lineEnd(file io.ReaderAt, first, before int64) (int64, error) {
	for before > first {
		from := max(first, before-block)
		buf, err := readAt(file, from, before)
		if err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(buf, '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		before = from
	}
	return first, nil
}

// readAt reads a part of a file that must be there.
func readAt(file io.ReaderAt, from, to int64) ([]byte, error) {
	if to-from > maxLine {
		return nil, fmt.Errorf("a line of %d bytes at %d", to-from, from)
	}
	buf := make([]byte, to-from)
	if n, err := file.ReadAt(buf, from); err != nil && (n < len(buf) || !errors.Is(err, io.EOF)) {
		return nil, err
	}
	return buf, nil
}

// seek returns the beginning of a line before which there is no event with a
// number from or above, close to the first one that has. The numbers of a log
// rise, so it halves.
func seek(file io.ReaderAt, size int64, from uint64) (int64, error) {
	low, err := checkHeader(file, size)
	if err != nil || from <= 1 {
		return low, err
	}
	for high := size; high-low > block; {
		middle := low + (high-low)/2
		start, h, err := firstLine(file, middle, high)
		switch {
		case err != nil:
			return 0, err
		case start < 0 || h.seq >= from:
			high = middle
		default:
			low = start
		}
	}
	return low, nil
}

// firstLine returns the first line that begins behind at and before the end,
// with its head; -1 if there is none.
func firstLine(file io.ReaderAt, at, end int64) (int64, head, error) {
	for at < end {
		buf, err := readAt(file, at, min(at+probe, end))
		if err != nil {
			return 0, head{}, err
		}
		i := bytes.IndexByte(buf, '\n')
		if i < 0 {
			at += int64(len(buf))
			continue
		}
		start := at + int64(i) + 1
		if start >= end {
			return -1, head{}, nil
		}
		line, err := readAt(file, start, min(start+2*maxHead, end))
		if err != nil {
			return 0, head{}, err
		}
		h, ok := parseHead(line)
		if !ok && start+int64(len(line)) < end {
			return 0, head{}, fmt.Errorf("no event at byte %d", start)
		}
		if !ok {
			return -1, head{}, nil // an unfinished one
		}
		return start, h, nil
	}
	return -1, head{}, nil
}

// readLines gives the lines of events to the function, from an offset where one
// begins, until there is no whole line any more, or the function returns false.
// A line is only valid during the call.
func readLines(file io.ReaderAt, at int64, give func(h head, line []byte) (bool, error)) error {
	r := readers.Get().(*bufio.Reader)
	defer readers.Put(r)
	defer r.Reset(nil)
	r.Reset(io.NewSectionReader(file, at, math.MaxInt64-at))
	var long []byte
	last := uint64(0)
	for {
		line, err := r.ReadSlice('\n')
		for long = long[:0]; errors.Is(err, bufio.ErrBufferFull); line, err = r.ReadSlice('\n') {
			if long = append(long, line...); len(long) > maxLine {
				return fmt.Errorf("a line of more than %d bytes at %d", maxLine, at)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil // what is left is being written, or was never finished
		}
		if err != nil {
			return err
		}
		if len(long) > 0 {
			long = append(long, line...)
			line = long
		}
		size := int64(len(line))
		line = line[:len(line)-1]
		h, ok := parseHead(line)
		switch {
		case !ok || line[len(line)-1] != '}':
			return fmt.Errorf("no event at byte %d", at)
		case h.seq <= last:
			return fmt.Errorf("event %d follows %d at byte %d", h.seq, last, at)
		}
		last = h.seq
		if more, err := give(h, line); err != nil || !more {
			return err
		}
		if cap(long) > keptBuffer {
			long = nil
		}
		at += size
	}
}
