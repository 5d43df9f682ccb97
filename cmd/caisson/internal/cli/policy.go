package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/policyfile"
	"github.com/caisson-run/caisson/ports"
)

// starter is what "policy init" writes.
const starter = `#:schema ` + policyfile.SchemaID + `
# What agents may touch when they work here, beside what they get anyway: this
# directory, the system's programs, private directories, and their model.
# docs/policy.md describes the format.
version = 1

# Caches go to the session's private state: git, go, node, python, rust.
groups = ["git"]

# ro, rox, rw or rwx, which is what agents get by default.
# workspace = "ro"

# [paths]
# ro = ["${home}/notes"]

# [network]
# domains = ["registry.npmjs.org"]
# connect = ["localhost:5432"]

# [limits]
# timeout = "30m"
`

func (a *app) policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, show and trust policy files",
		Long: `Policy files say what programs may touch beside what they get anyway. One file is
used: that of --policy; otherwise ` + policyfile.Name + ` in the workspace, if you have trusted
its content; otherwise ` + policyfile.UserName + ` in Caisson's configuration directory
($XDG_CONFIG_HOME/caisson, or ~/.config/caisson). --policy none uses none. Flags add
to the file; of what there can be one of, such as a limit, the flag's counts.

A workspace's file may have been written by an agent. So it is used only as you
trusted it, with all files that it extends; any change needs your trust again.
docs/policy.md describes the format.`,
		Args: commandOnly,
		RunE: needsCommand,
	}
	file := func(use, short string, run func(ctx context.Context, path string) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short,
			Args: func(cmd *cobra.Command, args []string) error {
				if len(args) > 1 {
					return usageError{fmt.Errorf("%d files, but one%s", len(args), seeHelp(cmd))}
				}
				return nil
			},
			RunE: func(cmd *cobra.Command, args []string) error {
				if err := a.needDir(); err != nil {
					return usageError{err}
				}
				path := policyfile.Name
				if len(args) == 1 {
					path = args[0]
				}
				return run(cmd.Context(), a.abs(path))
			},
		}
	}
	var agent string
	show := file("show [FILE]", "Print what a policy grants, with who put each thing there", func(ctx context.Context, path string) error {
		return a.showPolicy(ctx, path, domain.AgentKind(agent))
	})
	show.Flags().StringVar(&agent, "agent", "", "with the section of this `AGENT`, and what run grants; without, as for exec")
	cmd.AddCommand(
		file("check [FILE]", "Check a policy, for every agent", a.checkPolicy),
		show,
		file("trust [FILE]", "Trust the policy of a workspace as it is now", a.trustPolicy),
		file("untrust [FILE]", "Trust the policy of a workspace no longer", a.untrustPolicy),
		file("init [FILE]", "Write a policy to begin with", a.initPolicy),
		&cobra.Command{
			Use: "schema", Short: "Print the JSON Schema of policy files", Args: noArgs,
			RunE: func(*cobra.Command, []string) error { return a.write(policyfile.Schema()) },
		},
	)
	return cmd
}

// policyPlace is a place in which a policy is looked at. The private directories
// are known when a session is opened, so here they have the variables' names.
func (a *app) policyPlace(agents []domain.AgentKind, agent domain.AgentKind, path string) ports.PolicyPlace {
	place := ports.PolicyPlace{Agent: agent, Agents: agents, Workspace: a.Dir, State: privateState, Temp: privateTemp}
	if filepath.Base(path) == policyfile.Name {
		place.Workspace = filepath.Dir(path)
	}
	if dir, err := filepath.EvalSymlinks(place.Workspace); err == nil {
		place.Workspace = dir
	}
	if home, _ := a.LookupEnv("HOME"); filepath.IsAbs(home) {
		place.Home = filepath.Clean(home)
	}
	if agent != "" {
		place.Access = domain.AccessReadWriteExec
	}
	return place
}

// Stand-ins for the private directories.
const (
	privateState = "/${state}"
	privateTemp  = "/${tmp}"
)

// loadPolicy compiles a policy for a command and for every agent, so that each
// section is looked at, and returns its files.
func (a *app) loadPolicy(ctx context.Context, path string, load func(string, ports.PolicyPlace) (ports.FoundPolicy, []policyfile.Document, error)) (documents []policyfile.Document, err error) {
	err = a.with(ctx, func(_ context.Context, o *application.Orchestrator) error {
		var faults []string
		agents := o.Agents()
		for _, agent := range append([]domain.AgentKind{""}, agents...) {
			found, loaded, err := load(path, a.policyPlace(agents, agent, path))
			if err == nil {
				err = o.CheckEgress(found.Policy)
			}
			if err != nil && !slices.Contains(faults, err.Error()) {
				faults = append(faults, err.Error())
			}
			if documents == nil {
				documents = loaded
			} else if err == nil && !slices.Equal(documents, loaded) {
				return fmt.Errorf("%s changes while it is read: try again", path)
			}
		}
		if len(faults) > 0 {
			return usageError{errors.New(strings.Join(faults, "\n"))}
		}
		return nil
	})
	return documents, err
}

