package domain_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
)

// everyRight is in bit order.
var everyRight = []struct {
	right  domain.Access
	name   string
	onFile bool // means something on a file that is no directory
}{
	{domain.AccessExecute, "execute", true},
	{domain.AccessWriteFile, "write_file", true},
	{domain.AccessReadFile, "read_file", true},
	{domain.AccessReadDir, "read_dir", false},
	{domain.AccessRemoveDir, "remove_dir", false},
	{domain.AccessRemoveFile, "remove_file", false},
	{domain.AccessMakeChar, "make_char", false},
	{domain.AccessMakeDir, "make_dir", false},
	{domain.AccessMakeReg, "make_reg", false},
	{domain.AccessMakeSock, "make_sock", false},
	{domain.AccessMakeFifo, "make_fifo", false},
	{domain.AccessMakeBlock, "make_block", false},
	{domain.AccessMakeSym, "make_sym", false},
	{domain.AccessRefer, "refer", false},
	{domain.AccessTruncate, "truncate", true},
	{domain.AccessIoctlDev, "ioctl_dev", true},
	{domain.AccessResolveUnix, "resolve_unix", true},
}

func TestEveryRightHasItsNameAndItsPlace(t *testing.T) {
	var all domain.Access
	var rights []domain.Access
	for _, r := range everyRight {
		require.Zero(t, all&r.right, "%s shares a bit", r.name)
		require.Equal(t, "{"+r.name+"}", r.right.String())
		require.Equal(t, []domain.Access{r.right}, r.right.Rights())
		if r.onFile {
			require.Equal(t, r.right, r.right.ForFile(), r.name)
		} else {
			require.Zero(t, r.right.ForFile(), r.name)
		}
		all |= r.right
		rights = append(rights, r.right)
	}
	require.Equal(t, rights, all.Rights())
	require.Equal(t, domain.AccessExecute|domain.AccessWriteFile|domain.AccessReadFile|domain.AccessTruncate|
		domain.AccessIoctlDev|domain.AccessResolveUnix, all.ForFile())
}

func TestAccessString(t *testing.T) {
	const undefined = domain.Access(1) << 31
	for want, a := range map[string]domain.Access{
		"∅":                              0,
		"read":                           domain.AccessRead,
		"read+exec":                      domain.AccessReadExec,
		"read+write":                     domain.AccessReadWrite,
		"read+write+exec":                domain.AccessReadWriteExec,
		"{execute,read_file}":            domain.AccessReadFile | domain.AccessExecute,
		"{undefined}":                    undefined,
		"{read_file,undefined}":          domain.AccessReadFile | undefined,
		"{read_file,read_dir,refer}":     domain.AccessRead | domain.AccessRefer,
		"{write_file,read_file}":         domain.AccessReadFile | domain.AccessWriteFile,
		"{execute,write_file,refer}":     domain.AccessExecute | domain.AccessWriteFile | domain.AccessRefer,
		"{read_file,read_dir,ioctl_dev}": domain.AccessRead | domain.AccessIoctlDev,
		"{write_file,remove_dir,remove_file,make_dir,make_reg,make_sock,make_fifo,make_sym,refer,truncate}": domain.AccessWrite,
	} {
		require.Equal(t, want, a.String())
	}
}

func TestUndefinedRightsAreNoRights(t *testing.T) {
	const undefined = domain.Access(0xfffe_0000)
	require.Empty(t, undefined.Rights())
	require.Zero(t, undefined.ForFile())
	require.Len(t, domain.Access(0xffff_ffff).Rights(), len(everyRight))
}

func TestAccessHas(t *testing.T) {
	for _, c := range []struct {
		a, b domain.Access
		want bool
	}{
		{0, 0, true},
		{domain.AccessRead, 0, true},
		{0, domain.AccessReadFile, false},
		{domain.AccessRead, domain.AccessReadFile, true},
		{domain.AccessReadFile, domain.AccessRead, false},
		{domain.AccessReadWriteExec, domain.AccessReadWrite, true},
		{domain.AccessReadWriteExec, domain.AccessReadExec, true},
		{domain.AccessReadWrite, domain.AccessExecute, false},
		{domain.AccessReadExec, domain.AccessReadWrite, false},
	} {
		require.Equal(t, c.want, c.a.Has(c.b), "%s has %s", c.a, c.b)
	}
}

func TestTheUsualSets(t *testing.T) {
	for _, set := range []domain.Access{domain.AccessRead, domain.AccessReadExec, domain.AccessWrite, domain.AccessReadWrite, domain.AccessReadWriteExec} {
		require.Zero(t, set&(domain.AccessMakeChar|domain.AccessMakeBlock|domain.AccessIoctlDev|domain.AccessResolveUnix),
			"%s has no right on devices or to sockets", set)
	}
	require.Zero(t, domain.AccessReadExec&domain.AccessWrite, "reading and running changes nothing")
	require.Zero(t, domain.AccessReadWrite&domain.AccessExecute, "writing does not run")
	require.True(t, domain.AccessWrite.Has(domain.AccessRefer), "git and npm rename between directories")
	require.True(t, domain.AccessWrite.Has(domain.AccessTruncate))
}

func TestNamesOfRights(t *testing.T) {
	for _, r := range everyRight {
		require.Equal(t, []string{r.name}, r.right.Names())
		require.Equal(t, r.right, domain.RightOf(r.name))
	}
	require.Empty(t, domain.Access(0).Names())
	require.Equal(t, []string{"read_file", "read_dir"}, domain.AccessRead.Names())
	for _, name := range []string{"", "read", "READ_FILE", "undefined"} {
		require.Zero(t, domain.RightOf(name), name)
	}
}

func TestUsualAccesses(t *testing.T) {
	got := map[string]domain.Access{}
	for _, u := range domain.UsualAccesses() {
		require.NotEmpty(t, u.Grants)
		got[u.Name] = u.Access
	}
	require.Equal(t, map[string]domain.Access{
		"ro": domain.AccessRead, "rox": domain.AccessReadExec, "rw": domain.AccessReadWrite, "rwx": domain.AccessReadWriteExec,
	}, got)
}
