package policyfile

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// grant is a path rule on its way into a policy.
type grant struct {
	domain.PathRule
	key     string
	raw     string // as it is written
	at      spot
	written bool // in a file; a group's and a preset's may add nothing
}

// destination is an address that may be connected to.
type destination struct {
	address netip.AddrPort
	key     string
	at      spot
}

// named is a host that may be connected to by name.
type named struct {
	domain.EgressDomain
	key string
	at  spot
}

// compiler adds up files.
type compiler struct {
	place    ports.PolicyPlace
	agents   []string
	replaced []string // keys that flags replace
	faults   faults

	out          domain.Policy
	tripwires    string
	direct       bool
	unix         domain.UnixSockets
	grants       []grant
	destinations []destination
	domains      []named
	groups       map[string]bool
	workspaceAt  string
}

func newCompiler(place ports.PolicyPlace, replaced []string) *compiler {
	c := &compiler{place: place, replaced: replaced, groups: map[string]bool{}}
	c.out.Origins = map[string]string{}
	c.agents = []string{}
	for _, a := range place.Agents {
		c.agents = append(c.agents, string(a))
	}
	return c
}

// document adds a document that is well formed. origin is what it is called where
// somebody asks who put something there; "" for the place itself.
func (c *compiler) document(root *value, origin string) {
	top := fileKeys(c.agents)
	before := len(c.faults.list)
	top.check(root, "", &c.faults)
	if len(c.faults.list) > before {
		return
	}
	f := &file{compiler: c, origin: origin, said: map[string]spot{}}
	f.section(root, "")
	if section := root.get("agent"); section != nil && c.place.Agent != "" {
		if own := section.get(string(c.place.Agent)); own != nil {
			// What it says again is no slip: it stands on top.
			f = &file{compiler: c, origin: origin, said: map[string]spot{}}
			f.section(own, "agent."+string(c.place.Agent)+".")
		}
	}
}

// file is one document as it is added.
type file struct {
	*compiler
	origin string
	said   map[string]spot // what was said already, with its place
}

func (f *file) bad(at spot, key, reason, remedy string) {
	f.faults.add(&Error{File: at.file, Line: at.line, Column: at.column, Key: key, Reason: reason, Remedy: remedy})
}

// why is who put something there.
func (f *file) why(at spot) string {
	if f.origin != "" {
		return f.origin
	}
	return at.String()
}

// once reports whether something is said for the first time in this file.
func (f *file) once(what string, at spot, key string) bool {
	if first, ok := f.said[what]; ok {
		f.bad(at, key, fmt.Sprintf("said twice: %s", what), fmt.Sprintf("it stands in line %d already", first.line))
		return false
	}
	f.said[what] = at
	return true
}

// counts reports whether a key is not replaced by a flag.
func (c *compiler) counts(key string) bool { return !slices.Contains(c.replaced, key) }

// each gives the elements of a list of a table.
func (f *file) each(v *value, name, prefix string, do func(item *value, key string)) {
	if v == nil {
		return
	}
	l := v.get(name)
	if l == nil {
		return
	}
	for i, item := range l.list {
		do(item, fmt.Sprintf("%s%s[%d]", prefix, name, i))
	}
}

// section adds the file's own keys, or those of an agent's section.
func (f *file) section(v *value, prefix string) {
	f.each(v, "groups", prefix, f.group)
	if w := v.get("workspace"); w != nil {
		for _, usual := range domain.UsualAccesses() {
			if usual.Name == w.text {
				f.out.Workspace = usual.Access
			}
		}
		f.out.Origins[domain.OriginWorkspace] = f.why(w.at)
		f.workspaceAt = w.at.String()
	}
	f.each(v, "waive", prefix, func(item *value, key string) {
		if f.once("waive "+item.text, item.at, key) {
			f.out.Waivers = append(f.out.Waivers, domain.Property(item.text))
			f.out.Origins["waive "+item.text] = f.why(item.at)
		}
	})
	if t := v.get("tripwires"); t != nil && f.counts("tripwires") {
		f.tripwires = t.text
	}
	if g := v.get("gateway"); g != nil && f.counts("gateway") {
		f.direct = !g.truth
	}
	f.paths(v.get("paths"), prefix+"paths.")
	f.network(v.get("network"), prefix+"network.")
	f.env(v.get("env"), prefix+"env.")
	f.limits(v.get("limits"), prefix+"limits.")
}

