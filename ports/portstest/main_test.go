package portstest

import (
	"testing"

	"github.com/caisson-run/caisson/tests/testkit"
)

func TestMain(m *testing.M) { testkit.MainWithFake(m) }
