//go:build amd64 || arm64

package escape

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
)

// attack makes an attempt on a victim, once for a process that nothing confines
// and once for one of a sibling session.
func attack(name string, class Class, p domain.Property, alone []Layer, shape func(*Attempt), try func(c *child, pid int, kind string) error) []Attempt {
	list := make([]Attempt, 0, 2)
	for _, kind := range []string{bystander, sibling} {
		a := Attempt{Name: name, Class: class, Property: p, Alone: alone, victim: true, try: func(c *child) error {
			pid, err := c.number(kind)
			if err != nil {
				return err
			}
			return try(c, pid, kind)
		}}
		if kind == sibling {
			a.Name += "-of-sibling"
		}
		if shape != nil {
			shape(&a)
		}
		list = append(list, a)
	}
	return list
}

func reads(a *Attempt) { a.reads = true }

func procFile(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// pidfd opens a process, which is no denial yet.
func pidfd(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) {
		err = unavailableError("no pidfds here")
	}
	return fd, err
}

// sigqueue is what siginfo_t begins with, for a signal that sigqueue(3) sends.
func sigqueue(sig int) []byte {
	info := make([]byte, 128)
	binary.NativeEndian.PutUint32(info[0:], uint32(sig))
	binary.NativeEndian.PutUint32(info[8:], ^uint32(0)) // si_code SI_QUEUE, -1
	return info
}

func signalAttempts() (list []Attempt) {
	kill := int(unix.SIGKILL)
	for _, s := range []struct {
		name string
		try  func(c *child, pid int) error
	}{
		{"kill", func(_ *child, pid int) error { return unix.Kill(pid, unix.SIGKILL) }},
		{"tkill", func(c *child, pid int) error { _, err := c.call(unix.SYS_TKILL, pid, kill); return err }},
		{"tgkill", func(_ *child, pid int) error { return unix.Tgkill(pid, pid, unix.SIGKILL) }},
		{"sigqueue", func(c *child, pid int) error {
			_, err := c.call(unix.SYS_RT_SIGQUEUEINFO, pid, kill, sigqueue(kill))
			return err
		}},
		{"thread-sigqueue", func(c *child, pid int) error {
			_, err := c.call(unix.SYS_RT_TGSIGQUEUEINFO, pid, pid, kill, sigqueue(kill))
			return err
		}},
		{"pidfd-send-signal", func(_ *child, pid int) error {
			fd, err := pidfd(pid)
			if err != nil {
				return err
			}
			return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}},
		{"signal-by-descriptor", func(_ *child, pid int) error { // fcntl(2), F_SETOWN
			var fds [2]int
			if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
				return err
			}
			for _, set := range [][2]int{{unix.F_SETOWN, pid}, {unix.F_SETSIG, kill}, {unix.F_SETFL, unix.O_ASYNC | unix.O_NONBLOCK}} {
				if _, err := unix.FcntlInt(uintptr(fds[0]), set[0], set[1]); err != nil {
					return err
				}
			}
			_, err := unix.Write(fds[1], []byte("x"))
			return err
		}},
	} {
		shape := func(a *Attempt) { a.kills, a.silent = true, s.name == "signal-by-descriptor" }
		list = append(list, attack(s.name, ClassSignals, domain.PropertySignals, []Layer{Landlock}, shape, func(c *child, pid int, _ string) error {
			return s.try(c, pid)
		})...)
	}
	// To the orchestrator goes one that does nothing to it.
	list = append(list, Attempt{Name: "signal-orchestrator", Class: ClassSignals, Property: domain.PropertySignals, Alone: []Layer{Landlock}, try: func(c *child) error {
		pid, err := c.number("orchestrator")
		if err != nil {
			return err
		}
		return unix.Kill(pid, unix.SIGURG)
	}})
	return list
}

// limitSet is the limit that an attempt sets, which the host then looks for.
const limitSet = 12345 << 12

