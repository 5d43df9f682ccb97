package application

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// versionManagers are directories below $HOME in which version managers keep
// whole toolchains. What they put on PATH are shims and links, which need the
// rest of the directory. They hold programs, and no credentials.
var versionManagers = []string{".pyenv", ".nvm", ".rbenv", ".nodenv", ".goenv", ".asdf", ".volta", ".rustup", ".sdkman"}

// homePath returns the directories below $HOME that are granted for the sake of
// PATH: its entries there, and for an entry of a version manager the manager's
// whole directory. None overlaps with the state or with what is to be avoided.
// An entry that has a symbolic link below $HOME is none of them: it may lead
// anywhere, and an earlier session's agent may have made it.
func (o *Orchestrator) homePath(avoid ...string) []string {
	home := o.home()
	if home == "" {
		return nil
	}
	asSaid, _ := o.host.LookupEnv("HOME")
	avoid = append(avoid, o.store.Root())
	var granted []string
	for _, entry := range o.path() {
		// $HOME itself may have links in it: compare below it.
		below, err := filepath.Rel(filepath.Clean(asSaid), entry)
		if err != nil || !filepath.IsLocal(below) {
			if below, err = filepath.Rel(home, entry); err != nil || !filepath.IsLocal(below) {
				continue
			}
		}
		if below == "." || !isPlainDir(entry, filepath.Join(home, below)) {
			continue
		}
		dir := filepath.Join(home, below)
		first, _, _ := strings.Cut(below, string(filepath.Separator))
		if manager := filepath.Join(home, first); slices.Contains(versionManagers, first) && isPlainDir(manager, manager) {
			dir = manager
		}
		unfit := func(other string) bool { return overlaps(dir, other) }
		if !slices.ContainsFunc(avoid, unfit) && !slices.Contains(granted, dir) {
			granted = append(granted, dir)
		}
	}
	return granted
}

// isPlainDir reports whether a path is a directory whose canonical path is the
// expected one.
func isPlainDir(path, canonical string) bool {
	is, exists, err := canonicalPath(path)
	if err != nil || !exists || is != canonical {
		return false
	}
	info, err := os.Stat(canonical)
	return err == nil && info.IsDir()
}
