package portstest

import "testing"

// contractCase is one thing that a contract promises of an H.
type contractCase[H any] struct {
	name string
	// explanation says what the contract promises, and why it matters to those
	// who rely on it.
	explanation string
	check       func(tb testing.TB, h H)
}

// runCases runs every case as a subtest.
func runCases[H any](t *testing.T, cases []contractCase[H], h H) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("the contract: %s", c.explanation)
				}
			})
			c.check(t, h)
		})
	}
}
