// Command abi prints the Landlock ABI of the running kernel, 0 if it has none.
// Logs of long test runs record it.
package main

import (
	"fmt"
	"syscall"
)

func main() {
	const (
		createRuleset = 444 // landlock_create_ruleset(2), the same number on every architecture
		version       = 1   // LANDLOCK_CREATE_RULESET_VERSION
	)
	abi, _, errno := syscall.Syscall(createRuleset, 0, 0, version)
	if errno != 0 {
		abi = 0
	}
	fmt.Println(abi)
}
