//go:build !linux

package privileges

import (
	"fmt"
	"runtime"
)

// Drop fails: only Linux has capabilities by thread.
func Drop() error { return fmt.Errorf("capabilities cannot be dropped on %s", runtime.GOOS) }

// ForgoNew fails as well.
func ForgoNew() error { return Drop() }
