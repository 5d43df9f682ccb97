package policyfile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/ports"
)

const (
	maxSize  = 64 << 10 // of a file
	maxDepth = 8        // of what extends what
	maxFiles = 64
)

// Document is a file that a policy was made of.
type Document struct {
	Path   string // canonical
	SHA256 string // of its content
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// read returns the content of a regular file.
func read(path string, follow bool) ([]byte, error) {
	f, err := open(path, follow)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	content, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	switch {
	case err != nil:
		return nil, err
	case len(content) > maxSize:
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d bytes", maxSize)}
	}
	return content, nil
}

// Load compiles the policy in a file, which need not be trusted, for a place, and
// lists the files that it is made of, the first one first. Its faults are *[Error]
// values, joined.
func Load(path string, place ports.PolicyPlace) (ports.FoundPolicy, []Document, error) {
	return load(path, place, true, nil, nil)
}

// load compiles the policy in a file. Without follow the file itself must not be a
// symbolic link. verify, if it is not nil, sees each file before it is parsed.
func load(path string, place ports.PolicyPlace, follow bool, verify func(Document) error, replaced []string) (ports.FoundPolicy, []Document, error) {
	l := &loader{compiler: newCompiler(place, replaced), verify: verify}
	if err := l.main(path, follow); err != nil {
		return ports.FoundPolicy{}, l.documents, err
	}
	found, err := l.finish()
	return found, l.documents, err
}

// loader adds the files of a policy to its compiler.
type loader struct {
	*compiler
	verify    func(Document) error
	documents []Document
	presets   []string
}

func (l *loader) main(path string, follow bool) error {
	canonical, err := filepath.Abs(path)
	if err == nil && follow {
		canonical, err = filepath.EvalSymlinks(canonical)
	}
	var content []byte
	if err == nil {
		content, err = read(canonical, follow)
	}
	if err != nil {
		return &Error{File: path, Reason: "cannot be read", Err: cause(err)}
	}
	return l.file(canonical, content, nil)
}

// cause leaves out the path, which the error around it has.
func cause(err error) error {
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// file adds a file, and before it what it extends. stack are the files that extend
// it.
func (l *loader) file(path string, content []byte, stack []string) error {
	document := Document{Path: path, SHA256: digest(content)}
	if l.verify != nil {
		if err := l.verify(document); err != nil {
			return err
		}
	}
	l.documents = append(l.documents, document)
	root, err := parse(path, content)
	if err != nil {
		return err
	}
	if extends := root.get("extends"); extends != nil && extends.kind == kindList {
		for i, item := range extends.list {
			if item.kind != kindString {
				continue // check says so
			}
			if err := l.extend(item, fmt.Sprintf("extends[%d]", i), path, append(stack[:len(stack):len(stack)], path)); err != nil {
				return err
			}
		}
	}
	l.document(root, "")
	return nil
}

// extend adds what a file extends.
func (l *loader) extend(item *value, key, path string, stack []string) error {
	fault := func(reason, remedy string, err error) error {
		return &Error{File: item.at.file, Line: item.at.line, Column: item.at.column, Key: key, Reason: reason, Remedy: remedy, Err: err}
	}
	if name, ok := strings.CutPrefix(item.text, presetPrefix); ok {
		if !slices.Contains(Presets(), name) {
			return fault(fmt.Sprintf("there is no preset %q", name), cmp.Or(didYouMean(name, Presets()), "one of "+strings.Join(Presets(), ", ")), nil)
		}
		if slices.Contains(l.presets, name) {
			return nil
		}
		l.presets = append(l.presets, name)
		root, err := parse("preset "+name, builtin(presetFiles, "presets", name))
		if err != nil {
			return err
		}
		l.document(root, "preset "+name)
		return nil
	}
	target := item.text
	switch {
	case target == "" || strings.ContainsRune(target, 0):
		return fault(fmt.Sprintf("%q is no file", target), "name a file, or preset:NAME", nil)
	case slices.Contains(Presets(), target):
		return fault("a preset is named with a prefix", "write "+presetPrefix+target, nil)
	case !filepath.IsAbs(target):
		target = filepath.Join(filepath.Dir(path), target)
	}
	canonical, err := filepath.EvalSymlinks(target)
	if err != nil {
		return fault(fmt.Sprintf("%q cannot be read", item.text), "", cause(err))
	}
	switch {
	case slices.Contains(stack, canonical):
		return fault(fmt.Sprintf("%q extends itself, through %d files", item.text, len(stack)), "leave one of them out", nil)
	case len(stack) >= maxDepth:
		return fault(fmt.Sprintf("more than %d files deep", maxDepth), "extend fewer files", nil)
	case slices.ContainsFunc(l.documents, func(d Document) bool { return d.Path == canonical }):
		return nil // what it grants is granted
	case len(l.documents) >= maxFiles:
		return fault(fmt.Sprintf("more than %d files", maxFiles), "extend fewer files", nil)
	}
	content, err := read(canonical, true)
	if err != nil {
		return fault(fmt.Sprintf("%q cannot be read", item.text), "", cause(err))
	}
	return l.file(canonical, content, stack)
}

// ConfigDir returns the directory of Caisson's configuration, "" if there is no
// place for it: $XDG_CONFIG_HOME/caisson, or ~/.config/caisson.
func ConfigDir(lookupEnv func(name string) (string, bool)) string {
	if dir, _ := lookupEnv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "caisson")
	}
	if home, _ := lookupEnv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".config", "caisson")
	}
	return ""
}

// exists reports whether there is something, which may be a link that leads
// nowhere.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// LoadToTrust is [Load] for the policy of a workspace, as it would be used: the
// file itself must not be a symbolic link. The documents are what [Trust.Add]
// takes.
func LoadToTrust(path string, place ports.PolicyPlace) (ports.FoundPolicy, []Document, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return ports.FoundPolicy{}, nil, &Error{File: path, Reason: "cannot be read", Err: cause(err)}
	}
	return load(filepath.Join(dir, filepath.Base(path)), place, false, nil, nil)
}
