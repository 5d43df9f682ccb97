package modelserver_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/tests/modelserver"
)

type obj = map[string]any

func post(t *testing.T, url, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("X-Api-Key", "dummy")
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func body(t *testing.T, resp *http.Response) obj {
	t.Helper()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	var v obj
	require.NoError(t, json.Unmarshal(data, &v))
	return v
}

// events reads a stream to its end, and checks that each event's name is its
// data's type.
func events(t *testing.T, resp *http.Response) []obj {
	t.Helper()
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	var all []obj
	name := ""
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		switch field, value, _ := strings.Cut(lines.Text(), ": "); field {
		case "event":
			name = value
		case "data":
			var v obj
			require.NoError(t, json.Unmarshal([]byte(value), &v))
			require.Equal(t, name, v["type"])
			all = append(all, v)
		}
	}
	require.NoError(t, lines.Err())
	return all
}

func types(events []obj) []string {
	var s []string
	for _, e := range events {
		s = append(s, e["type"].(string))
	}
	return s
}

func TestMessagesStream(t *testing.T) {
	s := modelserver.NewMessages(t)
	s.Enqueue(modelserver.Reply{
		Text: "abc", ToolCalls: []modelserver.ToolCall{{Name: "Bash", Input: obj{"command": "true"}}},
		InputTokens: 7, OutputTokens: 9, StreamDelay: time.Millisecond,
	})
	got := events(t, post(t, s.URL()+"/v1/messages?beta=true", `{"model":"m","stream":true,"messages":[]}`))
	require.Equal(t, []string{
		"message_start",
		"content_block_start", "content_block_delta", "content_block_delta", "content_block_delta", "content_block_stop",
		"content_block_start", "content_block_delta", "content_block_stop",
		"message_delta", "message_stop",
	}, types(got))
	head := got[0]["message"].(obj)
	require.Equal(t, "m", head["model"])
	require.EqualValues(t, 7, head["usage"].(obj)["input_tokens"])
	require.Equal(t, obj{"type": "text_delta", "text": "a"}, got[2]["delta"])
	tool := got[6]["content_block"].(obj)
	require.Equal(t, "Bash", tool["name"])
	require.Empty(t, tool["input"])
	require.Equal(t, obj{"type": "input_json_delta", "partial_json": `{"command":"true"}`}, got[7]["delta"])
	require.Equal(t, "tool_use", got[9]["delta"].(obj)["stop_reason"])
	require.EqualValues(t, 9, got[9]["usage"].(obj)["output_tokens"])

	// The queue is empty now.
	got = events(t, post(t, s.URL()+"/v1/messages", `{"stream":true,"messages":[]}`))
	require.Equal(t, "end_turn", got[len(got)-2]["delta"].(obj)["stop_reason"])
	var text string
	for _, e := range got {
		if d, ok := e["delta"].(obj); ok && d["type"] == "text_delta" {
			text += d["text"].(string)
		}
	}
	require.Equal(t, modelserver.DefaultText, text)
}

func TestMessagesWithoutStream(t *testing.T) {
	s := modelserver.NewMessages(t)
	s.Enqueue(modelserver.Reply{Text: "whole"}, modelserver.Reply{})
	v := body(t, post(t, s.URL()+"/v1/messages", `{"messages":[]}`))
	require.Equal(t, []any{obj{"type": "text", "text": "whole"}}, v["content"])
	require.Equal(t, "end_turn", v["stop_reason"])
	require.Equal(t, []any{}, body(t, post(t, s.URL()+"/v1/messages", `{"messages":[]}`))["content"])

	// What is no request to the model takes no reply and is not recorded.
	s.Enqueue(modelserver.Reply{Text: "still there"})
	require.EqualValues(t, modelserver.DefaultInputTokens, body(t, post(t, s.URL()+"/v1/messages/count_tokens", `{}`))["input_tokens"])
	require.Equal(t, http.StatusNotFound, post(t, s.URL()+"/v1/other", `{}`).StatusCode)
	resp, err := http.Head(s.URL())
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Len(t, s.Requests(), 2)
	v = body(t, post(t, s.URL()+"/v1/messages", `{"messages":[]}`))
	require.Equal(t, []any{obj{"type": "text", "text": "still there"}}, v["content"])
}

