package composition_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
)

// The function is the one of the README; tests/layering compares the two.
func ask(ctx context.Context, dir, prompt string) (err error) {
	c, err := composition.New(ctx)
	if err != nil {
		return err
	}
	// Ends what still runs, also after ctx has ended.
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	session, err := c.Orchestrator.Open(ctx, application.OpenRequest{Agent: domain.AgentClaude, Workspace: dir})
	if err != nil {
		return err
	}
	turn, err := session.Send(ctx, prompt)
	if err != nil {
		return err
	}
	for event, err := range turn.Events() {
		if err != nil {
			return err // Caisson's own; how the agent fared is in Final
		}
		switch e := event.Reply.(type) {
		case domain.Text:
			fmt.Println(e.Text)
		case domain.Final:
			fmt.Println(e.Outcome, e.Usage, session.ID()) // the id resumes it
		}
	}
	return session.Close(ctx)
}

func Example() {
	if err := ask(context.Background(), "/home/me/src/app", "add a test for parse()"); err != nil {
		slog.Error("the turn", "error", err)
	}
}
