package privileges

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Drop sets no_new_privs, so that no program that the thread starts gains
// rights by a setuid bit or file capabilities, and empties the thread's
// capability sets: effective, permitted, inheritable and ambient, and the
// bounding set if the thread may (with CAP_SETPCAP; without it the set cannot
// be emptied, and with no_new_privs it gives nothing). It only makes system
// calls. After an error nothing may be started from the thread.
func Drop() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl no_new_privs: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // the lower and the upper 32 capabilities
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	if sets[0].Effective&(1<<unix.CAP_SETPCAP) != 0 {
		if err := dropBounding(); err != nil {
			return err
		}
	}
	// Also clears the ambient set, which is never more than permitted and
	// inheritable have (capabilities(7)).
	sets = [2]unix.CapUserData{}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

// dropBounding drops every capability that the kernel has; it answers EINVAL to
// the first number that is none.
func dropBounding() error {
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("prctl capbset_drop %d: %w", c, err)
		}
	}
}