func processAttempts() (list []Attempt) {
	processes := domain.PropertyOtherProcesses
	both := []Layer{Landlock, Seccomp}
	attackOn := func(name string, alone []Layer, shape func(*Attempt), try func(*child, int, string) error) {
		list = append(list, attack(name, ClassProcesses, processes, alone, shape, try)...)
	}
	attackOn("prlimit-set", []Layer{Seccomp}, func(a *Attempt) {
		kind := bystander
		if a.Name != "prlimit-set" {
			kind = sibling
		}
		a.effect = func(s *Stage) (bool, error) {
			var got unix.Rlimit
			err := unix.Prlimit(s.victims[kind].pid, unix.RLIMIT_CORE, nil, &got)
			if err == nil && got.Cur == limitSet {
				got.Cur = 0
				err = unix.Prlimit(s.victims[kind].pid, unix.RLIMIT_CORE, &got, nil)
				return true, err
			}
			return false, err
		}
		// The host's own hard limit may be lower.
		a.arrange = func(*Stage) error {
			var own unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_CORE, &own); err != nil || own.Max < limitSet {
				return unavailableError("the host's hard limit on core files is too low to show it")
			}
			return nil
		}
	}, func(_ *child, pid int, _ string) error {
		var old unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_CORE, nil, &old); err != nil {
			return err
		}
		old.Cur = limitSet
		return unix.Prlimit(pid, unix.RLIMIT_CORE, &old, nil)
	})
	attackOn("prlimit-cpu-time", []Layer{Seccomp}, nil, func(_ *child, pid int, _ string) error {
		// With a limit of 1 s the kernel would end a process that works.
		return unix.Prlimit(pid, unix.RLIMIT_CPU, nil, &unix.Rlimit{})
	})
	attackOn("ptrace-attach", both, nil, func(_ *child, pid int, _ string) error {
		if err := unix.PtraceAttach(pid); err != nil {
			return err
		}
		if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != nil {
			return err
		}
		return unix.PtraceDetach(pid)
	})
	attackOn("ptrace-seize", both, nil, func(c *child, pid int, _ string) error {
		return unix.PtraceSeize(pid) // the end of this process lets go of it
	})
	attackOn("process-vm-readv", both, reads, func(c *child, pid int, kind string) error {
		at, err := c.number(kind + "-addr")
		if err != nil {
			return err
		}
		buf := make([]byte, secretSize)
		_, err = unix.ProcessVMReadv(pid, []unix.Iovec{iovec(buf)}, []unix.RemoteIovec{{Base: uintptr(at), Len: len(buf)}}, 0)
		c.proof = string(buf)
		return err
	})
	attackOn("process-vm-writev", both, nil, func(c *child, pid int, kind string) error {
		at, err := c.number(kind + "-addr")
		if err != nil {
			return err
		}
		_, err = unix.ProcessVMWritev(pid, []unix.Iovec{iovec([]byte("x"))}, []unix.RemoteIovec{{Base: uintptr(at) + 4096, Len: 1}}, 0)
		return err
	})
	attackOn("pidfd-getfd", both, reads, func(c *child, pid int, kind string) error {
		theirs, err := c.number(kind + "-fd")
		if err != nil {
			return err
		}
		process, err := pidfd(pid)
		if err != nil {
			return err
		}
		fd, err := unix.PidfdGetfd(process, theirs, 0)
		if err != nil {
			return err
		}
		return c.readFD(fd)
	})
	attackOn("kcmp", both, nil, func(c *child, pid int, _ string) error {
		_, err := c.call(unix.SYS_KCMP, os.Getpid(), pid, 0, 0, 0) // KCMP_FILE
		return err
	})
	attackOn("process-madvise", []Layer{Seccomp}, nil, func(c *child, pid int, kind string) error {
		at, err := c.number(kind + "-addr")
		if err != nil {
			return err
		}
		process, err := pidfd(pid)
		if err != nil {
			return err
		}
		_, err = c.call(unix.SYS_PROCESS_MADVISE, process, words(uint64(at)&^4095, 4096), 1, unix.MADV_COLD, 0)
		return err
	})
	attackOn("move-pages", []Layer{Landlock}, nil, func(c *child, pid int, kind string) error {
		at, err := c.number(kind + "-addr")
		if err != nil {
			return err
		}
		_, err = c.call(unix.SYS_MOVE_PAGES, pid, 1, words(uint64(at)&^4095), 0, words(0), 0)
		return err
	})
	attackOn("robust-list", []Layer{Landlock}, nil, func(c *child, pid int, _ string) error {
		_, err := c.call(unix.SYS_GET_ROBUST_LIST, pid, words(0), words(0))
		return err
	})
	attackOn("perf-event-of-process", []Layer{Seccomp}, nil, func(_ *child, pid int, _ string) error {
		attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_TASK_CLOCK, Size: 112, Bits: 1 << 5} // exclude_kernel
		return opened(unix.PerfEventOpen(&attr, pid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC))
	})
	const priority = "priority and affinity of the user's own processes can be changed (SECURITY.md)"
	for _, l := range []struct {
		name string
		try  func(pid int) error
	}{
		{"priority-of-process", func(pid int) error { return unix.Setpriority(unix.PRIO_PROCESS, pid, 5) }},
		{"affinity-of-process", func(pid int) error {
			var set unix.CPUSet
			if err := unix.SchedGetaffinity(pid, &set); err != nil {
				return err
			}
			return unix.SchedSetaffinity(pid, &set)
		}},
	} {
		list = append(list, Attempt{Name: l.name, Class: ClassProcesses, victim: true, Limit: priority, try: func(c *child) error {
			pid, err := c.number(bystander)
			if err != nil {
				return err
			}
			return l.try(pid)
		}})
	}
	list = append(list,
		Attempt{Name: "scheduler-realtime", Class: ClassProcesses, Property: domain.PropertyPrivileges, Alone: []Layer{Privileges}, try: func(*child) error {
			return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: 1, Priority: 1}, 0) // SCHED_FIFO
		}},
		Attempt{Name: "prlimit-orchestrator", Class: ClassProcesses, Property: processes, Alone: []Layer{Seccomp}, try: func(c *child) error {
			pid, err := c.number("orchestrator")
			if err != nil {
				return err
			}
			return unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &unix.Rlimit{})
		}},
		Attempt{Name: "process-vm-readv-orchestrator", Class: ClassProcesses, Property: processes, Alone: both, try: func(c *child) error {
			pid, err := c.number("orchestrator")
			if err != nil {
				return err
			}
			// Nothing is there; whether one may look is asked first.
			buf := make([]byte, 1)
			_, err = unix.ProcessVMReadv(pid, []unix.Iovec{iovec(buf)}, []unix.RemoteIovec{{Base: 1, Len: 1}}, 0)
			if errors.Is(err, unix.EFAULT) {
				err = nil
			}
			return err
		}},
	)
	return list
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}

