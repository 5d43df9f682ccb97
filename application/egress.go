package application

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// proxyEnv are the variables that lead programs to the egress proxy. Programs read
// them in either case (curl takes http_proxy in lower case alone), Node.js from 24
// on only where NODE_USE_ENV_PROXY says so (nodejs.org/api/cli.html). What listens
// on this machine, the model gateway among it, and what the plan lets be connected
// to by its address is reached without the proxy.
func proxyEnv(plan domain.SandboxPlan, url string) []domain.EnvRule {
	const why = "egress proxy"
	direct := []string{"localhost", "127.0.0.1", "::1"}
	for _, d := range plan.Destinations() {
		if at := d.Addr().String(); !slices.Contains(direct, at) {
			direct = append(direct, at)
		}
	}
	var env []domain.EnvRule
	for _, name := range []string{"HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"} {
		for _, name := range []string{name, strings.ToLower(name)} {
			env = append(env, domain.EnvRule{Name: name, Value: url, Literal: true, Secret: true, Why: why})
		}
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		env = append(env, domain.EnvRule{Name: name, Value: strings.Join(direct, ","), Literal: true, Why: why})
	}
	return append(env, domain.EnvRule{Name: "NODE_USE_ENV_PROXY", Value: "1", Literal: true, Why: why})
}

// planEgress is the part of making a plan that is about hosts by name: it refuses
// what the proxy would not serve, and what would lead around it, and adds the
// variables, whose values are not known before the proxy is open.
func (o *Orchestrator) planEgress(plan domain.SandboxPlan, policy Policy) (domain.SandboxPlan, error) {
	domains := plan.EgressDomains()
	if len(domains) == 0 {
		return plan, nil
	}
	if o.egress == nil {
		return plan, &domain.InvalidError{
			What: "domain", Value: domains[0].String(), Reason: "this orchestrator has no egress proxy", Remedy: "set application.Config.Egress",
		}
	}
	origins := plan.Origins()
	for _, d := range domains {
		err := o.egress.Check([]domain.EgressDomain{d})
		invalid, origin := (*domain.InvalidError)(nil), origins["domain "+d.String()]
		if errors.As(err, &invalid) && origin != "" {
			err = &domain.InvalidError{What: invalid.What, Value: invalid.Value, Reason: invalid.Reason + " (granted by: " + origin + ")", Remedy: invalid.Remedy}
		}
		if err != nil {
			return plan, err
		}
	}
	env := proxyEnv(plan, "")
	for _, e := range policy.Env {
		if slices.ContainsFunc(env, func(own domain.EnvRule) bool { return own.Name == e.Name }) {
			reason := "it leads programs to the egress proxy, which the domains of the policy take"
			if e.Why != "" {
				reason += " (set by: " + e.Why + ")"
			}
			return plan, &domain.InvalidError{What: "environment variable", Value: e.Name, Reason: reason, Remedy: "leave it out, or the domains"}
		}
	}
	return plan.WithEgressProxy(0, env...), nil
}

// CheckEgress returns what makes every plan with the policy's hosts by name be
// refused; nil if nothing does.
func (o *Orchestrator) CheckEgress(policy Policy) error {
	_, err := o.planEgress(policy.Apply(domain.NewSandboxPlan("policy")), policy)
	return err
}

// openEgress opens the proxy that the plan needs, nil for none, and puts it into the
// plan. The caller closes it.
func (o *Orchestrator) openEgress(ctx context.Context, id domain.SessionID, plan domain.SandboxPlan, journal *egressJournal) (domain.SandboxPlan, ports.Egress, error) {
	if len(plan.EgressDomains()) == 0 {
		return plan, nil, nil
	}
	proxy, err := o.egress.Open(ctx, ports.EgressSpec{Session: id, Domains: plan.EgressDomains(), Decided: journal.note})
	if err != nil {
		return plan, nil, err
	}
	return plan.WithEgressProxy(proxy.Port(), proxyEnv(plan, proxy.URL())...), proxy, nil
}

// closeEgress closes a proxy, and logs what has passed.
func (o *Orchestrator) closeEgress(ctx context.Context, proxy ports.Egress) error {
	if err := proxy.Close(ctx); err != nil {
		return err
	}
	m := proxy.Meter()
	o.log.Info("egress proxy closed", slog.Int64("allowed", m.Allowed), slog.Int64("refused", m.Refused), slog.Int64("failed", m.Failed),
		slog.Int64("unauthorized", m.Unauthorized), slog.Int64("sent", m.Sent), slog.Int64("received", m.Received))
	return nil
}

// openEgress is step 5e for what is reached by name.
func (l *launch) openEgress(ctx context.Context) (err error) {
	l.journal = &egressJournal{}
	if l.plan, l.egress, err = l.o.openEgress(ctx, l.record.ID, l.plan, l.journal); err != nil {
		return err
	}
	if l.egress != nil {
		l.undo.push(func(ctx context.Context) error { return l.o.closeEgress(ctx, l.egress) })
	}
	return nil
}

