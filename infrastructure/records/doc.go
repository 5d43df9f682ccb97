// Package records keeps session records and the private directories of
// sessions in the file system, as ports.SessionRecords:
//
//	<root>/sessions/<session id>/
//	    lock          locked by whoever has the session open
//	    record.json   what a later resume needs
//	    agent/        the agent's own state and configuration
//	    home/         its $HOME
//	    tmp/          its $TMPDIR
//	    spool/        the orchestrator's, never granted to an agent
//
// Everything is readable by the user alone (directories 0700, files 0600). An
// agent may write in agent, home and tmp, and nowhere above them; nothing in
// those three is read here. All access goes through os.Root, so that no symbolic
// link leads out of the root, and what stands where a directory or the record
// should be, but is something else or somebody else's, is an error.
//
// The lock is flock(2), or LockFileEx on Windows: the system frees it when its
// holder's process ends. On a file system without it no session can be opened.
//
// It may import domain, ports, the standard library, x/sys and a JSON library.
package records
