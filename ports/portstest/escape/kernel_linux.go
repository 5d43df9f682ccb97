//go:build amd64 || arm64

package escape

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
)

// highBit is one that a system call with an int argument does not look at, and
// that a careless filter compares.
const highBit = 1 << 32

// kernelCall is a call that must be refused before its arguments are looked at.
func kernelCall(name string, class Class, p domain.Property, alone []Layer, number uintptr, args ...any) Attempt {
	return Attempt{Name: name, Class: class, Property: p, Alone: alone, try: func(c *child) error { return c.reaches(number, args...) }}
}

func kernelAttempts() []Attempt {
	const p = domain.PropertyPrivileges
	filtered := []Layer{Seccomp}
	both := []Layer{Seccomp, Privileges}
	call := func(name string, alone []Layer, number uintptr, args ...any) Attempt {
		return kernelCall(name, ClassKernel, p, alone, number, args...)
	}
	return []Attempt{
		call("bpf", filtered, unix.SYS_BPF, 0, 0, 0),
		{Name: "bpf-map", Class: ClassKernel, Property: p, Alone: both, try: func(c *child) error {
			attr := make([]byte, 128)
			copy(attr, words(2|4<<32, 4|1<<32)) // BPF_MAP_TYPE_ARRAY, key 4, value 4, one entry
			fd, err := c.call(unix.SYS_BPF, 0, attr, len(attr))
			return opened(int(fd), err)
		}},
		{Name: "perf-event", Class: ClassKernel, Property: p, Alone: filtered, try: func(*child) error {
			attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_TASK_CLOCK, Size: 112, Bits: 1 << 5}
			return opened(unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC))
		}},
		{Name: "userfaultfd", Class: ClassKernel, Property: p, Alone: filtered, try: func(c *child) error {
			fd, err := c.call(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1) // UFFD_USER_MODE_ONLY
			return opened(int(fd), err)
		}},
		call("kexec-load", both, unix.SYS_KEXEC_LOAD, 0, 1<<20, 0, 0),
		call("init-module", both, unix.SYS_INIT_MODULE, 0, 0, 0),
		call("finit-module", both, unix.SYS_FINIT_MODULE, -1, 0, 0),
		call("delete-module", both, unix.SYS_DELETE_MODULE, 0, 0),
		call("swapon", both, unix.SYS_SWAPON, 0, 0),
		call("swapoff", both, unix.SYS_SWAPOFF, 0),
		call("reboot", both, unix.SYS_REBOOT, 0, 0, 0, 0),
		call("acct", both, unix.SYS_ACCT, "/nonexistent"),
		call("quotactl", filtered, unix.SYS_QUOTACTL, 0x800007<<8, 0, 0, 0),
		call("settimeofday", both, unix.SYS_SETTIMEOFDAY, 0, 0),
		{Name: "adjtimex", Class: ClassKernel, Property: p, Alone: []Layer{Privileges}, try: func(*child) error {
			var now unix.Timex
			if _, err := unix.Adjtimex(&now); err != nil {
				return err
			}
			// The same tick again, which changes nothing and takes the right to.
			_, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_TICK, Tick: now.Tick})
			return err
		}},
		{Name: "set-hostname", Class: ClassKernel, Property: p, Alone: both, try: func(*child) error {
			name, err := os.Hostname()
			if err != nil {
				return err
			}
			return unix.Sethostname([]byte(name))
		}},
		call("set-domainname", both, unix.SYS_SETDOMAINNAME, 0, -1),
		{Name: "kernel-log", Class: ClassKernel, Property: p, Alone: both, try: func(*child) error {
			_, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 16))
			return err
		}},
		call("io-uring-setup", filtered, unix.SYS_IO_URING_SETUP, 0, 0),
		{Name: "io-uring-open", Class: ClassKernel, Property: domain.PropertyFilesystem, Alone: []Layer{Landlock, Seccomp}, reads: true, try: func(c *child) error {
			fd, err := ringOpen(c, c.out("secret"))
			if err != nil {
				return err
			}
			return c.readFD(fd)
		}, granted: grants(domain.AccessReadFile, "secret")},
		{Name: "io-uring-connect", Class: ClassKernel, Property: domain.PropertyTCP, Alone: []Layer{Landlock, Seccomp}, sends: true, try: func(c *child) error {
			to, err := c.inet4("tcp", 1)
			if err != nil {
				return err
			}
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if err := ringConnect(c, fd, rawSockaddr(to)); err != nil {
				return err
			}
			_, err = unix.Write(fd, c.token())
			return err
		}, granted: grantsPort("tcp")},
		{Name: "io-uring-socket", Class: ClassKernel, Property: domain.PropertyOtherSockets, Alone: filtered, try: func(c *child) error {
			// The calls that the filter refuses can be made by a ring as well.
			res, err := ringSubmit(c, ringOpSocket, unix.AF_INET, 0, unix.SOCK_STREAM, protoMPTCP, 0)
			return opened(res, err)
		}},
		call("terminal-push-input", filtered, unix.SYS_IOCTL, 0, unix.TIOCSTI, " "),
		call("terminal-push-input-high-bit", filtered, unix.SYS_IOCTL, 0, unix.TIOCSTI|highBit, " "),
		call("terminal-selection", filtered, unix.SYS_IOCTL, 0, unix.TIOCLINUX, "\x02"),
		call("terminal-line-discipline", filtered, unix.SYS_IOCTL, 0, unix.TIOCSETD, words(0)),
		onAMD64(call("iopl", filtered, 172, 0)),
		onAMD64(call("ioperm", filtered, 173, 0, 0, 0)),
		{Name: "personality", Class: ClassKernel, Property: p, Alone: filtered, try: func(*child) error {
			_, err := raw(unix.SYS_PERSONALITY, 0x0400000) // READ_IMPLIES_EXEC
			return err
		}},
		call("fanotify", []Layer{Privileges}, unix.SYS_FANOTIFY_INIT, unix.FAN_CLASS_CONTENT, 0),
		call("vhangup", []Layer{Privileges}, unix.SYS_VHANGUP),
	}
}

