package application

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// recover settles what an orchestrator that died left behind in a session, which
// the caller has open now: it ends what is left of the turn's processes, puts the
// final into the log that the turn lacks, and brings the record up to the log. It
// does nothing to a session that was left in order.
func (o *Orchestrator) recover(ctx context.Context, log ports.SessionLog, r domain.SessionRecord) (domain.SessionRecord, error) {
	if r.Live == nil && log.LastSeq() <= r.LastSeq {
		return r, nil
	}
	// First, so that nothing of the old turn runs beside the next one.
	if r.Live != nil {
		if err := o.factory.EndLeftover(ctx, r.Live.Process); err != nil {
			return r, fmt.Errorf("end what is left of turn %d of session %s: %w", r.Live.Turn, r.ID, err)
		}
	}
	was := r
	r, open, err := o.catchUp(ctx, r)
	if err != nil {
		return was, err
	}
	if open != nil {
		e := domain.Event{
			Seq: max(r.LastSeq, log.LastSeq()) + 1, Session: r.ID, Turn: open.turn, Time: o.now(), Agent: r.Kind, Reply: open.final(),
		}
		if err := log.Append(ctx, e); err != nil {
			return was, fmt.Errorf("end turn %d of session %s: %w", open.turn, r.ID, err)
		}
		r = r.Replayed(e)
		o.log.Warn("ended a turn whose Caisson had died", slog.String("session", string(r.ID)), slog.Int("turn", open.turn))
	}
	r.Live, r.Epoch = nil, log.Epoch()
	if err := log.Sync(ctx); err != nil {
		return was, err
	}
	return r, o.store.Save(ctx, r)
}

// openTurn is a turn in the log that has no final.
type openTurn struct {
	turn         int
	conversation string
	usage        domain.Usage
}

// final is what is known of how it ended.
func (t openTurn) final() domain.Final {
	f := domain.Conclude(nil, domain.TurnEnd{Cause: domain.EndOrphaned})
	f.ConversationID, f.Usage = t.conversation, t.usage
	return f
}

// catchUp brings the record up to the log, and returns the turn that is open at
// its end; nil if there is none.
func (o *Orchestrator) catchUp(ctx context.Context, r domain.SessionRecord) (domain.SessionRecord, *openTurn, error) {
	var open *openTurn
	from := r.LastSeq + 1
	if r.Live != nil {
		// It may have died before its first event.
		open = &openTurn{turn: r.Live.Turn}
		from = min(from, r.Live.First)
	}
	for e, err := range o.store.Replay(ctx, r.ID, from) {
		if err != nil {
			return r, nil, err
		}
		r = r.Replayed(e)
		if open == nil || open.turn != e.Turn {
			open = &openTurn{turn: e.Turn}
		}
		switch reply := e.Reply.(type) {
		case domain.ConversationStarted:
			open.conversation = reply.ConversationID
		case domain.UsageReport:
			open.usage = reply.Usage
		case domain.Final:
			open = nil
		default: // says nothing about how the turn ended
		}
	}
	return r, open, nil
}

// settle is recover for a session that nobody has open. It reports whether
// somebody has.
func (o *Orchestrator) settle(ctx context.Context, r domain.SessionRecord) (_ domain.SessionRecord, inUse bool, err error) {
	if r.Live == nil {
		return r, false, nil
	}
	log, err := o.store.Open(ctx, r.ID)
	if errors.Is(err, domain.ErrBusy) {
		return r, true, nil
	}
	if err != nil {
		return r, false, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	now, err := o.store.Load(ctx, r.ID)
	if err != nil {
		return r, false, err
	}
	r, err = o.recover(ctx, log, now)
	return r, false, err
}