// group adds a group, once.
func (f *file) group(item *value, key string) {
	if !f.once("group "+item.text, item.at, key) || f.groups[item.text] {
		return
	}
	f.groups[item.text] = true
	name := "group " + item.text
	origin := fmt.Sprintf("%s (%s)", name, f.why(item.at))
	root, err := parse(name, builtin(groupFiles, "groups", item.text))
	if err != nil {
		f.faults.add(err)
		return
	}
	before := len(f.faults.list)
	f.document(root, origin)
	for i, err := range f.faults.list[before:] {
		// Such as a variable without a value: its place is here.
		f.faults.list[before+i] = &Error{File: item.at.file, Line: item.at.line, Column: item.at.column, Key: key, Reason: err.Error()}
	}
}

func (f *file) paths(v *value, prefix string) {
	for _, a := range domain.UsualAccesses() {
		f.each(v, a.Name, prefix, func(item *value, key string) { f.path(item, key, a.Access, domain.Required) })
		f.each(v, "optional_"+a.Name, prefix, func(item *value, key string) { f.path(item, key, a.Access, domain.Optional) })
	}
	f.each(v, "rule", prefix, func(item *value, key string) {
		var access domain.Access
		f.each(item, "rights", key+".", func(right *value, key string) {
			bit := domain.RightOf(right.text)
			if access.Has(bit) {
				f.bad(right.at, key, "said twice: "+right.text, "")
			}
			access |= bit
		})
		if access == 0 {
			f.bad(item.at, key+".rights", "empty", "name at least one right")
			return
		}
		presence := domain.Required
		if o := item.get("optional"); o != nil && o.truth {
			presence = domain.Optional
		}
		f.path(item.get("path"), key+".path", access, presence)
	})
}

// path adds a rule.
func (f *file) path(item *value, key string, access domain.Access, presence domain.Presence) {
	p, ok := f.expand(item, key)
	if !ok {
		return
	}
	bad := func(reason, remedy string) { f.bad(item.at, key, reason, remedy) }
	switch {
	case p == "":
		bad("an empty path", "name a file or a directory")
	case strings.ContainsRune(p, 0):
		bad("a NUL byte in a path", "name a file or a directory")
	case strings.HasPrefix(p, "!") || strings.HasPrefix(p, "-"):
		bad(cannotDeny, insteadOfDeny)
	case strings.HasPrefix(p, "~"):
		bad("~ is a shell's", "write ${home}")
	case !strings.HasPrefix(p, "/"):
		bad(fmt.Sprintf("%q is a relative path, which would mean another place in every directory", p), "begin it with /, ${workspace}, ${home}, ${state} or ${tmp}")
	case slices.Contains(strings.Split(p, "/"), ".."):
		bad(fmt.Sprintf("%q has a .. in it, which leads elsewhere when a directory is a link", p), "write where it leads")
	case strings.Contains(p, "*"):
		bad(fmt.Sprintf("%q: there are no patterns", p), "name a directory: all below it is granted too")
	default:
		p = path.Clean(p)
		if f.once(access.String()+" of "+p, item.at, key) {
			f.grants = append(f.grants, grant{
				PathRule: domain.PathRule{Path: p, Access: access, Presence: presence, Why: f.why(item.at)},
				key:      key, raw: item.text, at: item.at, written: f.origin == "",
			})
		}
	}
}

// variables are those of paths and of values of the environment.
var variables = []string{"workspace", "home", "state", "tmp"}