// onAMD64 makes an attempt one of amd64 alone.
func onAMD64(a Attempt) Attempt {
	try := a.try
	a.try = func(c *child) error {
		if err := amd64Only(); err != nil {
			return err
		}
		return try(c)
	}
	return a
}

func namespaceAttempts() []Attempt {
	const p = domain.PropertyPrivileges
	filtered, mounts := []Layer{Seccomp}, []Layer{Seccomp, Landlock, Privileges}
	call := func(name string, alone []Layer, number uintptr, args ...any) Attempt {
		return kernelCall(name, ClassNamespaces, p, alone, number, args...)
	}
	var list []Attempt
	for _, ns := range []struct {
		name string
		flag uintptr
	}{
		{"user", unix.CLONE_NEWUSER}, {"mount", unix.CLONE_NEWNS}, {"network", unix.CLONE_NEWNET}, {"pid", unix.CLONE_NEWPID},
		{"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"cgroup", unix.CLONE_NEWCGROUP},
	} {
		// An ordinary user needs a user namespace for any other, and makes both at
		// once.
		flags := ns.flag
		if os.Geteuid() != 0 {
			flags |= unix.CLONE_NEWUSER
		}
		list = append(list,
			Attempt{Name: "unshare-" + ns.name, Class: ClassNamespaces, Property: p, Alone: filtered, try: func(*child) error {
				return startsWith(&syscall.SysProcAttr{Unshareflags: flags})
			}},
			Attempt{Name: "clone-" + ns.name, Class: ClassNamespaces, Property: p, Alone: filtered, try: func(*child) error {
				return startsWith(&syscall.SysProcAttr{Cloneflags: flags})
			}},
		)
	}
	return append(list,
		Attempt{Name: "unshare-time", Class: ClassNamespaces, Property: p, Alone: filtered, try: func(*child) error {
			flags := uintptr(unix.CLONE_NEWTIME)
			if os.Geteuid() != 0 {
				flags |= unix.CLONE_NEWUSER
			}
			return startsWith(&syscall.SysProcAttr{Unshareflags: flags})
		}},
		call("clone3", filtered, unix.SYS_CLONE3, 0, 0),
		Attempt{Name: "setns-own", Class: ClassNamespaces, Property: p, Alone: []Layer{Seccomp, Privileges}, try: func(*child) error {
			fd, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return unix.Setns(fd, unix.CLONE_NEWNET)
		}},
		Attempt{Name: "setns-of-process", Class: ClassNamespaces, Property: p, Alone: []Layer{Seccomp, Privileges}, victim: true, try: func(c *child) error {
			pid, err := c.number(bystander)
			if err != nil {
				return err
			}
			fd, err := pidfd(pid)
			if err != nil {
				return err
			}
			return unix.Setns(fd, unix.CLONE_NEWNET)
		}},
		Attempt{Name: "mount", Class: ClassNamespaces, Property: p, Alone: mounts, try: func(c *child) error {
			if err := unix.Mount("caisson", c.in("a"), "tmpfs", 0, ""); err != nil {
				return err
			}
			return unix.Unmount(c.in("a"), unix.MNT_DETACH)
		}},
		Attempt{Name: "bind-mount", Class: ClassNamespaces, Property: p, Alone: mounts, try: func(c *child) error {
			if err := unix.Mount(c.out(""), c.in("b"), "", unix.MS_BIND, ""); err != nil {
				return err
			}
			return unix.Unmount(c.in("b"), unix.MNT_DETACH)
		}},
		Attempt{Name: "umount", Class: ClassNamespaces, Property: p, Alone: []Layer{Seccomp, Privileges}, try: func(c *child) error {
			return c.reaches(unix.SYS_UMOUNT2, c.in("a"), unix.MNT_DETACH) // where nothing is mounted
		}},
		Attempt{Name: "pivot-root", Class: ClassNamespaces, Property: p, Alone: []Layer{Seccomp, Privileges}, try: func(c *child) error {
			return c.reaches(unix.SYS_PIVOT_ROOT, c.in("a"), c.in("a"))
		}},
		Attempt{Name: "chroot", Class: ClassNamespaces, Property: p, Alone: []Layer{Seccomp, Privileges}, try: func(c *child) error { return unix.Chroot(c.in("a")) }},
		Attempt{Name: "open-tree", Class: ClassNamespaces, Property: p, Alone: []Layer{Seccomp, Privileges}, try: func(*child) error {
			return opened(unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC))
		}},
		Attempt{Name: "move-mount", Class: ClassNamespaces, Property: p, Alone: []Layer{Seccomp, Privileges}, try: func(c *child) error {
			return c.reaches(unix.SYS_MOVE_MOUNT, unix.AT_FDCWD, c.in("a"), unix.AT_FDCWD, c.in("b"), 0)
		}},
		Attempt{Name: "fsopen", Class: ClassNamespaces, Property: p, Alone: []Layer{Seccomp, Privileges}, try: func(*child) error { return opened(unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)) }},
		call("fsconfig", filtered, unix.SYS_FSCONFIG, -1, 0, 0, 0, 0),
		call("fsmount", []Layer{Seccomp, Privileges}, unix.SYS_FSMOUNT, -1, 0, 0),
		call("fspick", []Layer{Seccomp, Privileges}, unix.SYS_FSPICK, -1, "", 0),
		call("mount-setattr", filtered, unix.SYS_MOUNT_SETATTR, -1, "", 0x1000, make([]byte, 32), 32),
	)
}

