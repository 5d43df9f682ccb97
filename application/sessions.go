package application

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/domain"
)

// SessionInfo is what is known of a stored session.
type SessionInfo struct {
	domain.SessionRecord
	// Running says that a turn of it runs, in this process or in another one.
	Running bool
	// Unsettled says why the turn of an orchestrator that died, which is Live,
	// could not be settled, for example on a full disk; nil if nothing is to do.
	Unsettled *UnsettledError
}

// UnsettledError says that the turn of an orchestrator that died could not be
// ended or recorded: it may have processes left, and has no final yet. Whoever
// comes next to the session tries again.
type UnsettledError struct {
	Session domain.SessionID
	Turn    int
	Err     error
}

func (e *UnsettledError) Error() string {
	return fmt.Sprintf("turn %d of session %s has no end on record, and cannot be given one now: %v", e.Turn, e.Session, e.Err)
}

func (e *UnsettledError) Unwrap() error { return e.Err }

// lastUsed is when something last happened in a session.
func lastUsed(r domain.SessionRecord) time.Time {
	if r.Updated.IsZero() { // written by an older Caisson
		return r.Opened
	}
	return r.Updated
}

// settlesAtOnce is how many sessions are looked at together: to settle one is
// mostly waiting for its processes to stay gone, and an orchestrator may have died
// with a thousand.
const settlesAtOnce = 16

// Sessions returns the stored sessions, the last used one first. A turn whose
// orchestrator died is settled on the way: what is left of it is ended, and it
// gets its final. Where that cannot be done the session says so, and is returned
// as it was found. What cannot be read is in the error; the others are returned
// all the same.
func (o *Orchestrator) Sessions(ctx context.Context) ([]SessionInfo, error) {
	if err := o.check(ctx); err != nil {
		return nil, err
	}
	ids, err := o.store.List(ctx)
	if err != nil {
		return nil, err
	}
	found := make([]SessionInfo, len(ids))
	failed := make([]error, len(ids))
	var all sync.WaitGroup
	places := make(chan struct{}, settlesAtOnce)
	for i, id := range ids {
		places <- struct{}{}
		all.Go(func() {
			found[i], failed[i] = o.info(ctx, id)
			<-places
		})
	}
	all.Wait()
	var infos []SessionInfo
	var errs []error
	for i, info := range found {
		err := failed[i]
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case unknown(err):
			// A place without a record: of a session that is being opened, or that
			// never was, or was removed just now.
		case err != nil:
			errs = append(errs, err)
		default:
			infos = append(infos, info)
		}
	}
	slices.SortStableFunc(infos, func(a, b SessionInfo) int { return lastUsed(b.SessionRecord).Compare(lastUsed(a.SessionRecord)) })
	return infos, errors.Join(errs...)
}

// unknown reports whether an error says that there is no such session.
func unknown(err error) bool {
	invalid := (*domain.InvalidError)(nil)
	return errors.As(err, &invalid) && invalid.What == "session"
}

func (o *Orchestrator) info(ctx context.Context, id domain.SessionID) (SessionInfo, error) {
	r, err := o.store.Load(ctx, id)
	if err != nil {
		return SessionInfo{}, err
	}
	now, running, err := o.settle(ctx, r)
	if err != nil && ctx.Err() == nil && !unknown(err) {
		// Reading goes without it.
		return SessionInfo{SessionRecord: r, Unsettled: &UnsettledError{Session: id, Turn: r.Live.Turn, Err: err}}, nil
	}
	return SessionInfo{SessionRecord: now, Running: running}, err
}

// Session returns one stored session, as [Orchestrator.Sessions] does. An unknown
// one gives a *domain.InvalidError.
func (o *Orchestrator) Session(ctx context.Context, id domain.SessionID) (SessionInfo, error) {
	if err := o.check(ctx); err != nil {
		return SessionInfo{}, err
	}
	return o.info(ctx, id)
}

// LastSession is what [Orchestrator.FindSession] understands beside an id: the
// session that was used last.
const LastSession = "last"

// minPrefix is the shortest beginning of an id that names a session: two
// characters could be a slip.
const minPrefix = 4

