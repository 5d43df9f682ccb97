package application

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// maxCredential is the most bytes of a file with a credential.
const maxCredential = 64 << 10

// chooseWay is the part of step 5c that says how the agent gets to its model
// API: through the gateway, if it can be put behind one, there is one and the
// sandbox is to be enforced; otherwise by itself, with its own credential.
func (l *launch) chooseWay() error {
	kind, api := l.req.Agent, l.fragment.ModelAPI
	var why string
	switch {
	case api == nil:
		why = l.fragment.OwnCredential
	case l.login != nil:
		why = fmt.Sprintf("it holds the login %q, in a copy that is in its private state while it runs", cmp.Or(l.login.id.Name, DefaultLogin))
	case l.logIn != nil:
		why = "it is to log in"
	case l.req.Sandbox.off:
		why = "the session has no sandbox"
	case l.req.DirectAPI:
		why = "the model gateway is off"
	case l.o.gateway == nil:
		why = "this orchestrator has no model gateway"
	default:
		l.gated = true
		return l.checkCredentialFiles()
	}
	if len(l.req.CredentialFiles) > 0 {
		return &domain.InvalidError{
			What: "credential file", Reason: "only the model gateway reads it, and the agent would not go through it: " + why,
			Remedy: "leave the file out, or use the gateway",
		}
	}
	if api != nil {
		direct := api.Direct
		switch {
		case l.req.Sandbox.off:
		case api.ByName != nil && l.o.egress != nil:
			direct = *api.ByName
		case l.apiByName(api):
			direct.ConnectTCP, direct.UDP = nil, ""
		}
		l.fragment = l.fragment.With(direct)
	}
	if why != "" {
		l.notes = append(l.notes, fmt.Sprintf("%s: reaches its model API by itself and holds the credential, which every tool that it runs can read: %s", kind, why))
	}
	return nil
}

// checkCredentialFiles makes the paths canonical, and finds out early what
// would otherwise fail at the first request.
func (l *launch) checkCredentialFiles() error {
	l.files = make(map[string]string, len(l.req.CredentialFiles))
	for name, path := range l.req.CredentialFiles {
		bad := func(reason, remedy string, err error) error {
			return &domain.InvalidError{What: "credential file of " + name, Value: path, Reason: reason, Remedy: remedy, Err: err}
		}
		known := func(c ports.APICredential) bool { return c.Env == name }
		if !slices.ContainsFunc(l.fragment.ModelAPI.Credentials, known) {
			return bad(fmt.Sprintf("%s has no credential of that name", l.req.Agent), "one of "+credentialNames(l.fragment.ModelAPI), nil)
		}
		canonical, exists, err := canonicalPath(path)
		if err == nil && !exists {
			err = fs.ErrNotExist
		}
		if err == nil {
			_, err = readCredential(canonical)
		}
		if err != nil {
			return bad("cannot be used", "pass the absolute path of a file that holds the credential and nothing else", err)
		}
		l.files[name] = canonical
	}
	return nil
}

// withGateway adds the gateway to the plan, by name: its port and its token are
// not known before it is opened.
func (l *launch) withGateway(plan domain.SandboxPlan) domain.SandboxPlan {
	return plan.WithModelGateway(0, l.gatewayEnv("", "")...)
}

// gatewayEnv are the variables that lead the agent to the gateway.
func (l *launch) gatewayEnv(base, token string) []domain.EnvRule {
	const why = "model gateway"
	api := l.fragment.ModelAPI
	key, _ := l.credential()
	env := []domain.EnvRule{{Name: key.Env, Value: token, Literal: true, Secret: true, Why: why}}
	if api.BaseURLEnv != "" {
		env = append(env, domain.EnvRule{Name: api.BaseURLEnv, Value: base, Literal: true, Why: why})
	}
	return env
}

// checkGateway refuses what would undo the gateway: a variable of the policy's
// that hands the agent a credential or another address, and a credential file
// that the plan lets it read.
func (l *launch) checkGateway(plan domain.SandboxPlan) error {
	api := l.fragment.ModelAPI
	taken := []string{api.BaseURLEnv}
	for _, c := range api.Credentials {
		taken = append(taken, c.Env)
	}
	for _, e := range l.req.Policy.Env {
		if slices.Contains(taken, e.Name) {
			return &domain.InvalidError{
				What: "environment variable", Value: e.Name, Reason: "the model gateway stands between the agent and its API",
				Remedy: "set it in Caisson's own environment, or turn the gateway off (--gateway off)",
			}
		}
	}
	for name, path := range l.files {
		for _, r := range plan.Rules() {
			if covers(r.Path, path) {
				return &domain.InvalidError{
					What: "credential file of " + name, Value: path, Reason: fmt.Sprintf("the plan grants %s (%s), so the agent could read it", r.Path, r.Why),
					Remedy: "keep it elsewhere",
				}
			}
		}
	}
	return nil
}

// noteGateway says in the receipts where requests go, and what becomes of the
// credential.
func (l *launch) noteGateway() {
	kind, api := l.req.Agent, l.fragment.ModelAPI
	l.notes = append(l.notes, fmt.Sprintf("%s: its model API is Caisson's gateway on this machine, which takes the requests of the agent's to %s and nowhere else", kind, api.Address()))
	key, from := l.credential()
	switch from {
	case fromNowhere:
		l.notes = append(l.notes, fmt.Sprintf("%s: no credential was found (%s): the gateway sends none to an API on this machine, and for any other no turn is begun", kind, credentialNames(api)))
	case fromFile:
		l.notes = append(l.notes, fmt.Sprintf("%s: the credential, %s from a file, stays with Caisson", kind, key.Env))
	case fromEnv:
		l.notes = append(l.notes, fmt.Sprintf("%s: the credential, %s, stays with Caisson", kind, key.Env))
	}
}

