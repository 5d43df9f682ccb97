package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
	"github.com/caisson-run/caisson/ports"
)

const logFile = "events.jsonl"

const (
	// finalRoom is kept free at the end of a log for the event that ends the turn,
	// if there is no room for others any more: its stderr tail has 16 KiB, each
	// byte of which may take six.
	finalRoom = 128 << 10
	// roomStep is how much room is taken at once.
	roomStep = 256 << 10
	// keptBuffer is the largest buffer that is kept for the next event.
	keptBuffer = 64 << 10
)

// buffers holds what events are encoded into, so that a thousand quiet sessions
// hold none.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// eventLog is the ports.SessionLog in a file. Whoever has it holds the session's
// lock, so nobody else writes to the file.
type eventLog struct {
	id     domain.SessionID
	epoch  uint64
	unlock func() error

	mu     sync.Mutex
	file   *os.File
	size   int64  // of the whole lines
	room   int64  // the file system has space for the file up to here
	last   uint64 // the highest number that is taken
	broken error  // why nothing can be appended any more
	closed bool
}

// Open implements ports.SessionStore.
func (s *Store) Open(ctx context.Context, id domain.SessionID) (_ ports.SessionLog, err error) {
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unlock())
		}
	}()
	session, err := s.openSession(ctx, id, true)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	if err := sweep(session, recordFile); err != nil {
		return nil, fmt.Errorf("session %s: remove what a writer that died left: %w", id, err)
	}
	file, err := openRegular(session, logFile, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("open the log of session %s: %w", id, err)
	}
	l := &eventLog{id: id, unlock: unlock, file: file}
	if err := l.repair(); err != nil {
		return nil, errors.Join(fmt.Errorf("the log of session %s: %w", id, err), file.Close())
	}
	// A record that is missing or not understood takes no number; who resumes a
	// session reads it too, and stops.
	if r, err := s.Load(ctx, id); err == nil {
		l.last = max(l.last, r.LastSeq)
		l.epoch = max(l.epoch, r.Epoch)
	}
	l.epoch++
	return l, nil
}

// repair finds the end of the log, and cuts off what a writer that died left
// behind it.
func (l *eventLog) repair() error {
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	end, last, err := tail(l.file, info.Size())
	if err != nil {
		return err
	}
	if end < info.Size() {
		if err := l.file.Truncate(end); err != nil {
			return fmt.Errorf("cut off its torn end: %w", err)
		}
	}
	l.size, l.epoch, l.last = end, last.epoch, last.seq
	return nil
}

// Epoch implements ports.SessionLog.
func (l *eventLog) Epoch() uint64 { return l.epoch }

// LastSeq implements ports.SessionLog.
func (l *eventLog) LastSeq() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// Append implements ports.SessionLog.
func (l *eventLog) Append(_ context.Context, e domain.Event) error {
	if e.Session != l.id {
		return &domain.InvalidError{What: "event", Value: string(e.Session), Reason: "it belongs to another session than " + string(l.id)}
	}
	buf := buffers.Get().(*[]byte)
	defer func() {
		if cap(*buf) <= keptBuffer {
			buffers.Put(buf)
		}
	}()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if e.Seq != l.last+1 {
		return &domain.InvalidError{What: "sequence number", Value: strconv.FormatUint(e.Seq, 10), Reason: fmt.Sprintf("the log goes on with %d", l.last+1)}
	}
	line := (*buf)[:0]
	if l.size == 0 {
		line = append(line, logHeader...)
	}
	line = appendLine(line, l.epoch, e)
	*buf = line
	_, final := e.Reply.(domain.Final)
	if err := l.write(line, final); err != nil {
		return fmt.Errorf("append to the log of session %s: %w", l.id, err)
	}
	l.last = e.Seq
	return nil
}

func (l *eventLog) usable() error {
	if l.closed {
		return fmt.Errorf("the log of session %s: %w", l.id, domain.ErrClosed)
	}
	return l.broken
}

