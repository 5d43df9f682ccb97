//go:build !unix

package application

import "io/fs"

// noWait is nothing here: there are no named pipes in a directory.
const noWait = 0

// sameOwner reports false: these systems keep no owner in a file's mode, so
// nothing is proved.
func sameOwner(...fs.FileInfo) bool { return false }
