package store

import (
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/caisson-run/caisson/domain"
)

// version is that of the format of record.json. A change that an older Caisson
// would misread raises it. Version 1 had no grants; version 2 no log beside it,
// and nothing of what came with that; version 3 neither prompt nor outcome.
const version = 4

// wireRecord is record.json.
type wireRecord struct {
	Version        int       `json:"version"`
	ID             string    `json:"id"`
	Agent          string    `json:"agent"`
	Workspace      string    `json:"workspace"`
	PlanDigest     string    `json:"plan_digest"`
	Grants         []string  `json:"grants,omitempty"`
	Prompt         string    `json:"prompt,omitempty"`
	Outcome        string    `json:"outcome,omitempty"`
	ConversationID string    `json:"conversation_id"`
	Lineage        []string  `json:"lineage"`
	Turns          int       `json:"turns"`
	LastSeq        uint64    `json:"last_seq"`
	Total          wireUsage `json:"total_usage"`
	Opened         time.Time `json:"opened"`
	Updated        time.Time `json:"updated,omitzero"`
	Epoch          uint64    `json:"epoch,omitzero"`
	Live           *wireLive `json:"live,omitempty"`
}

// wireLive is a running turn.
type wireLive struct {
	Turn  int    `json:"turn"`
	First uint64 `json:"first_seq"`
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"`
	Boot  string `json:"boot"`
	Mark  string `json:"mark"`
}

type wireUsage struct {
	InputTokens       int64 `json:"input_tokens"`
	CachedInputTokens int64 `json:"cached_input_tokens"`
	CacheWriteTokens  int64 `json:"cache_write_tokens"`
	OutputTokens      int64 `json:"output_tokens"`
	ReasoningTokens   int64 `json:"reasoning_tokens"`
}

func encode(r domain.SessionRecord) ([]byte, error) {
	w := wireRecord{
		Version: version, ID: string(r.ID), Agent: string(r.Kind), Workspace: r.Workspace,
		PlanDigest: r.PlanDigest, Grants: r.Grants, Prompt: r.Prompt, Outcome: string(r.Outcome), ConversationID: r.ConversationID, Lineage: r.Lineage,
		Turns: r.Turns, LastSeq: r.LastSeq, Total: wireUsage(r.Total), Opened: r.Opened.UTC(),
		Epoch: r.Epoch,
	}
	if !r.Updated.IsZero() {
		w.Updated = r.Updated.UTC()
	}
	if l := r.Live; l != nil {
		w.Live = &wireLive{l.Turn, l.First, l.Process.Pid, l.Process.Start, l.Process.Boot, l.Process.Mark}
	}
	data, err := json.Marshal(w, jsontext.WithIndent("  "), json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode the record of session %s: %w", r.ID, err)
	}
	return append(data, '\n'), nil
}

// decode is strict: duplicate and unknown members, invalid UTF-8 and anything
// after the object are errors. A record that is not understood whole must not
// be resumed from.
func decode(data []byte) (domain.SessionRecord, error) {
	// The version comes first: everything else may differ in another one.
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return domain.SessionRecord{}, fmt.Errorf("decode: %w", err)
	}
	if v.Version < 1 || v.Version > version {
		return domain.SessionRecord{}, &domain.InvalidError{
			What: "version", Value: fmt.Sprint(v.Version), Reason: fmt.Sprintf("this Caisson reads 1 to %d", version),
			Remedy: "resume the session with the Caisson that wrote it, or open a new one",
		}
	}
	var w wireRecord
	if err := json.Unmarshal(data, &w, json.RejectUnknownMembers(true)); err != nil {
		return domain.SessionRecord{}, fmt.Errorf("decode: %w", err)
	}
	id, err := domain.ParseSessionID(w.ID)
	if err != nil {
		return domain.SessionRecord{}, err
	}
	if w.Turns < 0 {
		return domain.SessionRecord{}, &domain.InvalidError{What: "turns", Value: fmt.Sprint(w.Turns), Reason: "negative"}
	}
	if len(w.Grants) == 0 {
		w.Grants = nil
	}
	r := domain.SessionRecord{
		ID: id, Kind: domain.AgentKind(w.Agent), Workspace: w.Workspace, PlanDigest: w.PlanDigest, Grants: w.Grants,
		Prompt: w.Prompt, Outcome: domain.Outcome(w.Outcome), ConversationID: w.ConversationID, Lineage: w.Lineage, Turns: w.Turns, LastSeq: w.LastSeq,
		Total: domain.Usage(w.Total), Opened: w.Opened, Updated: w.Updated, Epoch: w.Epoch,
	}
	if l := w.Live; l != nil {
		r.Live = &domain.LiveTurn{Turn: l.Turn, First: l.First, Process: domain.ProcessIdentity{Pid: l.Pid, Start: l.Start, Boot: l.Boot, Mark: l.Mark}}
	}
	return r, nil
}