// write appends whole lines, or nothing.
func (l *eventLog) write(lines []byte, final bool) error {
	if !final {
		if err := l.makeRoom(l.size + int64(len(lines)) + finalRoom); err != nil {
			return err
		}
	}
	_, err := l.file.WriteAt(lines, l.size)
	if err == nil {
		l.size += int64(len(lines))
		return nil
	}
	// A part of it may be there, which the next line must not follow.
	if cut := l.file.Truncate(l.size); cut != nil {
		l.broken = fmt.Errorf("its torn end cannot be cut off: %w", cut)
		return errors.Join(err, l.broken)
	}
	l.room = 0
	return err
}

// makeRoom takes space for the file up to an offset, without making it longer.
func (l *eventLog) makeRoom(upTo int64) error {
	if upTo <= l.room {
		return nil
	}
	from := max(l.room, l.size)
	if err := reserve(l.file, from, upTo+roomStep-from); err != nil {
		return err
	}
	l.room = upTo + roomStep
	return nil
}

// giveBack returns the space that is not used.
func (l *eventLog) giveBack() error {
	if l.room <= l.size {
		return nil
	}
	l.room = 0
	return l.file.Truncate(l.size)
}

// Sync implements ports.SessionLog.
func (l *eventLog) Sync(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if err := errors.Join(l.giveBack(), l.file.Sync()); err != nil {
		return fmt.Errorf("sync the log of session %s: %w", l.id, err)
	}
	return nil
}

// Close implements ports.SessionLog.
func (l *eventLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	return errors.Join(l.giveBack(), l.file.Close(), l.unlock())
}

// Replay implements ports.SessionStore.
func (s *Store) Replay(ctx context.Context, id domain.SessionID, from uint64) iter.Seq2[domain.Event, error] {
	return func(yield func(domain.Event, error) bool) {
		if err := s.replay(ctx, id, from, yield); err != nil {
			yield(domain.Event{}, err)
		}
	}
}

