package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/domain"
)

// files is the cgroup file system: the kernel's, or the tests' own, which
// behaves like it.
type files interface {
	Mkdir(path string) error
	Remove(path string) error
	Read(path string) (string, error)
	Write(path, text string) error
	List(path string) ([]string, error)
	// Delegated reports whether the directory is the orchestrator's to make
	// groups in.
	Delegated(path string) bool
	// Alive reports whether a process exists.
	Alive(pid int) bool
	// Kill kills a process of a group, and nobody else who has its pid by then.
	Kill(pid int, member func() bool)
}

// Hierarchy is the part of the cgroup hierarchy in which groups can be made. It
// is safe for concurrent use.
type Hierarchy struct {
	files files
	// kill is where a group to kill is made; limits is where one with limits is,
	// "" if there is no such place, and then why says it.
	kill, limits string
	controllers  []string // that limits has
	why          string
}

// controllerOf has the controller that keeps each limit.
var controllerOf = map[domain.Property]string{
	domain.PropertyMemory: "memory", domain.PropertyPids: "pids", domain.PropertyCPU: "cpu",
}

// prefix begins the names of groups: it is followed by the orchestrator's pid.
const prefix = "caisson-"

// find looks for a place, given /proc/self/cgroup and /proc/self/mountinfo. An
// error says why there is none.
func find(f files, cgroup, mountinfo string) (*Hierarchy, error) {
	own, root, err := ownGroup(cgroup, mountinfo)
	if err != nil {
		return nil, err
	}
	if !f.Delegated(own) {
		return nil, fmt.Errorf("the cgroup %s is not delegated to this process", own)
	}
	h := &Hierarchy{files: f, kill: own}
	for _, place := range []string{own, filepath.Dir(own)} {
		if place != own && (own == root || !f.Delegated(place)) {
			h.why += ", and the one above it is not delegated"
			break
		}
		if h.controllers, h.why = available(f, place); len(h.controllers) > 0 {
			h.limits = place
			break
		}
	}
	h.sweep()
	return h, nil
}

// ownGroup returns the directory of the orchestrator's own group, and that of
// the hierarchy's root.
func ownGroup(cgroup, mountinfo string) (own, root string, err error) {
	path := ""
	for line := range strings.Lines(cgroup) {
		// The hierarchy of v2 has the number 0 (cgroups(7)).
		if rest, ok := strings.CutPrefix(line, "0::"); ok {
			path = strings.TrimSpace(rest)
		}
	}
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "/..") {
		return "", "", errors.New("this process is in no cgroup v2 that can be seen from here")
	}
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		i := slices.Index(fields, "-")
		if i < 5 || i+1 >= len(fields) || fields[i+1] != "cgroup2" {
			continue
		}
		// A mount may show a part only.
		below, ok := strings.CutPrefix(path, strings.TrimSuffix(unescape(fields[3]), "/"))
		if !ok || below != "" && below[0] != '/' {
			continue
		}
		root = unescape(fields[4])
		return filepath.Join(root, below), root, nil
	}
	return "", "", errors.New("no cgroup v2 file system is mounted")
}

// unescape undoes what proc_pid_mountinfo(5) does to spaces and the like.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// available returns which of the controllers groups below a place can have, or
// why they have none.
func available(f files, place string) (controllers []string, why string) {
	has := words(f, place, "cgroup.controllers")
	given := words(f, place, "cgroup.subtree_control")
	procs, err := f.Read(filepath.Join(place, "cgroup.procs"))
	free := err == nil && strings.TrimSpace(procs) == ""
	// The root of all groups, which alone has no type, may have both.
	if _, err := f.Read(filepath.Join(place, "cgroup.type")); errors.Is(err, fs.ErrNotExist) {
		free = true
	}
	some := false
	for _, p := range []domain.Property{domain.PropertyMemory, domain.PropertyPids, domain.PropertyCPU} {
		c := controllerOf[p]
		some = some || slices.Contains(has, c)
		if slices.Contains(given, c) || free && slices.Contains(has, c) {
			controllers = append(controllers, c)
		}
	}
	switch {
	case len(controllers) > 0:
		return controllers, ""
	case !some:
		return nil, "the cgroup " + place + " has no controllers for them"
	}
	return nil, "the cgroup " + place + " has processes of its own, so the groups below it can have no controllers"
}

