package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// stream says where bytes came from.
type stream byte

const (
	fromStdout stream = 1
	fromStderr stream = 2
)

// frameHead is the size of what stands before every chunk in the spool: one
// byte for the stream and four for the length, big endian.
const frameHead = 5

// chunkSize is how much is read from a pipe at once: the default size of a
// Linux pipe (pipe(7)).
const chunkSize = 64 << 10

// chunks holds buffers of a frame's largest size. They are borrowed only while
// there are bytes to move, so a thousand quiet sessions hold none.
var chunks = sync.Pool{New: func() any { return new([frameHead + chunkSize]byte) }}

// spool is the file between the readers of a child's output, which must never
// wait, and the consumer, which may take its time. It holds what is not consumed
// yet: whenever that is nothing, it begins anew. The file has no name: it goes
// away with the process. Any number of goroutines may append, one may read.
type spool struct {
	file  *os.File
	limit int64

	mu     sync.Mutex
	size   int64 // of complete frames
	output int64 // bytes of output so far
	err    error // of an append; final
	done   bool

	read   atomic.Int64 // offset of the consumer
	last   atomic.Int64 // when output came or was read last, in nanoseconds of the monotonic clock
	notify chan struct{}
}

// OutputLimitError: a turn wrote more than it may.
type OutputLimitError struct {
	Limit int64
}

func (e *OutputLimitError) Error() string {
	return fmt.Sprintf("the turn wrote more than %d bytes (output limit)", e.Limit)
}

func newSpool(dir string, limit int64) (*spool, error) {
	file, err := unnamedFile(dir)
	if err != nil {
		return nil, err
	}
	s := &spool{file: file, limit: limit, notify: make(chan struct{}, 1)}
	s.touch()
	return s, nil
}

// unlinkedFile makes a file and takes its name away. A process that is killed in
// between leaves it.
func unlinkedFile(dir string) (*os.File, error) {
	file, err := os.CreateTemp(dir, "spool-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// append adds the n bytes of output that stand in the buffer behind the room
// for the frame's head. After an error the output is lost and every further
// append fails alike.
func (s *spool) append(from stream, buf *[frameHead + chunkSize]byte, n int) error {
	s.touch()
	buf[0] = byte(from)
	binary.BigEndian.PutUint32(buf[1:], uint32(n))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if s.output+int64(n) > s.limit {
		s.err = &OutputLimitError{Limit: s.limit}
		return s.err
	}
	if s.read.Load() == s.size {
		// All was read, so the reader looks at nothing.
		s.size = 0
		s.read.Store(0)
	}
	if _, err := s.file.WriteAt(buf[:frameHead+n], s.size); err != nil {
		s.err = fmt.Errorf("spool: %w", err)
		return s.err
	}
	s.size += int64(frameHead + n)
	s.output += int64(n)
	s.wake()
	return nil
}

// failure returns why output was lost, nil if none was.
func (s *spool) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// finish says that nothing will be appended any more.
func (s *spool) finish() {
	s.mu.Lock()
	s.done = true
	s.mu.Unlock()
	s.wake()
}

func (s *spool) wake() {
	select {
	case s.notify <- struct{}{}:
	default:
	}
}

// touch notes that something happened now.
func (s *spool) touch() { s.last.Store(int64(time.Since(clockBase))) }

var clockBase = time.Now()

// quiet returns for how long there has been nothing new: no output, and none
// that the consumer has yet to read.
func (s *spool) quiet() time.Duration {
	if s.unread() {
		return 0
	}
	return time.Since(clockBase) - time.Duration(s.last.Load())
}

func (s *spool) unread() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.read.Load() < s.size
}

// await returns when there is something to read, or nothing will come any more.
func (s *spool) await() {
	for {
		s.mu.Lock()
		ready := s.done || s.read.Load() < s.size
		s.mu.Unlock()
		if ready {
			return
		}
		<-s.notify
	}
}

// next reads some whole chunks through the buffer and gives them to the
// function, in order. It returns io.EOF after the last one. Call await first.
func (s *spool) next(buf *[frameHead + chunkSize]byte, chunk func(from stream, data []byte)) error {
	s.mu.Lock()
	size := s.size
	s.mu.Unlock()
	at := s.read.Load()
	if at == size {
		return io.EOF
	}
	rest := buf[:min(int64(len(buf)), size-at)]
	if _, err := s.file.ReadAt(rest, at); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	for len(rest) >= frameHead {
		end := frameHead + int(binary.BigEndian.Uint32(rest[1:]))
		if end > len(buf) {
			return fmt.Errorf("spool: a frame of %d bytes", end)
		}
		if end > len(rest) {
			break // the buffer holds one whole frame at least; this is a later one
		}
		chunk(stream(rest[0]), rest[frameHead:end])
		rest = rest[end:]
		at += int64(end)
		s.read.Store(at)
	}
	// A consumer that was behind has only now heard of the output: what the
	// agent waits for, such as an answer or the end of its input, comes after.
	s.touch()
	return nil
}

func (s *spool) close() error { return s.file.Close() }
