//go:build !unix

package store

import "io/fs"

// ours reports true: these systems have no owner in a file's mode, and their
// home directories are private by their own means.
func ours(fs.FileInfo) bool { return true }

// othersCanWrite reports false, for the same reason.
func othersCanWrite(fs.FileInfo) bool { return false }

// othersCanUse reports false, for the same reason.
func othersCanUse(fs.FileInfo) bool { return false }

// soleName reports true: there is no telling from what os.Lstat gives.
func soleName(fs.FileInfo) bool { return true }

// openPlain is nothing there.
const openPlain = 0
