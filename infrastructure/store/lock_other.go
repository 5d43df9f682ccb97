//go:build !darwin && !dragonfly && !freebsd && !linux && !netbsd && !openbsd && !windows

package store

import (
	"errors"
	"fmt"
	"os"
)

// tryLock refuses: what these systems have is not freed by the end of the
// process, or is lost when another opening of the file is closed.
func tryLock(*os.File) error { return fmt.Errorf("file locks: %w", errors.ErrUnsupported) }

func releaseLock(*os.File) error { return nil }
