//go:build amd64 || arm64

package escape

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
)

// The words of a child's report, which is the last line of its output.
const (
	saidEscaped     = "escaped"
	saidDenied      = "denied"
	saidUnavailable = "unavailable"
	saidFailed      = "failed"
)

// The helpers that attempts and the stage start beside the attempts.
const (
	asVictim = "victim" // a process to attack, see victimMain
	asIdle   = "idle"   // one that waits for its end
)

// Host makes the attempt and exits, if this process was started to make one;
// otherwise it returns at once. Call it first in main, and in TestMain.
func Host() {
	if len(os.Args) > 2 && os.Args[1] == Subcommand {
		os.Exit(hostMain(os.Args[2], os.Args[3:]))
	}
}

func hostMain(name string, args []string) int {
	c := &child{values: map[string]string{}}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		c.values[key] = value
	}
	switch name {
	case asVictim:
		return victimMain(c)
	case asIdle:
		waitForEnd()
		return 0
	}
	for _, a := range append(attempts(), unixDestinationAttempts()...) {
		if a.Name == name {
			// What an attempt does to its thread, it does to this one.
			runtime.LockOSThread()
			fmt.Println(report(a.try(c), c.proof))
			return 0
		}
	}
	fmt.Println(saidFailed, "no attempt", name)
	return 64
}

// report is what the host reads.
func report(err error, proof string) string {
	var (
		errno syscall.Errno
		not   unavailableError
	)
	switch {
	case err == nil:
		return strings.TrimSpace(saidEscaped + " " + strconv.Quote(proof))
	case errors.As(err, &not):
		return saidUnavailable + " " + oneLine(string(not))
	case errors.As(err, &errno):
		return saidDenied + " " + errnoName(errno)
	}
	return saidFailed + " " + oneLine(err.Error())
}

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", "; ") }

func errnoName(e syscall.Errno) string {
	if name := unix.ErrnoName(e); name != "" {
		return name
	}
	return strconv.Itoa(int(e))
}

// unavailableError is that the host lacks what the attempt needs.
type unavailableError string

func (e unavailableError) Error() string { return string(e) }

// child is an attempt's side of the stage.
type child struct {
	values map[string]string
	proof  string // what the host may check, such as a secret that was read
	memory *arena
}

// The places of the stage.
func (c *child) in(name string) string       { return filepath.Join(c.values["work"], name) }
func (c *child) out(name string) string      { return filepath.Join(c.values["outside"], name) }
func (c *child) readonly(name string) string { return filepath.Join(c.values["readonly"], name) }

// number returns a number of the stage, which the host may be unable to give.
func (c *child) number(key string) (int, error) {
	n, err := strconv.Atoi(c.values[key])
	if err != nil {
		return 0, unavailableError("the host has no " + key)
	}
	return n, nil
}

// token is what an attempt sends, so that the host knows whose it is.
func (c *child) token() []byte { return []byte(c.values["token"]) }

// mem returns the memory that the kernel is given addresses of.
func (c *child) mem() (*arena, error) {
	if c.memory != nil {
		return c.memory, nil
	}
	m, err := newArena()
	c.memory = m
	return m, err
}

// arena is memory with a known address, so that system calls that package unix
// has no function for can be made without unsafe code: a shared mapping of a
// file in memory, which is written to through the file.
type arena struct {
	fd   int
	addr uintptr
	used int
}

const arenaSize = 1 << 20

func newArena() (*arena, error) {
	fd, err := unix.MemfdCreate("arena", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(fd, arenaSize); err != nil {
		return nil, err
	}
	addr, err := raw(unix.SYS_MMAP, 0, arenaSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, uintptr(fd), 0)
	if err != nil {
		return nil, err
	}
	return &arena{fd: fd, addr: addr}, nil
}

// put stores bytes and returns their address, which is a multiple of 64.
func (m *arena) put(b []byte) (uintptr, error) {
	at := m.used
	if at+len(b) > arenaSize {
		return 0, unix.ENOMEM
	}
	m.used = (at + len(b) + 63) &^ 63
	_, err := unix.Pwrite(m.fd, b, int64(at))
	return m.addr + uintptr(at), err
}

// page returns the address of an empty page.
func (m *arena) page() (uintptr, error) {
	m.used = (m.used + 4095) &^ 4095
	return m.put(make([]byte, 4096))
}

func (m *arena) get(addr uintptr, n int) ([]byte, error) {
	b := make([]byte, n)
	_, err := unix.Pread(m.fd, b, int64(addr-m.addr))
	return b, err
}

func (m *arena) set(addr uintptr, b []byte) error {
	_, err := unix.Pwrite(m.fd, b, int64(addr-m.addr))
	return err
}

// turn writes one after the other to an address until it is told to stop.
func (m *arena) turn(at uintptr, texts ...[]byte) (stop func()) {
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-end:
				return
			default:
				for _, text := range texts {
					_ = m.set(at, text) // what fails is tried again at once
				}
			}
		}
	}()
	return func() { close(end); <-done }
}

