package application

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
)

// covers reports whether child is parent or below it. Both are clean and
// absolute. It compares by component: /a/bc is not below /a/b.
func covers(parent, child string) bool {
	if parent == child {
		return true
	}
	if !strings.HasSuffix(parent, string(filepath.Separator)) {
		parent += string(filepath.Separator)
	}
	return strings.HasPrefix(child, parent)
}

// overlaps reports whether one of the two is or contains the other.
func overlaps(a, b string) bool { return covers(a, b) || covers(b, a) }

// canonicalPath resolves the symbolic links of an absolute path. Of a path that
// does not exist it resolves the deepest part that does; exists says which of
// the two it was.
func canonicalPath(path string) (canonical string, exists bool, err error) {
	path = filepath.Clean(path)
	for prefix, rest := path, ""; ; prefix = filepath.Dir(prefix) {
		resolved, err := filepath.EvalSymlinks(prefix)
		switch {
		case err == nil:
			return filepath.Join(resolved, rest), rest == "", nil
		case !errors.Is(err, fs.ErrNotExist) || prefix == filepath.Dir(prefix):
			return path, false, err
		}
		rest = filepath.Join(filepath.Base(prefix), rest)
	}
}

// absoluteEntries returns the absolute directories of a PATH, clean, each once.
// The others depend on where a program happens to run, and may lie in a
// directory that an agent can write.
func absoluteEntries(path string) []string {
	var entries []string
	seen := map[string]bool{}
	for _, e := range filepath.SplitList(path) {
		if e = filepath.Clean(e); filepath.IsAbs(e) && !seen[e] {
			seen[e] = true
			entries = append(entries, e)
		}
	}
	return entries
}
