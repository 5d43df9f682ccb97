//go:build !unix

package lookup

import "io/fs"

// executable has nothing to ask where files carry no execute permission.
func executable(string, fs.FileInfo) error { return nil }
