package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/egress"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/ports"
	"github.com/caisson-run/caisson/tests/modelserver"
	"github.com/caisson-run/caisson/tests/testkit"
)

// madeUpToken is a JSON Web Token of nobody's.
func madeUpToken(t *testing.T, expires time.Time, what string) string {
	t.Helper()
	part := func(v any) string {
		data, err := json.Marshal(v)
		require.NoError(t, err)
		return base64.RawURLEncoding.EncodeToString(data)
	}
	return part(map[string]any{"alg": "RS256", "typ": "JWT"}) + "." + part(map[string]any{
		"exp": expires.Unix(), "iat": expires.Add(-time.Hour).Unix(), "email": "nobody@example.invalid", "jti": what,
		"https://api.openai.com/auth": map[string]any{"chatgpt_plan_type": "plus", "chatgpt_account_id": "made-up-account"},
	}) + ".c2lnbmF0dXJl"
}

// madeUpLogin is a file with a login as the agent writes it, with made-up secrets
// in which the word is, and its access token.
func madeUpLogin(t *testing.T, agent domain.AgentKind, word string, expires time.Time) (file string, token string) {
	t.Helper()
	var login map[string]any
	switch agent {
	case domain.AgentClaude:
		token = "sk-ant-oat01-made-up-" + word
		login = map[string]any{
			"claudeAiOauth": map[string]any{
				"accessToken": token, "refreshToken": "sk-ant-ort01-made-up-" + word, "expiresAt": expires.UnixMilli(),
				"scopes": []string{"user:inference", "user:profile"}, "subscriptionType": "max", "rateLimitTier": "default",
			},
			"mcpOAuth": map[string]any{"a server": map[string]any{"accessToken": "not the login"}},
		}
	case domain.AgentCodex:
		token = madeUpToken(t, expires, word)
		login = map[string]any{
			"auth_mode": "chatgpt", "OPENAI_API_KEY": nil, "last_refresh": time.Now().UTC().Format(time.RFC3339Nano),
			"tokens": map[string]any{
				"id_token": madeUpToken(t, expires, "id-"+word), "access_token": token,
				"refresh_token": "rt-made-up-" + word, "account_id": "made-up-account",
			},
		}
	default:
		require.Fail(t, "no such agent")
	}
	data, err := json.Marshal(login)
	require.NoError(t, err)
	return string(data), token
}

// loginPlaces are where an agent has its login in a person's own home.
var loginPlaces = map[domain.AgentKind]string{domain.AgentClaude: ".claude/.credentials.json", domain.AgentCodex: ".codex/auth.json"}

// The real agents complete a turn with a login of their own, made up: the API
// gets its token, no environment has a secret, and the directory that the login
// was copied from cannot be read from inside.
func TestRealCLIsWithALogin(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for i, a := range realAgents() {
		t.Run(string(a.kind), func(t *testing.T) {
			testkit.NoLeaks(t)
			b := newRealBench(t, a, a.program(t))
			delete(b.env, []string{"ANTHROPIC", "OPENAI"}[i]+"_API_KEY")
			file := filepath.Join(b.env["HOME"], loginPlaces[a.kind])
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
			content, token := madeUpLogin(t, a.kind, "first", time.Now().Add(8*time.Hour))
			require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
			c := b.compose(t, noNames())
			kept, err := c.Orchestrator.ImportLogin(t.Context(), ports.LoginID{Agent: a.kind}, file)
			require.NoError(t, err)
			require.WithinDuration(t, time.Now().Add(8*time.Hour), kept.Expires, time.Minute)

			b.model.Enqueue(
				modelserver.Reply{ToolCalls: []modelserver.ToolCall{a.shell("cat " + file + " && echo got it")}},
				modelserver.Reply{Text: "Done."},
			)
			session, err := c.Orchestrator.Open(t.Context(), application.OpenRequest{
				Agent: a.kind, AgentBin: b.binary, Workspace: b.workspace, Model: a.model, Login: application.DefaultLogin,
				Policy: application.Policy{Limits: domain.Limits{WallClock: time.Minute}},
			})
			require.NoError(t, err)
			b.ports, b.destinations = session.Plan().ConnectTCP(), session.Plan().ReachableDestinations()
			require.Equal(t, []uint16{b.model.Port()}, b.ports, "the API, which has no name here")
			renewal := map[domain.AgentKind]string{domain.AgentClaude: "platform.claude.com:443", domain.AgentCodex: "auth.openai.com:443"}[a.kind]
			require.Equal(t, renewal, fmt.Sprint(session.Plan().EgressDomains()[0]))
			require.Len(t, session.Plan().EgressDomains(), 1)
			require.False(t, session.Plan().UDP())
			events, final := b.turn(t, session, "Run a tool.")
			require.Equal(t, domain.OutcomeCompleted, final.Outcome, "%+v", final.Error)
			require.Equal(t, "Done.", final.Text)
			notes := strings.Join(realReceipt(t, events).Agent, "\n")
			require.Contains(t, notes, `it holds the login "default"`)
			require.Contains(t, notes, "its login is renewed at")
			requests := b.model.Requests()
			require.NotEmpty(t, requests)
			for _, r := range requests {
				require.Equal(t, "Bearer "+token, r.Header.Get("Authorization"))
				require.Empty(t, r.Header.Get("X-Api-Key"))
			}
			require.True(t, requests[len(requests)-1].Has("tool", "Permission denied"), "%v", requests[len(requests)-1].Conversation)
			for _, r := range session.Plan().Env() {
				require.NotContains(t, r.Name, "KEY")
				require.NotContains(t, r.Name, "TOKEN")
			}
			require.NoError(t, session.Close(t.Context()))
			require.Empty(t, filesNamed(t, filepath.Join(b.root, "state", "sessions"), filepath.Base(file)), "the copy is gone with the turn")
			require.Equal(t, content, fileText(t, file), "the user's own is as it was")
		})
	}
}

