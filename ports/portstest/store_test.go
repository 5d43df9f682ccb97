package portstest

import (
	"testing"

	"github.com/caisson-run/caisson/ports"
)

func TestMemoryStoreKeepTheContract(t *testing.T) {
	AssertSessionStoreContract(t, func(tb testing.TB) ports.SessionStore { return NewMemoryStore(tb) })
}
