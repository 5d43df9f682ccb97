package privileges

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// noRoot takes from uid 0 what the kernel gives it for being uid 0, for good
// (capabilities(7), "The securebits flags", and linux/securebits.h). Each bit
// has its lock beside it.
const noRoot = 1<<0 | 1<<1 | // SECBIT_NOROOT: all capabilities at every execve
	1<<2 | 1<<3 | // SECBIT_NO_SETUID_FIXUP: keeping them when the uid changes
	1<<6 | 1<<7 // SECBIT_NO_CAP_AMBIENT_RAISE

// Drop sets no_new_privs, so that no program that the thread starts gains
// rights by a setuid bit or file capabilities, and empties the thread's
// capability sets: effective, permitted, inheritable and ambient. Where the
// thread has CAP_SETPCAP, it also sets and locks the securebits that make root
// an ordinary user. It only makes system calls. After an error nothing may be
// started from the thread.
//
// The bounding set stays as it is: it limits what execve(2) can give, and with
// no_new_privs that is nothing (the tests look). To empty it would take a call
// per capability, together more than all the rest of a confinement.
func Drop() error {
	if err := ForgoNew(); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // the lower and the upper 32 capabilities
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	if sets[0].Effective&(1<<unix.CAP_SETPCAP) != 0 {
		bits, err := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_SECUREBITS, uintptr(bits)|noRoot, 0, 0, 0)
		}
		if err != nil {
			return fmt.Errorf("prctl securebits: %w", err)
		}
	}
	// Also clears the ambient set, which never has what permitted and inheritable
	// have not (capabilities(7)).
	sets = [2]unix.CapUserData{}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

// ForgoNew sets no_new_privs, as [Drop] does, and takes nothing away.
func ForgoNew() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl no_new_privs: %w", err)
	}
	return nil
}