func (s *Store) replay(ctx context.Context, id domain.SessionID, from uint64, yield func(domain.Event, error) bool) error {
	if _, err := domain.ParseSessionID(string(id)); err != nil {
		return err
	}
	session, err := s.openSession(ctx, id, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	file, err := openRegular(session, logFile, os.O_RDONLY)
	if err := errors.Join(err, session.Close()); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("open the log of session %s: %w", id, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("open the log of session %s: %w", id, err)
	}
	at, err := seek(file, info.Size(), from)
	if err == nil && at > 0 {
		err = readLines(file, at, func(h head, line []byte) (bool, error) {
			if err := context.Cause(ctx); err != nil {
				return false, err
			}
			if h.seq < from {
				return true, nil
			}
			e, err := jsonl.Decode(line[h.event : len(line)-1])
			switch {
			case err != nil:
				return false, err
			case e.Session != id || e.Seq != h.seq:
				return false, fmt.Errorf("event %d is that of another session", h.seq)
			}
			return yield(e, nil), nil
		})
	}
	if err != nil {
		return fmt.Errorf("the log of session %s: %w", id, err)
	}
	return nil
}

// openRegular opens a regular file of the user's own. It follows no link: what
// is opened must be what was examined.
func openRegular(dir *os.Root, name string, flag int) (*os.File, error) {
	bad := func(reason string) error {
		return &domain.InvalidError{
			What: "file", Value: filepath.Join(dir.Name(), name), Reason: reason, Remedy: "look at what it is, and remove it",
		}
	}
	// Before it is opened too: to open a pipe can take for ever.
	if is, err := dir.Lstat(name); err == nil && !is.Mode().IsRegular() {
		return nil, bad("not a regular file but " + is.Mode().Type().String())
	}
	f, err := dir.OpenFile(name, flag, 0o600)
	if err != nil {
		return nil, err
	}
	is, err := dir.Lstat(name)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	opened, err := f.Stat()
	switch {
	case err != nil:
	case !os.SameFile(is, opened):
		err = bad("replaced while it was being opened")
	case !ours(opened):
		err = bad("belongs to another user")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// The lines of a log. The first one says what the file is and in which version
// of the format; every other one is an event with the epoch that it was appended
// in:
//
//	{"caisson_log":1}
//	{"epoch":1,"event":{"type":"sandbox","seq":1,"session":"…","turn":1, …}}
//
// A change that an older Caisson would misread raises the version. Events are as
// package jsonl has them, which passes over fields that it does not know.
const (
	logVersion   = 1
	headerStart  = `{"caisson_log":`
	epochStart   = `{"epoch":`
	eventStart   = `,"event":`
	typeStart    = `{"type":"`
	seqStart     = `","seq":`
	sessionStart = `,"session":"`
)

var logHeader = headerStart + strconv.Itoa(logVersion) + "}\n"

// appendLine appends the line of an event.
func appendLine(dst []byte, epoch uint64, e domain.Event) []byte {
	dst = append(dst, epochStart...)
	dst = strconv.AppendUint(dst, epoch, 10)
	dst = append(dst, eventStart...)
	dst = jsonl.AppendEvent(dst, e)
	dst[len(dst)-1] = '}' // in place of the event's own newline
	return append(dst, '\n')
}

// maxHead bounds the beginning of a line that parseHead looks at.
const maxHead = 256

// head is what the beginning of an event's line says.
type head struct {
	epoch, seq uint64
	event      int // where the event begins
}

// parseHead reads the beginning of an event's line, as appendLine makes it.
func parseHead(line []byte) (head, bool) {
	var h head
	rest, ok := bytes.CutPrefix(line, []byte(epochStart))
	if !ok {
		return h, false
	}
	if h.epoch, rest, ok = cutUint(rest); !ok {
		return h, false
	}
	if rest, ok = bytes.CutPrefix(rest, []byte(eventStart)); !ok {
		return h, false
	}
	h.event = len(line) - len(rest)
	if rest, ok = bytes.CutPrefix(rest, []byte(typeStart)); !ok {
		return h, false
	}
	quote := bytes.IndexByte(rest[:min(len(rest), maxHead)], '"')
	if quote < 0 {
		return h, false
	}
	if rest, ok = bytes.CutPrefix(rest[quote:], []byte(seqStart)); !ok {
		return h, false
	}
	if h.seq, rest, ok = cutUint(rest); !ok {
		return h, false
	}
	return h, h.seq > 0 && bytes.HasPrefix(rest, []byte(sessionStart))
}

// cutUint takes a number in decimal, without leading zeros, from the beginning.
func cutUint(b []byte) (uint64, []byte, bool) {
	n := 0
	for n < len(b) && b[n] >= '0' && b[n] <= '9' {
		n++
	}
	if n == 0 || n > 20 || n > 1 && b[0] == '0' {
		return 0, b, false
	}
	v, err := strconv.ParseUint(string(b[:n]), 10, 64)
	return v, b[n:], err == nil
}

// errNoLog says that a file is not what its name says.
var errNoLog = errors.New("its first line is not that of a log")

// checkHeader reads the first line and returns its length. A file that has no
// whole line yet is empty: 0.
func checkHeader(file io.ReaderAt, size int64) (int64, error) {
	buf := make([]byte, min(size, maxHead))
	if _, err := file.ReadAt(buf, 0); err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	end := bytes.IndexByte(buf, '\n')
	if end < 0 {
		if size > maxHead {
			return 0, errNoLog
		}
		return 0, nil
	}
	rest, ok := bytes.CutPrefix(buf[:end], []byte(headerStart))
	if !ok {
		return 0, errNoLog
	}
	version, rest, ok := cutUint(rest)
	switch {
	case !ok || !bytes.HasPrefix(rest, []byte("}")) && !bytes.HasPrefix(rest, []byte(",")):
		return 0, errNoLog
	case version != logVersion:
		return 0, &domain.InvalidError{
			What: "version", Value: strconv.FormatUint(version, 10), Reason: fmt.Sprintf("this Caisson reads and writes %d", logVersion),
			Remedy: "use the Caisson that wrote it",
		}
	}
	return int64(end) + 1, nil
}
