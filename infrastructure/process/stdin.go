package process

import (
	"os"
	"sync"
)

// stdinLimit bounds what waits for a child that does not read, in bytes. It is
// above the longest prompt.
const stdinLimit = 64 << 20

// stdinWriter feeds a child's standard input without ever making the caller
// wait for the child.
type stdinWriter struct {
	file *os.File
	done chan struct{}

	mu      sync.Mutex
	queue   [][]byte
	bytes   int // that are queued or being written
	closing bool
	wake    chan struct{}
}

func newStdinWriter(file *os.File) *stdinWriter {
	w := &stdinWriter{file: file, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	go w.run()
	return w
}

// write queues bytes. After close they are dropped.
func (w *stdinWriter) write(b []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closing {
		return false
	}
	w.queue = append(w.queue, b)
	w.bytes += len(b)
	w.signal()
	return true
}

// waiting returns how many bytes the child has not taken yet.
func (w *stdinWriter) waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes
}

// close closes the input once all that is queued is written.
func (w *stdinWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closing = true
	w.signal()
}

func (w *stdinWriter) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// stop closes the input now, whatever is still queued, and waits for the
// writer's goroutine.
func (w *stdinWriter) stop() {
	w.close()
	_ = w.file.Close() // the goroutine may have closed it
	<-w.done
}

func (w *stdinWriter) run() {
	defer close(w.done)
	defer w.file.Close()
	for {
		w.mu.Lock()
		queue, closing := w.queue, w.closing
		w.queue = nil
		w.mu.Unlock()
		for _, b := range queue {
			if _, err := w.file.Write(b); err != nil {
				// The child closed its input or is gone; its exit tells the rest.
				w.close()
				return
			}
			w.mu.Lock()
			w.bytes -= len(b)
			w.mu.Unlock()
		}
		if len(queue) > 0 {
			continue
		}
		if closing {
			return
		}
		<-w.wake
	}
}
