package portstest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// AssertModelGatewayContract checks what ports.ModelGateway promises: who gets
// through, where to, with what, and what is counted. Its model API is a server
// of its own on the loopback interface.
func AssertModelGatewayContract(t *testing.T, gateways ports.ModelGateway) {
	t.Helper()
	runCases(t, []contractCase[ports.ModelGateway]{
		{
			"routes", "Only the requests of the agent's API pass, byte for byte: everything else that a credential opens is not the agent's.",
			gatewayRoutes,
		},
		{
			"tokens", "Only the gateway's own token opens it, where an agent puts its key: a sibling session must not use another's credential.",
			gatewayTokens,
		},
		{
			"credential", "The API gets the credential as it is at the time of the request, and nothing that the agent authenticates with.",
			gatewayCredential,
		},
		{
			"answers", "What the API answers goes back as it is, errors and redirects too, and piece by piece.",
			gatewayAnswers,
		},
		{
			"meter", "Requests and tokens are counted, also after the end: they are the facts beside what the agent claims.",
			gatewayMeter,
		},
		{
			"close", "Close ends what is in flight and closes the port, and can be repeated: nothing of a session outlives it.",
			gatewayClose,
		},
		{
			"bad API", "An API that cannot be stood in for is refused when the session opens, not at the first request.",
			func(tb testing.TB, gateways ports.ModelGateway) {
				for _, base := range []string{"", "ftp://host", "http://", "http://host/?query"} {
					_, err := gateways.Open(tb.Context(), ports.GatewaySpec{Session: "kit", API: ports.ModelAPI{BaseURL: base}})
					var invalid *domain.InvalidError
					require.ErrorAs(tb, err, &invalid, base)
				}
			},
		},
	}, gateways)
}

// modelAPI is a model API for the kit.
type modelAPI struct {
	*httptest.Server
	mu   sync.Mutex
	seen []*http.Request
}

func newModelAPI(tb testing.TB, answer http.HandlerFunc) *modelAPI {
	tb.Helper()
	a := &modelAPI{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.seen = append(a.seen, r)
		a.mu.Unlock()
		if answer != nil {
			answer(w, r)
		}
	}))
	tb.Cleanup(a.Close)
	return a
}

func (a *modelAPI) requests() []*http.Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen
}

// open opens a gateway to the API.
func (a *modelAPI) open(tb testing.TB, gateways ports.ModelGateway, credential func() (ports.Credential, bool, error)) ports.Gateway {
	tb.Helper()
	if credential == nil {
		credential = func() (ports.Credential, bool, error) {
			return ports.Credential{Header: "Authorization", Scheme: "Bearer", Secret: "the-key"}, true, nil
		}
	}
	g, err := gateways.Open(tb.Context(), ports.GatewaySpec{
		Session: "kit", Credential: credential,
		API: ports.ModelAPI{
			BaseURL: a.URL + "/base", Dialect: ports.DialectOpenAI, Routes: []ports.APIRoute{{Method: "POST", Path: "/responses"}},
			Credentials: []ports.APICredential{{Env: "KIT_KEY", Header: "Authorization", Scheme: "Bearer"}},
		},
	})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, g.Close(context.WithoutCancel(tb.Context()))) })
	require.Equal(tb, fmt.Sprintf("http://127.0.0.1:%d", g.Port()), g.BaseURL())
	return g
}

// ask makes a request and returns the answer; its body is closed at the end of
// the test.
func ask(tb testing.TB, g ports.Gateway, method, path string, header http.Header) *http.Response {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), method, g.BaseURL()+path, strings.NewReader("{}"))
	require.NoError(tb, err)
	r.Header = header
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(r)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = resp.Body.Close() }) // which the gateway may have closed
	return resp
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func gatewayRoutes(tb testing.TB, gateways ports.ModelGateway) {
	api := newModelAPI(tb, nil)
	g := api.open(tb, gateways, nil)
	for _, request := range []string{
		"GET /responses", "POST /files", "POST /responses/", "POST /responses/../files", "POST /%72esponses", "POST //responses", "POST /",
	} {
		method, path, _ := strings.Cut(request, " ")
		require.Equal(tb, http.StatusForbidden, ask(tb, g, method, path, bearer(g.Token())).StatusCode, request)
	}
	require.Empty(tb, api.requests())
	require.Equal(tb, http.StatusOK, ask(tb, g, "POST", "/responses?x=1", bearer(g.Token())).StatusCode)
	require.Equal(tb, "/base/responses?x=1", api.requests()[0].RequestURI)
	require.NotEmpty(tb, g.Meter().LastRefusal)
}

func gatewayTokens(tb testing.TB, gateways ports.ModelGateway) {
	api := newModelAPI(tb, nil)
	g, sibling := api.open(tb, gateways, nil), api.open(tb, gateways, nil)
	require.NotEqual(tb, g.Port(), sibling.Port())
	require.NotEqual(tb, g.Token(), sibling.Token())
	for name, header := range map[string]http.Header{
		"none": {}, "a sibling's": bearer(sibling.Token()), "the real one": bearer("the-key"), "an empty one": bearer(""), "a part": bearer(g.Token()[1:]),
	} {
		require.Equal(tb, http.StatusUnauthorized, ask(tb, g, "POST", "/responses", header).StatusCode, name)
	}
	require.Empty(tb, api.requests())
	for _, header := range []http.Header{bearer(g.Token()), {"X-Api-Key": {g.Token()}}} {
		require.Equal(tb, http.StatusOK, ask(tb, g, "POST", "/responses", header).StatusCode)
	}
}