// noNames is an egress proxy for which no name leads anywhere, so that a test
// contacts nobody.
func noNames() composition.Option {
	return composition.WithEgressProxy(egress.New(egress.WithResolver(func(context.Context, string) ([]netip.Addr, error) {
		return nil, errors.New("there are no names in a test")
	})))
}

// filesNamed returns the paths below a directory with that last part.
func filesNamed(t *testing.T, dir, name string) []string {
	t.Helper()
	var paths []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if filepath.Base(path) == name {
			paths = append(paths, path)
		}
		return err
	}))
	return paths
}

// login is a stage with a login that is kept.
func (s *stage) login(t *testing.T, word string, expires time.Time) (token string) {
	t.Helper()
	content, token := madeUpLogin(t, s.agent, word, expires)
	file := filepath.Join(s.outside, "login.json")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	_, err := s.Orchestrator.ImportLogin(t.Context(), ports.LoginID{Agent: s.agent}, file)
	require.NoError(t, err)
	return token
}

// kept is the file that Caisson keeps, as it is.
func (s *stage) kept(t *testing.T) string {
	t.Helper()
	path := filepath.Join(s.root, "logins", string(s.agent), "default.json")
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	return fileText(t, path)
}

// here is how a tool names the agent's copy.
func (s *stage) here() string {
	if s.agent == domain.AgentClaude {
		return `"$CLAUDE_CONFIG_DIR/.credentials.json"`
	}
	return `"$CODEX_HOME/auth.json"`
}

// renewed puts a renewed login into the workspace, for a tool to take from there.
func (s *stage) renewed(t *testing.T, name, word string, expires time.Time) (token string) {
	t.Helper()
	content, token := madeUpLogin(t, s.agent, word, expires)
	require.NoError(t, os.WriteFile(filepath.Join(s.workspace, name), []byte(content), 0o600))
	return token
}

var withLogin = application.OpenRequest{Login: application.DefaultLogin}

