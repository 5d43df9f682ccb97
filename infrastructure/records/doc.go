// Package records keeps session records and the private directories of
// sessions in the file system, as ports.SessionRecords:
//
//	<root>/sessions/<session id>/
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
// It may import domain, ports, the standard library and a JSON library.
package records