func words(f files, dir, file string) []string {
	text, err := f.Read(filepath.Join(dir, file))
	if err != nil {
		return nil
	}
	return strings.Fields(text)
}

// sweep removes the empty groups of orchestrators that are gone.
func (h *Hierarchy) sweep() {
	places := []string{h.kill}
	if h.limits != "" && h.limits != h.kill {
		places = append(places, h.limits)
	}
	for _, place := range places {
		names, err := h.files.List(place)
		if err != nil {
			continue
		}
		for _, name := range names {
			rest, ok := strings.CutPrefix(name, prefix)
			owner, _, _ := strings.Cut(rest, "-")
			pid, err := strconv.Atoi(owner)
			if !ok || err != nil || h.files.Alive(pid) {
				continue
			}
			// One that still has members stays: the kernel refuses.
			_ = h.files.Remove(filepath.Join(place, name))
		}
	}
}

// keeps reports whether groups can have the limit, and by which mechanism, or
// why not.
func (h *Hierarchy) keeps(p domain.Property) (ok bool, text string) {
	c, known := controllerOf[p]
	switch {
	case !known:
		return false, ""
	case slices.Contains(h.controllers, c):
		return true, "cgroup v2 " + c + " controller"
	case h.limits == "":
		return false, h.why
	}
	return false, "the cgroup " + h.limits + " has no " + c + " controller"
}

// make makes a group with the limits.
func (h *Hierarchy) make(limits domain.Limits) (_ *group, err error) {
	settings := settingsOf(limits)
	place := h.kill
	if len(settings) > 0 {
		place = h.limits
	}
	if place == "" {
		return nil, &domain.EnforcementError{Step: "cgroup", Err: errors.New(h.why)}
	}
	failed := func(err error) error {
		return &domain.EnforcementError{Step: "cgroup", Path: place, Err: err, Remedy: "leave the limits out, or let the service manager delegate the controllers (Delegate=yes)"}
	}
	for _, s := range settings {
		if !slices.Contains(words(h.files, place, "cgroup.subtree_control"), s.controller) {
			if err := h.files.Write(filepath.Join(place, "cgroup.subtree_control"), "+"+s.controller); err != nil {
				return nil, failed(err)
			}
		}
	}
	g := &group{files: h.files, dir: filepath.Join(place, fmt.Sprintf("%s%d-%s", prefix, os.Getpid(), newName()))}
	if err := h.files.Mkdir(g.dir); err != nil {
		return nil, failed(err)
	}
	for _, s := range settings {
		err := h.files.Write(filepath.Join(g.dir, s.file), s.value)
		if err != nil && !(s.optional && errors.Is(err, fs.ErrNotExist)) {
			return nil, errors.Join(failed(err), g.Close())
		}
	}
	return g, nil
}

// setting is one limit as its controller takes it.
type setting struct {
	controller, file, value string
	optional                bool // a kernel may be built without it
}

// cpuPeriod is the kernel's default period, in microseconds; minQuota is the
// least that it takes.
const cpuPeriod, minQuota = 100_000, 1000

func settingsOf(l domain.Limits) []setting {
	var all []setting
	if l.MemoryBytes > 0 {
		all = append(all,
			setting{"memory", "memory.max", strconv.FormatUint(l.MemoryBytes, 10), false},
			// Otherwise what is over the limit goes to the swap instead.
			setting{"memory", "memory.swap.max", "0", true})
	}
	if l.Pids > 0 {
		all = append(all, setting{"pids", "pids.max", strconv.FormatUint(l.Pids, 10), false})
	}
	if l.CPUs > 0 {
		quota := max(int64(l.CPUs*cpuPeriod), minQuota)
		all = append(all, setting{"cpu", "cpu.max", fmt.Sprintf("%d %d", quota, cpuPeriod), false})
	}
	return all
}
