package application

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// MaxPrompt is the most bytes of a prompt.
const MaxPrompt = 32 << 20

// Session is an open session. Its methods are safe for concurrent use; turns
// run one at a time.
type Session struct {
	o          *Orchestrator
	structured ports.StructuredSession
	plan       domain.SandboxPlan
	log        ports.SessionLog
	gateway    ports.Gateway // nil without one
	egress     ports.Egress  // nil without one
	journal    *egressJournal
	login      *borrower // nil without one
	own        []string  // the directories that the agent may write to
	tripwires  TripwireMode
	id         domain.SessionID
	fresh      bool // opened as a new session

	mu       sync.Mutex
	agent    *domain.AgentSession
	current  *Turn              // nil between turns
	starting chan struct{}      // closed when Send has started a turn, or not; nil otherwise
	stopped  bool               // closed, and nothing runs any more
	readers  int                // of turns' events
	owed     *domain.Event      // a final that could not be put into the log yet
	passed   ports.GatewayMeter // what events have told of the gateway

	// storing is held while the record is written or removed, so that no write
	// overtakes another.
	storing sync.Mutex
	settled bool // the record is no longer this object's to write
}

// ID returns Caisson's id of the session, which resumes it.
func (s *Session) ID() domain.SessionID { return s.id }

// Plan returns the plan that every turn runs under.
func (s *Session) Plan() domain.SandboxPlan { return s.plan }

// Agent returns the agent.
func (s *Session) Agent() domain.AgentKind { return s.record().Kind }

// Workspace returns the canonical path of the workspace.
func (s *Session) Workspace() string { return s.record().Workspace }

// ConversationID returns the agent's own id, "" before the agent gave one.
func (s *Session) ConversationID() string { return s.record().ConversationID }

// record returns the session as it is now.
func (s *Session) record() domain.SessionRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agent.Record()
}

// Send starts a turn with the prompt. ctx governs the whole turn: when it ends,
// the turn is cancelled. The turn is in progress until its final is recorded,
// whether anybody reads its events or not; a second Send meanwhile gets
// domain.ErrTurnInProgress, one after Close domain.ErrClosed. An empty prompt,
// one of nothing but white space and one above MaxPrompt give a
// *domain.InvalidError; a plan whose paths lead elsewhere by now, a
// *domain.PlanChangedError. After an error there is no process and no turn.
func (s *Session) Send(ctx context.Context, prompt string) (*Turn, error) {
	if strings.TrimSpace(prompt) == "" {
		return nil, &domain.InvalidError{What: "prompt", Value: prompt, Reason: "empty", Remedy: "say what the agent is to do"}
	}
	if len(prompt) > MaxPrompt {
		return nil, &domain.InvalidError{
			What: "prompt", Value: prompt, Reason: fmt.Sprintf("longer than %d bytes", MaxPrompt),
			Remedy: "put the text into a file in the workspace and name it in the prompt",
		}
	}
	redact := newRedactor(s.plan, s.o.host.LookupEnv)
	asked := prompt
	redact.text(&asked)
	s.mu.Lock()
	number, err := s.agent.StartTurn()
	over := make(chan struct{})
	if err == nil {
		s.starting = over
		s.agent.Asked(asked)
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	start := s.o.now()
	inner, before, secrets, err := s.start(ctx, prompt)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		s.starting = nil
		close(over)
	}()
	switch closed := s.agent.State() == domain.SessionClosed; {
	case err != nil && closed:
		return nil, errors.Join(err, s.agent.AbandonTurn()) // Close saves it
	case err != nil:
		err = errors.Join(err, s.agent.AbandonTurn())
		s.mu.Unlock()
		saved := s.save(ctx) // the record does not speak of it any more
		s.mu.Lock()
		return nil, errors.Join(err, saved)
	case closed:
		// Close came in between, and has seen to it that nothing runs, or its
		// caller gave up waiting for that.
		inner.Cancel(errSessionClosed)
		return nil, errors.Join(fmt.Errorf("session %s: %w", s.id, domain.ErrClosed), s.agent.AbandonTurn())
	}
	s.current = &Turn{
		session: s, inner: inner, ctx: ctx, number: number, start: start, first: s.agent.NextSeq(),
		before: before, redact: redact.with(secrets), recording: context.WithoutCancel(ctx),
		feed: newFeed(), begun: make(chan struct{}), done: make(chan struct{}),
	}
	go s.current.record()
	s.o.log.Info("turn started", slog.String("session", string(s.id)), slog.Int("turn", number), slog.Int("pid", inner.Process().Pid))
	return s.current, nil
}

