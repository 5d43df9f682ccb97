//go:build amd64 || arm64

package escape

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
)

// grants returns a check of whether a plan grants access to a place outside.
func grants(access domain.Access, name string) func(domain.SandboxPlan, *Stage) bool {
	return func(plan domain.SandboxPlan, s *Stage) bool {
		return covered(plan, access, filepath.Join(s.outside, name))
	}
}

// covered reports whether a rule grants access to a path.
func covered(plan domain.SandboxPlan, access domain.Access, path string) bool {
	return slices.ContainsFunc(plan.Rules(), func(r domain.PathRule) bool {
		return r.Access.Has(access) && (r.Path == "/" || path == r.Path || strings.HasPrefix(path, r.Path+"/"))
	})
}

// file makes an attempt on a file outside, which the path rules forbid.
func file(name string, access domain.Access, effect func(*Stage) (bool, error), try func(*child) error) Attempt {
	return Attempt{
		Name: name, Class: ClassFiles, Property: domain.PropertyFilesystem, Alone: []Layer{Landlock},
		try: try, effect: effect, granted: grants(access, ""),
	}
}

// onReadonly makes one on a file that the stage's own rules let be read.
func onReadonly(name string, access domain.Access, effect func(*Stage) (bool, error), try func(*child) error) Attempt {
	a := file(name, access, effect, try)
	a.granted = func(plan domain.SandboxPlan, s *Stage) bool { return covered(plan, access, s.readonly) }
	return a
}

// reading is one whose proof is what it read.
func reading(name string, try func(*child) error) Attempt {
	a := file(name, domain.AccessReadFile, nil, try)
	a.reads = true
	return a
}

// inClass moves an attempt to another class.
func (a Attempt) inClass(c Class) Attempt { a.Class = c; return a }

// about says of which property and layers an attempt is.
func (a Attempt) about(p domain.Property, alone ...Layer) Attempt {
	a.Property, a.Alone = p, alone
	return a
}

// limited says that an attempt gets through as stated.
func (a Attempt) limited(why string) Attempt {
	a.Limit, a.Alone = why, nil
	return a
}

// also accepts more errnos as denials.
func (a Attempt) also(denials ...unix.Errno) Attempt { a.denials = denials; return a }

// with adds to what the attempt finds.
func (a Attempt) with(arrange func(*Stage) error) Attempt { a.arrange = arrange; return a }