// What the agent renews is kept, alone; what it prints of it is in no event.
func TestARenewedLoginIsKept(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		was := s.login(t, "first", time.Now().Add(time.Hour))
		is := s.renewed(t, "new", "sesame", time.Now().Add(2*time.Hour))
		session := s.open(t, withLogin)
		before := s.kept(t)
		require.Contains(t, before, was)
		require.NotContains(t, before, "mcpOAuth")
		require.NotContains(t, before, "OPENAI_API_KEY")
		events := s.run(t, session,
			"sh stat -c %a "+s.here()+" && cat "+s.here(),
			// Written in place, with what would run in a later session beside it.
			"sh cat new > "+s.here()+` && echo '{"hooks":{}}' > "$(dirname `+s.here()+`)/settings.json"`)
		for _, r := range resultsOf(events) {
			require.Equal(t, domain.ToolCompleted, r.Status, r.Output)
		}
		output := resultsOf(events)[0].Output
		require.Contains(t, output, "600\n")
		require.Contains(t, output, "[secret of the agent's login]")
		require.NotContains(t, output, was)
		require.Equal(t, []domain.Notice{{
			Class: domain.NoticeInfo, Message: "the agent has renewed its login, and Caisson keeps that of " + string(s.agent),
		}}, repliesOf[domain.Notice](events))
		after := s.kept(t)
		require.Contains(t, after, is)
		require.NotContains(t, after, was)
		require.NotContains(t, after, "mcpOAuth")
		require.Equal(t, []string{"default.json"}, namesIn(t, filepath.Join(s.root, "logins", string(s.agent))))

		// The next turn has the renewed one, and leaves it as it is.
		events = s.run(t, session, "sh grep -q sesame "+s.here()+" || grep -q "+is+" "+s.here())
		require.Equal(t, domain.ToolCompleted, resultsOf(events)[0].Status)
		require.Empty(t, repliesOf[domain.Notice](events))
		require.Equal(t, after, s.kept(t))
		id := session.ID()
		require.NoError(t, session.Close(t.Context()))
		log := fileText(t, filepath.Join(s.root, "sessions", string(id), "events.jsonl"))
		require.NotContains(t, log, was)

		// A resumed session that does not ask for it has another plan, and no copy.
		_, err := s.Orchestrator.Open(t.Context(), application.OpenRequest{Resume: id})
		require.Error(t, err)
		again := s.open(t, application.OpenRequest{Resume: id, Login: application.DefaultLogin})
		require.Equal(t, session.Plan().Digest(), again.Plan().Digest())
		require.NoError(t, again.Close(t.Context()))
		plain := s.open(t, application.OpenRequest{})
		events = s.run(t, plain, "sh test -e "+s.here())
		require.Equal(t, domain.ToolFailed, resultsOf(events)[0].Status)
		require.NoError(t, plain.Close(t.Context()))
	})
}

func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Whatever the agent leaves in the place of its copy, the login that is kept stays
// as it was, nothing outside is read or changed, and the turn says why.
func TestWhatIsNoLoginIsNotTakenBack(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		token := s.login(t, "first", time.Now().Add(time.Hour))
		s.renewed(t, "new", "sesame", time.Now().Add(2*time.Hour))
		before := s.kept(t)
		// A login of the host's that no plan grants, and that would be good.
		hosts := filepath.Join(s.outside, "hosts.json")
		content, _ := madeUpLogin(t, s.agent, "of-the-host", time.Now().Add(3*time.Hour))
		require.NoError(t, os.WriteFile(hosts, []byte(content), 0o600))
		here := s.here()
		for name, attack := range map[string]struct{ script, reason string }{
			"a symbolic link to the host's": {"ln -sf " + hosts + " " + here, "not a regular file"},
			"a symbolic link to a copy":     {"ln -sf \"$PWD/new\" " + here, "not a regular file"},
			"a hard link":                   {"cat new > " + here + " && ln " + here + " \"$(dirname " + here + ")/too\"", "second name"},
			"a pipe":                        {"rm " + here + " && mkfifo -m 600 " + here, "not a regular file"},
			"a directory":                   {"rm " + here + " && mkdir -p " + here + "/a/b && echo x > " + here + "/a/b/c && chmod 0 " + here + "/a", "not a regular file"},
			"a huge file":                   {"head -c 20000000 /dev/zero > " + here, "more than"},
			"a hole":                        {"truncate -s 1T " + here, "more than"},
			"white space behind":            {"cat new > " + here + " && head -c 70000 /dev/zero | tr '\\0' ' ' >> " + here, "more than"},
			"an empty file":                 {"truncate -s 0 " + here, "no JSON object"},
			"garbage":                       {"echo secret garbage > " + here, "no JSON object"},
			"a list":                        {"echo '[1]' > " + here, "no JSON object"},
			"depth":                         {"head -c 60000 /dev/zero | tr '\\0' '[' > " + here, "no JSON object"},
			"two objects":                   {"cat new new > " + here, "no JSON object"},
			"another member":                {"sed 's/^{/{\"hooks\":{\"PreToolUse\":1},/' new > " + here, `the member "hooks"`},
			"a member twice":                {"sed 's/^{\\(.*\\)}$/{\\1,\\1}/' new > " + here, "twice"},
			"no token":                      {"sed -E 's/\"refresh_?[tT]oken\":\"[^\"]*\"/\"x\":1/' new > " + here, "has no text in"},
			"an empty token":                {"sed -E 's/\"refresh_?[tT]oken\":\"[^\"]*\"/\"refreshToken\":\"\",\"refresh_token\":\"\"/' new > " + here, "has no text in"},
			"a token with a line":           {"sed -E 's/-made-up-/\\\\n/g' new > " + here, "characters that no token has"},
			"a mode for all":                {"cat new > " + here + " && chmod 644 " + here, "others can read or write"},
			"no mode":                       {"cat new > " + here + " && chmod 0 " + here, ""},
			"none":                          {"rm " + here, "has removed it"},
		} {
			t.Run(name, func(t *testing.T) {
				session := s.open(t, withLogin)
				start := time.Now()
				events := s.run(t, session, "sh "+attack.script)
				require.Less(t, time.Since(start), 20*time.Second)
				require.Equal(t, domain.ToolCompleted, resultsOf(events)[0].Status, resultsOf(events)[0].Output)
				notices := repliesOf[domain.Notice](events)
				if name == "no mode" && os.Geteuid() == 0 {
					// Root reads it, and it is good. Put back what was.
					require.Contains(t, notices[0].Message, "has renewed")
					require.NoError(t, session.Close(t.Context()))
					s.login(t, "first", time.Now().Add(time.Hour))
					before = s.kept(t)
					return
				}
				require.Len(t, notices, 1)
				require.Equal(t, domain.NoticeWarning, notices[0].Class)
				require.Contains(t, notices[0].Message, "stays as it was")
				require.Contains(t, notices[0].Message, attack.reason)
				for _, secret := range []string{"sesame", "of-the-host", token, "garbage"} {
					require.NotContains(t, notices[0].Message, secret)
				}
				require.Equal(t, before, s.kept(t))
				require.Equal(t, domain.OutcomeCompleted, finalOf(events).Outcome)
				// It is out of the way, and the next turn has the login again.
				events = s.run(t, session, "sh test -f "+here+" && test ! -L "+here+" && wc -c < "+here)
				require.Equal(t, strconv.Itoa(len(before)), strings.TrimSpace(resultsOf(events)[0].Output))
				require.Empty(t, repliesOf[domain.Notice](events))
				require.NoError(t, session.Close(t.Context()))
				require.Equal(t, content, fileText(t, hosts))
			})
		}
	})
}