func ipcAttempts() []Attempt {
	const p = domain.PropertyIPC
	ipc := func(name string, try func(*child) error) Attempt {
		return Attempt{Name: name, Class: ClassIPC, Property: p, Alone: []Layer{Seccomp}, try: try}
	}
	return []Attempt{
		ipc("shared-memory", func(*child) error {
			id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o600)
			if err != nil {
				return err
			}
			_, err = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
			return err
		}),
		ipc("shared-memory-list", func(c *child) error {
			_, err := c.call(unix.SYS_SHMCTL, 0, 14, make([]byte, 256)) // SHM_INFO
			return err
		}),
		ipc("semaphores", func(c *child) error {
			id, err := c.call(unix.SYS_SEMGET, unix.IPC_PRIVATE, 1, unix.IPC_CREAT|0o600)
			if err != nil {
				return err
			}
			_, err = c.call(unix.SYS_SEMCTL, id, 0, unix.IPC_RMID, 0)
			return err
		}),
		ipc("message-queue", func(c *child) error {
			id, err := c.call(unix.SYS_MSGGET, unix.IPC_PRIVATE, unix.IPC_CREAT|0o600)
			if err != nil {
				return err
			}
			_, err = c.call(unix.SYS_MSGCTL, id, unix.IPC_RMID, 0)
			return err
		}),
		{Name: "posix-message-queue", Class: ClassIPC, Property: p, Alone: []Layer{Seccomp}, effect: queueMade, try: func(c *child) error {
			fd, err := c.call(unix.SYS_MQ_OPEN, c.values["abstract"], unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600, 0)
			return opened(int(fd), err)
		}},
		ipc("keyring-add", func(*child) error {
			_, err := unix.AddKey("user", "caisson", []byte("secret"), unix.KEY_SPEC_PROCESS_KEYRING)
			return err
		}),
		ipc("keyring-session", func(*child) error {
			_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, false)
			return err
		}),
		ipc("keyring-user", func(*child) error {
			_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_USER_KEYRING, true)
			return err
		}),
		kernelCall("request-key", ClassIPC, p, []Layer{Seccomp}, unix.SYS_REQUEST_KEY, "user", "caisson-none", 0, 0),
	}
}