func fileAttempts() []Attempt {
	const metadata = "metadata of the user's own files stays changeable (SECURITY.md, Metadata)"
	outsideChanged := changed(atOutside, "file", "original")
	return []Attempt{
		reading("read-file", func(c *child) error { return c.readSecret(c.out("secret")) }),
		reading("read-by-dotdot", func(c *child) error { return c.readSecret(c.in("../outside/secret")) }),
		reading("read-by-symlink", func(c *child) error {
			if err := os.Symlink(c.out("secret"), c.in("link")); err != nil {
				return err
			}
			return c.readSecret(c.in("link"))
		}),
		reading("read-by-directory", func(c *child) error { // opening a place is not opening what is in it
			dir, err := unix.Open(c.out(""), unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			fd, err := unix.Openat(dir, "secret", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return c.readFD(fd)
		}),
		reading("read-by-reopening", func(c *child) error {
			fd, err := unix.Open(c.out("secret"), unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return c.readSecret("/proc/self/fd/" + strconv.Itoa(fd))
		}),
		reading("read-after-chdir", func(c *child) error {
			if err := os.Chdir(c.out("")); err != nil {
				return err
			}
			return c.readSecret("secret")
		}),
		reading("read-by-mapping", func(c *child) error {
			fd, err := unix.Open(c.out("secret"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			data, err := unix.Mmap(fd, 0, secretSize, unix.PROT_READ, unix.MAP_PRIVATE)
			c.proof = string(data)
			return err
		}),
		file("list-directory", domain.AccessReadDir, nil, func(c *child) error {
			_, err := os.ReadDir(c.out(""))
			return err
		}),
		file("write-file", domain.AccessWriteFile, outsideChanged, func(c *child) error { return overwrite(c.out("file"), unix.O_WRONLY) }),
		file("append-file", domain.AccessWriteFile, outsideChanged, func(c *child) error { return overwrite(c.out("file"), unix.O_WRONLY|unix.O_APPEND) }),
		onReadonly("write-readonly-grant", domain.AccessWriteFile, changed(atReadonly, "file", "original"), func(c *child) error { return overwrite(c.readonly("file"), unix.O_WRONLY) }),
		onReadonly("reopen-for-writing", domain.AccessWriteFile, changed(atReadonly, "file", "original"), func(c *child) error {
			fd, err := unix.Open(c.readonly("file"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return overwrite("/proc/self/fd/"+strconv.Itoa(fd), unix.O_WRONLY)
		}),
		file("create-file", domain.AccessMakeReg, made(atOutside, "new"), func(c *child) error {
			return overwrite(c.out("new"), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
		}),
		file("create-unnamed-file", domain.AccessMakeReg, nil, func(c *child) error {
			return opened(unix.Open(c.out(""), unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600))
		}),
		file("truncate-by-path", domain.AccessTruncate, outsideChanged, func(c *child) error { return unix.Truncate(c.out("file"), 0) }).
			about(domain.PropertyTruncate, Landlock),
		onReadonly("truncate-readonly-grant", domain.AccessTruncate, changed(atReadonly, "file", "original"), func(c *child) error {
			return unix.Truncate(c.readonly("file"), 0)
		}).about(domain.PropertyTruncate, Landlock),
		onReadonly("truncate-by-opening-for-reading", domain.AccessTruncate, changed(atReadonly, "file", "original"), func(c *child) error {
			return opened(unix.Open(c.readonly("file"), unix.O_RDONLY|unix.O_TRUNC|unix.O_CLOEXEC, 0))
		}).about(domain.PropertyTruncate, Landlock),
		file("unlink-file", domain.AccessRemoveFile, changed(atOutside, "removable", "original"), func(c *child) error { return unix.Unlink(c.out("removable")) }),
		file("remove-directory", domain.AccessRemoveDir, func(s *Stage) (bool, error) {
			there, err := made(atOutside, "empty")(s)
			return !there, err
		}, func(c *child) error { return unix.Rmdir(c.out("empty")) }),
		file("make-directory", domain.AccessMakeDir, made(atOutside, "made"), func(c *child) error { return unix.Mkdir(c.out("made"), 0o700) }),
		file("rename-out", domain.AccessMakeReg, made(atOutside, "moved"), func(c *child) error { return unix.Rename(c.in("file"), c.out("moved")) }).also(unix.EXDEV),
		file("rename-in", domain.AccessRemoveFile, made(atWork, "stolen"), func(c *child) error { return unix.Rename(c.out("secret"), c.in("stolen")) }).also(unix.EXDEV),
		file("rename-over", domain.AccessRemoveFile, outsideChanged, func(c *child) error { return unix.Rename(c.in("other"), c.out("file")) }).also(unix.EXDEV),
		file("rename-exchange", domain.AccessRemoveFile, outsideChanged, func(c *child) error {
			return unix.Renameat2(unix.AT_FDCWD, c.in("other"), unix.AT_FDCWD, c.out("file"), unix.RENAME_EXCHANGE)
		}).also(unix.EXDEV),
		file("rename-within", domain.AccessRemoveFile, changed(atOutside, "file", "original"), func(c *child) error { return unix.Rename(c.out("file"), c.out("renamed")) }),
		file("link-in", domain.AccessRefer, made(atWork, "linked"), func(c *child) error { return unix.Link(c.out("secret"), c.in("linked")) }).also(unix.EXDEV),
		file("link-out", domain.AccessMakeReg, made(atOutside, "linked"), func(c *child) error { return unix.Link(c.in("file"), c.out("linked")) }).also(unix.EXDEV),
		file("link-descriptor-out", domain.AccessMakeReg, made(atOutside, "linked"), func(c *child) error {
			fd, err := unix.Open(c.in("file"), unix.O_PATH|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, c.out("linked"), unix.AT_SYMLINK_FOLLOW)
		}).also(unix.EXDEV),
		file("symlink-out", domain.AccessMakeSym, made(atOutside, "link"), func(c *child) error { return unix.Symlink("/etc", c.out("link")) }),
		file("write-by-symlink", domain.AccessWriteFile, outsideChanged, func(c *child) error { return overwrite(c.in("way"), unix.O_WRONLY) }),
		file("create-by-symlink", domain.AccessMakeReg, made(atOutside, "planted"), func(c *child) error {
			return overwrite(c.in("nowhere"), unix.O_WRONLY|unix.O_CREAT)
		}),
		file("symlink-race", domain.AccessWriteFile, outsideChanged, symlinkRace),
		file("make-fifo", domain.AccessMakeFifo, made(atOutside, "fifo"), func(c *child) error { return unix.Mkfifo(c.out("fifo"), 0o600) }),
		file("make-socket-file", domain.AccessMakeSock, made(atOutside, "socket"), func(c *child) error { return unix.Mknod(c.out("socket"), unix.S_IFSOCK|0o600, 0) }),
		file("make-character-device", noAccess, made(atWork, "device"), func(c *child) error {
			return unix.Mknod(c.in("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
		}).about(domain.PropertyFilesystem, Landlock, Privileges),
		file("make-block-device", noAccess, made(atWork, "device"), func(c *child) error {
			return unix.Mknod(c.in("device"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0)))
		}).about(domain.PropertyFilesystem, Landlock, Privileges),
		func() Attempt {
			a := file("write-fifo", domain.AccessWriteFile, nil, func(c *child) error {
				fd, err := unix.Open(c.out("host-fifo"), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				_, err = unix.Write(fd, c.token())
				return errors.Join(err, unix.Close(fd))
			}).with(hostFifo)
			a.sends = true
			return a
		}(),
		file("run-program", domain.AccessExecute, nil, func(c *child) error { return runs(c.out("program")) }).with(outsideProgram),
		file("run-by-loader", domain.AccessReadFile, nil, func(c *child) error {
			for _, loader := range []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"} {
				if _, err := os.Stat(loader); err == nil {
					status, _, err := ends(nil, nil, loader, c.out("program"))
					if err == nil && status.ExitStatus() == 127 {
						return unix.EACCES // the loader says so, and cannot open it
					}
					if err == nil && status != 0 {
						err = unavailableError("the loader does not run it")
					}
					return err
				}
			}
			return unavailableError("no dynamic loader")
		}).with(outsideProgram),
		file("preload-library", domain.AccessReadFile, nil, func(c *child) error {
			_, out, err := ends(nil, []string{"LD_PRELOAD=" + c.out("library.so")}, "/bin/cat", "/proc/self/maps")
			if err == nil && !strings.Contains(out, c.out("library.so")) {
				err = unix.EACCES // the loader goes on without
			}
			return err
		}).with(outsideLibrary),
		file("open-by-handle", domain.AccessReadFile, nil, func(c *child) error {
			handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, c.out("secret"), 0)
			if err != nil {
				return unavailableError("the file system has no handles")
			}
			mount, err := unix.Open(c.in(""), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return opened(unix.OpenByHandleAt(mount, handle, unix.O_RDONLY|unix.O_CLOEXEC))
		}).about(domain.PropertyPrivileges, Seccomp, Privileges),
		file("chmod-setuid", noAccess, hasMode(unix.S_ISUID), func(c *child) error { return unix.Chmod(c.in("file"), 0o4755) }).
			about(domain.PropertyPrivileges, Seccomp).inClass(ClassPrivileges),
		file("chmod-setgid", noAccess, hasMode(unix.S_ISGID), func(c *child) error { return unix.Chmod(c.in("file"), 0o2755) }).
			about(domain.PropertyPrivileges, Seccomp).inClass(ClassPrivileges),
		file("fchmod-setuid", noAccess, hasMode(unix.S_ISUID), func(c *child) error {
			fd, err := unix.Open(c.in("file"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return unix.Fchmod(fd, 0o4755)
		}).about(domain.PropertyPrivileges, Seccomp).inClass(ClassPrivileges),
		file("fchmodat2-setuid", noAccess, hasMode(unix.S_ISUID), func(c *child) error {
			return unix.Fchmodat(unix.AT_FDCWD, c.in("file"), 0o4755, unix.AT_SYMLINK_NOFOLLOW)
		}).about(domain.PropertyPrivileges, Seccomp).inClass(ClassPrivileges),
		file("create-setuid", noAccess, nil, func(c *child) error {
			unix.Umask(0)
			fd, err := unix.Open(c.in("setuid"), unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o4755)
			if err != nil {
				return err
			}
			return hasSetID(fd)
		}).about(domain.PropertyPrivileges, Seccomp).inClass(ClassPrivileges),
		file("mknod-setuid", noAccess, nil, func(c *child) error {
			unix.Umask(0)
			if err := unix.Mknod(c.in("setuid"), unix.S_IFREG|0o4755, 0); err != nil {
				return err
			}
			fd, err := unix.Open(c.in("setuid"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return hasSetID(fd)
		}).about(domain.PropertyPrivileges, Seccomp).inClass(ClassPrivileges),
		file("chmod-outside", noAccess, func(s *Stage) (bool, error) { return modeOf(filepath.Join(s.outside, "file"), 0o777) },
			func(c *child) error { return unix.Chmod(c.out("file"), 0o777) }).limited(metadata),
		file("chown-outside", noAccess, nil, func(c *child) error { return unix.Chown(c.out("file"), os.Getuid(), os.Getgid()) }).limited(metadata),
		file("times-outside", noAccess, nil, func(c *child) error {
			return os.Chtimes(c.out("file"), time.Unix(1, 0), time.Unix(1, 0))
		}).limited(metadata),
		file("xattr-outside", noAccess, nil, func(c *child) error { return unix.Setxattr(c.out("file"), "user.caisson", []byte("x"), 0) }).limited(metadata),
		file("stat-outside", noAccess, nil, func(c *child) error {
			_, err := os.Stat(c.out("secret"))
			return err
		}).limited("names and sizes can be found out (SECURITY.md, Metadata)"),
		file("watch-outside", noAccess, nil, func(c *child) error {
			fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
			if err != nil {
				return err
			}
			_, err = unix.InotifyAddWatch(fd, c.out("file"), unix.IN_ATTRIB)
			return err
		}).limited("inotify watches can be set (SECURITY.md, Metadata)"),
	}
}

// runs runs a program that does nothing.
func runs(path string) error {
	status, _, err := ends(nil, nil, path)
	if err == nil && status != 0 {
		err = errors.New("it ran, and failed")
	}
	return err
}

// readFD reads what is behind a descriptor as the attempt's proof.
func (c *child) readFD(fd int) error {
	buf := make([]byte, 256)
	n, err := unix.Pread(fd, buf, 0)
	c.proof = string(buf[:max(n, 0)])
	return err
}

func hasSetID(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) == 0 {
		return errors.New("the kernel took the call and left the bit out")
	}
	return nil
}

func hasMode(bits uint32) func(*Stage) (bool, error) {
	return func(s *Stage) (bool, error) {
		var st unix.Stat_t
		err := unix.Stat(filepath.Join(s.work, "file"), &st)
		return st.Mode&bits != 0, err
	}
}

func modeOf(path string, want os.FileMode) (bool, error) {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Perm() == want, err
}

// symlinkRace writes to a name that turns, all the time, from a file inside into
// a link to one outside.
func symlinkRace(c *child) error {
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			// What fails in a race is tried again.
			_ = unix.Symlink(c.out("file"), c.in("next"))
			_ = unix.Rename(c.in("next"), c.in("turning"))
			_ = unix.Link(c.in("other"), c.in("next"))
			_ = unix.Rename(c.in("next"), c.in("turning"))
		}
	}()
	defer func() { close(stop); <-done }()
	denied := 0
	for range 20_000 {
		fd, err := unix.Open(c.in("turning"), unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			if errors.Is(err, unix.EACCES) {
				denied++
			}
			if denied > 200 {
				return unix.EACCES
			}
			continue
		}
		target, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if err == nil && strings.HasPrefix(target, c.out("")) {
			return writeAndClose(fd)
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	if denied == 0 {
		return unavailableError("the race was never on")
	}
	return unix.EACCES
}

// hostFifo makes a pipe that the host reads from.
func hostFifo(s *Stage) error {
	path := filepath.Join(s.outside, "host-fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return err
	}
	// For reading and writing, so that it opens at once and never ends.
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	s.closers = append(s.closers, f.Close)
	s.serving.Go(func() {
		buf := make([]byte, 256)
		for {
			n, err := f.Read(buf)
			s.arrive(buf[:n])
			if err != nil {
				return
			}
		}
	})
	return nil
}

// outsideProgram puts a program outside that nothing has been granted on.
func outsideProgram(s *Stage) error {
	for _, name := range []string{"/usr/bin/gnutrue", "/bin/true", "/usr/bin/true"} {
		err := copyFile(name, filepath.Join(s.outside, "program"), 0o700)
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return unavailableError("no program to copy")
}

// outsideLibrary does the same with a library.
func outsideLibrary(s *Stage) error {
	for _, pattern := range []string{"/lib/*-linux-gnu/libm.so.6", "/usr/lib64/libm.so.6", "/lib64/libm.so.6"} {
		found, err := filepath.Glob(pattern)
		if err == nil && len(found) > 0 {
			return copyFile(found[0], filepath.Join(s.outside, "library.so"), 0o700)
		}
	}
	return unavailableError("no library to copy")
}

func copyFile(from, to string, mode os.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// noAccess is one that no plan grants: for what no rule can allow, or lies where
// the stage's own rules say what is granted.
const noAccess domain.Access = 1 << 31
