package store

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// maxOpen is how many directories a removal has open at once, one in another. An
// agent can nest them so deep that all descriptors of the process would go.
const maxOpen = 32

// batch is how many names a removal holds at once.
const batch = 1024

// removeTree removes name and all below it. Only directories are opened, one
// component at a time, so no link is followed. Tools leave directories behind that
// their owner cannot write to (Go's module cache is one); they are made writable.
func removeTree(top *os.Root, name string) error {
	info, err := top.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return remove(top, name)
	}
	t := tree{top: top, deep: []string{name}}
	return t.removeDeep()
}

// removeAll removes what is in a directory.
func removeAll(top *os.Root) error {
	t := tree{top: top}
	return errors.Join(t.removeEntries(top, "", 0), t.removeDeep())
}

// tree is a removal.
type tree struct {
	top *os.Root
	// deep are directories that were too deep where they were, and are in top now.
	deep []string
}

// removeDeep removes what was lifted, until nothing more is.
func (t *tree) removeDeep() error {
	var errs []error
	for len(t.deep) > 0 {
		last := len(t.deep) - 1
		next := t.deep[last]
		t.deep = t.deep[:last]
		errs = append(errs, t.removeDir(t.top, next, next, 1))
	}
	return errors.Join(errs...)
}

// removeDir removes a directory with all that is in it. Its path is from top.
func (t *tree) removeDir(parent *os.Root, name, path string, depth int) error {
	if info, err := parent.Lstat(name); err == nil && info.IsDir() && info.Mode().Perm()&0o700 != 0o700 {
		if err := parent.Chmod(name, 0o700); err != nil {
			return err
		}
	}
	if depth > maxOpen {
		lifted := "removed." + rand.Text()
		if err := t.top.Rename(path, lifted); err != nil {
			return err
		}
		t.deep = append(t.deep, lifted)
		return nil
	}
	dir, err := parent.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(t.removeEntries(dir, path, depth), dir.Close()); err != nil {
		return err
	}
	return remove(parent, name)
}

// removeEntries removes what is in a directory.
func (t *tree) removeEntries(dir *os.Root, path string, depth int) error {
	for {
		entries, err := someEntries(dir)
		if err != nil || len(entries) == 0 {
			return err
		}
		var errs []error
		for _, e := range entries {
			if e.IsDir() {
				errs = append(errs, t.removeDir(dir, e.Name(), filepath.Join(path, e.Name()), depth+1))
			} else {
				errs = append(errs, remove(dir, e.Name()))
			}
		}
		// What cannot be removed would be found again and again.
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
}

// someEntries returns the first entries of a directory.
func someEntries(dir *os.Root) ([]fs.DirEntry, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	entries, err := f.ReadDir(batch)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, errors.Join(err, f.Close())
}

// remove removes a file or an empty directory, unless somebody was faster.
func remove(dir *os.Root, name string) error {
	if err := dir.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
