// Package modelserver is a model API on the loopback interface, for tests that
// drive the real agents without tokens: Anthropic's Messages API for Claude
// Code and OpenAI's Responses API for Codex. What it answers is queued by the
// test; what it was asked is recorded, with the conversation decoded, so that
// a test can see which history a resumed turn really carried.
//
// The package imports the standard library and the JSON codec only.
package modelserver

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// DefaultText is what the model says when nothing is queued.
const DefaultText = "Hello from the model server."

// The tokens that a reply is reported to have used, unless it says otherwise.
const (
	DefaultInputTokens  = 1000
	DefaultOutputTokens = 50
)

// Reply is one answer of the model. The zero value says nothing, successfully.
type Reply struct {
	// Text comes before the tool calls; "" is no text.
	Text      string
	ToolCalls []ToolCall
	// Status is an HTTP status that is an error; 0 is success.
	Status int
	// ErrorType and ErrorMessage are the API's own words for the error.
	ErrorType    string
	ErrorMessage string
	// HangUntil keeps the request without an answer until the channel is closed,
	// the client is gone or the test has ended; nil answers at once.
	HangUntil <-chan struct{}
	// StreamDelay is the pause between two events of a stream.
	StreamDelay time.Duration
	// InputTokens and OutputTokens are what the reply is reported to have used;
	// 0 is the default.
	InputTokens  int64
	OutputTokens int64
	// Repeat leaves the reply in the queue, for all later requests: the agents
	// ask again after some errors.
	Repeat bool
}

// ToolCall is a tool that the model wants to be used. Input is anything that
// becomes a JSON object, such as a map; for the Responses API a string makes
// it a call of a freeform tool.
type ToolCall struct {
	Name  string
	Input any
}

// Request is one request to the model, as it came.
type Request struct {
	Method string
	Path   string // without the query
	Header http.Header
	Body   []byte
	Model  string
	// Tools are the names of the tools that the agent offers to the model.
	Tools []string
	// Conversation is the history that the request carries, oldest first.
	// Instructions and system prompts are not in it.
	Conversation []Message
}

// Message is one piece of a conversation.
type Message struct {
	Role string // "user", "assistant", "tool" for a result, or what the API calls it
	// Text is the text, the result of a tool, or the name and input of a call.
	Text string
}

// LastUserText returns the last text of the user, "" if there is none. What
// the agent itself adds to the user's messages counts as the user's.
func (r Request) LastUserText() string {
	for _, m := range slices.Backward(r.Conversation) {
		if m.Role == "user" {
			return m.Text
		}
	}
	return ""
}

// Has reports whether any message of the role contains the text.
func (r Request) Has(role, text string) bool {
	return slices.ContainsFunc(r.Conversation, func(m Message) bool {
		return m.Role == role && strings.Contains(m.Text, text)
	})
}

// Server is a model API. It is safe for concurrent use. It ends with the test,
// and so do requests that hang.
type Server struct {
	http *httptest.Server
	api  api
	done chan struct{}

	mu       sync.Mutex
	queue    []Reply
	requests []Request
	serial   int
}

// api is what differs between the two.
type api interface {
	// model reports whether a POST to the path asks the model.
	model(path string) bool
	// decode fills in the request's model, tools and conversation.
	decode(r *Request) error
	// errorBody is the body of an error.
	errorBody(kind, message string) any
	// events are the events of a stream, each with its name.
	events(reply Reply, ids *ids, model string) []event
	// whole is the answer of a request that wants no stream.
	whole(reply Reply, ids *ids, model string) any
}

type event struct {
	name string
	data any
}

// NewMessages starts an Anthropic Messages API.
func NewMessages(tb testing.TB) *Server {
	tb.Helper()
	return start(tb, messages{})
}

// NewResponses starts an OpenAI Responses API. Codex's base URL is URL()+"/v1".
func NewResponses(tb testing.TB) *Server {
	tb.Helper()
	return start(tb, responses{})
}

