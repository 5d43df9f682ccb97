//go:build !unix

package policyfile

import (
	"errors"
	"io/fs"
	"os"
)

// open opens a file for reading. Without follow a symbolic link is an error.
func open(path string, follow bool) (*os.File, error) {
	if info, err := os.Lstat(path); !follow && err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("a symbolic link")}
	}
	return os.Open(path)
}

// othersCanWrite cannot be told here: nothing is confined either.
func othersCanWrite(fs.FileInfo) bool { return false }
