package application_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports/portstest"
)

// Whatever an agent says: the value of a secret variable is in no event, neither
// where it is read nor where it is stored.
func TestSecretsAreInNoEvent(t *testing.T) {
	const (
		key    = "sk-0123456789abcdef"
		longer = key + "-and-more"
		quoted = "with \"quotes\" and \\"
		token  = "0123456789abcdef0123456789abcdef"
	)
	in := func(s string) []domain.ReplyEvent {
		said := []byte(fmt.Sprintf(`{"command":%q,"n":1}`, s))
		return []domain.ReplyEvent{
			domain.Text{Text: "a " + s + " b " + s}, domain.TextDelta{Text: s}, domain.Thinking{Text: s},
			domain.ToolCall{ID: "1", Name: s, Input: said}, domain.ToolUpdate{ID: "1", Output: s}, domain.ToolResult{ID: "1", Output: s},
			domain.FileChange{Changes: []domain.FileEdit{{Path: "/x/" + s}}}, domain.Todo{Items: []domain.TodoItem{{Text: s}}},
			domain.Permission{Input: said, Reason: s}, domain.Notice{Message: s, Refused: domain.Refusal{Address: s, Count: 1}}, domain.Log{Line: s}, domain.Raw{JSON: said},
			domain.Oversize{Head: said},
		}
	}
	r := newRig(t)
	r.env["KEY"] = key
	var said string
	r.sessions.Play = func(_ context.Context, turn portstest.FakeTurn) portstest.FakeEnd {
		for _, e := range in(said) {
			turn.Emit(e)
		}
		return portstest.FakeEnd{Claim: &domain.Final{
			Outcome: domain.OutcomeFailed, Text: said, Error: &domain.TurnError{Class: "x", Message: said, StderrTail: said},
		}}
	}
	request := r.request()
	request.Policy.Env = []domain.EnvRule{
		{Name: "KEY", Secret: true},
		{Name: "LONGER", Value: longer, Literal: true, Secret: true},
		{Name: "QUOTED", Value: quoted, Literal: true, Secret: true},
		{Name: "PROXY", Value: "http://someone:" + token + "@127.0.0.1:8", Literal: true, Secret: true},
		{Name: "SHORT", Value: "short", Literal: true, Secret: true},
		{Name: "PATHLIKE", Value: "/a/path/that/is/long", Literal: true, Secret: true},
		{Name: "OPEN", Value: "not a secret at all", Literal: true},
		{Name: "UNSET", Secret: true},
	}
	s, err := r.Open(t.Context(), request)
	require.NoError(t, err)
	for secret, name := range map[string]string{
		key: "KEY", longer: "LONGER", quoted: "QUOTED",
		"http://someone:" + token + "@127.0.0.1:8": "PROXY", token: "PROXY", base64.StdEncoding.EncodeToString([]byte("someone:" + token)): "PROXY",
	} {
		said = secret
		events := play(t, s, "go")
		// A clean event tells what the others must look like.
		want := append([]domain.ReplyEvent{events[0].Reply, events[1].Reply}, in("[value of "+name+"]")...)
		for i, w := range want {
			require.Equal(t, w, events[i].Reply, name)
		}
		final := finalOf(t, events)
		for _, text := range []string{final.Text, final.Error.Message, final.Error.StderrTail} {
			require.Equal(t, "[value of "+name+"]", text)
		}
		require.Equal(t, events, replay(t, r, s.ID())[events[0].Seq-1:])
	}
	for _, harmless := range []string{"short", "/a/path/that/is/long", "not a secret at all", "anything"} {
		said = harmless
		for i, w := range in(harmless) {
			require.Equal(t, w, play(t, s, "go")[i+2].Reply)
		}
	}

	// A value is the one that it has when the turn starts.
	r.env["KEY"] = "sk-another-one-now"
	said = "sk-another-one-now"
	require.Equal(t, domain.TextDelta{Text: "[value of KEY]"}, play(t, s, "go")[3].Reply)

	require.NoError(t, s.Close(t.Context()))
}
