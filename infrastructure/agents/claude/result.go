package claude

import (
	"fmt"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/domain"
)

// Classes of errors beside those that the CLI names itself in the field
// "error" of its lines: authentication_failed, billing_error, rate_limit,
// invalid_request, model_not_found, server_error, max_output_tokens and others.
const (
	classConnection  = "connection"        // the API cannot be reached, or dropped the connection
	classOverloaded  = "overloaded"        // status 529
	classPrompt      = "prompt_too_long"   // for the model, or for the CLI's own limit
	classRefusal     = "refusal"           // of the model
	classMaxTurns    = "max_turns"         // --max-turns
	classBudget      = "budget_exhausted"  // --max-budget-usd
	classInterrupted = "interrupted"       // by a control request or a signal
	classPermission  = "permission_denied" // a denial ended the turn
)

// retryable are the classes after which the same turn may well succeed.
var retryable = []string{"rate_limit", "server_error", classOverloaded, classConnection}

// total sums up what the results of one process have cost.
type total struct {
	usage domain.Usage
	// cost is in US dollars.
	cost    float64
	unknown bool // cost is not that of this turn alone
	resumed bool
}

// result handles the end of a turn, or of a part of one if background tasks
// made the agent go on: the last one decides, and their usage adds up.
func (p *parser) result(e *envelope) {
	var isError, text, errs, stop, reason, cost, usage, models, denials, status, apiType, apiError, startup value
	e.pick(field{"is_error", &isError}, field{"result", &text}, field{"errors", &errs},
		field{"stop_reason", &stop}, field{"terminal_reason", &reason}, field{"total_cost_usd", &cost},
		field{"usage", &usage}, field{"model_usage_since_last_result", &models},
		field{"permission_denials", &denials}, field{"api_error_status", &status},
		field{"api_error_type", &apiType}, field{"api_error", &apiError},
		field{"startup_failure_reason", &startup})
	p.account(usage, models, cost)
	p.checkConversation(e)

	claim := domain.Final{
		Outcome: domain.OutcomeCompleted, StopReason: stopReason(stop), Text: text.str(),
		Usage: p.total.usage, ConversationID: p.conversation,
	}
	if !text.isString() {
		claim.Text = p.lastText
	}
	if !p.total.unknown {
		cost := p.total.cost
		claim.CostUSD = &cost
	}
	if isError.isTrue() || string(e.subtype.name()) != "success" {
		message := text.str()
		if message == "" {
			message = p.output(errs)
		}
		claim.Outcome = domain.OutcomeFailed
		claim.Error = &domain.TurnError{Message: message}
		claim.Error.Class = p.failureClass(string(reason.name()), message, status.count(), apiType, apiError, startup, stop)
		p.explain(&claim, string(reason.name()), denials)
		claim.Error.Retryable = slices.Contains(retryable, claim.Error.Class)
	}
	if p.stray != "" {
		claim.Outcome, claim.ConversationID = domain.OutcomeFailed, p.asked
		claim.Error = &domain.TurnError{
			Class:   domain.ErrorClassConversation,
			Message: fmt.Sprintf("asked to resume conversation %q, the agent continued %q", p.asked, p.stray),
		}
	}
	p.failure = ""
	p.claim = &claim
	p.emit(domain.UsageReport{Usage: claim.Usage})
	p.out.Done = true
	// A turn that still runs is finished by the agent after the end of its
	// input, so nothing is lost by closing it now, and nothing can hang.
	p.closeStdin()
}

// checkConversation compares the result's conversation with the one asked for.
// A result without an init before it is a failed start: there is no new
// conversation of its id that could be resumed.
func (p *parser) checkConversation(e *envelope) {
	adopted := (p.started || p.asked != "") && p.identify(e.sessionID.str())
	if adopted && p.started {
		p.emit(domain.ConversationStarted{ConversationID: p.conversation, Model: p.model, AgentVersion: p.version})
	}
	if p.conversation == "" {
		p.conversation = p.asked
	}
}

