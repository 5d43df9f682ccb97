// Package layering checks the rules that hold the project's architecture
// together: which layer may import which, who may start a process, where no
// unsafe code may be, and that each package says what it is for. The rules are
// data ([Rules]), so that the tests can show that the checker finds what it is
// there to find. It may import the standard library alone.
//
// It reads every source file, whatever its build constraints, so a file for
// another system is held to the same rules.
package layering

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Rules are what [Rules.Check] enforces. Directories are relative to the
// module's root, with slashes.
type Rules struct {
	// Module is the module's path.
	Module string
	// Layers hold one entry per part of the tree; the longest Dir that a
	// package is in decides. A package in none is a finding.
	Layers []Layer
	// Adapters are imports between two adapters that are allowed all the same.
	// One that is not used any more is a finding.
	Adapters []Exception
	// Spawners may start processes. One that does not is a finding.
	Spawners []Exception
	// Unsafe are the files that may import unsafe. One that does not is a
	// finding.
	Unsafe []Exception
}

// Layer says what the packages in and below a directory may import, their
// tests left aside.
type Layer struct {
	Dir string
	// Own are the directories of the module that may be imported, with what is
	// below them. Packages of one adapter may always import one another.
	Own []string
	// Std are the packages of the standard library that may be imported; nil
	// means all.
	Std []string
	// Denied may not be imported though Std or Modules would allow it, but for what
	// is pure in it.
	Denied []string
	// Modules are the other modules that may be imported; "*" means any.
	Modules []string
	// NoTags forbids struct tags: encodings belong to adapters.
	NoTags bool
}

// Exception is one departure from a rule, with the reason for it.
type Exception struct {
	From string // the importing package's directory, or the file
	To   string // the imported one, for Adapters
	Why  string
}

// Source is one parsed file.
type Source struct {
	File string // relative to the module's root, with slashes
	// Nested is true for a file of a module inside this one. Only the bans on
	// unsafe code and on unfinished work hold for it.
	Nested bool
	AST    *ast.File
}

func (s Source) dir() string  { return path.Dir(s.File) }
func (s Source) isTest() bool { return strings.HasSuffix(s.File, "_test.go") }

// imports returns the imported paths by the names that the file uses for them.
func (s Source) imports() map[string]string {
	m := map[string]string{}
	for _, spec := range s.AST.Imports {
		// The parser has accepted the literal already.
		p, _ := strconv.Unquote(spec.Path.Value)
		name := path.Base(p)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		// Two blank imports, or two packages of one base name, keep both.
		for m[name] != "" {
			name += "'"
		}
		m[name] = p
	}
	return m
}

// Load parses every Go file below root, but for testdata, node_modules and
// directories that the go command ignores. A file that would be compiled in
// though it is no Go (assembly, C) is an error: it cannot be checked.
func Load(root string) ([]Source, error) {
	var sources []Source
	nested := map[string]bool{}
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			switch name := d.Name(); {
			case rel == ".":
				return nil
			case name == "testdata" || name == "node_modules" || name[0] == '.' || name[0] == '_':
				return fs.SkipDir
			}
			_, err := os.Stat(filepath.Join(file, "go.mod"))
			nested[rel] = err == nil || nested[path.Dir(rel)]
			return nil
		}
		switch path.Ext(rel) {
		case ".go":
		case ".s", ".S", ".c", ".h", ".cc", ".syso":
			return fmt.Errorf("%s: only Go is checked, and only Go belongs here", rel)
		default:
			return nil
		}
		f, err := parser.ParseFile(fset, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse: %w", err)
		}
		sources = append(sources, Source{File: rel, Nested: nested[path.Dir(rel)], AST: f})
		return nil
	})
	return sources, err
}

// Check returns what breaks the rules, sorted; nothing if all is well.
func (r Rules) Check(sources []Source) []string {
	c := checker{Rules: r, used: map[Exception]bool{}}
	packages := map[string][]Source{}
	for _, s := range sources {
		c.unsafeCode(s)
		c.unfinished(s)
		if s.Nested {
			continue
		}
		packages[s.dir()] = append(packages[s.dir()], s)
		if !s.isTest() {
			c.layer(s)
			c.spawning(s)
		}
	}
	for dir, files := range packages {
		c.doc(dir, files)
	}
	for _, list := range [][]Exception{r.Adapters, r.Spawners, r.Unsafe} {
		for _, e := range list {
			if !c.used[e] {
				c.find("exception %s → %s is not used: remove it", e.From, e.To)
			}
			if e.Why == "" {
				c.find("exception %s → %s gives no reason", e.From, e.To)
			}
		}
	}
	slices.Sort(c.findings)
	return slices.Compact(c.findings)
}

type checker struct {
	Rules
	used     map[Exception]bool
	findings []string
}

func (c *checker) find(format string, args ...any) {
	c.findings = append(c.findings, fmt.Sprintf(format, args...))
}

// layer holds a file's imports and tags against its layer.
func (c *checker) layer(s Source) {
	var l *Layer
	for i := range c.Layers {
		if within(s.dir(), c.Layers[i].Dir) && (l == nil || len(c.Layers[i].Dir) > len(l.Dir)) {
			l = &c.Layers[i]
		}
	}
	if l == nil {
		c.find("%s: in no layer: say in the rules what it may import", s.File)
		return
	}
	for _, p := range s.imports() {
		if !c.allowed(s.dir(), *l, p) {
			c.find("%s: imports %s, which layer %s does not allow", s.File, p, l.Dir)
		}
	}
	if l.NoTags {
		ast.Inspect(s.AST, func(n ast.Node) bool {
			if f, ok := n.(*ast.Field); ok && f.Tag != nil {
				c.find("%s: struct tag %s: encodings belong to adapters", s.File, f.Tag.Value)
			}
			return true
		})
	}
}

