package ports

import (
	"context"
	"iter"

	"github.com/caisson-run/caisson/domain"
)

// SessionStore keeps sessions: the log of their events, the record that a later
// resume needs, and their private directories. It is safe for concurrent use,
// also by several processes.
//
// The log is what happened; the record sums it up, and may lag behind the log
// when its writer died. Neither has values of the environment of an agent.
type SessionStore interface {
	// Root is the canonical directory below which everything is kept. A plan
	// that lets an agent write there is refused.
	Root() string
	// Paths returns where the private directories of a session are, or would be.
	// It makes nothing.
	Paths(id domain.SessionID) (SessionDirs, error)
	// Dirs makes the private directories of a session where they are missing
	// and returns them. They are readable by the user alone.
	Dirs(ctx context.Context, id domain.SessionID) (SessionDirs, error)
	// Open makes the caller the only one to have the session open, among all
	// processes, until the log is closed or the process ends, however it ends. If
	// somebody has it open, in this process or in another one, there is a
	// *domain.BusyError at once: Open does not wait. What a writer that died left
	// unfinished at the end of the log is cut off, and nothing before it. Open may
	// make the session's place, and no record. The other methods do not ask
	// whether the session is open, and Remove ends it.
	Open(ctx context.Context, id domain.SessionID) (SessionLog, error)
	// Save stores a record whole, or leaves the earlier one whole.
	Save(ctx context.Context, r domain.SessionRecord) error
	// Load returns a record; an unknown session gives a *domain.InvalidError whose
	// What is "session".
	Load(ctx context.Context, id domain.SessionID) (domain.SessionRecord, error)
	// List returns the ids of all sessions that have a place, also of those
	// without a record, in ascending order.
	List(ctx context.Context) ([]domain.SessionID, error)
	// Replay yields the events in the log with numbers from and above, in their
	// order, up to the last one that is there when it gets to the end: it does
	// not wait for more, and can be called while the session is open. It yields
	// nothing for a session without a log. An event has what its encoding carries.
	// A log that is damaged in the middle, and what else goes wrong, is an error,
	// the last thing that is yielded.
	Replay(ctx context.Context, id domain.SessionID, from uint64) iter.Seq2[domain.Event, error]
	// Remove deletes the record, the log and the directories of a session.
	// Removing what is not there is no error.
	Remove(ctx context.Context, id domain.SessionID) error
}

// SessionLog is the log of an open session. It is safe for concurrent use.
type SessionLog interface {
	// Epoch is higher than that of every earlier opening that appended something,
	// or whose epoch was saved with the record. Every event in the log has the
	// epoch that it was appended in, so that an append of somebody who lost the
	// session can be told.
	Epoch() uint64
	// LastSeq is the highest number that is taken, by the log or by the record; 0
	// if there is none.
	LastSeq() uint64
	// Append adds the event. Its number must be LastSeq()+1, otherwise there is a
	// *domain.InvalidError. After an error the event is not in the log, and the
	// number is free. An event whose append has returned survives the end of the
	// process; see Sync for the end of the machine. Some room is kept for the
	// events that end a turn: those of the type domain.Final can be appended for a
	// while when there is no room for others any more.
	Append(ctx context.Context, e domain.Event) error
	// Sync returns when all that was appended survives a loss of power.
	Sync(ctx context.Context) error
	// Close lets others open the session. Closing twice is no error, and neither
	// is it after Remove.
	Close() error
}