// queueMade removes the message queue, which the child may not be able to even if
// it could make it, and says whether there was one.
func queueMade(s *Stage) (bool, error) {
	m, err := newArena()
	if err != nil {
		return false, err
	}
	at, err := m.put(append([]byte(s.abstract), 0))
	if err == nil {
		_, err = raw(unix.SYS_MQ_UNLINK, at)
	}
	_, unmapped := raw(unix.SYS_MUNMAP, m.addr, arenaSize)
	return err == nil, errors.Join(unmapped, unix.Close(m.fd))
}

func privilegeAttempts() []Attempt {
	const p = domain.PropertyPrivileges
	return []Attempt{
		{Name: "setuid-program", Class: ClassPrivileges, Property: p, Alone: []Layer{Privileges}, try: func(*child) error {
			for _, path := range []string{"/usr/bin/su", "/bin/su", "/usr/bin/passwd", "/usr/bin/chsh"} {
				info, err := os.Stat(path)
				if err != nil || info.Mode()&os.ModeSetuid == 0 {
					continue
				}
				return setuidRoot(path)
			}
			return unavailableError("no setuid program")
		}},
		{Name: "setuid-program-of-other-user", Class: ClassPrivileges, Property: p, Alone: []Layer{Privileges}, arrange: foreignProgram, try: func(c *child) error {
			status, _, err := ends(nil, nil, c.in("foreign-program"))
			switch {
			case err != nil:
				return err
			case status.ExitStatus() == nobody&0xff:
				return nil
			case status.ExitStatus() == os.Geteuid()&0xff:
				return unix.EPERM
			}
			return fmt.Errorf("it ended with %v", status)
		}},
		{Name: "foreign-file", Class: ClassPrivileges, Property: p, Alone: []Layer{Privileges}, arrange: foreignFile, reads: true, try: func(c *child) error {
			return c.readSecret(c.in("foreign"))
		}},
		{Name: "chown-foreign-file", Class: ClassPrivileges, Property: p, Alone: []Layer{Privileges}, arrange: foreignFile, try: func(c *child) error {
			return unix.Chown(c.in("foreign"), os.Getuid(), os.Getgid())
		}},
		{Name: "chmod-foreign-file", Class: ClassPrivileges, Property: p, Alone: []Layer{Privileges}, arrange: foreignFile, try: func(c *child) error {
			return unix.Chmod(c.in("foreign"), 0o666)
		}},
		{Name: "become-other-user", Class: ClassPrivileges, Property: p, Alone: []Layer{Privileges}, try: func(*child) error {
			other := uintptr(os.Geteuid() + 1)
			_, err := raw(unix.SYS_SETRESUID, other, other, other)
			return err
		}},
		{Name: "signal-init", Class: ClassSignals, Property: domain.PropertySignals, Alone: []Layer{Landlock}, try: func(*child) error {
			return unix.Kill(1, 0)
		}},
		{Name: "raise-limit", Class: ClassPrivileges, Property: p, Alone: []Layer{Privileges}, try: func(*child) error {
			if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
				return err
			}
			return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Max: 1})
		}},
		{Name: "own-layers", Class: ClassPrivileges, Property: domain.PropertyFilesystem, Alone: []Layer{Landlock}, effect: changed(atOutside, "file", "original"),
			granted: grants(domain.AccessWriteFile, "file"), try: ownLayers},
	}
}

