package policyfile

import (
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/domain"
)

var seeds = []string{
	"", "version = 1", "version = 1\ngroups = [\"git\", \"rust\"]", "version = 1\nextends = [\"preset:ci\"]",
	"version = 1\n[paths]\nro = [\"/a\", \"${home}/x\"]\nrwx = [\"${workspace}\"]\n[[paths.rule]]\npath = \"/q\"\nrights = [\"refer\"]\noptional = true",
	"version = 1\n[network]\ndomains = [\"example.com\", \"*.a.b:8443\", \"db.internal:5432=10.0.0.0/8,fd00::1\", \"127.1\", \"*\"]",
	"version = 1\n[network]\nconnect = [\"localhost:1\", \"[::1]:2\"]\nconnect_tcp = [1_0, 0x1F]\nbind_tcp = [0]\nudp = true\nunix_sockets = \"own\"",
	"version = 1\n[env]\npass = [\"A\"]\nset = { B = \"$${x} ${tmp}\", \"c d\" = '''x''' }\n[limits]\nmemory = \"2GiB\"\npids = 5\ncpus = +1.5e0\ntimeout = \"1h\"",
	"version = 1\n[agent.claude]\nworkspace = \"ro\"\n[agent.claude.paths]\nro = [\"/a\"]\n[agent.codex.limits]\npids = 3",
	"version = 1\npaths.ro = [{}]\n[[paths]]\n", "[[a.b]]\n[a.b.c]\n[[a.b]]\n[a.b.c]\nx.y.z = 1", "a = [[[[[]]]], {b = {c = [1]}}]", "\ufeffversion = 1\r\n", "x = nan\ny = -inf\nz = 1979-05-27T07:32:00Z",
}

// What is compiled is a policy that a plan takes, and grants only what is written:
// nothing that the document does not name.
func FuzzCompile(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	schema := published(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		place := testPlace()
		place.Agent, place.Access = "claude", domain.AccessReadWriteExec
		c := newCompiler(place, nil)
		root, err := parse("/p.toml", data)
		if err != nil {
			requirePlaced(t, err, data)
			return
		}
		c.document(root, "")
		found, err := c.finish()
		if err != nil {
			requirePlaced(t, err, data)
			return
		}
		plan := found.Policy.Apply(domain.NewSandboxPlan("p")).WithRules(found.Policy.PathRules()...)
		if err := plan.Validate(); err != nil {
			t.Fatalf("a plan refuses it: %v", err)
		}
		requireSchema(t, schema, data)
		text := string(data)
		for _, r := range found.Policy.Rules {
			name := filepath.Base(r.Path)
			plain := !strings.ContainsAny(text, "\\$")
			if plain && !strings.Contains(text, strings.TrimPrefix(name, "/")) && !strings.Contains(r.Why, "group ") {
				t.Fatalf("%s is granted and not written", r)
			}
			if r.Why == "" {
				t.Fatalf("nobody granted %s", r)
			}
		}
		if found.Policy.UDP && !strings.Contains(text, "true") {
			t.Fatal("UDP is granted and not written")
		}
		if l := found.Policy.Limits; math.IsNaN(l.CPUs) || l.CPUs < 0 || l.WallClock < 0 || l.Idle < 0 {
			t.Fatalf("limits %v", l)
		}
	})
}

// requirePlaced asks for a place in the document.
func requirePlaced(t *testing.T, err error, data []byte) {
	t.Helper()
	all := []error{err}
	if joined := interface{ Unwrap() []error }(nil); errors.As(err, &joined) {
		all = joined.Unwrap()
	}
	lines := 1 + strings.Count(string(data), "\n")
	for i, e := range all {
		fault := (*Error)(nil)
		ok := errors.As(e, &fault)
		if !ok && i == maxErrors {
			continue // how many more
		}
		if !ok || fault.Line < 1 || fault.Line > lines || fault.Column < 1 || fault.Reason == "" {
			t.Fatalf("no place: %#v", e)
		}
	}
}

// A variable's value is in the result once for each time that it is written, and no
// ${ stays unless it was written as $${.
func FuzzExpand(f *testing.F) {
	for _, s := range []string{"", "/a", "${home}", "$${home}", "$$${home}", "${", "a${tmp}b${state}", "${${home}}", "${home", "$", "$$"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := newCompiler(testPlace(), nil)
		file := &file{compiler: c, said: map[string]spot{}}
		got, ok := file.expand(&value{kind: kindString, text: text, at: spot{line: 1, column: 1}}, "k")
		if ok != (len(c.faults.list) == 0) {
			t.Fatal("a fault without an end, or an end without a fault")
		}
		if !ok {
			return
		}
		if strings.Count(got, "${") > strings.Count(text, "$${") {
			t.Fatalf("%q stays in %q", "${", got)
		}
		if !strings.Contains(text, "${") && got != text {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

func FuzzDistance(f *testing.F) {
	f.Add("memry", "memory")
	f.Add("", "x")
	f.Fuzz(func(t *testing.T, a, b string) {
		d := distance(a, b)
		if d != distance(b, a) || d < 0 || d > max(len(a), len(b)) || (d == 0) != (a[:min(len(a), 64)] == b[:min(len(b), 64)]) {
			t.Fatalf("%d between %q and %q", d, a, b)
		}
		if slices.Contains([]string{a}, b) && d != 0 {
			t.Fatal("equal names")
		}
	})
}
