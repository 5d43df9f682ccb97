package fakecli

import (
	"path/filepath"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// adapter is a real agent's adapter whose program is the fake.
type adapter struct {
	ports.AgentAdapter
	program string
}

// NewAdapter returns inner, with the fake in place of the agent's program: the
// command line, the environment, the needs and the parser are the real ones.
// The program is a binary that hosts the fake, see [Host]; inner's kind must be
// one of the fake's formats.
func NewAdapter(inner ports.AgentAdapter, program string) ports.AgentAdapter {
	a := adapter{AgentAdapter: inner, program: program}
	if login, ok := inner.(ports.LoginAgent); ok {
		return struct {
			adapter
			ports.LoginAgent
		}{a, login}
	}
	return a
}

// Resolve returns the hosting program, whatever the hint says.
func (a adapter) Resolve(string, ports.Host) (ports.AgentInstall, error) {
	path, err := filepath.Abs(a.program)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return ports.AgentInstall{}, &domain.AgentNotFoundError{
			Kind: a.Kind(), Path: a.program, Reason: "the program that hosts the fake agent cannot be found", Err: err,
		}
	}
	return ports.AgentInstall{
		Path: path, Args: []string{Subcommand, string(a.Kind())}, Files: []string{path}, Version: "fake",
	}, nil
}

// Needs returns the needs of the real agent, but for the credential: the fake
// goes to no API.
func (a adapter) Needs(install ports.AgentInstall, dirs ports.SessionDirs, host ports.Host) (ports.PlanFragment, error) {
	f, err := a.AgentAdapter.Needs(install, dirs, host)
	if err != nil || f.ModelAPI == nil {
		return f, err
	}
	api := *f.ModelAPI
	api.NoCredential = true
	f.ModelAPI = &api
	return f, nil
}