func (a *app) checkPolicy(ctx context.Context, path string) error {
	documents, err := a.loadPolicy(ctx, path, policyfile.Load)
	if err != nil {
		return err
	}
	return a.write(append([]byte(ui.Line(path)+": well formed\n"), files(documents)...))
}

// files lists the files of a policy.
func files(documents []policyfile.Document) []byte {
	var text []byte
	for _, d := range documents {
		text = fmt.Appendf(text, "  sha256 %s  %s\n", d.SHA256, ui.Line(d.Path))
	}
	return text
}

func (a *app) showPolicy(ctx context.Context, path string, agent domain.AgentKind) error {
	var agents []domain.AgentKind
	if err := a.with(ctx, func(_ context.Context, o *application.Orchestrator) error {
		agents = o.Agents()
		return nil
	}); err != nil {
		return err
	}
	if agent != "" && !slices.Contains(agents, agent) {
		return usageError{&domain.InvalidError{What: "--agent", Value: string(agent), Reason: "no such agent", Remedy: fmt.Sprintf("one of %s", agents)}}
	}
	place := a.policyPlace(agents, agent, path)
	found, documents, err := policyfile.Load(path, place)
	if err != nil {
		return usageError{err}
	}
	plan := found.Policy.Apply(domain.NewSandboxPlan(path))
	if access := found.Policy.Workspace; access != 0 {
		plan = plan.WithRules(domain.PathRule{Path: place.Workspace, Access: access, Why: "workspace, " + found.Policy.Origins[domain.OriginWorkspace]})
	}
	plan = plan.WithRules(found.Policy.PathRules()...)
	text := strings.NewReplacer(privateState, "${state}", privateTemp, "${tmp}").Replace(plan.String())
	tripwires := map[domain.TripwireMode]string{domain.TripwiresFail: "fail", domain.TripwiresOff: "off"}[found.Tripwires]
	out := []byte(text + "\n")
	if tripwires != "" {
		out = fmt.Appendf(out, "  tripwires        %s\n", tripwires)
	}
	if found.DirectAPI {
		out = append(out, "  gateway          off\n"...)
	}
	return a.write(append(out, files(documents)...))
}

// trust returns the store of what is trusted.
func (a *app) trust() (policyfile.Trust, error) {
	dir := policyfile.ConfigDir(a.LookupEnv)
	if dir == "" {
		return policyfile.Trust{}, usageError{&domain.InvalidError{
			What: "HOME", Reason: "not an absolute path, so there is no place for what you trust", Remedy: "set HOME or XDG_CONFIG_HOME",
		}}
	}
	return policyfile.NewTrust(dir), nil
}

func (a *app) trustPolicy(ctx context.Context, path string) error {
	if filepath.Base(path) != policyfile.Name {
		return usageError{&domain.InvalidError{
			What: "policy", Value: path, Reason: "only " + policyfile.Name + " in a workspace is found by itself and needs trust", Remedy: "use another file with --policy FILE",
		}}
	}
	trust, err := a.trust()
	if err != nil {
		return err
	}
	documents, err := a.loadPolicy(ctx, path, policyfile.LoadToTrust)
	if err != nil {
		return err
	}
	if err := trust.Add(documents); err != nil {
		return failure{err}
	}
	return a.write(append([]byte("trusted, as it is now:\n"), files(documents)...))
}

func (a *app) untrustPolicy(_ context.Context, path string) error {
	trust, err := a.trust()
	if err != nil {
		return err
	}
	// The directory may be gone.
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	was, err := trust.Remove(path)
	switch {
	case err != nil:
		return failure{err}
	case !was:
		return usageError{&domain.InvalidError{What: "policy", Value: path, Reason: "not trusted", Remedy: "nothing is to be done"}}
	}
	return a.write([]byte("no longer trusted: " + ui.Line(path) + "\n"))
}

func (a *app) initPolicy(_ context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return usageError{&domain.InvalidError{
			What: "policy", Value: path, Reason: "there is one already, which is not overwritten",
			Remedy: "edit it, name another file, or remove it first",
		}}
	}
	if err != nil {
		return usageError{err}
	}
	_, err = f.WriteString(starter)
	if err = errors.Join(err, f.Close()); err != nil {
		return failure{errors.Join(err, os.Remove(path))}
	}
	return a.write(fmt.Appendf(nil, "written: %s\nuse it with \"caisson policy trust %s\"\n", ui.Line(path), ui.Line(path)))
}
