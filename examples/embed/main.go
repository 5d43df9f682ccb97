// Command embed runs two turns of one conversation, each in a session of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/infrastructure/agents/claude"
	"github.com/caisson-run/caisson/infrastructure/fakecli"
	"github.com/caisson-run/caisson/infrastructure/sandbox"
)

func main() {
	fakecli.Host() // without this and the adapter below, the agent is the real Claude Code
	ctx, workspace, state := context.Background(), must(os.MkdirTemp("", "workspace-")), must(os.MkdirTemp("", "state-"))
	caisson := must(composition.New(ctx, composition.WithAgentAdapter(fakecli.NewAdapter(claude.New(), must(os.Executable()))),
		composition.WithStateRoot(state), composition.WithSandboxEnforcer(sandbox.New(sandbox.WithABI(6)))))
	request := application.OpenRequest{Agent: "claude", Workspace: workspace}
	for _, prompt := range []string{"Hello, agent.", fakecli.Script("recall")} {
		session := must(caisson.Orchestrator.Open(ctx, request))
		for event, err := range must(session.Send(ctx, prompt)).Events() {
			fmt.Println(event.Seq, event.Reply.EventType(), must(event.Reply, err))
		}
		request.Resume = session.ID() // the next session continues this one
		must(0, session.Close(ctx))
	}
	must(0, errors.Join(caisson.Close(ctx), os.RemoveAll(workspace), os.RemoveAll(state)))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