func (c *checker) allowed(dir string, l Layer, imported string) bool {
	in := func(list []string) bool {
		return slices.ContainsFunc(list, func(e string) bool { return within(imported, e) })
	}
	switch own, isOwn := strings.CutPrefix(imported, c.Module+"/"); {
	case in(l.Denied) && !slices.Contains(pure, imported):
		return false
	case isOwn:
		if slices.ContainsFunc(l.Own, func(e string) bool { return within(own, e) }) || sameAdapter(own, dir) {
			return true
		}
		return c.except(c.Adapters, func(e Exception) bool { return e.From == dir && e.To == own })
	case imported == "C" || imported == "unsafe":
		return true // unsafeCode has the say
	case !strings.Contains(strings.Split(imported, "/")[0], "."):
		return l.Std == nil || slices.Contains(l.Std, imported)
	default:
		return slices.Contains(l.Modules, "*") || in(l.Modules)
	}
}

func (c *checker) except(list []Exception, match func(Exception) bool) bool {
	i := slices.IndexFunc(list, match)
	if i >= 0 {
		c.used[list[i]] = true
	}
	return i >= 0
}

// sameAdapter reports whether two packages belong to one adapter: to one
// directory of infrastructure, or to one agent.
func sameAdapter(a, b string) bool {
	unit := func(dir string) string {
		parts := strings.Split(dir, "/")
		n := 2
		if len(parts) > 2 && parts[1] == "agents" {
			n = 3
		}
		return path.Join(parts[:min(n, len(parts))]...)
	}
	return within(a, "infrastructure") && unit(a) == unit(b)
}

// within reports whether a path is a directory or below it, by components.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// starters start a process, or replace this one.
var starters = map[string][]string{
	"os":                    {"StartProcess"},
	"syscall":               {"StartProcess", "ForkExec", "Exec"},
	"golang.org/x/sys/unix": {"Exec"},
}

// spawning finds what could start a process outside the listed packages: a
// child that the spawner does not make is a child without a sandbox.
func (c *checker) spawning(s Source) {
	spawns := func(what string) {
		if !c.except(c.Spawners, func(e Exception) bool { return within(s.dir(), e.From) }) {
			c.find("%s: %s: only the listed packages may start a process", s.File, what)
		}
	}
	imports := s.imports()
	if slices.Contains(slices.Collect(maps.Values(imports)), "os/exec") {
		spawns("imports os/exec")
	}
	ast.Inspect(s.AST, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && slices.Contains(starters[imports[x.Name]], sel.Sel.Name) {
				spawns(x.Name + "." + sel.Sel.Name)
			}
		}
		return true
	})
}

// unsafeCode finds what the Go compiler does not check.
func (c *checker) unsafeCode(s Source) {
	for _, p := range s.imports() {
		switch p {
		case "C":
			c.find("%s: cgo", s.File)
		case "unsafe":
			if !c.except(c.Unsafe, func(e Exception) bool { return e.From == s.File }) {
				c.find("%s: imports unsafe", s.File)
			}
		}
	}
	for _, group := range s.AST.Comments {
		for _, comment := range group.List {
			if strings.HasPrefix(comment.Text, "//go:linkname") {
				c.find("%s: go:linkname", s.File)
			}
		}
	}
}

// unfinished finds the marks of work that was put off. What is missing belongs
// into the tracker, where somebody looks for it.
func (c *checker) unfinished(s Source) {
	for _, group := range s.AST.Comments {
		for _, comment := range group.List {
			for _, word := range strings.FieldsFunc(comment.Text, func(r rune) bool { return !unicode.IsLetter(r) }) {
				if slices.Contains([]string{"TODO", "FIXME", "XXX"}, word) {
					c.find("%s: %s in a comment", s.File, word)
				}
			}
		}
	}
}

// shortestDoc is fewer characters than any sentence that says what a package
// is for.
const shortestDoc = 60

// doc checks that one file, and one only, says what the package is for. In a
// package that has nothing but tests, one of them says it.
func (c *checker) doc(dir string, files []Source) {
	code := slices.DeleteFunc(slices.Clone(files), Source.isTest)
	if len(code) == 0 {
		code = files
	}
	var documented []string
	for _, s := range code {
		if s.AST.Doc == nil {
			continue
		}
		documented = append(documented, s.File)
		text := s.AST.Doc.Text()
		want := "Package " + s.AST.Name.Name + " "
		if s.AST.Name.Name == "main" {
			want = "Command " + path.Base(dir) + " "
		}
		if !strings.HasPrefix(text, want) {
			c.find("%s: the package comment does not start with %q", s.File, want)
		}
		if len(text) < shortestDoc {
			c.find("%s: the package comment does not say what the package is for", s.File)
		}
	}
	slices.Sort(documented)
	switch len(documented) {
	case 0:
		c.find("%s: no file has a package comment", dir)
	case 1:
	default:
		c.find("%s: several package comments: %s", dir, strings.Join(documented, ", "))
	}
}