// start starts the turn's process, and returns what the tripwires looked like
// before, and the secrets of the login that the agent holds. Before the process
// exists there is a record by which another one finds it if we die.
func (s *Session) start(ctx context.Context, prompt string) (_ ports.Turn, before trips, secrets []string, err error) {
	if err := errors.Join(s.payFinal(ctx), s.checkPlan(), s.o.checkLogins(ctx, s.plan, s.own)); err != nil {
		return nil, nil, nil, err
	}
	if s.tripwires != TripwiresOff {
		if before, err = lookAtTripwires(s.Workspace()); err != nil {
			return nil, nil, nil, err
		}
	}
	mark := rand.Text()
	if err := s.started(ctx, domain.ProcessIdentity{Mark: mark}); err != nil {
		return nil, nil, nil, err
	}
	var turn ports.Turn
	if secrets, err = s.login.lend(ctx); err == nil {
		turn, err = s.structured.Send(ctx, ports.Prompt{Text: prompt, Mark: mark})
	}
	if err != nil {
		_, returned := s.login.takeBack(ctx)
		return nil, nil, nil, errors.Join(err, returned)
	}
	return turn, before, secrets, nil
}

// loginReturned takes the agent's login back, once nothing of the agent runs any
// more, and says what there is to say about it.
func (s *Session) loginReturned(ctx context.Context) []domain.ReplyEvent {
	ret, err := s.login.takeBack(ctx)
	if err != nil {
		// The copy waits in the session, and is taken back when it is next used.
		return []domain.ReplyEvent{domain.Notice{Class: domain.NoticeWarning, Message: err.Error()}}
	}
	if n, ok := tellReturn(ret); ok {
		return []domain.ReplyEvent{n}
	}
	return nil
}

// checkPlan refuses the turn if a path of the plan leads to another place than
// when the session was opened: the agent may have put a symbolic link where it
// can write, and the turn would be granted what the link leads to.
func (s *Session) checkPlan() error {
	for _, r := range s.plan.Rules() {
		is, _, err := canonicalPath(r.Path)
		if err != nil && !errors.Is(err, fs.ErrPermission) {
			return &domain.InvalidError{What: "path rule", Value: r.Path, Reason: "cannot be resolved any more", Remedy: "look at what has become of it", Err: err}
		}
		if is != r.Path {
			now, _ := s.plan.MapRules(func(o domain.PathRule) (domain.PathRule, error) {
				if o.Path == r.Path {
					o.Path = is
				}
				return o, nil
			})
			changed := &domain.PlanChangedError{Session: s.id, Was: s.plan.Digest(), Is: now.Digest(), Workspace: s.Workspace()}
			changed.Added, changed.Removed = domain.DiffGrants(s.plan.Grants(), now.Grants())
			return fmt.Errorf("%q of the plan leads to %q now: %w", r.Path, is, changed)
		}
	}
	return nil
}

// SendBlocking runs one turn and returns its final. How the agent fared is in
// the outcome and is no error; an error is one of Caisson's own. If the agent's
// stream had no final, the error is a *domain.NoFinalError, with the one that
// was made instead, which is returned too.
func (s *Session) SendBlocking(ctx context.Context, prompt string) (domain.Final, error) {
	turn, err := s.Send(ctx, prompt)
	if err != nil {
		return domain.Final{}, err
	}
	var final domain.Final
	for e, err := range turn.Events() {
		if err != nil {
			return final, err
		}
		if f, ok := e.Reply.(domain.Final); ok {
			final = f
		}
	}
	if turn.synthetic {
		return final, &domain.NoFinalError{Synthetic: final}
	}
	return final, nil
}

// Close ends the session: it cancels a running turn and returns when its process
// tree is gone and its final recorded, or when ctx ends, with its error; then it
// can be called again. Then the session is free to be resumed; a reader of the
// turn's events gets to their end all the same. Nothing is kept of a session that
// never ran a turn. Closing twice is no error.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.agent.Close()
	turn, starting := s.current, s.starting
	s.mu.Unlock()
	var err error
	if turn != nil {
		turn.Cancel(errSessionClosed)
		// What the session below would give up unread must have its reader.
		err = await(ctx, turn.begun)
	}
	if err == nil {
		err = s.structured.Close(ctx)
	}
	if err == nil && starting != nil {
		// It gets no turn any more, and takes back what it noted of one.
		err = await(ctx, starting)
	}
	if err == nil && turn != nil {
		err = await(ctx, turn.done)
	}
	if err == nil {
		// Nobody is left who could use them, so one that fails keeps no other open.
		err = errors.Join(s.closeServices(ctx), s.closeLogin(ctx))
	}
	s.mu.Lock()
	s.stopped = s.stopped || err == nil
	s.mu.Unlock()
	if err == nil && turn != nil && !turn.taken.Load() {
		err = turn.err // nobody else will be told
	}
	if err = errors.Join(err, s.settleIfLast(ctx)); err != nil {
		return fmt.Errorf("close session %s: %w", s.id, err)
	}
	return nil
}