// FindSession returns the id of the stored session that a reference means: its
// id, the beginning of its id if no other one begins so, or LastSession, which is
// the last used one of the workspace, a canonical path, or of all if that is "".
// None, and more than one, give a *domain.InvalidError.
func (o *Orchestrator) FindSession(ctx context.Context, ref, workspace string) (domain.SessionID, error) {
	if err := o.check(ctx); err != nil {
		return "", err
	}
	bad := func(reason, remedy string) error {
		return &domain.InvalidError{What: "session", Value: ref, Reason: reason, Remedy: remedy}
	}
	if ref == LastSession {
		return o.lastSession(ctx, workspace)
	}
	if id, err := domain.ParseSessionID(ref); err == nil {
		return id, nil
	}
	if len(ref) < minPrefix || strings.Trim(ref, "0123456789abcdef-") != "" {
		return "", bad("neither a lower-case UUID nor the beginning of one", fmt.Sprintf(
			"pass the id that an earlier run printed (\"continue with: --resume ID\"), at least %d characters of it, or %q", minPrefix, LastSession,
		))
	}
	ids, err := o.store.List(ctx)
	if err != nil {
		return "", err
	}
	ids = slices.DeleteFunc(ids, func(id domain.SessionID) bool {
		if !strings.HasPrefix(string(id), ref) {
			return true
		}
		// A place without a record is a command's, or one of a session that never
		// was. What cannot be read is a session all the same.
		_, err := o.store.Load(ctx, id)
		return unknown(err)
	})
	switch len(ids) {
	case 0:
		return "", bad("no such session in "+o.store.Root(), "see \"caisson sessions list\"")
	case 1:
		return ids[0], nil
	}
	names := make([]string, 0, maxCandidates)
	for _, id := range ids[max(0, len(ids)-maxCandidates):] {
		names = append(names, string(id))
	}
	such := ""
	if len(names) < len(ids) {
		such = "the last ones "
	}
	return "", bad(fmt.Sprintf("%d sessions begin so: %s%s", len(ids), such, strings.Join(names, ", ")),
		"pass more of the id: they begin with the time, so it takes more where many were opened together")
}

// maxCandidates is how many sessions are named that a reference could mean.
const maxCandidates = 8

func (o *Orchestrator) lastSession(ctx context.Context, workspace string) (domain.SessionID, error) {
	ids, err := o.store.List(ctx)
	if err != nil {
		return "", err
	}
	var last domain.SessionRecord
	for _, id := range ids {
		r, err := o.store.Load(ctx, id)
		if err != nil {
			continue // one that cannot be read cannot be gone on with either
		}
		if (workspace == "" || r.Workspace == workspace) && !lastUsed(r).Before(lastUsed(last)) {
			last = r
		}
	}
	if last.ID == "" {
		reason := "no session is stored"
		if workspace != "" {
			reason = fmt.Sprintf("no session of the workspace %q is stored", workspace)
		}
		return "", &domain.InvalidError{What: "session", Value: LastSession, Reason: reason, Remedy: "open a new one, or pass an id"}
	}
	return last.ID, nil
}

// How often a follower looks, and after how many looks without anything new it
// asks whether the turn still runs.
const (
	followPause = 50 * time.Millisecond
	followLooks = 5
)

// Replay yields the stored events of a session with numbers from and above. With
// follow it goes on with what comes until no turn of the session runs any more;
// otherwise it ends with what there is. The turn of an orchestrator that dies
// meanwhile is settled, so that it ends too; where that cannot be done there is an
// *UnsettledError after what there is. The error, if there is one, comes last; an
// unknown session is one.
func (o *Orchestrator) Replay(ctx context.Context, id domain.SessionID, from uint64, follow bool) iter.Seq2[domain.Event, error] {
	return func(yield func(domain.Event, error) bool) {
		info, err := o.Session(ctx, id)
		if err != nil {
			yield(domain.Event{}, err)
			return
		}
		running := info.Running
		for looks := 0; ; looks++ {
			for e, err := range o.store.Replay(ctx, id, from) {
				if !yield(e, err) || err != nil {
					return
				}
				from, looks = e.Seq+1, 0
			}
			if info.Unsettled != nil {
				yield(domain.Event{}, info.Unsettled)
				return
			}
			if !follow || !running {
				return
			}
			if err := o.pause(ctx); err != nil {
				yield(domain.Event{}, err)
				return
			}
			if looks < followLooks {
				continue
			}
			// What there is to read is complete once no turn runs, so one more look
			// follows.
			if info, err = o.info(ctx, id); err != nil {
				yield(domain.Event{}, err)
				return
			}
			running, looks = info.Running, 0
		}
	}
}

