// Package lookup is what the agent adapters share. It finds agent programs by
// reading files alone: nothing that it looks at is ever run, because at that
// point nothing confines it yet. And it says what the place of a model's API
// asks of a plan. It may import domain, ports, the
// standard library and x/sys.
package lookup

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/ports"
)

// OnPath returns the first regular file called name that we may execute, in
// the absolute entries of the host's PATH. Relative and empty entries stand
// for the working directory, which is often one that an agent can write, and
// are skipped. The result is not resolved: it may be a symbolic link. A name
// with a separator, and an empty one, is never found.
func OnPath(host ports.Host, name string) (string, bool) {
	if name == "" || strings.ContainsRune(name, filepath.Separator) || host.LookupEnv == nil {
		return "", false
	}
	path, _ := host.LookupEnv("PATH")
	for _, dir := range filepath.SplitList(path) {
		if !filepath.IsAbs(dir) {
			continue
		}
		file := filepath.Join(dir, name)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && executable(file, info) == nil {
			return file, true
		}
	}
	return "", false
}

// Executable returns the absolute path of a program with every symbolic link
// resolved. The error says which of it failed: the path leads nowhere, is no
// regular file, or may not be executed by us.
func Executable(path string) (canonical string, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("make %q absolute: %w", path, err)
	}
	canonical, err = filepath.EvalSymlinks(abs)
	if err != nil {
		return "", fmt.Errorf("resolve the links: %w", err)
	}
	info, err := os.Stat(canonical)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file (%s)", canonical, info.Mode().Type())
	}
	if err := executable(canonical, info); err != nil {
		return "", fmt.Errorf("%s is not executable by us: %w", canonical, err)
	}
	return canonical, nil
}

// IsELF reports whether the file starts as ELF programs do (elf(5), e_ident).
// A file that cannot be read is none.
func IsELF(path string) bool {
	// A regular file only: opening a named pipe would wait for its other end.
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var magic [4]byte
	_, err = io.ReadFull(f, magic[:])
	return err == nil && string(magic[:]) == "\x7fELF"
}

// PlatformPackage returns the directory of the npm package name, such as
// "@scope/tool-linux-x64", as Node's module resolution finds it from the file
// or directory from: it looks for node_modules/name in every directory upwards
// (nodejs.org/api/modules.html, "Loading from node_modules folders"). Where
// from is inside a node_modules directory itself, this finds its siblings. No
// link is followed to get from one directory to the next, so from should be
// canonical.
func PlatformPackage(from, name string) (dir string, ok bool) {
	if !filepath.IsAbs(from) || !filepath.IsLocal(name) {
		return "", false
	}
	for at := filepath.Clean(from); ; at = filepath.Dir(at) {
		in := filepath.Join(at, "node_modules")
		if filepath.Base(at) == "node_modules" {
			in = at
		}
		dir := filepath.Join(in, name)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir, true
		}
		if at == filepath.Dir(at) {
			return "", false
		}
	}
}

// maxManifest bounds what PackageVersion reads; the manifests of the agents
// have less than 10 KB.
const maxManifest = 1 << 20

// PackageVersion returns the "version" of the package.json in dir, "" if there
// is none or it cannot be read.
func PackageVersion(dir string) string {
	file := filepath.Join(dir, "package.json")
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxManifest {
		return ""
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	var manifest struct {
		Version string `json:"version"`
	}
	if json.Unmarshal(data, &manifest) != nil {
		return ""
	}
	return manifest.Version
}