// Of two sessions with one login that both renew it, the one that lasts longer is
// kept, whichever ends last; and a login of another account is not taken for it.
func TestTwoSessionsWithOneLogin(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		for later, want := range map[bool]string{true: "late", false: "early"} {
			s.login(t, "first", time.Now().Add(time.Hour))
			early := s.renewed(t, "early", "early", time.Now().Add(2*time.Hour))
			span := time.Hour + 30*time.Minute
			if later {
				span = 3 * time.Hour
			}
			late := s.renewed(t, "late", "late", time.Now().Add(span))
			gate := filepath.Join(s.workspace, "go")
			require.NoError(t, os.RemoveAll(gate))
			one, two := s.open(t, withLogin), s.open(t, withLogin)
			waiting, err := two.Send(t.Context(), fakecli.Script("sh while ! test -e go; do sleep 0.05; done; cat late > "+s.here()))
			require.NoError(t, err)
			first := s.run(t, one, "sh cat early > "+s.here())
			require.Contains(t, repliesOf[domain.Notice](first)[0].Message, "has renewed")
			require.Contains(t, s.kept(t), early)
			require.NoError(t, os.WriteFile(gate, nil, 0o600))
			second := repliesOf[domain.Notice](s.read(t, two, waiting, nil))
			if later {
				require.Contains(t, second[0].Message, "has renewed")
			} else {
				require.Contains(t, second[0].Message, "renewed elsewhere")
			}
			require.Contains(t, s.kept(t), map[string]string{"early": early, "late": late}[want])
			require.NoError(t, one.Close(t.Context()))
			require.NoError(t, two.Close(t.Context()))
		}
		if s.agent == domain.AgentCodex {
			before := s.kept(t)
			s.renewed(t, "other", "other", time.Now().Add(9*time.Hour))
			session := s.open(t, withLogin)
			events := s.run(t, session, "sh sed s/made-up-account/theirs/ other > "+s.here())
			require.Contains(t, repliesOf[domain.Notice](events)[0].Message, "another account")
			require.Equal(t, before, s.kept(t))
			require.NoError(t, session.Close(t.Context()))
		}
	})
}