func procAttempts() (list []Attempt) {
	landlock := []Layer{Landlock}
	// Who has CAP_PERFMON, as root does, reads them past Landlock, so that takes
	// two layers.
	memory := landlock
	if os.Geteuid() == 0 {
		memory = nil
	}
	onProc := func(name string, shape func(*Attempt), try func(*child, int, string) error) {
		list = append(list, attack(name, ClassProc, domain.PropertyFilesystem, landlock, shape, try)...)
	}
	onProc("proc-environ", reads, func(c *child, pid int, _ string) error { return c.readSecret(procFile(pid, "environ")) })
	onProc("proc-mem-read", reads, func(c *child, pid int, kind string) error {
		at, err := c.number(kind + "-addr")
		if err != nil {
			return err
		}
		f, err := os.Open(procFile(pid, "mem"))
		if err != nil {
			return err
		}
		buf := make([]byte, secretSize)
		_, err = f.ReadAt(buf, int64(at))
		c.proof = string(buf)
		return err
	})
	onProc("proc-mem-write", nil, func(c *child, pid int, kind string) error {
		at, err := c.number(kind + "-addr")
		if err != nil {
			return err
		}
		f, err := os.OpenFile(procFile(pid, "mem"), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteAt([]byte("x"), int64(at)+4096)
		return err
	})
	onProc("proc-task-mem", nil, func(_ *child, pid int, _ string) error {
		return opened(unix.Open(procFile(pid, "task/"+strconv.Itoa(pid)+"/mem"), unix.O_RDONLY|unix.O_CLOEXEC, 0))
	})
	onProc("proc-fd", reads, func(c *child, pid int, kind string) error {
		fd, err := c.number(kind + "-fd")
		if err != nil {
			return err
		}
		return c.readSecret(procFile(pid, "fd/"+strconv.Itoa(fd)))
	})
	onProc("proc-root", reads, func(c *child, pid int, _ string) error { return c.readSecret(procFile(pid, "root"+c.out("secret"))) })
	onProc("proc-maps", nil, func(_ *child, pid int, _ string) error {
		data, err := os.ReadFile(procFile(pid, "maps"))
		if err == nil && len(bytes.TrimSpace(data)) == 0 {
			err = unix.EACCES
		}
		return err
	})
	onProc("proc-oom-score", nil, func(_ *child, pid int, _ string) error {
		return os.WriteFile(procFile(pid, "oom_score_adj"), []byte("1000"), 0)
	})
	onProc("proc-coredump-filter", nil, func(_ *child, pid int, _ string) error {
		return os.WriteFile(procFile(pid, "coredump_filter"), []byte("0x33"), 0)
	})
	list = append(list,
		Attempt{Name: "proc-cwd", victim: true, reads: true, try: func(c *child) error {
			pid, err := c.number(bystander)
			if err != nil {
				return err
			}
			return c.readSecret(procFile(pid, "cwd/secret"))
		}},
		Attempt{Name: "proc-self-root", reads: true, try: func(c *child) error { return c.readSecret("/proc/self/root" + c.out("secret")) }},
		Attempt{Name: "proc-self-cwd", reads: true, try: func(c *child) error { return c.readSecret("/proc/self/cwd/../outside/secret") }},
	)
	for _, name := range []string{"environ", "mem", "maps"} {
		list = append(list, Attempt{Name: "orchestrator-" + name, try: func(c *child) error {
			pid, err := c.number("orchestrator")
			if err != nil {
				return err
			}
			return opened(unix.Open(procFile(pid, name), unix.O_RDONLY|unix.O_CLOEXEC, 0))
		}})
	}
	list = append(list, Attempt{Name: "orchestrator-fds", try: func(c *child) error {
		pid, err := c.number("orchestrator")
		if err != nil {
			return err
		}
		_, err = os.Readlink(procFile(pid, "fd/0"))
		return err
	}})
	// Opened, and nothing is written.
	cgroups := "/sys/fs/cgroup/cgroup.procs"
	if _, err := os.Stat(cgroups); err != nil {
		cgroups = "/sys/fs/cgroup/unified/cgroup.procs" // a hybrid host
	}
	for _, f := range []struct{ name, path string }{
		{"kernel-core-pattern", "/proc/sys/kernel/core_pattern"},
		{"kernel-modprobe", "/proc/sys/kernel/modprobe"},
		{"kernel-sysrq", "/proc/sysrq-trigger"},
		{"own-oom-score", "/proc/self/oom_score_adj"},
		{"own-mem-write", "/proc/self/mem"},
		{"cgroup-move", cgroups},
		{"kernel-log-device", "/dev/kmsg"},
		{"memory-device", "/dev/mem"},
		{"fuse-device", "/dev/fuse"},
		{"tun-device", "/dev/net/tun"},
		{"kvm-device", "/dev/kvm"},
		{"shared-memory-file", "/dev/shm"},
	} {
		list = append(list, Attempt{Name: f.name, try: func(*child) error {
			flags := unix.O_WRONLY
			if f.path == "/dev/shm" {
				flags |= unix.O_TMPFILE
			}
			return opened(unix.Open(f.path, flags|unix.O_CLOEXEC, 0o600))
		}, granted: func(p domain.SandboxPlan, _ *Stage) bool { return covered(p, domain.AccessWriteFile, f.path) }})
	}
	for i, a := range list {
		list[i].Class, list[i].Property, list[i].Alone = ClassProc, domain.PropertyFilesystem, landlock
		if a.granted == nil {
			list[i].granted = grantsProc(a.reads)
		}
		if strings.Contains(a.Name, "environ") || strings.Contains(a.Name, "maps") {
			list[i].Alone = memory
		}
	}
	return list
}

// grantsProc says whether a plan grants what lies outside, for an attempt that
// reads the secret there by another way, or to write below /proc.
func grantsProc(reads bool) func(domain.SandboxPlan, *Stage) bool {
	return func(p domain.SandboxPlan, s *Stage) bool {
		if reads {
			return covered(p, domain.AccessReadFile, s.outside)
		}
		return covered(p, domain.AccessWriteFile, "/proc/1")
	}
}

func descriptorAttempts() []Attempt {
	inherited := func(name string, try func(*child, int) error) Attempt {
		return Attempt{Name: name, Class: ClassDescriptors, Property: domain.PropertyFilesystem, Alone: []Layer{Spawner}, reads: true, arrange: leak,
			denials: []syscall.Errno{unix.EBADF}, try: func(c *child) error {
				fd, err := c.number("leaked")
				if err != nil {
					return err
				}
				return try(c, fd)
			}}
	}
	return []Attempt{
		inherited("inherited-descriptor", func(c *child, fd int) error { return c.readFD(fd) }),
		inherited("inherited-descriptor-by-name", func(c *child, fd int) error {
			err := c.readSecret("/proc/self/fd/" + strconv.Itoa(fd))
			if errors.Is(err, unix.ENOENT) {
				return unix.EBADF
			}
			return err
		}),
		{Name: "memory-file-exec", Class: ClassDescriptors, Property: domain.PropertyFilesystem, Alone: []Layer{Seccomp}, try: func(c *child) error {
			return memoryProgram(c, func(fd int) error {
				// Only the call itself is tried: it would end this attempt. An argument
				// vector that cannot be read fails after the check.
				_, err := c.call(unix.SYS_EXECVEAT, fd, "", 1, 0, unix.AT_EMPTY_PATH)
				if errors.Is(err, unix.EFAULT) {
					err = nil
				}
				return err
			})
		}},
		{Name: "memory-file-exec-by-name", Class: ClassDescriptors, Limit: "a program in memory can be run by its name in /proc (SECURITY.md, Reading is running)", try: func(c *child) error {
			return memoryProgram(c, func(fd int) error { return runs("/proc/" + strconv.Itoa(os.Getpid()) + "/fd/" + strconv.Itoa(fd)) })
		}},
	}
}

// leak opens the secret as a host does by accident, such that a child inherits
// it. It is done anew for each run, because a confined spawn marks every
// descriptor of the host.
func leak(s *Stage) error {
	if s.leaked >= 0 {
		if err := unix.Close(s.leaked); err != nil {
			return err
		}
	}
	var err error
	s.leaked, err = unix.Open(filepath.Join(s.outside, "secret"), unix.O_RDONLY, 0)
	s.values["leaked"] = strconv.Itoa(s.leaked)
	return err
}

// memoryProgram makes a program in memory.
func memoryProgram(_ *child, use func(fd int) error) error {
	fd, err := unix.MemfdCreate("program", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	data, err := os.ReadFile("/bin/true")
	if err != nil {
		return unavailableError("no program to copy")
	}
	if _, err := unix.Write(fd, data); err != nil {
		return err
	}
	return use(fd)
}
