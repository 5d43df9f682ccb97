//go:build !linux

package process

import "os"

// readChunk reads once from a pipe and hands the bytes to take. It returns
// io.EOF at the end.
func readChunk(file *os.File, take func(buf *[frameHead + chunkSize]byte, n int)) error {
	buf := chunks.Get().(*[frameHead + chunkSize]byte)
	defer chunks.Put(buf)
	n, err := file.Read(buf[frameHead:])
	if n > 0 {
		take(buf, n)
	}
	return err
}

func unnamedFile(dir string) (*os.File, error) { return unlinkedFile(dir) }
