package policyfile

import (
	"embed"
	"strings"
)

// The groups and the presets are policies themselves, with the source of each of
// their rules.
var (
	//go:embed groups/*.toml
	groupFiles embed.FS
	//go:embed presets/*.toml
	presetFiles embed.FS
)

// presetPrefix marks a preset among what a file extends.
const presetPrefix = "preset:"

// names lists the policies in a directory, sorted.
func names(files embed.FS, dir string) []string {
	entries, err := files.ReadDir(dir)
	if err != nil {
		panic(err) // it is compiled in
	}
	var list []string
	for _, e := range entries {
		list = append(list, strings.TrimSuffix(e.Name(), ".toml"))
	}
	return list
}

// builtin returns the text of a policy that is known to be there.
func builtin(files embed.FS, dir, name string) []byte {
	text, err := files.ReadFile(dir + "/" + name + ".toml")
	if err != nil {
		panic(err)
	}
	return text
}

// Groups lists the names of the groups, sorted.
func Groups() []string { return names(groupFiles, "groups") }

// Presets lists the names of the presets, sorted.
func Presets() []string { return names(presetFiles, "presets") }
