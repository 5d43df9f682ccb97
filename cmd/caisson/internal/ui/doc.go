// Package ui prints what happens in a turn for a person at a terminal.
//
// The first column says who speaks, and an agent cannot reach it:
//
//	caisson: …   Caisson itself: what was enforced, how the turn ended
//	* …          the agent starts or ends a tool
//	* | …        what the tool said, if it is more than one line; of a long
//	             output the ends, and the first denial
//	~ …          the agent thinks
//	! …          the agent's notices, stderr, errors
//	  …          the agent says
//
// Everything that comes from an agent is escaped: only characters with a shape
// of their own, newlines and tabs reach the terminal. On a terminal long lines
// are broken before the terminal does it, for it would continue them in the
// first column.
//
// The package may import domain, infrastructure/jsonl and the standard library.
package ui