func start(tb testing.TB, a api) *Server {
	tb.Helper()
	s := &Server{api: a, done: make(chan struct{})}
	s.http = httptest.NewServer(http.HandlerFunc(s.serve))
	tb.Cleanup(func() {
		close(s.done)
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// URL returns the address, "http://127.0.0.1:PORT".
func (s *Server) URL() string { return s.http.URL }

// Port returns the TCP port.
func (s *Server) Port() uint16 {
	addr, ok := s.http.Listener.Addr().(*net.TCPAddr)
	if !ok {
		return 0 // httptest listens on TCP only
	}
	return uint16(addr.Port)
}

// Enqueue adds replies to the queue: each request to the model takes one.
func (s *Server) Enqueue(replies ...Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, replies...)
}

// Clear empties the queue, of replies that repeat, too.
func (s *Server) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = nil
}

// Requests returns the requests to the model so far. Others, such as those
// that count tokens, are not among them.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// WaitRequests waits until there were n requests to the model, and returns
// them, or the context's error.
func (s *Server) WaitRequests(ctx context.Context, n int) ([]Request, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if r := s.Requests(); len(r) >= n {
			return r, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// ids gives out the ids of one answer.
type ids struct{ request int }

func (i *ids) next(prefix string, n int) string { return fmt.Sprintf("%s_%d_%d", prefix, i.request, n) }

// take records a request and returns its reply.
func (s *Server) take(r Request) (Reply, *ids) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	s.serial++
	reply := Reply{Text: DefaultText}
	if len(s.queue) > 0 {
		reply = s.queue[0]
		if !reply.Repeat {
			s.queue = s.queue[1:]
		}
	}
	reply.InputTokens = cmp.Or(reply.InputTokens, DefaultInputTokens)
	reply.OutputTokens = cmp.Or(reply.OutputTokens, DefaultOutputTokens)
	return reply, &ids{s.serial}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodHead:
		return
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/count_tokens"):
		writeJSON(w, http.StatusOK, map[string]any{"input_tokens": DefaultInputTokens})
		return
	case r.Method != http.MethodPost || !s.api.model(r.URL.Path):
		writeJSON(w, http.StatusNotFound, s.api.errorBody("not_found_error", "not found"))
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	req := Request{Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Body: body}
	var head struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
	}
	err = decodeJSON(body, &head)
	if err == nil {
		req.Model = head.Model
		err = s.api.decode(&req)
	}
	if err != nil {
		writeJSON(w, http.StatusBadRequest, s.api.errorBody("invalid_request_error", "bad request body: "+err.Error()))
		return
	}
	reply, ids := s.take(req)
	if reply.HangUntil != nil {
		select {
		case <-reply.HangUntil:
		case <-r.Context().Done():
			return
		case <-s.done:
			return
		}
	}
	id := ids.next("req", 0)
	w.Header().Set("Request-Id", id)
	w.Header().Set("X-Request-Id", id)
	switch {
	case reply.Status != 0:
		writeJSON(w, reply.Status, s.api.errorBody(reply.ErrorType, reply.ErrorMessage))
	case head.Stream:
		s.stream(w, r, s.api.events(reply, ids, req.Model), reply.StreamDelay)
	default:
		writeJSON(w, http.StatusOK, s.api.whole(reply, ids, req.Model))
	}
}

// stream writes server-sent events (HTML standard, section 9.2).
func (s *Server) stream(w http.ResponseWriter, r *http.Request, events []event, pause time.Duration) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	for i, e := range events {
		if i > 0 && pause > 0 {
			select {
			case <-time.After(pause):
			case <-r.Context().Done():
				return
			case <-s.done:
				return
			}
		}
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.name, encodeJSON(e.data)); err != nil {
			return // the client is gone
		}
		if err := flush.Flush(); err != nil {
			return
		}
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(encodeJSON(v)) // fails only if the client is gone
}

// obj is any JSON object.
type obj = map[string]any

func encodeJSON(v any) []byte {
	data, err := json.Marshal(v, jsontext.AllowInvalidUTF8(true), json.Deterministic(true))
	if err != nil {
		panic(fmt.Sprintf("modelserver: a reply that is no JSON: %v", err))
	}
	return data
}

func decodeJSON(data []byte, v any) error {
	return json.Unmarshal(data, v, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
}

// pieces cuts a text into the deltas of a stream: three, or fewer if it is short.
func pieces(text string) []string {
	var p []string
	runes := []rune(text)
	n := max(1, (len(runes)+2)/3)
	for c := range slices.Chunk(runes, n) {
		p = append(p, string(c))
	}
	return p
}
