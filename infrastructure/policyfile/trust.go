package policyfile

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/domain"
)

// Trust knows which policies in workspaces their user trusts: for the path of each
// the digests of its content and of all files that it extends. It lies in
// Caisson's configuration, one file a policy, for the user alone, and no plan may
// let it be written.
type Trust struct{ dir string }

// NewTrust returns the trust that is kept in Caisson's configuration directory.
// Nothing is made before something is trusted.
func NewTrust(configDir string) Trust { return Trust{dir: filepath.Join(configDir, "trust")} }

func (t Trust) entry(path string) string {
	sum := sha256.Sum256([]byte(path))
	return filepath.Join(t.dir, hex.EncodeToString(sum[:]))
}

// Add trusts a policy: the files that [Load] listed, the policy itself first. It
// replaces what was trusted at its path.
func (t Trust) Add(documents []Document) error {
	if len(documents) == 0 {
		return &domain.InvalidError{What: "policy", Reason: "no file", Remedy: "load one"}
	}
	fault := func(err error) error { return fmt.Errorf("trust %s: %w", documents[0].Path, err) }
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return fault(err)
	}
	if err := t.check(); err != nil {
		return err
	}
	var text bytes.Buffer
	for _, d := range documents {
		fmt.Fprintf(&text, "%s %s\n", d.SHA256, strconv.Quote(d.Path))
	}
	f, err := os.CreateTemp(t.dir, ".new-")
	if err != nil {
		return fault(err)
	}
	_, err = f.Write(text.Bytes())
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), t.entry(documents[0].Path))
	}
	if err != nil {
		return fault(errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// Remove forgets a policy, and reports whether it was trusted.
func (t Trust) Remove(path string) (bool, error) {
	err := os.Remove(t.entry(path))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Documents returns the files of the policy at a path as they are trusted, nil if
// it is not. A store that somebody else can write to is refused.
func (t Trust) Documents(path string) ([]Document, error) {
	content, err := read(t.entry(path), false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("what is trusted: %w", err)
	}
	if err := t.check(); err != nil {
		return nil, err
	}
	var documents []Document
	for lines := bufio.NewScanner(bytes.NewReader(content)); lines.Scan(); {
		sum, quoted, _ := strings.Cut(lines.Text(), " ")
		name, err := strconv.Unquote(quoted)
		if err != nil || len(sum) != 2*sha256.Size {
			return nil, &domain.InvalidError{
				What: "trust", Value: t.entry(path), Reason: "not understood", Remedy: "trust the policy again",
			}
		}
		documents = append(documents, Document{Path: name, SHA256: sum})
	}
	if len(documents) == 0 || documents[0].Path != path {
		return nil, nil
	}
	return documents, nil
}

// check refuses a store that somebody else can write to.
func (t Trust) check() error {
	for _, dir := range []string{t.dir, filepath.Dir(t.dir)} {
		info, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("what is trusted: %w", err)
		}
		if !info.IsDir() || othersCanWrite(info) {
			return &domain.InvalidError{
				What: "trust", Value: dir, Reason: "others can write to it", Remedy: "chmod go-w it, or remove it and trust the policies again",
			}
		}
	}
	return nil
}