// raw makes a system call.
func raw(number uintptr, args ...uintptr) (uintptr, error) {
	var a [6]uintptr
	copy(a[:], args)
	r, _, e := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
	if e != 0 {
		return r, e
	}
	return r, nil
}

// call makes a system call whose arguments may be numbers, or strings and bytes
// that are given by address.
func (c *child) call(number uintptr, args ...any) (uintptr, error) {
	m, err := c.mem()
	if err != nil {
		return 0, unavailableError("no memory to give: " + err.Error())
	}
	list := make([]uintptr, 0, len(args))
	for _, a := range args {
		var at uintptr
		switch a := a.(type) {
		case int:
			at = uintptr(a)
		case uintptr:
			at = a
		case string:
			at, err = m.put(append([]byte(a), 0))
		case []byte:
			at, err = m.put(a)
		default:
			err = fmt.Errorf("an argument of type %T", a)
		}
		if err != nil {
			return 0, unavailableError(err.Error())
		}
		list = append(list, at)
	}
	return raw(number, list...)
}

// reaches makes a call that must fail harmlessly, and says whether the kernel
// took it: what forbids a call does so before its arguments are looked at, by
// EPERM, EACCES or ENOSYS.
func (c *child) reaches(number uintptr, args ...any) error {
	_, err := c.call(number, args...)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		switch errno {
		case unix.EPERM, unix.EACCES, unix.ENOSYS:
			return errno
		}
		c.proof = "the kernel took the call: " + errnoName(errno)
		return nil
	}
	return err
}

// opened closes a descriptor that was wanted for being one.
func opened(fd int, err error) error {
	if err == nil {
		err = unix.Close(fd)
	}
	return err
}

// readSecret reads a file as the attempt's proof.
func (c *child) readSecret(path string) error {
	data, err := os.ReadFile(path)
	c.proof = string(data)
	return err
}

// overwrite opens a file as it is told and writes to it.
func overwrite(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	return writeAndClose(fd)
}

func writeAndClose(fd int) error {
	_, err := unix.Write(fd, []byte("escaped"))
	return errors.Join(err, unix.Close(fd))
}

// ends runs a program and returns how it ended and what it wrote.
func ends(attr *syscall.SysProcAttr, env []string, path string, args ...string) (syscall.WaitStatus, string, error) {
	cmd := exec.Command(path, args...)
	cmd.SysProcAttr = attr
	if env != nil {
		cmd.Env = env
	}
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, "", err
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok {
		return 0, "", errors.New("its end is not known")
	}
	return status, string(out), nil
}

// RunUnconfined runs a command as the companion of an attempt, for a [Target]
// that has no other way to run one without a sandbox.
func RunUnconfined(ctx context.Context, dir string, argv []string) (Ended, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, []string{"PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.Output()
	ended := Ended{Stdout: string(out), Exit: domain.ExitStatus{Known: true}}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		ended.Exit.Code = exit.ExitCode()
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			ended.Exit.Signal, ended.Exit.SignalNumber = unix.SignalName(status.Signal()), int(status.Signal())
		}
		err = nil
	}
	return ended, err
}

// startsWith starts a program that does nothing, in another way. It is not this
// one, whose runtime can make no threads in a half-entered namespace.
func startsWith(attr *syscall.SysProcAttr) error {
	status, _, err := ends(attr, nil, "/bin/true")
	if err == nil && status != 0 {
		err = fmt.Errorf("the child ended with %v", status)
	}
	return err
}

// waitForEnd waits to be ended.
func waitForEnd() {
	// Whoever attacks a victim may send it anything.
	signal.Reset(syscall.SIGTERM)
	for {
		time.Sleep(time.Hour)
	}
}

// victimSecretEnv carries the secret in the victim's environment, which is what
// is attacked.
const victimSecretEnv = "CAISSON_VICTIM_SECRET"

// victimMain is a process with a secret: in its environment, in its memory, and
// behind a descriptor. It tells where they are in a file, and waits.
func victimMain(c *child) int {
	if os.Getenv(victimSecretEnv) == "" {
		// Once more, so that the secret is in the first environment.
		self, err := os.Executable()
		if err == nil {
			err = syscall.Exec(self, os.Args, append(os.Environ(), victimSecretEnv+"="+c.values["secret"]))
		}
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := tellVictim(c); err != nil {
		fmt.Fprintln(os.Stderr, "victim:", err)
		return 1
	}
	waitForEnd()
	return 0
}

func tellVictim(c *child) error {
	m, err := c.mem()
	if err != nil {
		return err
	}
	at, err := m.put([]byte(c.values["secret"]))
	if err != nil {
		return err
	}
	// A victim that is confined itself has nothing but the workspace.
	file := c.values["file"]
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := os.Chdir(filepath.Dir(file)); err != nil {
		return err
	}
	// Where a security module asks for it: everybody may trace this process.
	_ = unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0)
	text := fmt.Sprintf("%d %d %d", os.Getpid(), at, fd)
	if err := os.WriteFile(c.values["tell"]+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(c.values["tell"]+".new", c.values["tell"])
}
