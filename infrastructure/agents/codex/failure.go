package codex

import (
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/domain"
)

// retryPrefix starts what Codex says when it tries again: "Reconnecting... 2/5
// (why)", or "Reconnecting... waiting for network (why)".
const retryPrefix = "Reconnecting... "

// retryNotice reads a top-level error that says that Codex tries again. The
// turn's last word never has that form.
func retryNotice(message string) (domain.Notice, bool) {
	rest, ok := strings.CutPrefix(message, retryPrefix)
	if !ok {
		return domain.Notice{}, false
	}
	n := domain.Notice{Class: domain.NoticeRetry, Message: message, Delay: delay(rest)}
	if count, _, ok := strings.Cut(rest, "/"); ok {
		if attempt, err := strconv.Atoi(count); err == nil && attempt > 0 {
			n.Attempt = attempt
		}
	}
	return n, true
}

// delay reads the server's "try again in 1.5s", 0 if it is not there.
func delay(message string) time.Duration {
	_, after, ok := strings.Cut(message, "try again in ")
	if !ok {
		return 0
	}
	end := strings.IndexFunc(after, func(r rune) bool { return !strings.ContainsRune("0123456789.ms", r) })
	if end < 0 {
		end = len(after)
	}
	// The sentence's full stop is no part of it.
	d, err := time.ParseDuration(strings.TrimRight(after[:end], "."))
	if err != nil {
		return 0
	}
	return d
}

// Classes of the errors of a Codex turn, beside those of domain.
const (
	classUsageLimit     = "usage_limit"    // of the account, until a time
	classQuota          = "quota"          // the account is out of credit
	classRateLimit      = "rate_limit"     // too many requests or tokens in a time
	classContextLength  = "context_length" // the conversation no longer fits
	classAuthentication = "authentication" // no key, a wrong key, or one without the right
	classNotFound       = "not_found"      // no such model or endpoint
	classInvalidRequest = "invalid_request"
	classServerError    = "server_error"
	classConnection     = "connection"
	classMaxTokens      = "max_output_tokens"
	classRefusal        = "refusal"
)

// failures maps what Codex says to a class; the first match counts. Codex gives
// no codes, only text: its own sentences, some with the server's text in them,
// or the server's whole answer.
var failures = []struct {
	text      string // lower case
	class     string
	retryable bool
	stop      domain.StopReason
}{
	{"hit your usage limit", classUsageLimit, false, ""},
	{"usage_limit_reached", classUsageLimit, false, ""},
	{"quota exceeded", classQuota, false, ""},
	{"insufficient_quota", classQuota, false, ""},
	{"exceeded your current quota", classQuota, false, ""},
	{"context window", classContextLength, false, ""},
	{"context_length_exceeded", classContextLength, false, ""},
	{"reason: max_output_tokens", classMaxTokens, false, domain.StopMaxTokens},
	{"reason: content_filter", classRefusal, false, domain.StopRefusal},
	{"missing environment variable", classAuthentication, false, ""},
	{"invalid_api_key", classAuthentication, false, ""},
	{"status 401", classAuthentication, false, ""},
	{"status 403", classAuthentication, false, ""},
	{"status 404", classNotFound, false, ""},
	{"model_not_found", classNotFound, false, ""},
	{"status 429", classRateLimit, true, ""},
	{"rate limit", classRateLimit, true, ""},
	{"rate_limit", classRateLimit, true, ""},
	{"invalid_request_error", classInvalidRequest, false, ""},
	{"status 4", classInvalidRequest, false, ""},
	{"status 5", classServerError, true, ""},
	{"high demand", classServerError, true, ""},
	{"server_error", classServerError, true, ""},
	{"overloaded", classServerError, true, ""},
	{"connection failed", classConnection, true, ""},
	{"stream disconnected", classConnection, true, ""},
	{"network error", classConnection, true, ""},
	{"timeout", classConnection, true, ""},
}

// classify reads the message of a failed turn.
func classify(message string) (domain.TurnError, domain.StopReason) {
	e := domain.TurnError{Class: domain.ErrorClassAgent, Message: message}
	lower := strings.ReplaceAll(strings.ToLower(message), "status: ", "status ")
	for _, f := range failures {
		if strings.Contains(lower, f.text) {
			e.Class, e.Retryable = f.class, f.retryable
			return e, f.stop
		}
	}
	return e, ""
}
