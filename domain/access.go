package domain

import (
	"math/bits"
	"slices"
	"strings"
)

// Access is a set of file access rights. The rights are those of Landlock and
// carry its names (kernel documentation, userspace-api/landlock.html,
// "Filesystem flags"); an enforcer of another kind maps them to its own. The
// zero value is the empty set.
type Access uint32

// The single access rights.
const (
	AccessExecute     Access = 1 << iota // run a file
	AccessWriteFile                      // open a file for writing
	AccessReadFile                       // open a file for reading
	AccessReadDir                        // list a directory
	AccessRemoveDir                      // remove an empty directory
	AccessRemoveFile                     // unlink a file
	AccessMakeChar                       // make a character device node
	AccessMakeDir                        // make a directory
	AccessMakeReg                        // make a regular file
	AccessMakeSock                       // make a unix socket file
	AccessMakeFifo                       // make a named pipe
	AccessMakeBlock                      // make a block device node
	AccessMakeSym                        // make a symbolic link
	AccessRefer                          // rename or link between directories
	AccessTruncate                       // truncate a file
	AccessIoctlDev                       // ioctl(2) on an opened device file
	AccessResolveUnix                    // connect to a unix socket by its path
)

// The usual sets. Device nodes are in none of them.
const (
	// AccessRead reads files and lists directories. Note that on Linux a
	// readable program can be run through the dynamic loader, so leaving
	// AccessExecute out is advisory.
	AccessRead = AccessReadFile | AccessReadDir
	// AccessReadExec is AccessRead and running programs.
	AccessReadExec = AccessRead | AccessExecute
	// AccessWrite changes files and directory entries, including renames
	// between directories (without AccessRefer git, npm and cargo fail with
	// EXDEV).
	AccessWrite = AccessWriteFile | AccessTruncate | AccessRemoveDir | AccessRemoveFile |
		AccessMakeDir | AccessMakeReg | AccessMakeSock | AccessMakeFifo | AccessMakeSym | AccessRefer
	// AccessReadWrite reads and writes.
	AccessReadWrite = AccessRead | AccessWrite
	// AccessReadWriteExec reads, writes and runs.
	AccessReadWriteExec = AccessReadWrite | AccessExecute
)

// accessNames is in bit order.
var accessNames = [...]string{
	"execute", "write_file", "read_file", "read_dir", "remove_dir", "remove_file",
	"make_char", "make_dir", "make_reg", "make_sock", "make_fifo", "make_block",
	"make_sym", "refer", "truncate", "ioctl_dev", "resolve_unix",
}

// allAccess has every defined right.
const allAccess Access = 1<<len(accessNames) - 1

// fileAccess has the rights that mean something on a file that is no
// directory; landlock_add_rule(2) answers EINVAL to the others.
const fileAccess = AccessExecute | AccessWriteFile | AccessReadFile | AccessTruncate | AccessIoctlDev | AccessResolveUnix

// ForFile returns the rights of a that mean something on a file that is not a
// directory.
func (a Access) ForFile() Access { return a & fileAccess }

// Has reports whether a contains every right of b.
func (a Access) Has(b Access) bool { return a&b == b }

// Rights returns the single rights of a, in bit order.
func (a Access) Rights() []Access {
	rights := make([]Access, 0, bits.OnesCount32(uint32(a)))
	for rest := a & allAccess; rest != 0; rest &= rest - 1 {
		rights = append(rights, rest&-rest)
	}
	return rights
}

// Names returns the names of the single rights of a, in bit order.
func (a Access) Names() []string {
	names := make([]string, 0, bits.OnesCount32(uint32(a)))
	for _, r := range a.Rights() {
		names = append(names, accessNames[bits.TrailingZeros32(uint32(r))])
	}
	return names
}

// RightOf returns the single right of that name, 0 if there is none.
func RightOf(name string) Access {
	if i := slices.Index(accessNames[:], name); i >= 0 {
		return 1 << i
	}
	return 0
}

// UsualAccess is one of the usual sets, by the name that flags and policies have
// for it.
type UsualAccess struct {
	Name   string // landrun's: "ro", "rox", "rw", "rwx"
	Access Access
	Grants string // what it lets one do, in words
}

// UsualAccesses returns the usual sets, the smallest first.
func UsualAccesses() []UsualAccess {
	return []UsualAccess{
		{"ro", AccessRead, "reading"},
		{"rox", AccessReadExec, "reading and running"},
		{"rw", AccessReadWrite, "reading and writing"},
		{"rwx", AccessReadWriteExec, "reading, writing and running"},
	}
}

// String names the set by the short form that a policy uses where there is
// one ("read+write"), and lists the rights otherwise ("{execute,read_file}").
func (a Access) String() string {
	switch a {
	case 0:
		return "∅"
	case AccessRead:
		return "read"
	case AccessReadExec:
		return "read+exec"
	case AccessReadWrite:
		return "read+write"
	case AccessReadWriteExec:
		return "read+write+exec"
	}
	names := a.Names()
	if a&^allAccess != 0 {
		names = append(names, "undefined")
	}
	return "{" + strings.Join(names, ",") + "}"
}
