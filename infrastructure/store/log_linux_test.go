package store

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
)

func event(seq uint64, text string) domain.Event {
	return domain.Event{Seq: seq, Session: id, Turn: 1, Time: time.Unix(int64(seq), 0).UTC(), Agent: "claude", Reply: domain.Text{Text: text}}
}

// logOf returns a log of n events in bytes, and where each of them ends.
func logOf(n int) (data []byte, ends []int) {
	data = append(data, logHeader...)
	for seq := 1; seq <= n; seq++ {
		data = appendLine(data, uint64(1+seq/3), event(uint64(seq), strings.Repeat("é\n\"", seq)))
		ends = append(ends, len(data))
	}
	return data, ends
}

func logPath(s *Store) string { return filepath.Join(s.Root(), "sessions", string(id), logFile) }

// plant makes a session whose log has these bytes.
func plant(t *testing.T, data []byte) *Store {
	t.Helper()
	s := newStore(t)
	_, err := s.Dirs(t.Context(), id)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(logPath(s), data, 0o600))
	return s
}

func seqs(t *testing.T, s *Store) (seqs []uint64) {
	t.Helper()
	for e, err := range s.Replay(t.Context(), id, 1) {
		require.NoError(t, err)
		seqs = append(seqs, e.Seq)
	}
	return seqs
}

// Wherever a writer was stopped, and whatever a loss of power left behind what it
// wrote: every whole event before is there, nothing else, and the numbers go on.
func TestATornEndIsCut(t *testing.T) {
	data, ends := logOf(4)
	whole := func(size int) (n int) {
		for _, end := range ends {
			if end <= size {
				n++
			}
		}
		return n
	}
	s := plant(t, nil)
	for _, garbage := range []string{"", "\x00\x00\x00", "\x00\x00\n", "{}\n", `{"epoch":9,"event":{"type":"text","seq":99,"session":"` + "\n", " \n\n"} {
		for cut := range len(data) + 1 {
			if garbage != "" && (cut < len(logHeader) || cut%7 != 0 && cut != len(data)) {
				continue // no header and something else: no log
			}
			require.NoError(t, os.WriteFile(logPath(s), append(bytes.Clone(data[:cut]), garbage...), 0o600))
			n := whole(cut)
			log, err := s.Open(t.Context(), id)
			require.NoError(t, err, "cut at %d, then %q", cut, garbage)
			require.Equal(t, uint64(n), log.LastSeq(), "cut at %d, then %q", cut, garbage)
			require.NoError(t, log.Append(t.Context(), event(uint64(n)+1, "next")))
			require.NoError(t, log.Close())
			require.Len(t, seqs(t, s), n+1, "cut at %d, then %q", cut, garbage)
			now, err := os.ReadFile(logPath(s))
			require.NoError(t, err)
			if n > 0 {
				require.Equal(t, data[:ends[n-1]], now[:ends[n-1]], "what was whole is as it was")
			}
			require.Equal(t, byte('\n'), now[len(now)-1])
		}
	}
}

func TestAReaderStopsBeforeATornEnd(t *testing.T) {
	data, ends := logOf(3)
	s := plant(t, nil)
	for cut := range len(data) + 1 {
		require.NoError(t, os.WriteFile(logPath(s), data[:cut], 0o600))
		n := 0
		for _, end := range ends {
			if end <= cut {
				n++
			}
		}
		require.Len(t, seqs(t, s), n, "cut at %d", cut)
	}
}