// nobody is the user that root can make files of others with.
const nobody = 65534

func foreignFile(s *Stage) error {
	if os.Geteuid() != 0 {
		return unavailableError("only root can make files of another user")
	}
	path := filepath.Join(s.work, "foreign")
	if err := os.WriteFile(path, []byte(s.secret), 0o600); err != nil {
		return err
	}
	return os.Chown(path, nobody, nobody)
}

// foreignProgram makes a setuid program of another user, which tells whose
// rights it has.
func foreignProgram(s *Stage) error {
	if os.Geteuid() != 0 {
		return unavailableError("only root can make programs of another user")
	}
	if err := amd64Only(); err != nil {
		return err
	}
	path := filepath.Join(s.work, "foreign-program")
	if err := os.WriteFile(path, makeELF(tellEffectiveUser), 0o755); err != nil {
		return err
	}
	if err := os.Chown(path, nobody, nobody); err != nil {
		return err
	}
	return unix.Chmod(path, 0o4755)
}

// setuidRoot starts a setuid program of root's and looks whose rights it has
// while it waits for its input.
func setuidRoot(path string) error {
	if os.Geteuid() == 0 {
		return unavailableError("root gains nothing by a setuid program of root")
	}
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	p, err := os.StartProcess(path, []string{filepath.Base(path)}, &os.ProcAttr{Files: []*os.File{in, null, null}})
	if err != nil {
		return err
	}
	gained, err := gainsRoot(p.Pid)
	_ = out.Close() // the end of its input ends it
	_, waited := p.Wait()
	if err := errors.Join(err, waited); err != nil {
		return err
	}
	if !gained {
		return unix.EPERM
	}
	return nil
}

// gainsRoot watches a process that has just been started. Its rights change
// somewhat after its descriptors are closed for its program, which is all that
// its parent is told, so what it has not yet it may have soon.
func gainsRoot(pid int) (bool, error) {
	for deadline := time.Now().Add(300 * time.Millisecond); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		status, err := os.ReadFile(procFile(pid, "status"))
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(string(status)) {
			if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "Uid:" && fields[2] == "0" {
				return true, nil
			}
		}
	}
	return false, nil
}

// ownLayers adds layers of Landlock until the kernel takes no more, each of which
// forbids nothing that is tried then: no layer takes an earlier one away.
func ownLayers(c *child) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	for range 20 {
		fd, err := c.call(unix.SYS_LANDLOCK_CREATE_RULESET, words(unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK), 8, 0)
		if err != nil {
			return unavailableError("no Landlock: " + err.Error())
		}
		_, err = raw(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0)
		if err := errors.Join(unix.Close(int(fd))); err != nil {
			return err
		}
		if errors.Is(err, unix.E2BIG) {
			return overwrite(c.out("file"), unix.O_WRONLY)
		}
		if err != nil {
			return err
		}
	}
	return errors.New("20 layers, and no end")
}

