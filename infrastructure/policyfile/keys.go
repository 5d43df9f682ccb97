package policyfile

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/domain"
)

// key describes a key of the format: the decoder checks documents against it, and
// the schema is made of it.
type key struct {
	name string
	doc  string
	kind kind
	// of is what the elements of a list are, and the values of a table whose keys
	// can be any.
	of *key
	// keys are those of a table.
	keys []key
	// one are the values that a string can have.
	one []string
	// least and most bound a number; most 0 is for no bound.
	least, most float64
	// above says that the number must be greater than least.
	above bool
	// form is what a string must match, as JSON Schema has it; the compiler checks
	// it in its own words.
	form     string
	required bool
}

func text(name, doc string) key { return key{name: name, doc: doc, kind: kindString} }

func oneOf(name, doc string, values ...string) key {
	return key{name: name, doc: doc, kind: kindString, one: values}
}

func list(name, doc string, of key) key { return key{name: name, doc: doc, kind: kindList, of: &of} }

func table(name, doc string, keys ...key) key {
	return key{name: name, doc: doc, kind: kindTable, keys: keys}
}

const (
	pathForm    = `^(/|\$\{)`
	memoryForm  = `^[1-9][0-9]*([KMGT](iB)?)?$`
	timeForm    = `^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$`
	connectForm = `^(((localhost|[0-9.]+|\[[0-9a-fA-F:.]+\]):[1-9][0-9]*)|(unix:/.+))$`
	domainForm  = `^(\*\.)?[A-Za-z0-9_][A-Za-z0-9_.-]*(:[1-9][0-9]*)?(=[0-9a-fA-F:./]+(,[0-9a-fA-F:./]+)*)?$`
	nameForm    = `^[^=\x00]+$`
)

// sectionKeys are the keys of what a policy says, of the whole file and of a
// section for one agent.
func sectionKeys() []key {
	path := key{kind: kindString, form: pathForm}
	var paths []key
	for _, a := range domain.UsualAccesses() {
		paths = append(paths, list(a.Name, "Grant "+a.Grants+" of these paths and all below them. Each must exist.", path))
	}
	for _, a := range domain.UsualAccesses() {
		paths = append(paths, list("optional_"+a.Name, "The same as "+a.Name+", of those that exist.", path))
	}
	rights := (^domain.Access(0)).Names()
	var waivers []string
	for _, p := range domain.Properties() {
		waivers = append(waivers, string(p))
	}
	pathKey := key{name: "path", doc: "The path.", kind: kindString, form: pathForm, required: true}
	rightsKey := list("rights", "Rights by Landlock's names.", key{kind: kindString, one: rights})
	rightsKey.required = true
	paths = append(paths, list("rule", "Grant single rights.", table("", "", pathKey, rightsKey,
		key{name: "optional", doc: "Pass over a path that does not exist.", kind: kindBool})))
	words := []string{}
	for _, a := range domain.UsualAccesses() {
		words = append(words, a.Name)
	}
	port := key{kind: kindInteger, least: 1, most: math.MaxUint16}
	anyPort := port
	anyPort.least = 0
	values := text("", "")
	return []key{
		list("groups", "What a toolchain needs: its caches are led into the private state.", key{kind: kindString, one: names(groupFiles, "groups")}),
		oneOf("workspace", "What is granted of the workspace, in place of what the preset grants: rwx of run and shell, nothing of exec.", words...),
		list("waive", "Properties to do without where they cannot be enforced. Every receipt says so.", key{kind: kindString, one: waivers}),
		oneOf("tripwires", "What becomes of a turn that changes files from which something runs code later, outside of the sandbox.", "report", "fail", "off"),
		{name: "gateway", doc: "Whether the agent reaches its model API through Caisson, which keeps the key.", kind: kindBool},
		table("paths", "Paths, by what is granted of them.", paths...),
		table("network", "What can be reached.",
			list("connect_tcp", "TCP ports that can be connected to, on any host.", port),
			list("connect", "ADDRESS:PORT that can be connected to, each on that host alone; localhost is 127.0.0.1 and ::1. Or unix:PATH, a unix socket that can be connected to.", key{kind: kindString, form: connectForm}),
			list("domains", "HOST[:PORT] that can be connected to by name, through a proxy that resolves it; *.HOST for its subdomains, HOST=ADDRESS[,ADDRESS] for one that leads to these addresses or networks and no public ones. Port 443 and 80 by default.", key{kind: kindString, form: domainForm}),
			list("bind_tcp", "TCP ports that can be listened on; 0 is any free one.", anyPort),
			key{name: "udp", doc: "Allow UDP, to any host: what resolves names by DNS needs it.", kind: kindBool},
			oneOf("unix_sockets", "Unix sockets that can be connected to.", "deny", "own", "allow"),
		),
		table("env", "The environment.",
			list("pass", "Variables that are passed on, with the values that they have outside.", key{kind: kindString, form: nameForm}),
			key{name: "set", doc: "Variables with their values.", kind: kindTable, of: &values, form: nameForm},
		),
		table("limits", "Limits on the whole process tree, and on a turn's time.",
			key{name: "memory", doc: "Bytes, with K, M, G or T (or KiB, MiB, GiB, TiB) for powers of 1024.", kind: kindString, form: memoryForm},
			key{name: "pids", doc: "Processes and threads.", kind: kindInteger, least: 1},
			key{name: "cpus", doc: "Processors.", kind: kindNumber, above: true},
			key{name: "timeout", doc: "The time of a turn or a command, for example 90s or 1h30m.", kind: kindString, form: timeForm},
			key{name: "idle_timeout", doc: "The time of a turn without output or a running tool. Of agents' turns alone.", kind: kindString, form: timeForm},
		),
	}
}

