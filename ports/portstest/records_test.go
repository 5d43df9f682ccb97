package portstest

import (
	"testing"

	"github.com/caisson-run/caisson/ports"
)

func TestMemoryRecordsKeepTheContract(t *testing.T) {
	AssertSessionRecordsContract(t, func(tb testing.TB) ports.SessionRecords { return NewMemoryRecords(tb) })
}
