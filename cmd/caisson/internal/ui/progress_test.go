package ui

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

// screen is a terminal that keeps what was written.
type screen struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// line returns what stands on the last line now.
func (s *screen) line() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.b.String()
	text = text[strings.LastIndex(text, "\n")+1:]
	if i := strings.LastIndex(text, "\r\x1b[K"); i >= 0 {
		text = text[i+len("\r\x1b[K"):]
	}
	return text
}

func TestProgress(t *testing.T) {
	s := &screen{}
	width := 80
	p := NewProgress(s, func() int { return width })
	p.mu.Lock()
	p.now = func() time.Time { return p.start.Add(75 * time.Second) }
	p.mu.Unlock()
	give := func(r domain.ReplyEvent) {
		t.Helper()
		require.NoError(t, p.Event(domain.Event{Reply: r}, func() error {
			require.Empty(t, s.line(), "the line is out of the way")
			_, err := s.Write([]byte("an event\n\r\x1b[K"))
			return err
		}))
	}
	give(domain.Text{Text: "x"})
	require.Equal(t, "caisson: 1m15s", s.line())
	give(domain.ToolCall{ID: "1", Name: "Bash"})
	require.Equal(t, "caisson: 1m15s, Bash", s.line())
	give(domain.ToolCall{ID: "2", Name: "Re\x1b[2Jad\n"})
	require.Equal(t, `caisson: 1m15s, Re\x1b[2Jad\n and 1 more`, s.line())
	give(domain.ToolResult{ID: "2"})
	give(domain.UsageReport{Usage: domain.Usage{InputTokens: 1200, OutputTokens: 34}})
	require.Equal(t, "caisson: 1m15s, Bash, 1234 tokens", s.line())
	width = 24
	give(domain.ToolResult{ID: "1"})
	require.Equal(t, "caisson: 1m15s, 1234 to", s.line(), "it never fills the last column")
	give(domain.Final{})
	require.Empty(t, s.line(), "the turn is over")
	p.Stop()
	require.Empty(t, s.line())
}

func TestProgressGoesOnByItself(t *testing.T) {
	s := &screen{}
	p := NewProgress(s, func() int { return 0 })
	require.NoError(t, p.Event(domain.Event{Reply: domain.Text{}}, func() error {
		_, err := s.Write([]byte("\r\x1b[K"))
		return err
	}))
	require.Eventually(t, func() bool {
		line := s.line() // on a busy host it may be late
		return strings.HasPrefix(line, "caisson: ") && line != "caisson: 0s"
	}, 10*time.Second, 10*time.Millisecond)
	for n := range 3 * maxTools {
		require.NoError(t, p.Event(domain.Event{Reply: domain.ToolCall{ID: string(rune('a' + n)), Name: "x"}}, func() error { return nil }))
	}
	require.Len(t, p.tools, maxTools, "what an agent says does not fill the memory")
	p.Stop()
	require.Empty(t, s.line())
}
