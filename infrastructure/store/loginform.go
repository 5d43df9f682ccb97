package store

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/caisson-run/caisson/ports"
)

// checkLogin checks what a file with a login has, and makes what is kept of it:
// the members that the format keeps, in its order, without white space. The
// reason for a refusal holds nothing of the content but names of members.
func checkLogin(data []byte, format ports.LoginFormat) (c loginContent, refused string) {
	top, ok := object(data)
	if !ok {
		return c, "it is no JSON object, or has a member twice"
	}
	for name := range top {
		if !slices.Contains(format.Keep, name) && !slices.Contains(format.Drop, name) {
			return c, fmt.Sprintf("it has the member %s, which no login has that is known here", memberName(name))
		}
	}
	for _, path := range format.Secrets {
		s, ok := text(top, path)
		if !ok || s == "" {
			return c, "it has no text in " + path
		}
		if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return c, "what it has in " + path + " has characters that no token has"
		}
		c.secrets = append(c.secrets, s)
	}
	for _, path := range format.Account {
		s, _ := text(top, path)
		c.account = append(c.account, s)
	}
	if format.Expires != "" {
		if c.expires, ok = expiry(top, format.Expires); !ok {
			return c, "it has no time of expiry in " + format.Expires
		}
	}
	var kept []byte
	for _, name := range format.Keep {
		value, ok := top[name]
		if !ok {
			continue
		}
		if err := value.Compact(); err != nil {
			return c, "it is no JSON object"
		}
		quoted, _ := jsontext.AppendQuote(nil, name) // a name of ours
		kept = append(append(append(append(kept, ','), quoted...), ':'), value...)
	}
	c.data = append(append([]byte{'{'}, bytes.TrimPrefix(kept, []byte{','})...), '}')
	return c, ""
}

// object returns the members of a JSON object. The decoder refuses what is not
// UTF-8 and members that come twice, of which two readers take different ones.
func object(data []byte) (map[string]jsontext.Value, bool) {
	var members map[string]jsontext.Value
	if err := json.Unmarshal(data, &members); err != nil || members == nil {
		return nil, false
	}
	return members, true
}

// lookUp returns the member that a path names.
func lookUp(top map[string]jsontext.Value, path string) (jsontext.Value, bool) {
	name, rest, deeper := strings.Cut(path, ".")
	value, ok := top[name]
	if !ok || !deeper {
		return value, ok
	}
	members, ok := object(value)
	if !ok {
		return nil, false
	}
	return lookUp(members, rest)
}

func text(top map[string]jsontext.Value, path string) (s string, ok bool) {
	value, ok := lookUp(top, path)
	if !ok || value.Kind() != '"' {
		return "", false
	}
	return s, json.Unmarshal(value, &s) == nil
}

// maxMillis is the year 9999, up to which times can be written.
const maxMillis = 253402300799999

// expiry returns the time that a path names, see ports.LoginFormat.
func expiry(top map[string]jsontext.Value, path string) (time.Time, bool) {
	value, ok := lookUp(top, path)
	if !ok {
		return time.Time{}, false
	}
	if value.Kind() == '0' {
		return instant(value, time.Millisecond)
	}
	token, ok := text(top, path)
	parts := strings.Split(token, ".")
	if !ok || len(parts) != 3 {
		return time.Time{}, false
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}, false
	}
	members, ok := object(claims)
	if !ok {
		return time.Time{}, false
	}
	return instant(members["exp"], time.Second)
}

func instant(value jsontext.Value, unit time.Duration) (time.Time, bool) {
	var n float64
	if value.Kind() != '0' || json.Unmarshal(value, &n) != nil {
		return time.Time{}, false
	}
	n *= float64(unit / time.Millisecond)
	if math.IsNaN(n) || n < 0 || n > maxMillis {
		return time.Time{}, false
	}
	return time.UnixMilli(int64(n)).UTC(), true
}

// memberName shows the name of a member, unless it is none that a program gives.
func memberName(name string) string {
	odd := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-'
	}
	if name == "" || len(name) > 40 || strings.ContainsFunc(name, odd) {
		return "with a name that is none"
	}
	return fmt.Sprintf("%q", name)
}
