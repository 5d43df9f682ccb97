// Package soak runs very many sessions at once, in an orchestrator that is killed
// and started again in the middle, and then looks at everything that must hold:
// one final per turn, every event in the log once, nothing left behind, and what
// a session costs.
package soak