func TestADamagedLogIsAnError(t *testing.T) {
	data, ends := logOf(4)
	middle := func(replace string) []byte {
		return append(append(bytes.Clone(data[:ends[1]]), replace...), data[ends[2]:]...)
	}
	other := event(3, "x")
	other.Session = "01890a5d-ac96-774b-bcce-b302099a8058"
	for name, c := range map[string]struct {
		data   []byte
		before int
		reason string
	}{
		"garbage in the middle":  {middle("garbage\n"), 2, "no event at byte"},
		"a number again":         {middle(string(appendLine(nil, 1, event(2, "x")))), 2, "event 2 follows 2"},
		"another session's":      {middle(string(appendLine(nil, 1, other))), 2, "another session"},
		"an unknown type":        {middle(strings.Replace(string(appendLine(nil, 1, event(3, "x"))), `"text"`, `"novel"`, 1)), 2, "novel"},
		"no log":                 {[]byte("hello\nworld\n"), 0, "first line is not that of a log"},
		"a long line and no log": {bytes.Repeat([]byte("x"), 10_000), 0, "first line is not that of a log"},
		"a later version":        {[]byte("{\"caisson_log\":2}\nwhatever\n"), 0, "reads and writes 1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := plant(t, c.data)
			var failure error
			n := 0
			for _, err := range s.Replay(t.Context(), id, 1) {
				require.NoError(t, failure, "an error is the last thing")
				if failure = err; err == nil {
					n++
				}
			}
			require.ErrorContains(t, failure, c.reason)
			require.Equal(t, c.before, n)
			if n > 0 {
				return // its end is all right
			}
			_, err := s.Open(t.Context(), id)
			require.ErrorContains(t, err, c.reason)
			now, err := os.ReadFile(logPath(s))
			require.NoError(t, err)
			require.Equal(t, c.data, now, "what is not understood is not touched")
		})
	}
}

func TestForeignThingsInPlaceOfTheLogAreErrors(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"a link":      func(path string) error { return os.Symlink("record.json", path) },
		"a link out":  func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			_, err := s.Dirs(t.Context(), id)
			require.NoError(t, err)
			require.NoError(t, make(logPath(s)))
			var invalid *domain.InvalidError
			_, err = s.Open(t.Context(), id)
			require.ErrorAs(t, err, &invalid)
			for _, err := range s.Replay(t.Context(), id, 1) {
				require.ErrorAs(t, err, &invalid)
			}
			require.NoError(t, os.Remove(logPath(s)))
			log, err := s.Open(t.Context(), id)
			require.NoError(t, err, "the failed opening holds no lock")
			require.NoError(t, log.Close())
		})
	}
}

// What cannot be written is an error, is not half in the log, and its number is
// still free when there is room again.
func TestAFullDisk(t *testing.T) {
	s := newStore(t)
	opened, err := s.Open(t.Context(), id)
	require.NoError(t, err)
	log := opened.(*eventLog)
	require.NoError(t, log.Append(t.Context(), event(1, "one")))
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	require.NoError(t, err)
	defer full.Close()

	file := log.file
	log.file, log.room = full, 1<<40
	require.ErrorIs(t, log.Append(t.Context(), event(2, "two")), syscall.ENOSPC)
	require.Equal(t, uint64(1), log.LastSeq())
	// /dev/full cannot be cut either.
	require.ErrorContains(t, log.Append(t.Context(), event(2, "two")), "cannot be cut off")
	log.file, log.broken = file, nil
	require.NoError(t, log.Append(t.Context(), event(2, "two")))
	require.NoError(t, log.Close())
	require.Equal(t, []uint64{1, 2}, seqs(t, s))
}

// With a limit on the size of files, which a full disk is like: first other
// events do not fit any more, and the final still does.
func TestTheFinalFitsWhenOthersDoNot(t *testing.T) {
	s := newStore(t)
	opened, err := s.Open(t.Context(), id)
	require.NoError(t, err)
	log := opened.(*eventLog)
	require.NoError(t, log.Append(t.Context(), event(1, "one")))
	info, err := log.file.Stat()
	require.NoError(t, err)
	require.Equal(t, log.size, info.Size(), "reserved room is not a part of the file")
	blocks := info.Sys().(*syscall.Stat_t).Blocks
	if blocks*512 < finalRoom {
		t.Skip("this file system cannot reserve room")
	}
	final := event(2, "")
	final.Reply = domain.Final{Outcome: domain.OutcomeFailed, Error: &domain.TurnError{StderrTail: strings.Repeat("\x01", 16<<10)}}
	require.Less(t, len(appendLine(nil, 1, final)), finalRoom, "the worst final fits into the room")
	require.GreaterOrEqual(t, log.room, log.size+finalRoom)
	require.NoError(t, log.Sync(t.Context()))
	info, err = log.file.Stat()
	require.NoError(t, err)
	require.Less(t, info.Sys().(*syscall.Stat_t).Blocks*512, int64(finalRoom), "what is not used is given back")
	require.NoError(t, log.Close())
}