func TestMessagesConversation(t *testing.T) {
	s := modelserver.NewMessages(t)
	post(t, s.URL()+"/v1/messages", `{"model":"m","system":"be brief","tools":[{"name":"Bash"}],"messages":[
		{"role":"user","content":"first"},
		{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"ok"},
			{"type":"tool_use","id":"t","name":"Bash","input":{"command":"ls"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"file"}]},
			{"type":"tool_result","tool_use_id":"u","content":"other"},{"type":"tool_result","tool_use_id":"v"}]},
		{"role":"user","content":[{"type":"text","text":"reminder"},{"type":"text","text":"second"}]}]}`)
	requests := s.Requests()
	require.Len(t, requests, 1)
	r := requests[0]
	require.Equal(t, "m", r.Model)
	require.Equal(t, "dummy", r.Header.Get("X-Api-Key"))
	require.Equal(t, []string{"Bash"}, r.Tools)
	require.Equal(t, []modelserver.Message{
		{Role: "user", Text: "first"}, {Role: "assistant", Text: "ok"}, {Role: "assistant", Text: `Bash {"command":"ls"}`},
		{Role: "tool", Text: "file"}, {Role: "tool", Text: "other"},
		{Role: "user", Text: "reminder"}, {Role: "user", Text: "second"},
	}, r.Conversation)
	require.Equal(t, "second", r.LastUserText())
	require.True(t, r.Has("user", "fir"))
	require.False(t, r.Has("assistant", "fir"))
}

func TestResponsesStream(t *testing.T) {
	s := modelserver.NewResponses(t)
	s.Enqueue(modelserver.Reply{Text: "abc", ToolCalls: []modelserver.ToolCall{
		{Name: "exec_command", Input: obj{"cmd": "true"}}, {Name: "apply_patch", Input: "*** Begin Patch"},
	}, InputTokens: 7})
	got := events(t, post(t, s.URL()+"/v1/responses", `{"model":"m","stream":true,"input":[]}`))
	require.Equal(t, []string{
		"response.created",
		"response.output_item.added", "response.output_text.delta", "response.output_text.delta", "response.output_text.delta", "response.output_item.done",
		"response.output_item.added", "response.function_call_arguments.delta", "response.output_item.done",
		"response.output_item.added", "response.custom_tool_call_input.delta", "response.output_item.done",
		"response.completed",
	}, types(got))
	require.Equal(t, "in_progress", got[1]["item"].(obj)["status"])
	require.Equal(t, "c", got[4]["delta"])
	require.Equal(t, `{"cmd":"true"}`, got[8]["item"].(obj)["arguments"])
	require.Equal(t, "*** Begin Patch", got[11]["item"].(obj)["input"])
	require.NotEqual(t, got[8]["item"].(obj)["call_id"], got[11]["item"].(obj)["call_id"])
	done := got[12]["response"].(obj)
	require.EqualValues(t, 7, done["usage"].(obj)["input_tokens"])
	require.Len(t, done["output"], 3)

	v := body(t, post(t, s.URL()+"/responses", `{"input":"hello"}`))
	require.Equal(t, "completed", v["status"])
	require.Equal(t, "hello", s.Requests()[1].LastUserText())
}

