package testkit

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var fakeFlag = flag.String("fakehost", "", "the program of tests/fakehost; built from source if empty")

var fakeProgram string

// MainWithFake runs a package's tests with the fake agent at hand, see
// [FakeProgram]. It is called by TestMain and does not return. Where the
// program is neither given by the flag -fakehost nor can be built, the test
// binary itself must host it.
func MainWithFake(m *testing.M) {
	flag.Parse()
	DefaultSignals()
	dir, err := os.MkdirTemp("", "fakehost-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fakeProgram, err = findFake(dir)
	code := 1
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, "the fake agent:", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func findFake(dir string) (string, error) {
	if *fakeFlag != "" {
		return filepath.Abs(*fakeFlag)
	}
	if _, err := exec.LookPath("go"); err != nil {
		return os.Executable()
	}
	program := filepath.Join(dir, "fakehost")
	out, err := exec.Command("go", "build", "-o", program, "github.com/caisson-run/caisson/tests/fakehost").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	// Tests of other users' children run it too.
	return program, os.Chmod(dir, 0o755)
}

// FakeProgram is the path of a program that hosts the fake agent.
func FakeProgram() string { return fakeProgram }
