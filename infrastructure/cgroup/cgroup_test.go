package cgroup

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// All of this runs against the fake file system.

const mount = "26 1 0:23 / /cg rw,nosuid - cgroup2 cgroup2 rw\n"

func TestOwnGroup(t *testing.T) {
	const v1 = "25 1 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	for name, c := range map[string]struct {
		cgroup, mounts string
		own, root      string // "" for an error
	}{
		"plain":           {"0::/user.slice/x\n", v1 + mount, "/cg/user.slice/x", "/cg"},
		"hybrid":          {"4:memory:/y\n0::/\n", v1 + mount, "/cg", "/cg"},
		"a part":          {"0::/a/b/c\n", "26 1 0:23 /a/b /cg rw - cgroup2 x rw\n", "/cg/c", "/cg"},
		"the part itself": {"0::/a/b\n", "26 1 0:23 /a/b /cg rw master:3 - cgroup2 x rw\n", "/cg", "/cg"},
		"a space":         {"0::/a b\n", `26 1 0:23 / /c\040g rw - cgroup2 x rw` + "\n", "/c g/a b", "/c g"},
		"another part":    {"0::/ab/c\n", "26 1 0:23 /a /cg rw - cgroup2 x rw\n", "", ""},
		"outside":         {"0::/../x\n", mount, "", ""},
		"v1 only":         {"4:memory:/y\n", v1, "", ""},
		"not mounted":     {"0::/\n", v1, "", ""},
		"cut":             {"0::/\n", "26 1 0:23 / /cg rw -\n", "", ""},
		"nothing":         {"", "", "", ""},
	} {
		own, root, err := ownGroup(c.cgroup, c.mounts)
		require.Equal(t, c.own, own, name)
		require.Equal(t, c.root, root, name)
		require.Equal(t, c.own == "", err != nil, name)
	}
}

// delegate has a service whose main process is in /cg/s/main, as with
// DelegateSubgroup=main.
func delegate(t *testing.T, controllers ...string) (*fake, *Hierarchy) {
	t.Helper()
	f := newFake("/cg", controllers...)
	f.groups["/cg"].subtree = controllers
	require.NoError(t, f.Mkdir("/cg/s"))
	require.NoError(t, f.Mkdir("/cg/s/main"))
	f.delegated["/cg"] = false
	f.start("/cg/s/main")
	h, err := find(f, "0::/s/main\n", mount)
	require.NoError(t, err)
	return f, h
}