// expand puts the values in place of variables. $${ is a literal ${.
func (f *file) expand(item *value, key string) (string, bool) {
	values := map[string]string{
		"workspace": f.place.Workspace, "home": f.place.Home, "state": f.place.State, "tmp": f.place.Temp,
	}
	var b strings.Builder
	rest := item.text
	for {
		before, after, found := strings.Cut(rest, "${")
		if !found {
			b.WriteString(rest)
			return b.String(), true
		}
		if escaped, ok := strings.CutSuffix(before, "$"); ok {
			b.WriteString(escaped + "${")
			rest = after
			continue
		}
		b.WriteString(before)
		name, tail, closed := strings.Cut(after, "}")
		switch {
		case !closed:
			f.bad(item.at, key, "a ${ without its }", "write $${ for a literal ${")
			return "", false
		case !slices.Contains(variables, name):
			f.bad(item.at, key, fmt.Sprintf("unknown variable ${%s}", name), cmp.Or(didYouMean(name, variables), "one of "+strings.Join(variables, ", ")))
			return "", false
		case values[name] == "":
			f.bad(item.at, key, fmt.Sprintf("${%s} has no value here", name), "set HOME to an absolute path, or write the path")
			return "", false
		}
		b.WriteString(values[name])
		rest = tail
	}
}

func (f *file) network(v *value, prefix string) {
	if v == nil {
		return
	}
	ports := func(name, grant string, add func(uint16)) {
		f.each(v, name, prefix, func(item *value, key string) {
			if line := fmt.Sprintf("%s %d", grant, uint16(item.number)); f.once(line, item.at, key) {
				add(uint16(item.number))
				f.putOrigin(line, item.at)
			}
		})
	}
	ports("connect_tcp", "tcp connect", func(p uint16) { f.out.ConnectTCP = append(f.out.ConnectTCP, p) })
	ports("bind_tcp", "tcp bind", func(p uint16) { f.out.BindTCP = append(f.out.BindTCP, p) })
	f.each(v, "connect", prefix, f.connect)
	f.each(v, "domains", prefix, f.domain)
	if udp := v.get("udp"); udp != nil {
		f.out.UDP = udp.truth
		delete(f.out.Origins, "udp allow")
		if udp.truth {
			f.out.Origins["udp allow"] = f.why(udp.at)
		}
	}
	if u := v.get("unix_sockets"); u != nil && f.counts("network.unix_sockets") {
		f.unix = map[string]domain.UnixSockets{"own": domain.UnixSocketsOwn, "allow": domain.UnixSocketsAllow}[u.text]
		f.out.Origins["unix sockets "+u.text] = f.why(u.at)
	}
}

// putOrigin keeps who granted something first.
func (f *file) putOrigin(line string, at spot) {
	if f.out.Origins[line] == "" {
		f.out.Origins[line] = f.why(at)
	}
}

// What the standard library takes beyond the schema's form, such as a time of -.5h,
// is refused: one document has one meaning everywhere.
var timePattern = regexp.MustCompile(timeForm)

// connect adds a destination.
func (f *file) connect(item *value, key string) {
	path, isUnix, err := domain.ParseUnixDestination(item.text)
	var destinations []netip.AddrPort
	if !isUnix {
		destinations, err = domain.ParseDestination(item.text)
	}
	if invalid := (*domain.InvalidError)(nil); errors.As(err, &invalid) {
		f.bad(item.at, key, fmt.Sprintf("%q is %s", item.text, invalid.Reason), invalid.Remedy)
		return
	}
	if isUnix {
		if line := domain.UnixDestinationGrant(path); f.once(line, item.at, key) {
			f.out.UnixDestinations = append(f.out.UnixDestinations, path)
			f.putOrigin(line, item.at)
		}
	}
	for _, d := range destinations {
		if line := "tcp connect " + d.String(); f.once(line, item.at, key) {
			f.destinations = append(f.destinations, destination{address: d, key: key, at: item.at})
			f.putOrigin(line, item.at)
		}
	}
}

