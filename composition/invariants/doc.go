// Package invariants checks, on the host that it runs on, the seven things that
// Caisson promises whatever the agent: parity, the negative companion,
// fail-closed, the native no-op, irreversibility confined, the end of a turn's
// tree, and resume. It runs whole turns of a scripted agent, as real children
// under the default plan, and needs no tokens and no network.
//
// "caisson verify" and the project's end-to-end tests run it, and an embedder can
// with an enforcer of its own. It looks at the processes and threads of the
// process that it runs in, so nothing else should start any meanwhile.
package invariants