// A small file system of its own shows the real thing; only root can make one.
func TestASmallFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=2m,mode=0700"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	defer func() { require.NoError(t, syscall.Unmount(dir, 0)) }()
	s, err := New(filepath.Join(dir, "state"))
	require.NoError(t, err)
	log, err := s.Open(t.Context(), id)
	require.NoError(t, err)
	seq, failure := uint64(0), error(nil)
	for failure == nil {
		seq++
		failure = log.Append(t.Context(), event(seq, strings.Repeat("x", 10_000)))
	}
	require.ErrorIs(t, failure, syscall.ENOSPC)
	require.Greater(t, seq, uint64(50))
	final := event(seq, "")
	final.Reply = domain.Final{Outcome: domain.OutcomeFailed, Error: &domain.TurnError{StderrTail: strings.Repeat("\x01", 16<<10)}}
	require.NoError(t, log.Append(t.Context(), final))
	require.NoError(t, log.Close())
	require.Len(t, seqs(t, s), int(seq))
}

func TestTheLogHasTheEpochOfEveryEvent(t *testing.T) {
	s := newStore(t)
	for n := range uint64(3) {
		log, err := s.Open(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, n+1, log.Epoch())
		require.NoError(t, log.Append(t.Context(), event(n+1, "x")))
		require.NoError(t, log.Close())
	}
	data, err := os.ReadFile(logPath(s))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	require.Len(t, lines, 4)
	require.Equal(t, `{"caisson_log":1}`, lines[0])
	for n, line := range lines[1:] {
		h, ok := parseHead([]byte(line))
		require.True(t, ok)
		require.Equal(t, uint64(n+1), h.epoch)
		e, err := jsonl.Decode([]byte(line[h.event : len(line)-1]))
		require.NoError(t, err)
		require.Equal(t, event(uint64(n+1), "x"), e)
	}
}

func TestParseHead(t *testing.T) {
	line := appendLine(nil, 12, event(345, "x"))
	h, ok := parseHead(line)
	require.True(t, ok)
	require.Equal(t, head{epoch: 12, seq: 345, event: 20}, h)
	require.Equal(t, byte('{'), line[h.event])
	for cut := range bytes.Index(line, []byte(`,"session":"`)) + 10 {
		_, ok := parseHead(line[:cut])
		require.False(t, ok, "%s", line[:cut])
	}
	for _, bad := range []string{
		`{"epoch":01,"event":{"type":"text","seq":1,"session":"`, `{"epoch":-1,"event":{"type":"text","seq":1,"session":"`,
		`{"epoch":1,"event":{"type":"text","seq":0,"session":"`, `{"epoch":1,"event":{"type":"text","seq":99999999999999999999,"session":"`,
		`{"epoch":1,"event":{"type":"` + strings.Repeat("x", 300) + `","seq":1,"session":"`,
	} {
		_, ok := parseHead([]byte(bad))
		require.False(t, ok, bad)
	}
}

