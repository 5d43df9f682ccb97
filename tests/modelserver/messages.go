package modelserver

import "github.com/go-json-experiment/json/jsontext"

// messages is Anthropic's Messages API
// (docs.anthropic.com/en/api/messages and /messages-streaming).
type messages struct{}

func (messages) model(path string) bool { return path == "/v1/messages" }

func (messages) errorBody(kind, message string) any {
	return obj{"type": "error", "error": obj{"type": kind, "message": message}}
}

func (messages) decode(r *Request) error {
	var body struct {
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
		Messages []struct {
			Role    string         `json:"role"`
			Content jsontext.Value `json:"content"`
		} `json:"messages"`
	}
	if err := decodeJSON(r.Body, &body); err != nil {
		return err
	}
	for _, t := range body.Tools {
		r.Tools = append(r.Tools, t.Name)
	}
	for _, m := range body.Messages {
		found, err := blocks(m.Role, m.Content)
		if err != nil {
			return err
		}
		r.Conversation = append(r.Conversation, found...)
	}
	return nil
}

// blocks decodes the content of a message: a string, or blocks.
func blocks(role string, content jsontext.Value) ([]Message, error) {
	if content.Kind() == '"' {
		var text string
		err := decodeJSON(content, &text)
		return []Message{{role, text}}, err
	}
	var parts []struct {
		Type    string         `json:"type"`
		Text    string         `json:"text"`
		Name    string         `json:"name"`
		Input   jsontext.Value `json:"input"`
		Content jsontext.Value `json:"content"`
	}
	if err := decodeJSON(content, &parts); err != nil {
		return nil, err
	}
	var found []Message
	for _, p := range parts {
		switch p.Type {
		case "text":
			found = append(found, Message{role, p.Text})
		case "tool_use":
			found = append(found, Message{role, p.Name + " " + string(p.Input)})
		case "tool_result":
			if len(p.Content) == 0 {
				continue // a tool that gave nothing
			}
			result, err := blocks("tool", p.Content)
			if err != nil {
				return nil, err
			}
			found = append(found, result...)
		}
	}
	return found, nil
}

// content returns the blocks of a reply, and why the model stopped.
func (messages) content(reply Reply, ids *ids) (content []obj, stop string) {
	stop = "end_turn"
	if reply.Text != "" {
		content = append(content, obj{"type": "text", "text": reply.Text})
	}
	for i, c := range reply.ToolCalls {
		stop = "tool_use"
		content = append(content, obj{"type": "tool_use", "id": ids.next("toolu", i), "name": c.Name, "input": c.Input})
	}
	return content, stop
}

func messageHead(reply Reply, ids *ids, model string, content any, stop any, output int64) obj {
	return obj{
		"id": ids.next("msg", 0), "type": "message", "role": "assistant", "model": model, "content": content,
		"stop_reason": stop, "stop_sequence": nil,
		"usage": obj{
			"input_tokens": reply.InputTokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
			"output_tokens": output, "service_tier": "standard",
		},
	}
}

func (m messages) whole(reply Reply, ids *ids, model string) any {
	content, stop := m.content(reply, ids)
	if content == nil {
		content = []obj{}
	}
	return messageHead(reply, ids, model, content, stop, reply.OutputTokens)
}

func (m messages) events(reply Reply, ids *ids, model string) []event {
	content, stop := m.content(reply, ids)
	var events []event
	add := func(name string, data obj) {
		data["type"] = name
		events = append(events, event{name, data})
	}
	add("message_start", obj{"message": messageHead(reply, ids, model, []obj{}, nil, 1)})
	for i, block := range content {
		first, deltas := obj{"type": "text", "text": ""}, []obj{}
		if block["type"] == "text" {
			for _, p := range pieces(reply.Text) {
				deltas = append(deltas, obj{"type": "text_delta", "text": p})
			}
		} else {
			first = obj{"type": "tool_use", "id": block["id"], "name": block["name"], "input": obj{}}
			deltas = append(deltas, obj{"type": "input_json_delta", "partial_json": string(encodeJSON(block["input"]))})
		}
		add("content_block_start", obj{"index": i, "content_block": first})
		for _, d := range deltas {
			add("content_block_delta", obj{"index": i, "delta": d})
		}
		add("content_block_stop", obj{"index": i})
	}
	add("message_delta", obj{
		"delta": obj{"stop_reason": stop, "stop_sequence": nil},
		"usage": obj{"output_tokens": reply.OutputTokens},
	})
	add("message_stop", obj{})
	return events
}
