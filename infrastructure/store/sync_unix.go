//go:build unix

package store

import (
	"errors"
	"os"
)

// syncDir makes a rename in the directory durable.
func syncDir(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