// What a session must not be, with a login or beside one.
func TestWhatIsRefusedWithALogin(t *testing.T) {
	forEachAgent(t, func(t *testing.T, s *stage) {
		open := func(change func(*application.OpenRequest)) error {
			r := application.OpenRequest{Agent: s.agent, Workspace: s.workspace}
			change(&r)
			session, err := s.Orchestrator.Open(t.Context(), r)
			if err == nil {
				require.NoError(t, session.Close(t.Context()))
			}
			return err
		}
		login := func(r *application.OpenRequest) { r.Login = application.DefaultLogin }
		require.ErrorContains(t, open(login), "caisson login "+string(s.agent))
		require.NoDirExists(t, filepath.Join(s.root, "logins"), "nothing was made to find out")
		readState := func(r *application.OpenRequest) {
			r.Policy.Rules = []domain.PathRule{{Path: filepath.Dir(s.root), Access: domain.AccessRead, Why: "--ro"}}
		}
		require.NoError(t, open(readState), "there is nothing to keep from it")
		s.login(t, "first", time.Now().Add(time.Hour))
		require.NoError(t, open(login))
		require.ErrorContains(t, open(readState), "read the logins")
		require.ErrorContains(t, open(func(r *application.OpenRequest) { r.Login = "another" }), "--name another")
		require.ErrorContains(t, open(func(r *application.OpenRequest) { r.Login = "../claude" }), "no name")
		for _, c := range map[domain.AgentKind][]string{domain.AgentClaude: {"ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"}, domain.AgentCodex: {"OPENAI_API_KEY"}}[s.agent] {
			require.ErrorContains(t, open(func(r *application.OpenRequest) {
				login(r)
				r.Policy.Env = []domain.EnvRule{{Name: c, Value: "made up", Literal: true}}
			}), "would use this credential")
			require.ErrorContains(t, open(func(r *application.OpenRequest) {
				login(r)
				r.CredentialFiles = map[string]string{c: "/nonexistent"}
			}), "only the model gateway reads it")
		}
		// A preview says what would be.
		preview, err := s.Orchestrator.Plan(t.Context(), application.OpenRequest{Agent: s.agent, Workspace: s.workspace, Login: application.DefaultLogin})
		require.NoError(t, err)
		require.Empty(t, preview.Plan.ConnectTCP())
		require.Equal(t, map[domain.AgentKind]string{
			domain.AgentClaude: "[api.anthropic.com:443 platform.claude.com:443]", domain.AgentCodex: "[auth.openai.com:443 chatgpt.com:443]",
		}[s.agent], fmt.Sprint(preview.Plan.EgressDomains()))
		require.False(t, preview.Plan.UDP())
		require.Contains(t, strings.Join(preview.Notes, "\n"), "holds the login")
		require.NoError(t, s.Orchestrator.ForgetLogin(t.Context(), ports.LoginID{Agent: s.agent}))
		require.ErrorContains(t, s.Orchestrator.ForgetLogin(t.Context(), ports.LoginID{Agent: s.agent}), "none is kept")
		require.ErrorContains(t, open(login), "none is kept")
	})
}

// A login that has expired is renewed by the agent itself, by name, through the
// proxy: nothing else leads out of the sandbox.
func TestRealCLIsRenewTheirLoginByName(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for i, a := range realAgents() {
		t.Run(string(a.kind), func(t *testing.T) {
			testkit.NoLeaks(t)
			b := newRealBench(t, a, a.program(t))
			delete(b.env, []string{"ANTHROPIC", "OPENAI"}[i]+"_API_KEY")
			file := filepath.Join(b.dir(t, "seed"), "login.json")
			content, token := madeUpLogin(t, a.kind, "stale", time.Now().Add(-time.Hour))
			require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
			c := b.compose(t, noNames())
			_, err := c.Orchestrator.ImportLogin(t.Context(), ports.LoginID{Agent: a.kind}, file)
			require.NoError(t, err)
			kept := filepath.Join(b.root, "state", "logins", string(a.kind), "default.json")
			before := fileText(t, kept)
			b.model.Enqueue(modelserver.Reply{Text: "Done.", Repeat: true})
			session, err := c.Orchestrator.Open(t.Context(), application.OpenRequest{
				Agent: a.kind, AgentBin: b.binary, Workspace: b.workspace, Model: a.model, Login: application.DefaultLogin,
				Policy: application.Policy{Limits: domain.Limits{WallClock: time.Minute}},
			})
			require.NoError(t, err)
			turn, err := session.Send(t.Context(), "hi")
			require.NoError(t, err)
			var asked []string
			for e, err := range turn.Events() {
				require.NoError(t, err)
				if n, ok := e.Reply.(domain.Notice); ok {
					asked = append(asked, n.Message)
				}
				if f, ok := e.Reply.(domain.Final); ok {
					t.Logf("%s %+v", f.Outcome, f.Error)
				}
			}
			require.Contains(t, strings.Join(asked, "\n"), map[domain.AgentKind]string{
				domain.AgentClaude: "platform.claude.com", domain.AgentCodex: "auth.openai.com",
			}[a.kind])
			require.NotContains(t, strings.Join(asked, "\n"), token)
			require.NoError(t, session.Close(t.Context()))
			require.Equal(t, before, fileText(t, kept), "what could not be renewed stays as it was")
		})
	}
}