func entryAttempts() []Attempt {
	const others, processes = domain.PropertyOtherSockets, domain.PropertyOtherProcesses
	filtered := []Layer{Seccomp}
	socket := func(name string, p domain.Property, family, kind, proto int, granted func(domain.SandboxPlan, *Stage) bool) Attempt {
		return Attempt{Name: name, Class: ClassEntry, Property: p, Alone: filtered, granted: granted, try: func(c *child) error {
			fd, err := c.call(unix.SYS_SOCKET, family, kind, proto)
			return opened(int(fd), err)
		}}
	}
	return []Attempt{
		socket("high-bit-family", domain.PropertyUDP, unix.AF_INET|highBit, unix.SOCK_DGRAM, 0, grantsUDP),
		socket("high-bit-type", domain.PropertyUDP, unix.AF_INET, unix.SOCK_DGRAM|highBit, 0, grantsUDP),
		socket("high-bit-protocol", others, unix.AF_INET, unix.SOCK_STREAM, protoMPTCP|highBit, nil),
		socket("flags-on-type", domain.PropertyUDP, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0, grantsUDP),
		{Name: "high-bit-pid", Class: ClassEntry, Property: processes, Alone: filtered, victim: true, try: func(c *child) error {
			pid, err := c.number(bystander)
			if err != nil {
				return err
			}
			_, err = c.call(unix.SYS_PRLIMIT64, pid|highBit, unix.RLIMIT_CORE, 0, make([]byte, 16))
			return err
		}},
		{Name: "high-bit-fast-open", Class: ClassEntry, Property: others, Alone: filtered, sends: true, try: socketTry(unix.AF_INET, unix.SOCK_STREAM, 0, to4("tcp"), func(c *child, fd int, to unix.Sockaddr) error {
			name := rawSockaddr(to)
			_, err := c.call(unix.SYS_SENDTO, fd, c.token(), len(c.token()), unix.MSG_FASTOPEN|highBit, name, len(name))
			return err
		})},
		{Name: "int-80", Class: ClassEntry, Property: domain.PropertyUDP, Alone: filtered, try: func(c *child) error {
			return foreignCode(c, socketByInt80)
		}},
		{Name: "x32", Class: ClassEntry, Property: domain.PropertyUDP, Alone: filtered, try: func(c *child) error {
			return foreignCode(c, socketByX32)
		}},
		{Name: "x32-from-go", Class: ClassEntry, Property: domain.PropertyUDP, Alone: filtered, try: func(*child) error {
			if err := amd64Only(); err != nil {
				return err
			}
			fd, err := raw(0x4000_0000|unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM)
			return opened(int(fd), err)
		}},
	}
}

// foreignCode runs machine code that makes a datagram socket by another calling
// convention and exits with 0, or with the error.
func foreignCode(c *child, code []byte) error {
	if err := amd64Only(); err != nil {
		return err
	}
	path := c.in("foreign-code")
	if err := os.WriteFile(path, makeELF(code), 0o700); err != nil {
		return err
	}
	status, _, err := ends(nil, nil, path)
	switch {
	case err != nil:
		return err
	case status.Signaled() && status.Signal() == unix.SIGSYS:
		return unix.EPERM
	case status.Signaled():
		return unavailableError("the host does not run it: " + status.Signal().String())
	case status.ExitStatus() != 0:
		return syscall.Errno(status.ExitStatus())
	}
	return nil
}