// apiByName reports whether the policy lets the agent's API be reached by name, so
// that the agent needs neither its port on every host nor DNS.
func (l *launch) apiByName(api *ports.ModelAPI) bool {
	scheme, rest, _ := strings.Cut(api.Address(), "://")
	authority, _, _ := strings.Cut(rest, "/")
	name, text, hasPort := strings.Cut(authority, ":")
	port := map[string]uint16{"http": 80, "https": 443}[scheme]
	if hasPort {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return false // such as an address of IPv6
		}
		port = uint16(n)
	}
	host, reason := domain.ParseHostName(name)
	if reason != "" {
		return false
	}
	allowed, _ := domain.EgressByName(l.req.Policy.Domains, host, port)
	return len(allowed) > 0
}

// noteEgress says in the receipts how hosts are reached by name, and how far that is
// enforced.
func (l *launch) noteEgress(plan domain.SandboxPlan) {
	if len(plan.EgressDomains()) == 0 {
		return
	}
	l.notes = append(l.notes, "network: hosts are reached by name through Caisson's egress proxy on this machine, which resolves them; TLS is not opened")
	var around []string
	if plan.Waives(domain.PropertyDestinations) {
		around = append(around, "where the kernel cannot tell addresses apart, the proxy's port on every host")
	}
	for _, port := range plan.ConnectTCP() {
		around = append(around, fmt.Sprintf("TCP port %d on every host", port))
	}
	if plan.UDP() {
		around = append(around, "UDP to every host")
	}
	if len(around) > 0 {
		l.notes = append(l.notes, "network: the proxy is cooperative for what the plan grants beside it: "+strings.Join(around, ", "))
	}
}

// maxDecisions is how many different decisions of a turn are told one by one, of each
// kind: else a program could hide where it was let by asking for what it is refused.
const maxDecisions = 64

// decisionKinds are the kinds.
var decisionKinds = []string{"refused", "failed", "allowed"}

func decisionKind(d domain.EgressDecision) string {
	switch {
	case !d.Allowed:
		return "refused"
	case d.Reason != "":
		return "failed"
	}
	return "allowed"
}

// egressJournal keeps what an egress proxy decides until somebody asks: each
// different decision once, and how often it came again. It is safe for concurrent
// use.
type egressJournal struct {
	mu      sync.Mutex
	fresh   []domain.EgressDecision
	order   []domain.EgressDecision
	times   map[domain.EgressDecision]int
	told    map[string]int // by kind
	omitted map[string]int // for which there was no room
}

// note takes a decision.
func (j *egressJournal) note(d domain.EgressDecision) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.times == nil {
		j.times, j.told, j.omitted = map[domain.EgressDecision]int{}, map[string]int{}, map[string]int{}
	}
	kind := decisionKind(d)
	switch _, known := j.times[d]; {
	case known:
		j.times[d]++
	case j.told[kind] >= maxDecisions:
		j.omitted[kind]++
	default:
		j.times[d] = 1
		j.told[kind]++
		j.fresh, j.order = append(j.fresh, d), append(j.order, d)
	}
}

// news returns the decisions that are new since it was last asked, as events.
func (j *egressJournal) news() []domain.ReplyEvent {
	j.mu.Lock()
	defer j.mu.Unlock()
	var events []domain.ReplyEvent
	for _, d := range j.fresh {
		events = append(events, egressNotice(d.String()))
	}
	j.fresh = nil
	return events
}

// sum returns what is new, and how often decisions came again, and begins anew.
func (j *egressJournal) sum() []domain.ReplyEvent {
	events := j.news()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, d := range j.order {
		if again := j.times[d] - 1; again > 0 {
			events = append(events, egressNotice(fmt.Sprintf("%d times more: %s", again, d)))
		}
	}
	for _, kind := range decisionKinds {
		if n := j.omitted[kind]; n > 0 {
			events = append(events, egressNotice(fmt.Sprintf("%d others %s, of a turn with more than %d different ones", n, kind, maxDecisions)))
		}
	}
	j.order, j.times, j.told, j.omitted = nil, nil, nil, nil
	return events
}

func egressNotice(message string) domain.Notice {
	return domain.Notice{Class: domain.NoticeEgress, Message: message}
}

// log tells of what was decided, where there are no events, and begins anew.
func (j *egressJournal) log(to *slog.Logger) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, d := range j.order {
		level := slog.LevelInfo
		if !d.Allowed {
			level = slog.LevelWarn
		}
		var about []slog.Attr
		if times := j.times[d]; times > 1 {
			about = append(about, slog.Int("times", times))
		}
		to.LogAttrs(context.Background(), level, "egress proxy: "+d.String(), about...)
	}
	for _, kind := range decisionKinds {
		if n := j.omitted[kind]; n > 0 {
			to.Warn("egress proxy: more decisions than are told one by one", slog.Int("others", n), slog.String("which", kind))
		}
	}
	j.fresh, j.order, j.times, j.told, j.omitted = nil, nil, nil, nil, nil
}
