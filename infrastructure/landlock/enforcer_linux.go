package landlock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

func detect() kernel {
	abi, err := ll.LandlockGetABIVersion()
	if err != nil {
		return kernel{note: unavailable(err)}
	}
	errata, err := ll.LandlockGetErrata()
	if err != nil {
		errata = 0 // a kernel that does not know the question has none of the fixes
	}
	return kernelOf(abi, errata)
}

// unavailable says what the kernel's answer to the question for the ABI means.
func unavailable(err error) string {
	switch {
	case errors.Is(err, unix.ENOSYS):
		return "the kernel has no Landlock; needs Linux 5.13 or newer, built with CONFIG_SECURITY_LANDLOCK=y"
	case errors.Is(err, unix.EOPNOTSUPP):
		return `Landlock is built into the kernel but not enabled; needs "landlock" in the kernel's lsm= list`
	}
	return fmt.Sprintf("the kernel answers %q when asked for Landlock; a container's seccomp filter may deny it, and must let landlock_create_ruleset, landlock_add_rule and landlock_restrict_self through", err)
}

// prepare builds the rulesets of a valid plan. It leaves nothing open on error.
func (e *Enforcer) prepare(ctx context.Context, plan domain.SandboxPlan, line domain.SpawnLine) (ports.Confinement, error) {
	abi := e.kernel.abi
	if abi == 0 {
		return nil, e.absent()
	}
	planned := plan.Rules()
	granted := make([]domain.GrantedRule, 0, len(planned))
	paths := make([]ll.PathBeneathAttr, 0, len(planned))
	// The rules are descriptors, which must stay open until they are in the
	// ruleset; it keeps the objects themselves. To close them takes time that the
	// child need not wait for, so Close does it.
	opened := make([]int, 0, len(planned))
	fail := func(err error) (ports.Confinement, error) { return nil, errors.Join(err, closeAll(opened)) }
	for _, r := range planned {
		if ctx.Err() != nil {
			return fail(e.failed("prepare", context.Cause(ctx)))
		}
		g := domain.GrantedRule{Path: r.Path, Why: r.Why}
		o, err := locate(r)
		switch {
		case err == nil:
			opened = append(opened, o.fd)
			g.Access = grant(r, plan, o.dir, abi)
			if g.Access == 0 {
				g.Skipped = nothingLeft(r.Access, o.dir, abi)
				break
			}
			g.Canonical = o.canonical
			paths = append(paths, ll.PathBeneathAttr{ParentFd: o.fd, AllowedAccess: uint64(fsSet(g.Access))})
		case r.Presence == domain.Optional && unreachable(err):
			g.Skipped = reason(err)
		default:
			return fail(e.ruleFailed(r, err))
		}
		granted = append(granted, g)
	}
	c := &confinement{
		abi: abi, line: line, opened: opened,
		plan: noRuleset, group: noRuleset,
		receipt: func() domain.Receipt { return receiptOf(plan, e.kernel, slices.Clone(granted)) },
	}
	var err error
	if c.plan, err = newRuleset(config(plan, abi), portRules(plan, abi)...); err != nil {
		return nil, errors.Join(e.failed("prepare", err), c.Close())
	}
	if err := c.plan.grant(paths); err != nil {
		return nil, errors.Join(e.failed("prepare", err), c.Close())
	}
	return c, nil
}

// nothingLeft says why a rule grants nothing.
func nothingLeft(a domain.Access, dir bool, abi int) string {
	on := "a file"
	if dir {
		on = "a directory"
	}
	return fmt.Sprintf("under this plan and Landlock ABI %d, %s grants nothing on %s", abi, a, on)
}

// object is what a rule leads to, opened.
type object struct {
	fd        int
	canonical string
	dir       bool
}

// errLink: a path that is not canonical.
var errLink = errors.New("a symbolic link in the path")

// errSwapped: a symbolic link came or went between two looks at a path.
var errSwapped = errors.New("the path changed while it was being resolved: a symbolic link in it was swapped")

// errSelf: a rule that leads to the orchestrator, not to the child.
var errSelf = errors.New("the path leads into the orchestrator's own directory of /proc")

// ownProc is that directory.
var ownProc = "/proc/" + strconv.Itoa(os.Getpid())

// locate resolves a path and opens what it leads to, by descriptor, so that
// what is checked, what is granted and what the receipt names is one object,
// whoever swaps links or renames directories meanwhile.
func locate(r domain.PathRule) (object, error) {
	o, err := openCanonical(r.Path)
	if !errors.Is(err, errLink) {
		return o, err
	}
	if r.Resolved {
		return object{}, errSwapped
	}
	canonical, err := filepath.EvalSymlinks(r.Path)
	if errors.Is(err, unix.EINVAL) { // readlink: it was a link, and is none any more
		return object{}, errSwapped
	}
	if err != nil {
		return object{}, err
	}
	if o, err = openCanonical(canonical); errors.Is(err, errLink) {
		return object{}, errSwapped
	}
	return o, err
}

// openCanonical opens a clean path that has no symbolic links, or returns
// errLink.
func openCanonical(canonical string) (object, error) {
	if rest, ok := strings.CutPrefix(canonical, ownProc); ok && (rest == "" || rest[0] == '/') {
		return object{}, errSelf
	}
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, canonical, how)
	for err == unix.EINTR { // a file system in user space may be interrupted
		fd, err = unix.Openat2(unix.AT_FDCWD, canonical, how)
	}
	if err == unix.ELOOP {
		return object{}, errLink
	}
	if err != nil {
		return object{}, &fs.PathError{Op: "openat2", Path: canonical, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return object{}, errors.Join(&fs.PathError{Op: "fstat", Path: canonical, Err: err}, unix.Close(fd))
	}
	return object{fd: fd, canonical: canonical, dir: st.Mode&unix.S_IFMT == unix.S_IFDIR}, nil
}

