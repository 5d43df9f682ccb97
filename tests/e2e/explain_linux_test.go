package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/landlock"
	"github.com/caisson-run/caisson/tests/testkit"
)

// explainCases is how many random questions are put to both sides.
const explainCases = 10_000

// TestExplainIsTheKernelsAnswer asks random questions about random plans over
// random trees, and does what was asked under the same plan: the two never
// disagree.
func TestExplainIsTheKernelsAnswer(t *testing.T) {
	testkit.RequireLandlock(t, 5)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	asked, denied := map[domain.FileOp]int{}, map[domain.FileOp]int{}
	total := 0
	for round := uint64(0); total < explainCases; round++ {
		w := newWorld(t, rand.New(rand.NewPCG(seed, round)))
		for range 100 {
			op, path, to := w.question()
			e, err := application.ExplainFile(w.plan, op, path, to)
			var invalid *domain.InvalidError
			if errors.As(err, &invalid) {
				continue // the file system refuses it to everybody
			}
			if errors.Is(err, os.ErrNotExist) {
				continue // the way there does not exist
			}
			require.NoError(t, err)
			errno, again := w.try(op, path, to)
			if errno == unix.ENOENT && op != domain.OpRename && op != domain.OpDelete {
				continue // it says what the plan says of the place
			}
			allowed := errno != unix.EACCES && errno != unix.EXDEV
			require.Equal(t, allowed, e.Allowed, "seed %d, round %d: %s: the kernel says %v\n%s\n%+v", seed, round, e.Question, errno, w.plan, e)
			require.Equal(t, e.Allowed, e.Change.IsZero(), "what is denied has a change that would allow it")
			if !allowed {
				denied[op]++
				w.requireChangeHelps(t, e, op, path, to)
			}
			asked[op]++
			total++
			if !again {
				break // the tree is not what the plan was made for any more
			}
		}
		w.end()
	}
	for _, op := range domain.FileOps() {
		t.Logf("%-6s %5d asked, %5d denied", op, asked[op], denied[op])
		require.Greater(t, asked[op], explainCases/20, op)
		require.Greater(t, float64(denied[op]), 0.3*float64(asked[op]), "%s is hardly ever denied", op)
		require.Greater(t, asked[op]-denied[op], 40, "%s is hardly ever allowed", op)
	}
}

// world is a tree, a plan for it, and a thread under that plan.
type world struct {
	t     *testing.T
	rand  *rand.Rand
	root  string
	dirs  []string
	files []string // and links, and pipes
	plan  domain.SandboxPlan
	do    chan func()
	done  chan struct{}
}

func newWorld(t *testing.T, r *rand.Rand) *world {
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	w := &world{t: t, rand: r, root: root, dirs: []string{root + "/r"}, do: make(chan func()), done: make(chan struct{})}
	require.NoError(t, os.Mkdir(w.dirs[0], 0o700))
	program := smallProgram()
	for i := range 26 {
		path := oneOf(w, w.dirs) + "/" + fmt.Sprintf("n%d", i)
		switch k := r.IntN(12); {
		case k < 4:
			require.NoError(t, os.Mkdir(path, 0o700))
			w.dirs = append(w.dirs, path)
			continue
		case k < 8 || len(w.files) == 0:
			require.NoError(t, os.WriteFile(path, program, 0o700))
		case k == 8:
			from := oneOf(w, w.files)
			require.NoError(t, os.Link(from, path))
		case k == 9:
			require.NoError(t, unix.Mkfifo(path, 0o600))
		case k == 10:
			require.NoError(t, os.Symlink(oneOf(w, w.files), path))
		default:
			// Sometimes it leads to nothing.
			require.NoError(t, os.Symlink(oneOf(w, w.dirs)+oneOf(w, []string{"", "/none", "/../none"}), path))
		}
		w.files = append(w.files, path)
	}
	// A directory and a file that are not what they were when the tree was made.
	for _, path := range []string{oneOf(w, w.files), oneOf(w, w.dirs[1:])} {
		require.NoError(t, os.Rename(path, path+".old"))
		if info, err := os.Lstat(path + ".old"); err == nil && info.IsDir() {
			require.NoError(t, os.Mkdir(path, 0o700))
		} else {
			require.NoError(t, os.WriteFile(path, program, 0o700))
		}
	}
	w.plan = w.randomPlan()
	e := landlock.New()
	conf, err := e.Prepare(context.Background(), w.plan, domain.SpawnLine{})
	require.NoError(t, err)
	applied := make(chan error)
	go func() {
		defer close(w.done)
		testkit.OnThrowawayThread(func() error {
			err := conf.Apply()
			applied <- err
			for f := range w.do {
				f()
			}
			return err
		})
	}()
	require.NoError(t, <-applied)
	require.NoError(t, conf.Close())
	t.Cleanup(func() { // of a test that fails in the middle
		select {
		case <-w.done:
		default:
			w.end()
		}
	})
	return w
}

func (w *world) end() {
	close(w.do)
	<-w.done
	require.NoError(w.t, os.RemoveAll(w.root+"/r"))
}

func oneOf[T any](w *world, list []T) T { return list[w.rand.IntN(len(list))] }

