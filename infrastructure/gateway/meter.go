package gateway

import (
	"io"
	"net/http"
	"strings"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

// metered is an answer's body that is counted as it is read.
type metered struct {
	io.ReadCloser
	meter *tokens
}

// Read counts before the agent gets to see the bytes: what it has seen has been
// counted, however it ends.
func (m *metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.meter.take(p[:n])
	return n, err
}

// tokens counts the tokens that one answer reports.
type tokens struct {
	of      *gateway
	dialect ports.APIDialect
	events  bool // server-sent events, not one JSON text
	scan    scanner
	line    line

	now     [fields]int64 // as the answer has them so far
	counted domain.Usage  // what of it is in the gateway's meter
}

// newMeterOf returns what counts the answer, nil if there is nothing to count.
func newMeterOf(g *gateway, r *http.Response) *tokens {
	if d := g.api.Dialect; d != ports.DialectAnthropic && d != ports.DialectOpenAI || r.StatusCode != http.StatusOK {
		return nil
	}
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil
	}
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	if kind != "text/event-stream" && kind != "application/json" {
		return nil
	}
	t := &tokens{of: g, dialect: g.api.Dialect, events: kind == "text/event-stream"}
	t.scan.number = t.number
	return t
}

// take looks at the next bytes.
func (t *tokens) take(p []byte) {
	for _, b := range p {
		if !t.events {
			t.scan.byte(b)
			continue
		}
		switch t.line.byte(b) {
		case lineData:
			t.scan.byte(b)
		case lineEvent:
			t.scan.reset()
		case lineOther:
		}
	}
	// The sums change a few times in an answer.
	if u := t.usage(); u != t.counted {
		more := subtract(u, t.counted)
		t.counted = u
		t.of.count(func(m *ports.GatewayMeter) { m.Usage = m.Usage.Add(more) })
	}
}

// subtract is u − v; unlike Usage.Sub it can be negative: an answer may correct
// what it has reported.
func subtract(u, v domain.Usage) domain.Usage {
	return domain.Usage{
		InputTokens: u.InputTokens - v.InputTokens, CachedInputTokens: u.CachedInputTokens - v.CachedInputTokens,
		CacheWriteTokens: u.CacheWriteTokens - v.CacheWriteTokens, OutputTokens: u.OutputTokens - v.OutputTokens,
		ReasoningTokens: u.ReasoningTokens - v.ReasoningTokens,
	}
}

// The numbers of a report.
const (
	fieldInput = iota
	fieldCached
	fieldWritten
	fieldOutput
	fieldReasoning
	fields
)

// usage is the report in Caisson's terms. The input tokens of the Messages API
// do not include the cached ones and those written to the cache; ours do.
func (t *tokens) usage() domain.Usage {
	u := domain.Usage{
		InputTokens: t.now[fieldInput], CachedInputTokens: t.now[fieldCached], CacheWriteTokens: t.now[fieldWritten],
		OutputTokens: t.now[fieldOutput], ReasoningTokens: t.now[fieldReasoning],
	}
	if t.dialect == ports.DialectAnthropic {
		u.InputTokens += u.CachedInputTokens + u.CacheWriteTokens
	}
	return u
}

// number takes a number of the answer, with the names that lead to it. A report
// stands in "usage" of the whole, or of "message" (message_start) or "response"
// (response.completed). In a stream the last one counts: the numbers of
// message_delta are those of the message so far.
func (t *tokens) number(path []name, value int64) {
	if len(path) > 0 && (path[0] == nameMessage || path[0] == nameResponse) {
		path = path[1:]
	}
	if len(path) < 2 || path[0] != nameUsage {
		return
	}
	var field int
	switch {
	case len(path) == 2:
		switch path[1] {
		case nameInput:
			field = fieldInput
		case nameOutput:
			field = fieldOutput
		case nameCacheRead:
			field = fieldCached
		case nameCacheCreation:
			field = fieldWritten
		default:
			return
		}
	case len(path) == 3 && path[1] == nameInputDetails && path[2] == nameCached:
		field = fieldCached
	case len(path) == 3 && path[1] == nameInputDetails && path[2] == nameCacheWrite:
		field = fieldWritten
	case len(path) == 3 && path[1] == nameOutputDetails && path[2] == nameReasoning:
		field = fieldReasoning
	default:
		return
	}
	t.now[field] = value
}

// lineKind is what a byte of a stream of events belongs to.
type lineKind uint8

const (
	lineOther lineKind = iota // a field that is no data, a comment, the end of a line
	lineData                  // the value of a data field
	lineEvent                 // the end of an event
)

// line tells the data of server-sent events from the rest (HTML standard,
// section 9.2.6): fields are lines, an empty one ends the event, and lines end
// with CR, LF or both.
type line struct {
	at    int  // bytes of the line so far, up to the length of the field's name
	data  bool // the line began with the field's name
	wasCR bool
}

const dataField = "data:"

func (l *line) byte(b byte) lineKind {
	cr := l.wasCR
	l.wasCR = b == '\r'
	if b == '\n' && cr {
		return lineOther
	}
	if b == '\n' || b == '\r' {
		empty := l.at == 0
		l.at, l.data = 0, false
		if empty {
			return lineEvent
		}
		return lineOther
	}
	switch {
	case l.at < len(dataField):
		l.data = (l.at == 0 || l.data) && b == dataField[l.at]
		l.at++
		return lineOther
	case l.data:
		return lineData
	}
	return lineOther
}