// domain adds a host by name.
func (f *file) domain(item *value, key string) {
	d, err := domain.ParseEgressDomain(item.text)
	if invalid := (*domain.InvalidError)(nil); errors.As(err, &invalid) {
		f.bad(item.at, key, fmt.Sprintf("%q: %s", item.text, invalid.Reason), invalid.Remedy)
		return
	}
	if line := "domain " + d.String(); f.once(line, item.at, key) {
		f.domains = append(f.domains, named{EgressDomain: d, key: key, at: item.at})
		f.putOrigin(line, item.at)
	}
}

func (f *file) env(v *value, prefix string) {
	if v == nil {
		return
	}
	name := func(n string, at spot, key string) bool {
		if n == "" || strings.ContainsAny(n, "=\x00") {
			f.bad(at, key, fmt.Sprintf("%q is no name of a variable", n), "")
			return false
		}
		return f.once("variable "+n, at, key)
	}
	f.each(v, "pass", prefix, func(item *value, key string) {
		if name(item.text, item.at, key) {
			f.out.Env = append(f.out.Env, domain.EnvRule{Name: item.text, Secret: true, Why: f.why(item.at)})
		}
	})
	set := v.get("set")
	if set == nil {
		return
	}
	for _, e := range set.table {
		key := prefix + "set." + e.name
		if !name(e.name, e.at, key) {
			continue
		}
		text, ok := f.expand(e.value, key)
		if ok && strings.ContainsRune(text, 0) {
			f.bad(e.value.at, key, "a NUL byte in the value", "remove it")
			ok = false
		}
		if ok {
			f.out.Env = append(f.out.Env, domain.EnvRule{Name: e.name, Value: text, Literal: true, Secret: true, Why: f.why(e.at)})
		}
	}
}

func (f *file) limits(v *value, prefix string) {
	if v == nil {
		return
	}
	limit := func(name, origin string, set func(*value) string) {
		l := v.get(name)
		if l == nil {
			return
		}
		kept := f.out.Limits
		if reason := set(l); reason != "" {
			f.bad(l.at, prefix+name, reason, "")
		}
		if !f.counts("limits." + name) {
			f.out.Limits = kept
			return
		}
		f.out.Origins["limit "+origin] = f.why(l.at)
	}
	limit("memory", "memory", func(l *value) (reason string) {
		f.out.Limits.MemoryBytes, reason = bytesOf(l.text)
		return reason
	})
	limit("pids", "pids", func(l *value) string {
		f.out.Limits.Pids = uint64(l.number)
		return ""
	})
	limit("cpus", "cpus", func(l *value) string {
		f.out.Limits.CPUs = l.number
		return ""
	})
	limit("timeout", "timeout", func(l *value) (reason string) {
		f.out.Limits.WallClock, reason = timeOf(l.text)
		return reason
	})
	limit("idle_timeout", "idle", func(l *value) (reason string) {
		f.out.Limits.Idle, reason = timeOf(l.text)
		return reason
	})
}

// bytesOf returns a number of bytes, or what is wrong.
func bytesOf(s string) (n uint64, reason string) {
	digits, shift := strings.TrimSuffix(s, "iB"), 0
	unit := strings.IndexByte("KMGT", last(digits))
	if unit >= 0 {
		digits, shift = digits[:len(digits)-1], 10*(unit+1)
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case err != nil || n == 0 || strings.HasPrefix(digits, "0") || unit < 0 && strings.HasSuffix(s, "iB"):
		return 0, fmt.Sprintf("%q is no size: write 512M or 2GiB", s)
	case n > math.MaxInt64>>shift:
		return 0, fmt.Sprintf("%q is more than there can be", s)
	}
	return n << shift, ""
}

func last(s string) byte {
	if s == "" {
		return 0
	}
	return s[len(s)-1]
}

// timeOf returns a time, or what is wrong.
func timeOf(s string) (d time.Duration, reason string) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil || !timePattern.MatchString(s):
		return 0, fmt.Sprintf("%q is no time: write 90s, 10m or 1h30m", s)
	case d <= 0:
		return 0, fmt.Sprintf("%q is no limit: leave it out for none", s)
	}
	return d, ""
}

