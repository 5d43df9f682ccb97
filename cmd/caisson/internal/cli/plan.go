package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/infrastructure/jsonl"
)

func (a *app) planCommand() *cobra.Command {
	var (
		flags sessionFlags
		out   output
	)
	cmd := &cobra.Command{
		Use:   "plan --agent AGENT [flags]",
		Short: "Show the plan that run would run under, and start nothing",
		Long: `Show the sandbox plan that "caisson run" with the same flags would run under:
every path with its access and the reason for it, the network, the environment,
the limits, and what is waived. Nothing is started and no session is begun.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request, err := flags.request(a)
			if err != nil {
				return usageError{err}
			}
			return a.plan(cmd.Context(), request, out.json)
		},
	}
	flags.addTo(cmd)
	out.add(cmd.Flags())
	return cmd
}

// plan prints the plan of a request.
func (a *app) plan(ctx context.Context, request application.OpenRequest, asJSON bool) (err error) {
	caisson, err := a.compose(ctx)
	if err != nil {
		return failure{err}
	}
	defer func() {
		if closed := caisson.Close(context.WithoutCancel(ctx)); closed != nil {
			err = errors.Join(err, failure{closed})
		}
	}()
	if err := a.findResume(ctx, caisson.Orchestrator, &request); err != nil {
		return failure{err}
	}
	preview, err := caisson.Orchestrator.Plan(ctx, request)
	if err != nil {
		return failure{err}
	}
	text := jsonl.AppendPlan(nil, preview.Plan, preview.Notes)
	if !asJSON {
		text = fmt.Appendf(nil, "%s\n", preview.Plan)
		for _, note := range preview.Notes {
			text = fmt.Appendf(text, "  agent            %s\n", ui.Line(note))
		}
		text = fmt.Appendf(text, "  digest           %s\n", preview.Plan.Digest())
	}
	return a.write(text)
}