// Whatever a file has in it: reading it ends, its events have rising numbers,
// what is cut off is cut off once, and everything before is still there.
func FuzzLog(f *testing.F) {
	data, ends := logOf(3)
	f.Add(data, uint64(1))
	f.Add(data[:ends[1]+7], uint64(2))
	f.Add(append(bytes.Clone(data[:ends[1]]), "\x00\x00\n"...), uint64(3))
	f.Add([]byte(logHeader), uint64(0))
	f.Add([]byte("{\"caisson_log\":2}\n"), uint64(1))
	f.Add([]byte(strings.Repeat("x", 300)), uint64(1))
	f.Add(append(append(bytes.Clone(data[:ends[0]]), "garbage\n"...), data[ends[1]:]...), uint64(3))
	f.Add(append(appendLine([]byte(logHeader), 1, event(1, strings.Repeat("y", 3*block))), data[ends[0]:]...), uint64(2))
	f.Fuzz(func(t *testing.T, data []byte, from uint64) {
		file := bytes.NewReader(data)
		size := int64(len(data))
		all := func(file io.ReaderAt, at int64) (numbers []uint64, err error) {
			last := uint64(0)
			err = readLines(file, at, func(h head, line []byte) (bool, error) {
				if h.seq <= last {
					t.Fatalf("%d follows %d", h.seq, last)
				}
				last = h.seq
				numbers = append(numbers, h.seq)
				_, _ = jsonl.Decode(line[h.event : len(line)-1])
				return true, nil
			})
			return numbers, err
		}
		end, last, err := tail(file, size)
		if err != nil {
			return
		}
		if end < 0 || end > size {
			t.Fatalf("the end of %d bytes is at %d", size, end)
		}
		again, same, err := tail(bytes.NewReader(data[:end]), end)
		if err != nil || again != end || same != last {
			t.Fatalf("cut twice: %d %v, then %d %v, %v", end, last, again, same, err)
		}
		if end == 0 {
			return
		}
		first, err := seek(file, size, 1)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := all(bytes.NewReader(data[:end]), first)
		if err != nil {
			return // damaged in the middle
		}
		if len(whole) > 0 && whole[len(whole)-1] != last.seq {
			t.Fatalf("the last event is %d, not %d", whole[len(whole)-1], last.seq)
		}
		at, err := seek(bytes.NewReader(data[:end]), end, from)
		if err != nil {
			t.Fatal(err)
		}
		part, err := all(bytes.NewReader(data[:end]), at)
		if err != nil {
			t.Fatal(err)
		}
		wanted := func(numbers []uint64) (n []uint64) {
			for _, seq := range numbers {
				if seq >= from {
					n = append(n, seq)
				}
			}
			return n
		}
		if a, b := fmt.Sprint(wanted(whole)), fmt.Sprint(wanted(part)); a != b {
			t.Fatalf("from %d: %s, but halving finds %s", from, a, b)
		}
	})
}

// Halving must find its way in logs of every shape.
func TestSeek(t *testing.T) {
	var data []byte
	data = append(data, logHeader...)
	var starts []int64
	for seq := uint64(1); seq <= 200; seq++ {
		n := 10
		switch {
		case seq%17 == 0:
			n = 3 * block
		case seq%5 == 0:
			n = 1000
		}
		starts = append(starts, int64(len(data)))
		data = appendLine(data, 1, event(seq, strings.Repeat("x", n)))
	}
	for from := uint64(1); from <= 201; from++ {
		at, err := seek(bytes.NewReader(data), int64(len(data)), from)
		require.NoError(t, err)
		require.True(t, at == int64(len(logHeader)) || data[at-1] == '\n')
		if from <= 200 {
			require.LessOrEqual(t, at, starts[from-1])
			require.Less(t, starts[from-1]-at, int64(8*block), "close to event %d", from)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	s := newStore(b)
	log, err := s.Open(b.Context(), id)
	require.NoError(b, err)
	e := event(0, strings.Repeat("x", 800))
	b.SetBytes(int64(len(appendLine(nil, 1, e))))
	b.ReportAllocs()
	for b.Loop() {
		e.Seq++
		if err := log.Append(b.Context(), e); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, log.Close())
}

func BenchmarkReplay(b *testing.B) {
	data := []byte(logHeader)
	const n = 1000
	for seq := uint64(1); seq <= n; seq++ {
		data = appendLine(data, 1, event(seq, strings.Repeat("x", 800)))
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		count := 0
		err := readLines(bytes.NewReader(data), int64(len(logHeader)), func(h head, line []byte) (bool, error) {
			count++
			_, err := jsonl.Decode(line[h.event : len(line)-1])
			return true, err
		})
		if err != nil || count != n {
			b.Fatal(count, err)
		}
	}
}
