package modelserver

import (
	"errors"
	"maps"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// responses is OpenAI's Responses API
// (platform.openai.com/docs/api-reference/responses-streaming).
type responses struct{}

func (responses) model(path string) bool { return strings.TrimPrefix(path, "/v1") == "/responses" }

func (responses) errorBody(kind, message string) any {
	return obj{"error": obj{"message": message, "type": kind, "param": nil, "code": kind}}
}

func (responses) decode(r *Request) error {
	var body struct {
		Tools []struct {
			Type string `json:"type"`
			Name string `json:"name"`
		} `json:"tools"`
		Input jsontext.Value `json:"input"`
	}
	if err := decodeJSON(r.Body, &body); err != nil {
		return err
	}
	for _, t := range body.Tools {
		if t.Name == "" {
			t.Name = t.Type // a tool of the API's own
		}
		r.Tools = append(r.Tools, t.Name)
	}
	switch body.Input.Kind() {
	case '"':
		var text string
		err := decodeJSON(body.Input, &text)
		r.Conversation = []Message{{"user", text}}
		return err
	case '[':
	default:
		return errors.New("input is neither a string nor an array")
	}
	var items []struct {
		Type      string         `json:"type"`
		Role      string         `json:"role"`
		Content   jsontext.Value `json:"content"`
		Name      string         `json:"name"`
		Arguments string         `json:"arguments"`
		Input     string         `json:"input"`
		Output    jsontext.Value `json:"output"`
	}
	if err := decodeJSON(body.Input, &items); err != nil {
		return err
	}
	for _, it := range items {
		role, content := it.Role, it.Content
		switch it.Type {
		case "function_call", "custom_tool_call":
			r.Conversation = append(r.Conversation, Message{"assistant", it.Name + " " + it.Arguments + it.Input})
			continue
		case "function_call_output", "custom_tool_call_output":
			role, content = "tool", it.Output
		case "message", "":
		default:
			continue // reasoning and the like
		}
		texts, err := contentTexts(content)
		if err != nil {
			return err
		}
		for _, t := range texts {
			r.Conversation = append(r.Conversation, Message{role, t})
		}
	}
	return nil
}

// contentTexts decodes a string, or an array of parts with a text each.
func contentTexts(content jsontext.Value) ([]string, error) {
	if content.Kind() == '"' {
		var text string
		err := decodeJSON(content, &text)
		return []string{text}, err
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := decodeJSON(content, &parts); err != nil {
		return nil, err
	}
	var texts []string
	for _, p := range parts {
		texts = append(texts, p.Text)
	}
	return texts, nil
}

// items returns the output items of a reply, complete.
func (responses) items(reply Reply, ids *ids) []obj {
	items := []obj{}
	if reply.Text != "" {
		items = append(items, obj{
			"type": "message", "id": ids.next("msg", 0), "role": "assistant", "status": "completed",
			"content": []obj{{"type": "output_text", "text": reply.Text, "annotations": []obj{}}},
		})
	}
	for i, c := range reply.ToolCalls {
		if text, ok := c.Input.(string); ok {
			items = append(items, obj{
				"type": "custom_tool_call", "id": ids.next("ctc", i), "call_id": ids.next("call", i),
				"name": c.Name, "input": text, "status": "completed",
			})
			continue
		}
		items = append(items, obj{
			"type": "function_call", "id": ids.next("fc", i), "call_id": ids.next("call", i),
			"name": c.Name, "arguments": string(encodeJSON(c.Input)), "status": "completed",
		})
	}
	return items
}

func (r responses) whole(reply Reply, ids *ids, model string) any {
	return obj{
		"id": ids.next("resp", 0), "object": "response", "status": "completed", "model": model,
		"output": r.items(reply, ids),
		"usage": obj{
			"input_tokens": reply.InputTokens, "input_tokens_details": obj{"cached_tokens": 0},
			"output_tokens": reply.OutputTokens, "output_tokens_details": obj{"reasoning_tokens": 0},
			"total_tokens": reply.InputTokens + reply.OutputTokens,
		},
	}
}

func (r responses) events(reply Reply, ids *ids, model string) []event {
	var events []event
	add := func(name string, data obj) {
		data["type"], data["sequence_number"] = name, len(events)
		events = append(events, event{name, data})
	}
	add("response.created", obj{"response": obj{"id": ids.next("resp", 0), "object": "response", "status": "in_progress", "model": model}})
	for i, item := range r.items(reply, ids) {
		begun := maps.Clone(item)
		begun["status"] = "in_progress"
		var deltas []event
		switch item["type"] {
		case "message":
			begun["content"] = []obj{}
			for _, p := range pieces(reply.Text) {
				deltas = append(deltas, event{"response.output_text.delta", obj{"content_index": 0, "delta": p}})
			}
		case "function_call":
			begun["arguments"] = ""
			deltas = []event{{"response.function_call_arguments.delta", obj{"delta": item["arguments"]}}}
		case "custom_tool_call":
			begun["input"] = ""
			deltas = []event{{"response.custom_tool_call_input.delta", obj{"delta": item["input"]}}}
		}
		add("response.output_item.added", obj{"output_index": i, "item": begun})
		for _, d := range deltas {
			data := d.data.(obj)
			data["item_id"], data["output_index"] = item["id"], i
			add(d.name, data)
		}
		add("response.output_item.done", obj{"output_index": i, "item": item})
	}
	add("response.completed", obj{"response": r.whole(reply, ids, model)})
	return events
}
