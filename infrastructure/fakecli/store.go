//go:build unix

package fakecli

import (
	"bytes"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
)

// usage counts the tokens of one turn, or of a conversation. Input does not
// include the cached tokens.
type usage struct {
	Input      int64 `json:"input"`
	CacheWrite int64 `json:"cache_write"`
	CacheRead  int64 `json:"cache_read"`
	Output     int64 `json:"output"`
	Reasoning  int64 `json:"reasoning"`
}

func (u usage) plus(v usage) usage {
	return usage{
		u.Input + v.Input, u.CacheWrite + v.CacheWrite, u.CacheRead + v.CacheRead,
		u.Output + v.Output, u.Reasoning + v.Reasoning,
	}
}

// record is one line of a transcript. A turn that was begun writes its prompt
// at once, so that a turn that is killed is remembered, as by the real
// programs; what it used is lost, as with Codex.
type record struct {
	Prompt *string `json:"prompt,omitzero"`
	Answer *string `json:"answer,omitzero"`
	Usage  usage   `json:"usage,omitzero"`
}

// conversation is what the fake remembers of one conversation, in one file of
// the agent's state directory.
type conversation struct {
	id      string
	path    string
	prompts []string // of the turns begun so far
	total   usage    // of the turns that ended
}

func newConversation(dir, id string) *conversation {
	return &conversation{id: id, path: filepath.Join(dir, id+".jsonl")}
}

// loadConversation reads a transcript; it fails if there is none.
func loadConversation(dir, id string) (*conversation, error) {
	c := newConversation(dir, id)
	data, err := os.ReadFile(c.path)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(data) {
		var r record
		if json.Unmarshal(line, &r) != nil {
			continue // the last line of a turn that was killed while writing it
		}
		if r.Prompt != nil {
			c.prompts = append(c.prompts, *r.Prompt)
		}
		c.total = c.total.plus(r.Usage)
	}
	return c, nil
}

func (c *conversation) begin(prompt string) error {
	c.prompts = append(c.prompts, prompt)
	return c.append(record{Prompt: &prompt})
}

func (c *conversation) end(answer string, u usage) error {
	c.total = c.total.plus(u)
	return c.append(record{Answer: &answer, Usage: u})
}

func (c *conversation) append(r record) error {
	data, err := json.Marshal(r, jsonInvalidUTF8)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(c.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
