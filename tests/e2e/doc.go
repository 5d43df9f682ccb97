// Package e2e holds the tests that run Caisson whole, through its public doors,
// on the real kernel and without a token: the seven invariants that every
// release keeps, the replay of what the real agent CLIs were recorded to print,
// and the real CLIs themselves against loopback model servers.
//
// It may import anything of the project; nothing imports it.
package e2e
