// Package policyfile reads policies from TOML files: it finds them, decodes them
// strictly, and compiles them for one place into a [domain.Policy]. docs/policy.md
// describes the format for people, [Schema] for programs.
//
// A policy that is not understood is an error with its place (file, line, column),
// and never a narrower or a wider policy. A policy only grants: an attempt to take
// a part back out of what is granted does not compile.
//
// A file in the workspace may have been written by the agent. So it is used only
// if its user trusted that very content, together with that of all files that it
// extends; see [Trust].
package policyfile
