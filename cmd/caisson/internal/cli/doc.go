// Package cli is the command line of caisson: it turns arguments into requests
// to the orchestrator, and events and errors into output and exit codes. It
// holds no policy of its own.
//
// [Main] is a whole run of the program but for the process around it, so tests
// call it. The package may import everything but cmd/caisson itself.
package cli
