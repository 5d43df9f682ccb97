package application

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/domain"
)

// minSecret is the length of a value from which it is looked for. A shorter one
// is in too much that has nothing to do with it.
const minSecret = 12

// redactor takes the values of secret variables out of events, before they are
// recorded and given out: an agent that holds a key can print it, and every tool
// that it runs can. A value that comes in pieces, or encoded, is not recognised, but
// for the password in a URL.
type redactor struct {
	secrets []secret
}

type secret struct {
	plain, quoted string // quoted as in a JSON string
	name          string // what stands in its place
}

// newRedactor returns a redactor for the values that the plan's secret variables
// have now. A path is no secret, whatever the variable.
func newRedactor(plan domain.SandboxPlan, lookup func(name string) (string, bool)) *redactor {
	r := &redactor{}
	for _, rule := range slices.Concat(plan.Env(), plan.EgressEnv(), plan.GatewayEnv()) {
		if !rule.Secret {
			continue
		}
		value := rule.Value
		if !rule.Literal {
			value, _ = lookup(rule.Name)
		}
		if !strings.HasPrefix(value, "/") {
			r.addValue(value, "[value of "+rule.Name+"]")
		}
	}
	r.sort()
	return r
}

// with adds the secrets of a login.
func (r *redactor) with(login []string) *redactor {
	for _, value := range login {
		r.add(value, "[secret of the agent's login]")
	}
	r.sort()
	return r
}

// addValue adds the value of a variable. If it is a URL with a password, that is the
// secret, and clients show it alone, or as they send it (curl -v does; RFC 7617).
func (r *redactor) addValue(value, name string) {
	r.add(value, name)
	if u, err := url.Parse(value); err == nil && u.User != nil {
		password, _ := u.User.Password()
		r.add(password, name)
		if password != "" {
			r.add(base64.StdEncoding.EncodeToString([]byte(u.User.Username()+":"+password)), name)
		}
	}
}

func (r *redactor) add(value, name string) {
	if len(value) < minSecret {
		return
	}
	quoted, _ := json.Marshal(value) // a string cannot fail
	r.secrets = append(r.secrets, secret{plain: value, quoted: string(quoted[1 : len(quoted)-1]), name: name})
}

// sort puts the longer ones first: one may be a part of another.
func (r *redactor) sort() {
	slices.SortStableFunc(r.secrets, func(a, b secret) int { return len(b.plain) - len(a.plain) })
}

// text takes the secrets out, and reports whether there were any.
func (r *redactor) text(s *string) bool {
	was := *s
	for _, x := range r.secrets {
		*s = strings.ReplaceAll(*s, x.plain, x.name) // the same string if there is none
		if x.quoted != x.plain {
			*s = strings.ReplaceAll(*s, x.quoted, x.name)
		}
	}
	return *s != was
}

// bytes is text for what must not be changed itself.
func (r *redactor) bytes(b *[]byte) bool {
	found := false
	for _, x := range r.secrets {
		for _, form := range [][]byte{[]byte(x.plain), []byte(x.quoted)} {
			if bytes.Contains(*b, form) {
				*b, found = bytes.ReplaceAll(*b, form, []byte(x.name)), true
			}
		}
	}
	return found
}

// event returns the event without the values of secrets. What it is given is not
// changed.
func (r *redactor) event(reply domain.ReplyEvent) domain.ReplyEvent {
	if len(r.secrets) == 0 {
		return reply
	}
	found := false
	see := func(here bool) { found = found || here }
	var clean domain.ReplyEvent
	switch e := reply.(type) {
	case domain.Text:
		if r.text(&e.Text) {
			return e
		}
	case domain.TextDelta:
		if r.text(&e.Text) {
			return e
		}
	case domain.Thinking:
		if r.text(&e.Text) {
			return e
		}
	case domain.ToolUpdate:
		if r.text(&e.Output) {
			return e
		}
	case domain.ToolResult:
		if r.text(&e.Output) {
			return e
		}
	case domain.Notice:
		see(r.text(&e.Message))
		see(r.text(&e.Refused.Address))
		clean = e
	case domain.Log:
		if r.text(&e.Line) {
			return e
		}
	case domain.Raw:
		if r.bytes(&e.JSON) {
			return e
		}
	case domain.Oversize:
		if r.bytes(&e.Head) {
			return e
		}
	case domain.ToolCall:
		see(r.text(&e.Name))
		see(r.bytes(&e.Input))
		clean = e
	case domain.Permission:
		see(r.text(&e.Reason))
		see(r.bytes(&e.Input))
		clean = e
	case domain.FileChange:
		e.Changes = slices.Clone(e.Changes)
		for i := range e.Changes {
			see(r.text(&e.Changes[i].Path))
		}
		clean = e
	case domain.Todo:
		e.Items = slices.Clone(e.Items)
		for i := range e.Items {
			see(r.text(&e.Items[i].Text))
		}
		clean = e
	case domain.Final:
		see(r.text(&e.Text))
		if e.Error != nil {
			failure := *e.Error
			see(r.text(&failure.Message))
			see(r.text(&failure.StderrTail))
			e.Error = &failure
		}
		clean = e
	case domain.SandboxApplied, domain.ConversationStarted, domain.UsageReport, domain.Tripwires:
		// has nothing of what the agent says
	}
	if !found {
		return reply
	}
	return clean
}