func TestResponsesConversation(t *testing.T) {
	s := modelserver.NewResponses(t)
	post(t, s.URL()+"/v1/responses", `{"instructions":"be brief","tools":[{"type":"function","name":"exec_command"},{"type":"web_search"}],"input":[
		{"type":"message","role":"user","content":[{"type":"input_text","text":"first"}]},
		{"type":"reasoning","summary":[]},
		{"type":"function_call","name":"exec_command","arguments":"{\"cmd\":\"ls\"}","call_id":"c"},
		{"type":"function_call_output","call_id":"c","output":"file"},
		{"type":"custom_tool_call","name":"apply_patch","input":"patch","call_id":"d"},
		{"type":"custom_tool_call_output","call_id":"d","output":[{"type":"input_text","text":"done"}]},
		{"type":"message","role":"assistant","content":[{"type":"output_text","text":"ok"}]},
		{"role":"user","content":"second"}]}`)
	r := s.Requests()[0]
	require.Equal(t, []string{"exec_command", "web_search"}, r.Tools)
	require.Equal(t, []modelserver.Message{
		{Role: "user", Text: "first"}, {Role: "assistant", Text: `exec_command {"cmd":"ls"}`}, {Role: "tool", Text: "file"},
		{Role: "assistant", Text: "apply_patch patch"}, {Role: "tool", Text: "done"}, {Role: "assistant", Text: "ok"},
		{Role: "user", Text: "second"},
	}, r.Conversation)
}

func TestErrors(t *testing.T) {
	refusal := modelserver.Reply{Status: 429, ErrorType: "rate_limit_error", ErrorMessage: "slow down", Repeat: true}
	for name, c := range map[string]struct {
		server *modelserver.Server
		path   string
	}{
		"messages":  {modelserver.NewMessages(t), "/v1/messages"},
		"responses": {modelserver.NewResponses(t), "/v1/responses"},
	} {
		t.Run(name, func(t *testing.T) {
			c.server.Enqueue(refusal)
			for range 2 {
				resp := post(t, c.server.URL()+c.path, `{"stream":true,"messages":[],"input":[]}`)
				require.Equal(t, 429, resp.StatusCode)
				e := body(t, resp)["error"].(obj)
				require.Equal(t, "rate_limit_error", e["type"])
				require.Equal(t, "slow down", e["message"])
			}
			c.server.Clear()
			require.Equal(t, 200, post(t, c.server.URL()+c.path, `{"stream":true,"messages":[],"input":[]}`).StatusCode)
			require.Equal(t, 400, post(t, c.server.URL()+c.path, `{`).StatusCode)
			require.Equal(t, 400, post(t, c.server.URL()+c.path, `{"messages":1,"input":1}`).StatusCode)
			require.Len(t, c.server.Requests(), 3)
		})
	}
}

func TestHang(t *testing.T) {
	release := make(chan struct{})
	s := modelserver.NewMessages(t)
	s.Enqueue(modelserver.Reply{Text: "late", HangUntil: release}, modelserver.Reply{HangUntil: make(chan struct{}), Repeat: true})
	answered := make(chan string, 1)
	go func() {
		resp, err := http.Post(s.URL()+"/v1/messages", "application/json", strings.NewReader(`{"messages":[]}`))
		if err != nil {
			answered <- err.Error()
			return
		}
		defer resp.Body.Close()
		data, _ := io.ReadAll(resp.Body)
		answered <- string(data)
	}()
	_, err := s.WaitRequests(t.Context(), 1)
	require.NoError(t, err)
	select {
	case a := <-answered:
		t.Fatalf("answered before it was released: %s", a)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	require.Contains(t, <-answered, `"late"`)

	// A client that gives up is let go, and one that does not is ended with the
	// test: the second request here would keep the server's Close for ever.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+"/v1/messages", strings.NewReader(`{"messages":[]}`))
	require.NoError(t, err)
	_, err = http.DefaultClient.Do(req) //nolint:bodyclose // there is no response
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ended := make(chan error, 1)
	t.Run("ends with the test", func(t *testing.T) {
		s := modelserver.NewResponses(t)
		s.Enqueue(modelserver.Reply{HangUntil: make(chan struct{})})
		go func() {
			resp, err := http.Post(s.URL()+"/v1/responses", "application/json", strings.NewReader(`{"input":"x"}`))
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			ended <- err
		}()
		_, err := s.WaitRequests(t.Context(), 1)
		require.NoError(t, err)
	})
	<-ended

	waited, cancelWait := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancelWait()
	_, err = s.WaitRequests(waited, 99)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestAddress(t *testing.T) {
	s := modelserver.NewMessages(t)
	require.Regexp(t, `^http://127\.0\.0\.1:\d+$`, s.URL())
	require.NotZero(t, s.Port())
}
