// Package privileges takes from the calling thread what lets a process past the
// checks that the sandbox relies on: its capabilities, and the ways to gain new
// ones. As root, capabilities survive everything else that a sandbox does: with
// them a child reads the environment of other processes, changes owner and mode
// of any file, and sets the hostname.
//
// Capabilities belong to a thread, and what is started from there inherits
// them. [Drop] must run on a thread that ends right after the child was started,
// see package process.
//
// A child of root stays uid 0 and owns the files of uid 0. Without
// CAP_DAC_OVERRIDE it can do to the files of others only what their modes let
// everybody do.
//
// External facts: capabilities(7), prctl(2).
//
// The package may import the standard library and x/sys. On systems other than
// Linux there is nothing to drop by thread, and it fails.
package privileges