// closeServices closes what listens for the agent.
func (s *Session) closeServices(ctx context.Context) (err error) {
	if s.gateway != nil {
		err = s.gateway.Close(ctx)
	}
	if s.egress != nil {
		err = errors.Join(err, s.o.closeEgress(ctx, s.egress))
	}
	return err
}

// closeLogin takes back what a turn that came to nothing has left, or what could not
// be kept before.
func (s *Session) closeLogin(ctx context.Context) error {
	ret, err := s.login.takeBack(ctx)
	if n, ok := tellReturn(ret); ok {
		s.o.log.Warn(n.Message, slog.String("session", string(s.id)))
	}
	return err
}

// await returns when the channel is closed, or ctx ends, with its error.
func await(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// settleIfLast does what is to be done when nothing runs in the closed session:
// it writes the record a last time, or removes what is not to be kept, which
// waits for those who read it, and lets the session be resumed.
func (s *Session) settleIfLast(ctx context.Context) error {
	s.storing.Lock()
	defer s.storing.Unlock()
	s.mu.Lock()
	last := s.stopped && s.current == nil && !s.settled && (s.readers == 0 || !s.o.forget)
	turns := s.agent.Turns()
	s.mu.Unlock()
	if !last {
		return nil
	}
	var err error
	if s.o.forget || s.fresh && turns == 0 {
		err = s.o.store.Remove(context.WithoutCancel(ctx), s.id)
	} else {
		err = s.write(ctx)
	}
	if err != nil {
		return err
	}
	s.settled = true
	s.o.release(s.id)
	return s.log.Close()
}

// save writes the record as it is now.
func (s *Session) save(ctx context.Context) error {
	s.storing.Lock()
	defer s.storing.Unlock()
	if s.o.forget || s.settled {
		return nil
	}
	return s.write(ctx)
}

// write writes the record, after the log that it sums up. The end of a turn's
// context must not stop it. The caller holds storing.
func (s *Session) write(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	err := s.payFinal(ctx)
	if err == nil {
		err = s.log.Sync(ctx)
	}
	if err == nil {
		s.mu.Lock()
		s.agent.Touched(s.o.now())
		r := s.agent.Record()
		s.mu.Unlock()
		err = s.o.store.Save(ctx, r)
	}
	if err != nil {
		return fmt.Errorf("record session %s: %w", s.id, err)
	}
	return nil
}

// payFinal puts a final into the log that did not fit when it came.
func (s *Session) payFinal(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owed == nil {
		return nil
	}
	if err := s.log.Append(ctx, *s.owed); err != nil {
		return err
	}
	s.owed = nil
	return nil
}

// reading counts who reads a turn's events.
func (s *Session) reading(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers += n
}

// started takes note of the turn that runs, so that another process finds what
// is left of it after our death.
func (s *Session) started(ctx context.Context, process domain.ProcessIdentity) error {
	s.mu.Lock()
	s.agent.TurnStarted(process)
	s.mu.Unlock()
	return s.save(ctx)
}

// adoptFirst takes the conversation's id if there was none yet, and reports
// whether it did.
func (s *Session) adoptFirst(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == "" || s.agent.ConversationID() != "" {
		return false
	}
	s.agent.AdoptConversation(id)
	return true
}

// append gives an event its place in the session, in the log.
func (s *Session) append(ctx context.Context, turn int, reply domain.ReplyEvent) (domain.Event, error) {
	now := s.o.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	e := domain.Event{Seq: s.agent.NextSeq(), Session: s.id, Turn: turn, Time: now, Agent: s.agent.Kind(), Reply: reply}
	err := s.log.Append(ctx, e)
	if err == nil {
		s.agent.Recorded(e.Seq)
	}
	return e, err
}

// finishTurn ends the turn: in the log, in the session's state, and in its
// record. The final that it returns is right also if there is an error.
func (s *Session) finishTurn(ctx context.Context, turn int, final domain.Final) (domain.Event, error) {
	e, err := s.append(ctx, turn, final)
	if err != nil && final.Text != "" {
		// A short one may fit. The text is in the log in its own event, or was not
		// to be kept.
		final.Text = ""
		e, err = s.append(ctx, turn, final)
	}
	s.mu.Lock()
	if err != nil {
		// Its number is given out, and goes to no other event.
		s.owed = &e
		s.agent.Recorded(e.Seq)
	}
	// An agent that went on with another conversation than it was told to has
	// failed; the session stays with its own.
	if final.Error == nil || final.Error.Class != domain.ErrorClassConversation {
		s.agent.AdoptConversation(final.ConversationID)
	}
	err = errors.Join(err, s.agent.FinishTurn(final))
	s.current = nil // together with the state: now the next turn may start
	s.mu.Unlock()
	// Saving puts the final into the log first, or fails.
	return e, errors.Join(err, s.save(ctx), s.settleIfLast(ctx))
}