func (o *Orchestrator) pause(ctx context.Context) error {
	t := time.NewTimer(followPause)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// RemoveSession removes a stored session for good: its log, its record and its
// private directories, the agent's own copy of the conversation among them. One
// that is open gives a *domain.BusyError, an unknown one a *domain.InvalidError.
func (o *Orchestrator) RemoveSession(ctx context.Context, id domain.SessionID) (err error) {
	if err := o.check(ctx); err != nil {
		return err
	}
	ids, err := o.store.List(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(ids, id) {
		// Opening the log of one that is not there would make its place.
		if _, err := o.store.Load(ctx, id); err != nil {
			return err
		}
	}
	return o.removeSession(ctx, id, func(domain.SessionRecord) bool { return true })
}

// removeSession removes the session if nobody has it open and its record, which
// is zero if there is none, is as it should be.
func (o *Orchestrator) removeSession(ctx context.Context, id domain.SessionID, should func(domain.SessionRecord) bool) (err error) {
	log, err := o.store.Open(ctx, id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	// A record that cannot be read says of no process, and is to go.
	r, loadErr := o.store.Load(ctx, id)
	if loadErr == nil && r.Live != nil {
		if err := o.factory.EndLeftover(ctx, r.Live.Process); err != nil {
			return fmt.Errorf("end what is left of session %s: %w", id, err)
		}
	}
	if !should(r) {
		return errKept
	}
	return o.removeStored(ctx, id)
}

// removeStored removes what there is of a session, once it has no login any more.
func (o *Orchestrator) removeStored(ctx context.Context, id domain.SessionID) error {
	if err := o.saveLogin(ctx, id); err != nil {
		return err
	}
	return o.store.Remove(ctx, id)
}

// errKept: a session is not to be removed after all.
var errKept = errors.New("kept")

// Retention says which sessions to keep. The zero value keeps all.
type Retention struct {
	// MaxAge is how long ago a session may have been used last; 0 for ever.
	MaxAge time.Duration
	// MaxCount is how many of the last used ones are kept; 0 for all.
	MaxCount int
}

// Prune removes the stored sessions that are not to be kept, as RemoveSession
// does, and those that were never completely opened. It returns the ids of the
// removed ones. Sessions that are open are kept, and count.
func (o *Orchestrator) Prune(ctx context.Context, keep Retention) ([]domain.SessionID, error) {
	infos, err := o.Sessions(ctx)
	if ctx.Err() != nil || infos == nil && err != nil {
		return nil, err
	}
	if err != nil {
		o.log.Warn("sessions that cannot be read are kept", slog.Any("error", err))
	}
	ids, err := o.store.List(ctx)
	if err != nil {
		return nil, err
	}
	now := o.now()
	old := func(r domain.SessionRecord) bool { return keep.MaxAge > 0 && now.Sub(lastUsed(r)) > keep.MaxAge }
	doomed := map[domain.SessionID]func(domain.SessionRecord) bool{}
	for i, info := range infos {
		used := lastUsed(info.SessionRecord)
		if old(info.SessionRecord) || keep.MaxCount > 0 && i >= keep.MaxCount {
			doomed[info.ID] = func(r domain.SessionRecord) bool { return lastUsed(r).Equal(used) }
		}
	}
	for _, id := range ids {
		known := slices.ContainsFunc(infos, func(i SessionInfo) bool { return i.ID == id })
		if _, err := o.store.Load(ctx, id); !known && unknown(err) {
			doomed[id] = func(r domain.SessionRecord) bool { return r.ID == "" }
		}
	}
	var removed []domain.SessionID
	var errs []error
	for _, id := range ids {
		should, ok := doomed[id]
		if !ok {
			continue
		}
		switch err := o.removeSession(ctx, id, should); {
		case errors.Is(err, domain.ErrBusy), errors.Is(err, errKept):
		case err != nil:
			errs = append(errs, fmt.Errorf("remove session %s: %w", id, err))
		default:
			removed = append(removed, id)
		}
	}
	return removed, errors.Join(errs...)
}