// unreachable reports that nothing is at a path, as far as the orchestrator
// can see. What it cannot reach, its child cannot either.
func unreachable(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR)
}

// reason returns the bare error behind a path error: the path stands beside it.
func reason(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

func (e *Enforcer) ruleFailed(r domain.PathRule, err error) error {
	f := e.failed("prepare", err)
	f.Path, f.Access = r.Path, r.Access
	switch {
	case errors.Is(err, errSwapped):
		f.Remedy = "grant nothing below a directory that somebody else changes links in"
	case errors.Is(err, errSelf):
		f.Remedy = "grant /proc, or leave the rule out: the child's own directory does not exist yet"
	case errors.Is(err, unix.ENOSYS):
		f.Remedy = "a seccomp filter denies the call, often that of another Caisson, inside of which there can be none: start this one outside of it; or the kernel is older than 5.6"
	case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE):
		f.Remedy = "raise the limit on open files (ulimit -n)"
	case errors.Is(err, fs.ErrPermission):
		f.Remedy = "make it reachable for this user, mark the rule optional, or leave it out"
	case unreachable(err) && r.Access.Has(domain.AccessMakeReg):
		f.Remedy = "create it, grant its directory, mark the rule optional, or leave it out"
	default:
		f.Remedy = "create it, mark the rule optional, or leave it out"
	}
	return f
}

// ruleset is a built ruleset and the flags to enforce it with. The fd is −1
// if there is none.
type ruleset struct {
	fd    int
	flags uint32
}

var noRuleset = ruleset{fd: -1}

func newRuleset(c landlock.Config, rules ...landlock.Rule) (ruleset, error) {
	fd, flags, err := c.NewRulesetFD(rules...)
	if err != nil {
		return noRuleset, fmt.Errorf("build the ruleset: %w", err)
	}
	if fd < 0 {
		return noRuleset, errors.New("build the ruleset: nothing would be restricted")
	}
	return ruleset{fd: fd, flags: flags}, nil
}

// grant adds path rules by the descriptors that they were resolved to. The
// library's own rules would open a name again.
func (r ruleset) grant(paths []ll.PathBeneathAttr) error {
	for i := range paths {
		if err := ll.LandlockAddPathBeneathRule(r.fd, &paths[i], 0); err != nil {
			return fmt.Errorf("landlock_add_rule: %w", err)
		}
	}
	return nil
}

// enforce puts the calling thread, and no other, into a new domain.
func (r ruleset) enforce() error {
	// Without it, the kernel takes rulesets from privileged processes only. It
	// also keeps setuid programs from gaining rights.
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl no_new_privs: %w", err)
	}
	if err := ll.LandlockRestrictSelf(r.fd, r.flags); err != nil {
		return fmt.Errorf("landlock_restrict_self: %w", err)
	}
	return nil
}

func (r ruleset) close() error {
	if r.fd < 0 {
		return nil
	}
	return unix.Close(r.fd)
}

// confinement is a prepared Landlock domain.
type confinement struct {
	abi     int
	line    domain.SpawnLine
	opened  []int                 // what the path rules were made of
	receipt func() domain.Receipt // made when it is asked for, off the way to the child

	mu                       sync.Mutex
	plan, group              ruleset
	applied, entered, closed bool
}

var (
	_ ports.Confinement = (*confinement)(nil)
	_ ports.KillGroup   = (*confinement)(nil)
)

func (c *confinement) SpawnLine() domain.SpawnLine { return c.line }

func (c *confinement) Receipt() domain.Receipt { return c.receipt() }

func (c *confinement) PrepareKillGroup() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return false, c.failed("prepare kill group", errClosed)
	case c.group.fd >= 0:
		return false, c.failed("prepare kill group", errors.New("prepared twice"))
	case c.abi < signalScopeABI:
		return false, nil
	}
	var err error
	if c.group, err = newRuleset(killGroupConfig()); err != nil {
		return false, c.failed("prepare kill group", err)
	}
	return true, nil
}

func (c *confinement) EnterKillGroup() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.failed("kill group", errClosed)
	case c.applied || c.entered:
		return c.failed("kill group", errors.New("entered twice, or after apply"))
	case c.group.fd < 0:
		return c.failed("kill group", errors.New("not prepared"))
	}
	c.entered = true
	if err := c.group.enforce(); err != nil {
		return c.failed("kill group", err)
	}
	return nil
}

func (c *confinement) Apply() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return c.failed("apply", errClosed)
	case c.applied:
		return c.failed("apply", errors.New("applied twice"))
	}
	c.applied = true
	if err := c.plan.enforce(); err != nil {
		return c.failed("apply", err)
	}
	return nil
}

// errClosed: the descriptors are gone, and their numbers may be somebody else's.
var errClosed = errors.New("the confinement is closed")

func (c *confinement) failed(step string, err error) error {
	f := &domain.EnforcementError{Step: step, ABI: c.abi, Err: err}
	if errors.Is(err, unix.E2BIG) {
		f.Remedy = "start Caisson inside fewer Landlock layers: the kernel stacks 16 at most"
	}
	return f
}

func (c *confinement) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	return errors.Join(c.plan.close(), c.group.close(), closeAll(c.opened))
}

func closeAll(fds []int) error {
	var errs []error
	for _, fd := range fds {
		if err := unix.Close(fd); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