// account adds up what one result reports.
//
// The field "usage" is that of the main loop alone: subagents, compactions,
// requests that were interrupted and answers that were cut off are missing in
// it, and total_cost_usd goes on from the transcript of a resumed
// conversation. model_usage_since_last_result has neither fault (compare both
// in the recordings subagent_foreground, compact_slash, sigint_midtext and
// sess_resume); it is missing where no request was made, and in old releases.
//
// The API's input tokens do not include the cached ones and those written to
// the cache; ours do.
func (p *parser) account(usage, models, cost value) {
	if !models.isObject() {
		var input, cached, written, output, details, thinking value
		p.sub.pick(usage, field{"input_tokens", &input}, field{"cache_read_input_tokens", &cached},
			field{"cache_creation_input_tokens", &written}, field{"output_tokens", &output},
			field{"output_tokens_details", &details})
		p.sub.pick(details, field{"thinking_tokens", &thinking})
		p.total.add(input, cached, written, output, thinking)
		if dollars, ok := cost.float(); !ok || p.total.resumed && dollars != 0 {
			p.total.unknown = true
		} else if !p.total.resumed {
			p.total.cost = dollars // cumulative for the process
		}
		return
	}
	p.sub.reset(models)
	p.sub.enter('{')
	for p.sub.more() {
		p.sub.name()
		if ok, _ := p.sub.enter('{'); !ok {
			continue
		}
		var input, cached, written, output, thinking, cost value
		for p.sub.more() {
			switch name, v := p.sub.name(), p.sub.value(); string(name) {
			case "inputTokens":
				input = v
			case "cacheReadInputTokens":
				cached = v
			case "cacheCreationInputTokens":
				written = v
			case "outputTokens":
				output = v
			case "thinkingTokens":
				thinking = v
			case "costUSD":
				cost = v
			}
		}
		p.total.add(input, cached, written, output, thinking)
		dollars, _ := cost.float()
		p.total.cost += dollars
	}
}

func (t *total) add(input, cached, written, output, thinking value) {
	t.usage = t.usage.Add(domain.Usage{
		InputTokens:       input.count() + cached.count() + written.count(),
		CachedInputTokens: cached.count(),
		CacheWriteTokens:  written.count(),
		OutputTokens:      output.count(),
		ReasoningTokens:   thinking.count(),
	})
}

// stopReason maps the API's stop reason; "" for one that says nothing about
// the turn, such as a stop sequence.
func stopReason(stop value) domain.StopReason {
	switch string(stop.name()) {
	case "end_turn":
		return domain.StopEndTurn
	case "max_tokens":
		return domain.StopMaxTokens
	case "refusal":
		return domain.StopRefusal
	}
	return ""
}

// failureClass finds the class of a failed result, the most telling field
// first.
func (p *parser) failureClass(reason, message string, status int64, apiType, apiError, startup, stop value) string {
	switch {
	case startup.str() != "":
		return startup.str()
	case strings.HasPrefix(message, "No conversation found"):
		return domain.ErrorClassConversation
	case reason == "max_turns":
		return classMaxTurns
	case reason == "budget_exhausted":
		return classBudget
	case reason == "prompt_too_long", reason == "blocking_limit":
		return classPrompt
	case strings.HasPrefix(reason, "aborted_"):
		return classInterrupted
	case stopReason(stop) == domain.StopRefusal:
		return classRefusal
	case string(apiError.name()) == "connection_failed":
		return classConnection
	case status == 529, string(apiType.name()) == "overloaded_error":
		return classOverloaded
	case p.failure != "" && p.failure != "unknown":
		return p.failure
	case status == 400, status == 413:
		return "invalid_request"
	case status == 401, status == 403:
		return "authentication_failed"
	case status == 404:
		return "model_not_found"
	case status == 429:
		return "rate_limit"
	case status >= 500:
		return "server_error"
	}
	return domain.ErrorClassAgent
}

// explain completes a failed claim by why the turn was stopped.
func (p *parser) explain(claim *domain.Final, reason string, denials value) {
	switch claim.Error.Class {
	case classMaxTurns:
		claim.StopReason = domain.StopMaxTurnRequests
	case "max_output_tokens":
		claim.StopReason = domain.StopMaxTokens
	case classInterrupted:
		claim.StopReason = domain.StopCancelled
		claim.Error.Message = join("the turn was interrupted", claim.Error.Message)
		// A denial that interrupts ends the turn among its tools, with the
		// denied call listed; an interrupt of our own looks the same but for
		// that we sent it.
		if tool := p.firstDenied(denials); reason == "aborted_tools" && tool != "" && !p.interrupted {
			claim.Outcome = domain.OutcomeDenied
			claim.Error.Class = classPermission
			claim.Error.Message = "the turn ended because a permission was denied: " + tool
		}
	}
}

// firstDenied returns the name of the first tool of permission_denials.
func (p *parser) firstDenied(denials value) string {
	if !denials.isArray() {
		return ""
	}
	p.sub.reset(denials)
	p.sub.enter('[')
	if !p.sub.more() {
		return ""
	}
	var name value
	p.sub.pick(p.sub.value(), field{"tool_name", &name})
	return name.str()
}
