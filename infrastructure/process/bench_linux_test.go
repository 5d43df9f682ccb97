package process

import (
	"context"
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

// BenchmarkSpawn measures a confined spawn against a plain os/exec one, both of
// /bin/true from the start to its reaping, alternately in one run: absolute
// times on shared machines mean nothing. It reports the medians' ratios.
//
//	go test -run=^$ -bench=BenchmarkSpawn -benchtime=500x ./infrastructure/process
func BenchmarkSpawn(b *testing.B) {
	testkit.RequireLandlock(b, 6)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(b, err)
	defer null.Close()
	confined, confinedByLandlock := NewSpawner(Config{Enforcer: sandbox.Default()}), NewSpawner(Config{Enforcer: landlock.New()})
	plan := testPlan("")
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
	variants := []struct {
		name string
		run  func()
	}{
		{"plain", func() {
			cmd := exec.Command("/bin/true")
			cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = null, null, null, line.Env
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
		}},
		{"native", func() { spawn(confined, domain.Unconfined("benchmark"), false) }},
		{"landlock", func() { spawn(confinedByLandlock, plan.WithWaivers(domain.Properties()...), false) }},
		{"confined", func() { spawn(confined, plan, false) }},
		{"keeper", func() { spawn(confined, plan, true) }},
	}
	times := make([][]time.Duration, len(variants))
	for b.Loop() {
		for i, v := range variants {
			begun := time.Now()
			v.run()
			times[i] = append(times[i], time.Since(begun))
		}
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2])
	}
	plain := median(times[0])
	for i, v := range variants[1:] {
		b.ReportMetric(median(times[i+1])/plain, v.name+"/plain")
	}
}