// fileKeys are the keys of a file. agents are the names of the agents' sections;
// nil for any.
func fileKeys(agents []string) key {
	keys := []key{
		{name: "version", doc: "The version of the format.", kind: kindInteger, least: 1, most: 1, required: true},
		list("extends", "Policies that this one adds to: files, relative to this file's directory, or preset:NAME.", key{kind: kindString}),
	}
	section := table("", "What holds for this agent alone.", sectionKeys()...)
	agent := key{name: "agent", doc: "Sections for single agents.", kind: kindTable, of: &section}
	if agents != nil {
		agent.of = nil
		for _, name := range agents {
			section.name = name
			agent.keys = append(agent.keys, section)
		}
	}
	return table("", "", append(append(keys, sectionKeys()...), agent)...)
}

// check holds a value against what it must be.
func (k *key) check(v *value, name string, f *faults) {
	bad := func(at spot, key, reason, remedy string) {
		f.add(&Error{File: at.file, Line: at.line, Column: at.column, Key: key, Reason: reason, Remedy: remedy})
	}
	if v.kind != k.kind && (k.kind != kindNumber || v.kind != kindInteger) {
		bad(v.at, name, fmt.Sprintf("%s, but it must be %s", v.kind, k.kind), "")
		return
	}
	switch v.kind {
	case kindString:
		if k.one != nil && !slices.Contains(k.one, v.text) {
			bad(v.at, name, fmt.Sprintf("%q is none of %s", v.text, strings.Join(k.one, ", ")), didYouMean(v.text, k.one))
		}
	case kindInteger, kindNumber:
		// Not v.number < least: a NaN must not pass.
		if inside := v.number >= k.least && (k.most == 0 || v.number <= k.most) && (!k.above || v.number > k.least); !inside || math.IsInf(v.number, 0) {
			bad(v.at, name, v.text+" is out of bounds", k.bounds())
		}
	case kindList:
		for i, item := range v.list {
			k.of.check(item, fmt.Sprintf("%s[%d]", name, i), f)
		}
	case kindTable:
		k.checkTable(v, name, f)
	}
}

