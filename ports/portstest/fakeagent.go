package portstest

import (
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// FakeAgent is a ports.AgentAdapter for a program that reads its prompt from
// standard input and answers in plain lines, each of which becomes a text.
// With cat(1) as its program it repeats what it is asked.
type FakeAgent struct {
	AgentKind domain.AgentKind
	// Program is what Resolve finds without a hint; "" is not found.
	Program string
	// Fragment is what Needs returns.
	Fragment ports.PlanFragment
}

var _ ports.AgentAdapter = FakeAgent{}

// Kind implements ports.AgentAdapter.
func (a FakeAgent) Kind() domain.AgentKind { return a.AgentKind }

// Resolve implements ports.AgentAdapter.
func (a FakeAgent) Resolve(hint string, _ ports.Host) (ports.AgentInstall, error) {
	program := a.Program
	if hint != "" {
		program = hint
	}
	if program == "" {
		return ports.AgentInstall{}, &domain.AgentNotFoundError{Kind: a.AgentKind, Reason: "not found", Remedy: "name its program"}
	}
	return ports.AgentInstall{Path: program, Files: []string{program}, Version: "0.0.1"}, nil
}

// Needs implements ports.AgentAdapter.
func (a FakeAgent) Needs(ports.AgentInstall, ports.SessionDirs, ports.Host) (ports.PlanFragment, error) {
	return a.Fragment, nil
}

// Command implements ports.AgentAdapter.
func (a FakeAgent) Command(turn ports.TurnRequest) (domain.SpawnLine, error) {
	return domain.SpawnLine{
		Path: turn.Install.Path, Argv: append([]string{turn.Install.Path}, turn.Install.Args...),
		Dir: turn.Workspace, Stdin: []byte(turn.Prompt.Text),
	}, nil
}

// NewParser implements ports.AgentAdapter.
func (a FakeAgent) NewParser(ports.TurnRequest) ports.Parser { return &lineParser{} }

// lineParser makes a text of every line, and a final of the last one.
type lineParser struct{ last string }

func (p *lineParser) ParseEvent(line []byte) (ports.Parsed, error) {
	p.last = string(line)
	return ports.Parsed{Events: []domain.ReplyEvent{domain.Text{Text: p.last}}}, nil
}

func (p *lineParser) Interrupt() []byte { return nil }

func (p *lineParser) Finish(exit domain.ExitStatus) []domain.ReplyEvent {
	if !exit.Success() {
		return nil
	}
	return []domain.ReplyEvent{domain.Final{Outcome: domain.OutcomeCompleted, Text: p.last}}
}
