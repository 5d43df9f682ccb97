package ports

import (
	"context"

	"github.com/caisson-run/caisson/domain"
)

// SessionRecords keeps what a later resume needs, and the private directories
// of sessions. It is safe for concurrent use, also by several processes.
type SessionRecords interface {
	// Paths returns where the private directories of a session are, or would be.
	// It makes nothing.
	Paths(id domain.SessionID) (SessionDirs, error)
	// Dirs makes the private directories of a session where they are missing
	// and returns them. They are readable by the user alone.
	Dirs(ctx context.Context, id domain.SessionID) (SessionDirs, error)
	// Lock makes the caller the only one to have the session open, among all
	// processes, until unlock is called or the process ends, however it ends. If
	// somebody has it open, in this process or in another one, there is a
	// *domain.BusyError at once: Lock does not wait. It may make the session's
	// place, and no record. The other methods do not ask for the lock, and Remove
	// ends it. Unlocking twice is no error, and neither is it after Remove.
	Lock(ctx context.Context, id domain.SessionID) (unlock func() error, err error)
	// Save stores a record whole, or leaves the earlier one whole.
	Save(ctx context.Context, r domain.SessionRecord) error
	// Load returns a record; an unknown session gives a *domain.InvalidError.
	Load(ctx context.Context, id domain.SessionID) (domain.SessionRecord, error)
	// Remove deletes the record and the directories of a session. Removing
	// what is not there is no error.
	Remove(ctx context.Context, id domain.SessionID) error
	// Root is the canonical directory below which everything is kept. A plan
	// that lets an agent write there is refused.
	Root() string
}
