// Package crash kills orchestrators: child processes that run turns are ended by
// SIGKILL at random moments, and afterwards nothing may be left of their agents,
// nothing may be missing from or twice in their logs, and every conversation must
// go on.
package crash