func TestFind(t *testing.T) {
	t.Run("with a group for the service itself", func(t *testing.T) {
		_, h := delegate(t, "cpu", "memory", "pids")
		require.Equal(t, "/cg/s/main", h.kill)
		require.Equal(t, "/cg/s", h.limits)
		for p, c := range controllerOf {
			ok, text := h.keeps(p)
			require.True(t, ok)
			require.Equal(t, "cgroup v2 "+c+" controller", text)
		}
	})
	t.Run("some controllers", func(t *testing.T) {
		_, h := delegate(t, "pids")
		ok, _ := h.keeps(domain.PropertyPids)
		require.True(t, ok)
		ok, why := h.keeps(domain.PropertyMemory)
		require.False(t, ok)
		require.Equal(t, "the cgroup /cg/s has no memory controller", why)
		ok, why = h.keeps(domain.PropertyTCP)
		require.False(t, ok)
		require.Empty(t, why)
	})
	t.Run("no controllers: to kill only", func(t *testing.T) {
		_, h := delegate(t)
		require.Equal(t, "/cg/s/main", h.kill)
		require.Empty(t, h.limits)
		ok, why := h.keeps(domain.PropertyMemory)
		require.False(t, ok)
		require.Contains(t, why, "no controllers")
	})
	t.Run("in the root of all groups", func(t *testing.T) {
		f := newFake("/cg", "hugetlb", "pids")
		f.start("/cg")
		h, err := find(f, "0::/\n", mount)
		require.NoError(t, err)
		ok, _ := h.keeps(domain.PropertyPids)
		require.True(t, ok)
		g, err := h.make(domain.Limits{Pids: 3})
		require.NoError(t, err)
		require.Equal(t, "3", f.writes[g.dir+"/pids.max"])
		require.NoError(t, g.Close())

		h, err = find(newFake("/cg", "hugetlb"), "0::/\n", mount)
		require.NoError(t, err)
		ok, why := h.keeps(domain.PropertyPids)
		require.False(t, ok)
		require.Equal(t, "the cgroup /cg has no controllers for them, and the one above it is not delegated", why)
	})
	t.Run("beside its own processes", func(t *testing.T) {
		f := newFake("/cg", "memory")
		f.groups["/cg"].subtree = []string{"memory"}
		require.NoError(t, f.Mkdir("/cg/s"))
		f.delegated["/cg"] = false
		f.start("/cg/s")
		h, err := find(f, "0::/s\n", mount)
		require.NoError(t, err)
		require.Empty(t, h.limits)
		require.Contains(t, h.why, "not delegated")
	})
	t.Run("not delegated", func(t *testing.T) {
		f := newFake("/cg", "memory")
		f.delegated["/cg"] = false
		_, err := find(f, "0::/\n", mount)
		require.ErrorContains(t, err, "not delegated")
		_, err = find(f, "", "")
		require.Error(t, err)
	})
	t.Run("what dead orchestrators left", func(t *testing.T) {
		f, _ := delegate(t, "memory")
		f.alive[77] = true
		for _, name := range []string{"caisson-76-a", "caisson-77-b", "caisson-78-c", "caisson-x-d", "other-76"} {
			require.NoError(t, f.Mkdir("/cg/s/"+name))
		}
		f.start("/cg/s/caisson-78-c")
		_, err := find(f, "0::/s/main\n", mount)
		require.NoError(t, err)
		names, _ := f.List("/cg/s")
		require.ElementsMatch(t, []string{"main", "caisson-77-b", "caisson-78-c", "caisson-x-d", "other-76"}, names)
	})
}

func TestAGroupHasItsLimits(t *testing.T) {
	f, h := delegate(t, "cpu", "memory", "pids")
	g, err := h.make(domain.Limits{MemoryBytes: 1 << 30, Pids: 100, CPUs: 1.5})
	require.NoError(t, err)
	require.Equal(t, "/cg/s", filepath.Dir(g.dir))
	require.True(t, strings.HasPrefix(filepath.Base(g.dir), prefix+strconv.Itoa(os.Getpid())+"-"))
	for file, want := range map[string]string{"memory.max": "1073741824", "memory.swap.max": "0", "pids.max": "100", "cpu.max": "150000 100000"} {
		require.Equal(t, want, f.writes[g.dir+"/"+file], file)
	}
	require.NoError(t, g.Close())
	require.NoError(t, g.Close())
	require.NotContains(t, f.groups, g.dir)

	g, err = h.make(domain.Limits{CPUs: 0.001})
	require.NoError(t, err)
	require.Equal(t, "1000 100000", f.writes[g.dir+"/cpu.max"], "the least that the kernel takes")
	require.NoError(t, g.Close())

	f.fail["memory.swap"] = syscall.ENOENT // a kernel without swap accounting
	g, err = h.make(domain.Limits{MemoryBytes: 1})
	require.NoError(t, err)
	require.NoError(t, g.Close())
}

