package process

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/landlock"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
	"github.com/caisson-run/caisson/tests/testkit"
)

// BenchmarkSpawn measures spawns against plain os/exec ones, all of /bin/true from
// the start to its reaping: absolute times on shared machines mean nothing. Each
// kind alternates with the plain one and with nothing else, because a spawn's time
// depends on what was spawned before it. It reports the medians' ratio.
//
//	go test -run=^$ -bench=BenchmarkSpawn -benchtime=500x ./infrastructure/process
func BenchmarkSpawn(b *testing.B) {
	testkit.RequireLandlock(b, 6)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(b, err)
	defer null.Close()
	confined, confinedByLandlock := NewSpawner(Config{Enforcer: sandbox.Default()}), NewSpawner(Config{Enforcer: landlock.New()})
	plan := testPlan("")
	supervised := plan.WithDestinations(netip.MustParseAddrPort("127.0.0.1:9"))
	line := domain.SpawnLine{Path: "/bin/true", Argv: []string{"true"}, Dir: "/", Env: []string{"PATH=/usr/bin"}}
	spawn := func(spawner *Spawner, plan domain.SandboxPlan, keeper bool) {
		line.Sandbox = plan
		c, err := spawner.start(context.Background(), line, stdio{null, null, null}, startOptions{keeper: keeper})
		if err != nil {
			b.Fatal(err)
		}
		if err := c.resume(); err != nil {
			b.Fatal(err)
		}
		if err := c.awaitExit(); err != nil {
			b.Fatal(err)
		}
		if st, err := c.status(); err != nil || !st.Success() {
			b.Fatal(st, err)
		}
		if err := c.release(); err != nil {
			b.Fatal(err)
		}
	}
	plain := func() {
		cmd := exec.Command("/bin/true")
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = null, null, null, line.Env
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
	}
	for _, kind := range []struct {
		name string
		run  func()
	}{
		{"native", func() { spawn(confined, domain.Unconfined("benchmark"), false) }},
		{"landlock", func() { spawn(confinedByLandlock, plan.WithWaivers(domain.Properties()...), false) }},
		{"confined", func() { spawn(confined, plan, false) }},
		{"supervised", func() { spawn(confined, supervised, false) }},
		{"keeper", func() { spawn(confined, plan, true) }},
	} {
		b.Run(kind.name, func(b *testing.B) {
			var reference, spawned []time.Duration
			timed := func(times *[]time.Duration, run func()) {
				begun := time.Now()
				run()
				*times = append(*times, time.Since(begun))
			}
			for b.Loop() {
				timed(&reference, plain)
				timed(&spawned, kind.run)
			}
			median := func(d []time.Duration) float64 {
				slices.Sort(d)
				return float64(d[len(d)/2])
			}
			b.ReportMetric(median(spawned)/median(reference), "of-plain")
		})
	}
}