// finish returns the policy of all that was added.
func (c *compiler) finish() (ports.FoundPolicy, error) {
	c.refuseNarrower()
	if err := c.faults.err(); err != nil {
		return ports.FoundPolicy{}, err
	}
	for _, g := range c.grants {
		c.out.Rules = append(c.out.Rules, g.PathRule)
	}
	for _, d := range c.destinations {
		c.out.Destinations = append(c.out.Destinations, d.address)
	}
	for _, d := range c.domains {
		c.out.Domains = append(c.out.Domains, d.EgressDomain)
	}
	c.out.UnixSockets = c.unix
	return ports.FoundPolicy{
		Policy: c.out, DirectAPI: c.direct,
		Tripwires: map[string]domain.TripwireMode{"fail": domain.TripwiresFail, "off": domain.TripwiresOff}[c.tripwires],
	}, nil
}

// refuseNarrower refuses what looks as if it took something back: fewer rights
// below a path that more are granted of, and one host on a port that is granted on
// all of them, by its address or by its name. It would have no effect.
func (c *compiler) refuseNarrower() {
	bad := func(at spot, key, reason string) {
		c.faults.add(&Error{File: at.file, Line: at.line, Column: at.column, Key: key, Reason: reason + ", and " + cannotDeny, Remedy: "leave it out, or " + strings.TrimPrefix(insteadOfDeny, "what no rule grants is denied already, so ")})
	}
	workspace := grant{PathRule: domain.PathRule{Path: c.place.Workspace, Access: c.out.Workspace, Why: c.workspaceAt}}
	if workspace.Access == 0 {
		workspace.Access, workspace.Why = c.place.Access, "the preset"
	}
	for _, g := range c.grants {
		if !g.written {
			continue
		}
		var preset []grant
		if workspace.Access != 0 && strings.HasPrefix(g.raw, "${workspace}") {
			preset = append(preset, workspace)
		}
		for variable, dir := range map[string]string{"${state}": c.place.State, "${tmp}": c.place.Temp} {
			if strings.HasPrefix(g.raw, variable) {
				preset = append(preset, grant{PathRule: domain.PathRule{Path: dir, Access: domain.AccessReadWriteExec, Why: "private"}})
			}
		}
		for _, list := range [][]grant{c.grants, preset} {
			i := slices.IndexFunc(list, func(w grant) bool { return w.Access != g.Access && w.Access.Has(g.Access) && covers(w.Path, g.Path) })
			if i >= 0 {
				w := list[i]
				bad(g.at, g.key, fmt.Sprintf("%s of %s adds nothing to %s of %s (%s)", g.Access, g.Path, w.Access, w.Path, w.Why))
				break
			}
		}
	}
	for _, d := range c.destinations {
		if slices.Contains(c.out.ConnectTCP, d.address.Port()) {
			c.faults.add(&Error{
				File: d.at.file, Line: d.at.line, Column: d.at.column, Key: d.key,
				Reason: fmt.Sprintf("connect_tcp grants port %d on every host (%s), so %s narrows nothing", d.address.Port(), c.out.Origins[fmt.Sprintf("tcp connect %d", d.address.Port())], d.address),
				Remedy: "leave one of the two out",
			})
		}
	}
	for _, d := range c.domains {
		for _, port := range d.Ports() {
			if slices.Contains(c.out.ConnectTCP, port) {
				c.faults.add(&Error{
					File: d.at.file, Line: d.at.line, Column: d.at.column, Key: d.key,
					Reason: fmt.Sprintf("connect_tcp grants port %d on every host (%s), so %s narrows nothing", port, c.out.Origins[fmt.Sprintf("tcp connect %d", port)], d),
					Remedy: "leave one of the two out",
				})
			}
		}
	}
}

// covers reports whether child is parent or below it.
func covers(parent, child string) bool {
	return parent == child || strings.HasPrefix(child, strings.TrimSuffix(parent, "/")+"/")
}
