// Package examples holds programs that embed Caisson, each a module of its own
// as an embedder's would be. Its test builds and runs them. It imports nothing.
package examples
