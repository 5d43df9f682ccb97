package seccomp

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkConnect measures a connect to a destination beside a plain one, which
// another thread makes to the same listener in turn with it, each with the making
// and the closing of its socket. It reports the medians.
//
//	go test -run=^$ -bench=BenchmarkConnect -benchtime=2000x ./infrastructure/seccomp
func BenchmarkConnect(b *testing.B) {
	to, _ := listen(b, "tcp4", "127.0.0.1:0")
	refused := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), to.Port())
	timed := func(times *[]time.Duration, to netip.AddrPort, want bool) {
		begun := time.Now()
		err := dial(to, 0)
		*times = append(*times, time.Since(begun))
		if (err == nil) != want {
			b.Fatal(err)
		}
	}
	var plain, supervisedTimes, refusedTimes []time.Duration
	require.NoError(b, supervised(b, []netip.AddrPort{to}, func(*Supervisor) {
		next, done := make(chan struct{}), make(chan struct{})
		go func() { // on a thread that is not restricted
			defer close(done)
			for range next {
				timed(&plain, to, true)
				done <- struct{}{}
			}
		}()
		for b.Loop() {
			next <- struct{}{}
			<-done
			timed(&supervisedTimes, to, true)
			timed(&refusedTimes, refused, false)
		}
		close(next)
		<-done
	}))
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2].Nanoseconds()) / 1000
	}
	b.ReportMetric(median(plain), "plain-µs")
	b.ReportMetric(median(supervisedTimes), "supervised-µs")
	b.ReportMetric(median(refusedTimes), "refused-µs")
	b.ReportMetric(median(supervisedTimes)/median(plain), "of-plain")
}
