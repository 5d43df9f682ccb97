//go:build !unix

package store

import "os"

// syncDir does nothing: a directory cannot be flushed there.
func syncDir(*os.Root) error { return nil }
