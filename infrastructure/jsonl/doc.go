// Package jsonl writes events, plans and reports as JSON Lines, one object per
// line, and reads events back. It is the wire form of the CLI's --output json.
//
// The names and their order are part of Caisson's interface:
//
//   - Every event starts with type, seq, session, turn, time (RFC 3339 with nine
//     digits of fraction, UTC) and agent. Its own fields follow.
//   - A field is always there, with null for "not known", save parent, which
//     only an event of a subagent has.
//   - Durations are whole milliseconds in fields that end in _ms.
//   - A tool's input is JSON as the agent sent it, whitespace removed; what is no
//     valid JSON becomes a string.
//   - Bytes that are not UTF-8 become U+FFFD. Characters that could act on a
//     terminal or split a line (DEL, C1 controls, bidirectional controls,
//     U+2028, …) are written as \u escapes, which mean the same in JSON: an
//     event stream can be shown on a terminal as it is.
//
// The package may import domain, ports, the standard library and the JSON library.
// Its functions are pure and safe for concurrent use.
package jsonl
