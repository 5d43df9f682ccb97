// Package portstest holds what anybody who implements a port, or tests against
// one, can use: a conformance kit per port ([AssertAgentSessionContract],
// [AssertSessionStoreContract], AssertEnforcerContract), which checks an
// implementation against the contract in the port's comment, and fakes that
// behave ([FakeSessionFactory], [FakeAgent], [MemoryStore]) and pass the kits
// themselves.
//
// A kit asks for behaviour by its meaning and never looks at the type behind
// the port, so it runs against implementations that it has never heard of. Each
// of its cases carries an explanation, which is printed when the case fails.
//
// It may import domain, ports, the standard library and testify.
package portstest