// A limit that cannot be set leaves no group, and names the place.
func TestALimitThatCannotBeSet(t *testing.T) {
	for _, file := range []string{"memory.max", "pids.max", "cpu.max", "cgroup.subtree", "caisson-"} {
		f, h := delegate(t, "cpu", "memory", "pids")
		f.fail[file] = syscall.EINVAL
		if file == "caisson-" {
			f.fail[file] = syscall.EACCES
		}
		_, err := h.make(domain.Limits{MemoryBytes: 1 << 30, Pids: 100, CPUs: 1})
		var refused *domain.EnforcementError
		require.ErrorAs(t, err, &refused, file)
		require.Equal(t, "/cg/s", refused.Path)
		require.NotEmpty(t, refused.Remedy)
		names, _ := f.List("/cg/s")
		require.Equal(t, []string{"main"}, names, file)
	}
	_, h := delegate(t)
	_, err := h.make(domain.Limits{Pids: 1})
	require.ErrorContains(t, err, "no controllers")
}

func TestKillTakesAllMembers(t *testing.T) {
	for name, prepare := range map[string]func(*fake, *group){
		"one":                    func(*fake, *group) {},
		"that fork meanwhile":    func(f *fake, _ *group) { f.forks = 5 },
		"without a main thread":  func(f *fake, g *group) { f.headless[f.start(g.dir)] = true },
		"without cgroup.kill":    func(f *fake, _ *group) { f.fail["cgroup.kill"] = syscall.ENOENT },
		"none, as all have gone": func(f *fake, g *group) { f.end(f.groups[g.dir].procs[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			f, h := delegate(t)
			bystander := f.start("/cg/s")
			g, err := h.make(domain.Limits{})
			require.NoError(t, err)
			pid := f.start("/cg/s/main")
			require.NoError(t, g.Add(pid))
			prepare(f, g)
			left, err := g.Kill()
			require.NoError(t, err)
			require.Empty(t, left)
			require.False(t, f.alive[pid])
			require.True(t, f.alive[bystander])
			require.NoError(t, g.Close())
		})
	}
	f, h := delegate(t)
	g, err := h.make(domain.Limits{})
	require.NoError(t, err)
	require.ErrorIs(t, g.Add(1), syscall.ESRCH)
	f.fail["cgroup.kill"] = syscall.EACCES
	_, err = g.Kill()
	require.ErrorIs(t, err, syscall.EACCES)
	require.NoError(t, g.Close())
	_, err = g.Kill()
	require.Error(t, err)
	f.fail["caisson-"] = syscall.EPERM
	f.groups[g.dir] = &fakeGroup{}
	require.ErrorIs(t, g.Close(), syscall.EPERM)
}

// inner is an enforcer that can do everything but limits.
type inner struct{ plan domain.SandboxPlan }

func (e *inner) Supports(plan domain.SandboxPlan) []domain.PropertyStatus {
	var all []domain.PropertyStatus
	for _, p := range domain.Properties() {
		s := domain.PropertyStatus{Property: p, State: domain.StateEnforced, Mechanism: "inner"}
		switch _, limit := controllerOf[p]; {
		case !plan.Requests(p):
			s = domain.PropertyStatus{Property: p, State: domain.StateNotRequested}
		case limit && plan.Waives(p):
			s = domain.PropertyStatus{Property: p, State: domain.StateWaived, Detail: "inner"}
		case limit:
			s = domain.PropertyStatus{Property: p, State: domain.StateUnenforceable, Detail: "inner"}
		}
		all = append(all, s)
	}
	return all
}

func (e *inner) Prepare(_ context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	if err := domain.CheckStrictness(plan, e.Supports(plan)); err != nil {
		return nil, err
	}
	e.plan = plan
	return &innerConfinement{line, e.Supports(plan)}, nil
}

type innerConfinement struct {
	line     domain.SpawnLine
	statuses []domain.PropertyStatus
}

func (c *innerConfinement) SpawnLine() domain.SpawnLine { return c.line }
func (*innerConfinement) Apply() error                  { return nil }
func (*innerConfinement) Close() error                  { return nil }

func (c *innerConfinement) Receipt() domain.Receipt {
	return domain.Receipt{Enforcer: "inner", Properties: c.statuses, PlanDigest: "another plan's"}
}

func stateOf(t *testing.T, list []domain.PropertyStatus, p domain.Property) domain.PropertyStatus {
	t.Helper()
	for _, s := range list {
		if s.Property == p {
			return s
		}
	}
	t.Fatalf("nothing is said of %s", p)
	return domain.PropertyStatus{}
}

func TestLimit(t *testing.T) {
	limited := domain.NewSandboxPlan("test").WithLimits(domain.Limits{MemoryBytes: 1 << 20, Pids: 7})
	t.Run("with the controllers", func(t *testing.T) {
		f, h := delegate(t, "memory", "pids")
		in := &inner{}
		c, err := Limit(in, h).Prepare(t.Context(), limited, domain.SpawnLine{})
		require.NoError(t, err)
		r := c.Receipt()
		require.Equal(t, limited.Digest(), r.PlanDigest)
		require.Contains(t, r.Layers, "cgroup")
		require.Equal(t, domain.PropertyStatus{Property: domain.PropertyMemory, State: domain.StateEnforced, Mechanism: "cgroup v2 memory controller"},
			stateOf(t, r.Properties, domain.PropertyMemory))
		require.Equal(t, domain.StateNotRequested, stateOf(t, r.Properties, domain.PropertyCPU).State)
		require.Equal(t, "inner", stateOf(t, r.Properties, domain.PropertyTCP).Mechanism)
		require.Equal(t, []domain.Property{domain.PropertyMemory, domain.PropertyPids}, in.plan.Waivers())

		g, err := c.(ports.ResourceGrouped).ResourceGroup(false)
		require.NoError(t, err)
		require.Equal(t, "7", f.writes[g.(*group).dir+"/pids.max"])
		require.NoError(t, g.Close())
		ok, err := c.(ports.KillGroup).PrepareKillGroup()
		require.False(t, ok)
		require.NoError(t, err)
		require.Error(t, c.(ports.KillGroup).EnterKillGroup())
		s, err := c.(ports.Supervised).Supervisor()
		require.Nil(t, s)
		require.NoError(t, err)
	})
	t.Run("without", func(t *testing.T) {
		_, h := delegate(t, "pids")
		e := Limit(&inner{}, h)
		_, err := e.Prepare(t.Context(), limited, domain.SpawnLine{})
		var refused *domain.StrictnessError
		require.ErrorAs(t, err, &refused)
		require.Len(t, refused.Missing, 1)
		require.Equal(t, "the cgroup /cg/s has no memory controller", refused.Missing[0].Detail)

		// What is waived is not kept, and what can be kept is.
		c, err := e.Prepare(t.Context(), limited.WithWaivers(domain.PropertyMemory, domain.PropertyPids), domain.SpawnLine{})
		require.NoError(t, err)
		require.Equal(t, domain.StateWaived, stateOf(t, c.Receipt().Properties, domain.PropertyMemory).State)
		require.Equal(t, domain.StateEnforced, stateOf(t, c.Receipt().Properties, domain.PropertyPids).State)
		require.Equal(t, domain.Limits{Pids: 7}, c.(*confinement).limits)
	})
	t.Run("nothing to limit", func(t *testing.T) {
		f, h := delegate(t, "memory")
		c, err := Limit(&inner{}, h).Prepare(t.Context(), domain.NewSandboxPlan("test"), domain.SpawnLine{})
		require.NoError(t, err)
		require.NotContains(t, c.Receipt().Layers, "cgroup")
		g, err := c.(ports.ResourceGrouped).ResourceGroup(false)
		require.Nil(t, g)
		require.NoError(t, err)
		g, err = c.(ports.ResourceGrouped).ResourceGroup(true)
		require.NoError(t, err)
		require.Equal(t, "/cg/s/main", filepath.Dir(g.(*group).dir))
		require.NoError(t, g.Close())
		f.fail["caisson-"] = syscall.EACCES
		g, err = c.(ports.ResourceGrouped).ResourceGroup(true)
		require.Error(t, err)
		require.Nil(t, g)
	})
}