// workAttempts is what programs do all day.
func workAttempts() []Attempt {
	work := func(name string, try func(*child) error) Attempt {
		return Attempt{Name: name, Class: ClassWork, Works: true, try: try}
	}
	reach := work("connect-to-granted-port", socketTry(unix.AF_INET, unix.SOCK_STREAM, 0, to4("granted"), connectAndWrite))
	reach.sends = true
	write := work("write-read-run", func(c *child) error {
		if err := os.WriteFile(c.in("new"), []byte("text"), 0o600); err != nil {
			return err
		}
		if data, err := os.ReadFile(c.in("new")); err != nil || string(data) != "text" {
			return errors.Join(err, errors.New("it reads something else"))
		}
		if err := copyFile("/bin/true", c.in("program"), 0o700); err != nil {
			return err
		}
		return runs(c.in("program"))
	})
	write.effect = made(atWork, "new")
	rename := work("rename-between-directories", func(c *child) error {
		if err := os.WriteFile(c.in("a/moving"), nil, 0o600); err != nil {
			return err
		}
		return os.Rename(c.in("a/moving"), c.in("b/moved"))
	})
	rename.effect = func(s *Stage) (bool, error) { return made(atWork, "b/moved")(s) }
	link := work("link-between-directories", func(c *child) error { return os.Link(c.in("file"), c.in("b/linked")) })
	link.effect = func(s *Stage) (bool, error) { return made(atWork, "b/linked")(s) }
	return []Attempt{
		write, rename, link, reach,
		work("read-readonly-grant", func(c *child) error { _, err := os.ReadFile(c.readonly("file")); return err }),
		work("symlink-fifo-truncate-lock", func(c *child) error {
			fd, err := unix.Open(c.in("file"), unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return errors.Join(
				os.Symlink("file", c.in("symlink")), unix.Mkfifo(c.in("fifo"), 0o600),
				os.Truncate(c.in("other"), 1), unix.Flock(fd, unix.LOCK_EX), unix.Chmod(c.in("file"), 0o700), unix.Close(fd),
			)
		}),
		work("socket-pair", func(*child) error {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				return err
			}
			_, err = unix.Write(fds[0], []byte("x"))
			return err
		}),
		work("list-interfaces", func(*child) error {
			// As node's os.networkInterfaces.
			_, err := syscall.NetlinkRIB(unix.RTM_GETADDR, unix.AF_UNSPEC)
			return err
		}),
		work("start-and-stop-children", func(*child) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			p, err := os.StartProcess(self, []string{self, Subcommand, asIdle}, &os.ProcAttr{Files: []*os.File{nil, nil, nil}})
			if err != nil {
				return err
			}
			if err := p.Signal(unix.SIGKILL); err != nil {
				return err
			}
			state, err := p.Wait()
			if err == nil && state.Success() {
				err = errors.New("it was not stopped")
			}
			return err
		}),
		work("threads", func(*child) error {
			done := make(chan int)
			for range 8 {
				go func() {
					runtime.LockOSThread() // a thread each, which ends with the goroutine
					done <- unix.Gettid()
				}()
			}
			for range 8 {
				<-done
			}
			return nil
		}),
		work("own-limits", func(*child) error {
			var l unix.Rlimit
			if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &l); err != nil {
				return err
			}
			return unix.Prlimit(0, unix.RLIMIT_NOFILE, &l, nil)
		}),
		work("shared-memory-in-workspace", func(c *child) error {
			// As sem_open(3) and Python's multiprocessing do it in /dev/shm.
			fd, err := unix.Open(c.in("sem.new"), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
			if err != nil {
				return err
			}
			if err := unix.Ftruncate(fd, 4096); err != nil {
				return err
			}
			data, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err != nil {
				return err
			}
			data[0] = 1
			return errors.Join(os.Link(c.in("sem.new"), c.in("sem")), os.Remove(c.in("sem.new")), unix.Munmap(data), unix.Close(fd))
		}),
		work("watch-workspace", func(c *child) error {
			fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
			if err != nil {
				return err
			}
			_, err = unix.InotifyAddWatch(fd, c.in(""), unix.IN_CREATE)
			return err
		}),
		work("clocks-and-timers", func(*child) error {
			t := time.NewTimer(time.Millisecond)
			<-t.C
			return nil
		}),
		work("own-process-files", func(*child) error {
			_, err := os.ReadFile("/proc/self/status")
			if err == nil {
				_, err = os.ReadFile("/proc/self/environ")
			}
			return err
		}),
		work("random-and-null", func(*child) error {
			if err := os.WriteFile("/dev/null", []byte("x"), 0); err != nil {
				return err
			}
			fd, err := unix.Open("/dev/urandom", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			return opened(fd, err)
		}),
	}
}

func attempts() []Attempt {
	var list []Attempt
	for _, part := range [][]Attempt{
		fileAttempts(), procAttempts(), descriptorAttempts(), networkAttempts(), signalAttempts(), processAttempts(),
		ipcAttempts(), namespaceAttempts(), privilegeAttempts(), kernelAttempts(), entryAttempts(), workAttempts(),
	} {
		list = append(list, part...)
	}
	order := map[Class]int{}
	for i, c := range Classes() {
		order[c] = i
	}
	slices.SortStableFunc(list, func(a, b Attempt) int { return order[a.Class] - order[b.Class] })
	return list
}
