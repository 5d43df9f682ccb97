// Package store keeps sessions in the file system, as ports.SessionStore, and agents'
// logins beside them, as ports.LoginStore:
//
//	<root>/sessions/<session id>/
//	    lock          locked by whoever has the session open
//	    record.json   what a later resume needs; replaced whole
//	    events.jsonl  the log: every event, one a line; only ever appended to
//	    agent/        the agent's own state and configuration
//	    home/         its $HOME
//	    spool/        the orchestrator's, never granted to an agent; login.json in
//	                  it says which login the session has
//	<root>/t/<the id in base 32>/
//	                  its $TMPDIR: there, because paths of unix sockets are short
//
//	<root>/logins/<agent>/<name>.json
//	                  a login, with one lock for all of them
//
// Everything is readable by the user alone (directories 0700, files 0600). An
// agent may write in agent, home and $TMPDIR, and nowhere above them; of what is in
// those three only the copy of a login is read here, as what an agent claims. All access goes through os.Root, so that no symbolic
// link leads out of the root, and what stands where a directory or a file should
// be, but is something else or somebody else's, is an error.
//
// An event is written by one system call, so a process that dies loses none that
// it was told of; only Sync, which a turn's end waits for, makes them survive a
// loss of power. What a writer that died left unfinished at the end of a log is
// cut off at the next Open. A reader needs no lock: it stops in front of a line
// that has no end yet. Numbers rise, so a reader that wants the later part of a
// log halves its way there; there is no index to keep right.
//
// Where the system can, a log has some room reserved behind its end, so that the
// event that ends a turn can be written when the disk is full.
//
// The lock is flock(2), or LockFileEx on Windows: the system frees it when its
// holder's process ends. On a file system without it no session can be opened.
//
// It may import domain, ports, infrastructure/jsonl, the standard library, x/sys
// and a JSON library.
package store