// oneNumber reports whether there is but one number that the key can have.
func (k *key) oneNumber() bool { return k.most > 0 && k.least == k.most }

// whatToWrite is the remedy where a key is missing.
func (k *key) whatToWrite() string {
	if k.oneNumber() {
		return fmt.Sprintf("write %s = %g", k.name, k.most)
	}
	return k.doc
}

func (k *key) bounds() string {
	switch {
	case k.oneNumber():
		return fmt.Sprintf("the only one is %g", k.most)
	case k.above:
		return fmt.Sprintf("a finite number above %g", k.least)
	case k.most > 0:
		return fmt.Sprintf("%g to %g", k.least, k.most)
	}
	return fmt.Sprintf("%g or more", k.least)
}

func (k *key) checkTable(v *value, name string, f *faults) {
	dotted := func(part string) string {
		if name == "" {
			return part
		}
		return name + "." + part
	}
	for _, e := range v.table {
		if k.of != nil {
			k.of.check(e.value, dotted(e.name), f)
			continue
		}
		if i := slices.IndexFunc(k.keys, func(c key) bool { return c.name == e.name }); i >= 0 {
			k.keys[i].check(e.value, dotted(e.name), f)
			continue
		}
		fault := &Error{File: e.at.file, Line: e.at.line, Column: e.at.column, Key: dotted(e.name), Reason: "unknown key", Remedy: k.nearest(e.name)}
		if denies(e.name) {
			fault.Reason, fault.Remedy = cannotDeny, insteadOfDeny
		}
		f.add(fault)
	}
	for _, c := range k.keys {
		if c.required && v.get(c.name) == nil {
			f.add(&Error{File: v.at.file, Line: v.at.line, Column: v.at.column, Key: dotted(c.name), Reason: "missing", Remedy: c.whatToWrite()})
		}
	}
}

const (
	cannotDeny    = "a policy only grants: nothing can take a part back out of what is granted (Landlock's rules add up)"
	insteadOfDeny = "what no rule grants is denied already, so grant narrower: less of the workspace with workspace = \"ro\", " +
		"or the directories beside the one to leave out instead of the one above it"
)

// denies reports whether a key is one with which other tools deny.
func denies(name string) bool {
	name = plain(name)
	for _, word := range []string{"deny", "denied", "exclude", "except", "hide", "hidden", "mask", "forbid", "block", "no_"} {
		if strings.HasPrefix(name, word) {
			return true
		}
	}
	return false
}

func plain(name string) string { return strings.ReplaceAll(strings.ToLower(name), "-", "_") }

// nearest says which key was probably meant.
func (k *key) nearest(name string) string {
	var candidates []string
	for _, c := range k.keys {
		candidates = append(candidates, c.name)
	}
	if meant := didYouMean(name, candidates); meant != "" {
		return meant
	}
	// A key that stands in the wrong table.
	top := fileKeys(nil)
	for _, c := range top.keys {
		if c.name == plain(name) && c.kind != kindTable {
			return fmt.Sprintf("%s stands above the first table", c.name)
		}
		for _, inner := range c.keys {
			if inner.name == plain(name) {
				return fmt.Sprintf("%s belongs into [%s]", inner.name, c.name)
			}
		}
	}
	return "one of " + strings.Join(candidates, ", ")
}

// didYouMean names the candidate nearest to a name, if one is near; it is empty
// otherwise.
func didYouMean(name string, candidates []string) string {
	best, least := "", 1+max(2, len(name)/3)
	for _, c := range candidates {
		if d := distance(plain(name), c); d < least && d < len(c) {
			best, least = c, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %s?", best)
}

// distance is Levenshtein's. Names are short; of a long one the beginning counts.
func distance(a, b string) int {
	a, b = a[:min(len(a), 64)], b[:min(len(b), 64)]
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