// openGateway is step 5e. What is symbolic in the plan becomes concrete; the
// digest stays.
func (l *launch) openGateway(ctx context.Context) error {
	if err := l.requireCredential(); err != nil || !l.gated {
		return err
	}
	var err error
	l.gateway, err = l.o.gateway.Open(ctx, ports.GatewaySpec{
		Session: l.record.ID, API: *l.fragment.ModelAPI, Credential: l.lateCredential(),
	})
	if err != nil {
		return err
	}
	l.undo.push(l.gateway.Close)
	key, _ := l.credential()
	l.install.BaseURL, l.install.KeyEnv = l.gateway.BaseURL(), key.Env
	l.plan = l.plan.WithModelGateway(l.gateway.Port(), l.gatewayEnv(l.gateway.BaseURL(), l.gateway.Token())...)
	return nil
}

// requireCredential refuses a session of which every request would be refused.
// That a credential goes later is the gateway's to tell, or the API's.
func (l *launch) requireCredential() error {
	api := l.fragment.ModelAPI
	if api == nil || l.login != nil || l.logIn != nil || !api.NeedsCredential() {
		return nil
	}
	if _, from := l.credential(); from != fromNowhere {
		return nil
	}
	if !l.gated && len(l.req.Policy.Env) > 0 {
		// An agent that goes there by itself may know other ways to authenticate than
		// the gateway does, such as a cloud's, by variables that the policy hands it.
		return nil
	}
	remedy := "set one of " + credentialNames(api) + " in Caisson's environment"
	if l.gated {
		remedy += ", or pass --credential-file NAME=PATH"
	}
	if _, err := l.o.loginOf(l.req.Agent); err == nil {
		remedy += fmt.Sprintf(", or log in with \"caisson login %s\" and pass --login", l.req.Agent)
	}
	return &domain.InvalidError{What: "model API", Value: api.Address(), Reason: "there is no credential for it", Remedy: remedy}
}

// Where a credential is.
type credentialSource uint8

const (
	fromNowhere credentialSource = iota
	fromFile
	fromEnv
)

// credential returns the credential that there is: a file that was named comes
// before the environment. Without any it is the first, and from nowhere.
func (l *launch) credential() (ports.APICredential, credentialSource) {
	return chooseCredential(l.fragment.ModelAPI.Credentials, l.files, l.o.host)
}

func chooseCredential(all []ports.APICredential, files map[string]string, host ports.Host) (ports.APICredential, credentialSource) {
	for _, c := range all {
		if _, ok := files[c.Env]; ok {
			return c, fromFile
		}
	}
	for _, c := range all {
		if v, ok := host.LookupEnv(c.Env); ok && v != "" {
			return c, fromEnv
		}
	}
	return all[0], fromNowhere
}

// lateCredential returns what looks the credential up when a request is made.
func (l *launch) lateCredential() func() (ports.Credential, bool, error) {
	all, files, host := l.fragment.ModelAPI.Credentials, l.files, l.o.host
	return func() (ports.Credential, bool, error) {
		c, from := chooseCredential(all, files, host)
		var secret string
		switch from {
		case fromNowhere:
			return ports.Credential{}, false, nil
		case fromFile:
			var err error
			if secret, err = readCredential(files[c.Env]); err != nil {
				return ports.Credential{}, false, fmt.Errorf("the credential file of %s cannot be used: %w", c.Env, err)
			}
		case fromEnv:
			secret, _ = host.LookupEnv(c.Env)
			if err := checkSecret(secret); err != nil {
				return ports.Credential{}, false, fmt.Errorf("%s in Caisson's environment cannot be used: %w", c.Env, err)
			}
		}
		return ports.Credential{Header: c.Header, Scheme: c.Scheme, Secret: secret}, true, nil
	}
}

// readCredential reads a file that holds a credential and nothing else.
func readCredential(path string) (secret string, err error) {
	// Not a device or a pipe, which could keep a request waiting for ever.
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("it is no regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err := io.ReadAll(io.LimitReader(f, maxCredential+1))
	if err != nil {
		return "", err
	}
	if len(data) > maxCredential {
		return "", fmt.Errorf("it has more than %d bytes", maxCredential)
	}
	secret = strings.TrimSpace(string(data))
	return secret, checkSecret(secret)
}

// checkSecret refuses what cannot stand in a header. It does not repeat it.
func checkSecret(secret string) error {
	switch {
	case secret == "":
		return errors.New("it is empty")
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("it has white space or other characters that no credential has")
	}
	return nil
}

func credentialNames(api *ports.ModelAPI) string {
	names := make([]string, 0, len(api.Credentials))
	for _, c := range api.Credentials {
		names = append(names, c.Env)
	}
	return strings.Join(names, ", ")
}

// metered returns what has passed through the gateway since it was last asked,
// as events; nothing if nothing has.
func (s *Session) metered() []domain.ReplyEvent {
	if s.gateway == nil {
		return nil
	}
	is := s.gateway.Meter()
	s.mu.Lock()
	was := s.passed
	s.passed = is
	s.mu.Unlock()
	traffic := is.Traffic.Sub(was.Traffic)
	if traffic == (domain.GatewayTraffic{}) {
		return nil
	}
	var events []domain.ReplyEvent
	if n := traffic.Refused; n > 0 {
		events = append(events, domain.Notice{
			Class: domain.NoticeWarning, Message: fmt.Sprintf("the model gateway refused requests of the agent's: %d, at last %s", n, is.LastRefusal),
		})
	}
	return append(events, domain.UsageReport{Usage: is.Usage.Sub(was.Usage), Gateway: &traffic})
}