func gatewayCredential(tb testing.TB, gateways ports.ModelGateway) {
	api := newModelAPI(tb, nil)
	type answer struct {
		c   ports.Credential
		ok  bool
		err error
	}
	var is atomic.Value
	is.Store(answer{ports.Credential{Header: "X-Api-Key", Secret: "first"}, true, nil})
	g := api.open(tb, gateways, func() (ports.Credential, bool, error) {
		a, _ := is.Load().(answer)
		return a.c, a.ok, a.err
	})
	header := bearer(g.Token())
	header.Set("Cookie", "a=b")
	ask(tb, g, "POST", "/responses", header)
	is.Store(answer{ports.Credential{Header: "Authorization", Scheme: "Bearer", Secret: "second"}, true, nil})
	ask(tb, g, "POST", "/responses", header)
	is.Store(answer{})
	ask(tb, g, "POST", "/responses", header)
	is.Store(answer{err: errors.New("the vault is shut")})
	resp := ask(tb, g, "POST", "/responses", header)
	body, err := io.ReadAll(resp.Body)
	require.NoError(tb, err)
	require.Equal(tb, http.StatusUnauthorized, resp.StatusCode)
	require.Contains(tb, string(body), "the vault is shut")

	seen := api.requests()
	require.Len(tb, seen, 3, "without a credential it goes on, to this machine")
	for i, want := range []http.Header{{"X-Api-Key": {"first"}}, {"Authorization": {"Bearer second"}}, {}} {
		for _, name := range []string{"X-Api-Key", "Authorization", "Cookie"} {
			require.Equal(tb, want.Values(name), seen[i].Header.Values(name), name)
		}
	}
}

func gatewayAnswers(tb testing.TB, gateways ports.ModelGateway) {
	next := make(chan struct{})
	var now atomic.Int64
	api := newModelAPI(tb, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.Header().Set("Location", "http://elsewhere.example/")
		w.WriteHeader(int(now.Load()))
		fmt.Fprintln(w, "one")
		_ = http.NewResponseController(w).Flush()
		<-next
		fmt.Fprintln(w, "two")
	})
	g := api.open(tb, gateways, nil)
	for _, status := range []int{http.StatusOK, http.StatusTemporaryRedirect, http.StatusTooManyRequests, http.StatusInternalServerError} {
		now.Store(int64(status))
		resp := ask(tb, g, "POST", "/responses", bearer(g.Token()))
		require.Equal(tb, status, resp.StatusCode)
		require.Equal(tb, "7", resp.Header.Get("Retry-After"))
		require.Equal(tb, "http://elsewhere.example/", resp.Header.Get("Location"))
		in := bufio.NewReader(resp.Body)
		for i, want := range []string{"one\n", "two\n"} {
			line, err := in.ReadString('\n')
			require.NoError(tb, err)
			require.Equal(tb, want, line)
			if i == 0 {
				next <- struct{}{}
			}
		}
	}
}

func gatewayMeter(tb testing.TB, gateways ports.ModelGateway) {
	api := newModelAPI(tb, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":4},"output_tokens":3,"output_tokens_details":{"reasoning_tokens":2}}}`)
	})
	g := api.open(tb, gateways, nil)
	require.Zero(tb, g.Meter())
	for range 2 {
		_, err := io.Copy(io.Discard, ask(tb, g, "POST", "/responses", bearer(g.Token())).Body)
		require.NoError(tb, err)
	}
	ask(tb, g, "POST", "/files", bearer(g.Token()))
	require.NoError(tb, g.Close(tb.Context()))
	m := g.Meter()
	require.Equal(tb, domain.GatewayTraffic{Requests: 2, Refused: 1}, m.Traffic)
	require.Equal(tb, domain.Usage{InputTokens: 20, CachedInputTokens: 8, OutputTokens: 6, ReasoningTokens: 4}, m.Usage)
}

func gatewayClose(tb testing.TB, gateways ports.ModelGateway) {
	asked, gone := make(chan struct{}), make(chan struct{})
	api := newModelAPI(tb, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see the client leave
		close(asked)
		<-r.Context().Done()
		close(gone)
	})
	g := api.open(tb, gateways, nil)
	r, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, g.BaseURL()+"/responses", strings.NewReader("{}"))
	require.NoError(tb, err)
	r.Header = bearer(g.Token())
	ended := make(chan error, 1)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	go func() {
		resp, err := client.Do(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		ended <- err
	}()
	<-asked
	require.NoError(tb, g.Close(tb.Context()))
	require.Error(tb, <-ended)
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		tb.Fatal("the request still runs at the API")
	}
	resp, err := client.Do(r.Clone(tb.Context()))
	if err == nil {
		_ = resp.Body.Close()
	}
	require.Error(tb, err, "the port is closed")
	require.NoError(tb, g.Close(tb.Context()), "closing twice is no error")
}