func (w *world) randomPlan() domain.SandboxPlan {
	usual := []domain.Access{domain.AccessRead, domain.AccessReadExec, domain.AccessReadWrite, domain.AccessReadWriteExec, domain.AccessReadWriteExec}
	var rules []domain.PathRule
	for range 2 + w.rand.IntN(6) {
		// What is high up in the tree grants the most.
		path := w.dirs[w.rand.IntN(1+w.rand.IntN(len(w.dirs)))]
		if w.rand.IntN(4) == 0 {
			path = oneOf(w, w.files)
		}
		canonical, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue // a link that leads to nothing
		}
		access := oneOf(w, usual)
		if w.rand.IntN(3) == 0 {
			access = domain.Access(1 + w.rand.IntN(1<<16-1)) // no rule is without a right
		}
		rules = append(rules, domain.PathRule{Path: canonical, Access: access, Presence: domain.Optional, Why: "test", Resolved: true})
	}
	if len(rules) == 0 {
		rules = []domain.PathRule{{Path: w.dirs[0], Access: domain.AccessRead, Why: "test"}}
	}
	return domain.NewSandboxPlan("test").WithRules(rules...).WithWaivers(domain.Properties()...)
}

// question makes up an operation on something in the tree, by one of the ways
// that lead to it.
func (w *world) question() (op domain.FileOp, path, to string) {
	way := func(path string) string {
		switch dir, base := filepath.Split(path); w.rand.IntN(4) {
		case 0:
			return dir + "./" + base
		case 1:
			return oneOf(w, w.dirs) + "/" + strings.Repeat("../", 20) + strings.TrimPrefix(path, "/")
		}
		return path
	}
	entries := slices.Concat(w.dirs[1:], w.files)
	switch op = oneOf(w, domain.FileOps()); op {
	case domain.OpRead, domain.OpDelete:
		return op, way(oneOf(w, entries)), ""
	case domain.OpWrite, domain.OpExec:
		return op, way(oneOf(w, w.files)), ""
	case domain.OpCreate:
		if w.rand.IntN(3) == 0 {
			return op, way(oneOf(w, w.files)), ""
		}
		return op, way(oneOf(w, w.dirs)) + "/new", ""
	}
	to = oneOf(w, w.dirs) + "/moved"
	if w.rand.IntN(4) == 0 {
		to = oneOf(w, entries)
	}
	return op, way(oneOf(w, entries)), way(to)
}

// under runs f on the thread that is under the plan.
func (w *world) under(f func() error) unix.Errno {
	result := make(chan error)
	w.do <- func() { result <- f() }
	err := <-result
	if err == nil {
		return 0
	}
	var errno unix.Errno
	require.ErrorAs(w.t, err, &errno)
	return errno
}

// try does it under the plan, and takes it back; again is false if it could not.
func (w *world) try(op domain.FileOp, path, to string) (errno unix.Errno, again bool) {
	open := func(flags int) error {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
		if err == nil {
			err = unix.Close(fd)
		}
		return err
	}
	switch op {
	case domain.OpRead:
		return w.under(func() error { return open(unix.O_RDONLY) }), true
	case domain.OpWrite:
		return w.under(func() error { return open(unix.O_WRONLY) }), true
	case domain.OpExec:
		return w.under(func() error {
			p, err := os.StartProcess(path, []string{"program"}, &os.ProcAttr{Files: []*os.File{nil, nil, nil}})
			if err != nil {
				return err
			}
			_, err = p.Wait()
			return err
		}), true
	case domain.OpCreate:
		errno = w.under(func() error { return open(unix.O_WRONLY | unix.O_CREAT) })
		// It may have been made and then not opened.
		if made, err := filepath.EvalSymlinks(path); err == nil {
			require.NoError(w.t, os.Remove(made))
		}
		return errno, true
	case domain.OpDelete:
		remove := unix.Unlink
		if info, err := os.Lstat(path); err == nil && info.IsDir() {
			remove = unix.Rmdir
		}
		errno = w.under(func() error { return remove(path) })
		return errno, errno != 0
	default:
		errno = w.under(func() error { return unix.Rename(path, to) })
		return errno, errno != 0
	}
}

// requireChangeHelps puts the change that the explanation proposes into the plan:
// then it is allowed.
func (w *world) requireChangeHelps(t *testing.T, e domain.Explanation, op domain.FileOp, path, to string) {
	changed, err := application.ExplainFile(w.plan.WithRules(e.Change.Rules...), op, path, to)
	require.NoError(t, err)
	require.True(t, changed.Allowed, "%s: %+v does not help: %+v", e.Question, e.Change, changed)
}

// smallProgram is the smallest program that ends with success and needs no
// loader: an ELF header, one program header, and exit(0).
func smallProgram() []byte {
	code, machine := []byte{0x31, 0xff, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05}, uint16(62) // xor edi,edi; mov eax,60; syscall
	if runtime.GOARCH == "arm64" {
		code, machine = []byte{0, 0, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 1, 0, 0, 0xd4}, 183 // mov x0,0; mov x8,93; svc 0
	}
	const base, header, size = 0x400000, 64, 120
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, v := range []any{
		uint16(2), machine, uint32(1), uint64(base + size), uint64(header), uint64(0), uint32(0), uint16(header), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), uint64(size + len(code)), uint64(size + len(code)), uint64(0x1000),
	} {
		_ = binary.Write(&b, binary.LittleEndian, v) // a bytes.Buffer takes everything
	}
	b.Write(code)
	return b.Bytes()
}
