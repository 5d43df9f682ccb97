// Package clis finds the real agent CLIs that the end-to-end tests drive. Their
// versions are pinned in package.json and package-lock.json beside it, and
// `make clis` installs them with `npm ci --ignore-scripts`. It runs nothing. It
// may import the standard library and tests/testkit.
package clis

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/caisson-run/caisson/tests/testkit"
)

// Claude returns the path of Claude Code's native program. Without it the test
// is skipped, or fails under CAISSON_REQUIRE_CLIS=1.
func Claude(tb testing.TB) string {
	tb.Helper()
	return locate(tb, "Claude Code", claudePath)
}

// Codex returns the path of the Codex CLI's native program. Without it the test
// is skipped, or fails under CAISSON_REQUIRE_CLIS=1.
func Codex(tb testing.TB) string {
	tb.Helper()
	return locate(tb, "Codex", codexPath)
}

func locate(tb testing.TB, name string, where func(goos, goarch string) (string, error)) string {
	tb.Helper()
	program, err := find(where)
	if err != nil {
		testkit.RequireCLIs(tb, fmt.Sprintf("%s: %v", name, err))
	}
	return program
}

func find(where func(goos, goarch string) (string, error)) (string, error) {
	below, err := where(runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return "", err
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	// A test runs in its package's directory, somewhere below the root.
	for {
		here := filepath.Join(dir, "tests", "clis")
		if _, err := os.Stat(filepath.Join(here, "package-lock.json")); err == nil {
			program := filepath.Join(here, "node_modules", below)
			if _, err := os.Stat(program); err != nil {
				return "", fmt.Errorf("not installed (run `make clis`): %w", err)
			}
			return program, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("no tests/clis above the working directory")
		}
		dir = up
	}
}

// claudePath is where the npm package of Claude Code 2.1.328 has its native
// program, below node_modules.
func claudePath(goos, goarch string) (string, error) {
	arch, ok := map[string]string{"amd64": "x64", "arm64": "arm64"}[goarch]
	if goos != "linux" || !ok {
		return "", fmt.Errorf("the tests know no native program for %s/%s", goos, goarch)
	}
	return filepath.Join("@anthropic-ai", "claude-code-linux-"+arch, "claude"), nil
}

// codexPath is where the npm package of Codex 0.169.0 has its native program,
// below node_modules.
func codexPath(goos, goarch string) (string, error) {
	triple, ok := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[goarch]
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[goarch]
	if goos != "linux" || !ok {
		return "", fmt.Errorf("the tests know no native program for %s/%s", goos, goarch)
	}
	return filepath.Join("@openai", "codex-linux-"+arch, "vendor", triple+"-unknown-linux-musl", "bin", "codex"), nil
}
