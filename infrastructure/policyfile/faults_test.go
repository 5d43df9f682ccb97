package policyfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/ports"
)

func testPlace() ports.PolicyPlace {
	return ports.PolicyPlace{
		Agents: []domain.AgentKind{"claude", "codex"}, Workspace: "/w/app", Home: "/home/u", State: "/s/state", Temp: "/s/tmp",
	}
}

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// realDir is a directory whose path is canonical.
func realDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	return dir
}

// Every fault is told with its place, and what to do.
func TestFaults(t *testing.T) {
	const v = "version = 1\n"
	for name, c := range map[string]struct{ text, want string }{
		"empty":            {"", "P:1:1: version: missing; write version = 1"},
		"version":          {"version = 2", "P:1:11: version: 2 is out of bounds; the only one is 1"},
		"version's type":   {`version = "1"`, "P:1:11: version: a string, but it must be an integer"},
		"not TOML":         {v + "a = = 1", "P:2:5: unexpected character U+003D '=' at start of value"},
		"unclosed string":  {v + `workspace = "ro`, `P:2:15: unterminated basic string`},
		"duplicate key":    {v + "udp = 1\nudp = 2", "P:3:1: key udp is already defined"},
		"invalid UTF-8":    {v + "# ü \xff", "P:2:5: not valid UTF-8; save it as UTF-8"},
		"a NUL byte":       {v + "# \x00", `P:2:3: control characters are not allowed in comments`},
		"a column":         {v + `groups = ["git", "ü", "gti"]`, `P:2:18: groups[1]: "ü" is none of git, go, node, python, rust` + "\n" + `P:2:23: groups[2]: "gti" is none of git, go, node, python, rust; did you mean git?`},
		"misspelled":       {v + "[paths]\noptinal_ro = []", "P:3:1: paths.optinal_ro: unknown key; did you mean optional_ro?"},
		"other spelling":   {v + "[network]\nConnect-TCP = []", "P:3:1: network.Connect-TCP: unknown key; did you mean connect_tcp?"},
		"wrong table":      {v + "bind_tcp = [1]", "P:2:1: bind_tcp: unknown key; bind_tcp belongs into [network]"},
		"below a table":    {v + "[paths]\ngroups = []", "P:3:1: paths.groups: unknown key; groups stands above the first table"},
		"unlike any":       {v + "[limits]\nxyzzy = 1", "P:3:1: limits.xyzzy: unknown key; one of memory, pids, cpus, timeout, idle_timeout"},
		"dotted":           {v + "limits.memry = \"1G\"", "P:2:8: limits.memry: unknown key; did you mean memory?"},
		"inline":           {v + "limits = { memry = \"1G\" }", "P:2:12: limits.memry: unknown key; did you mean memory?"},
		"an agent":         {v + "[agent.cluade]", "P:2:8: agent.cluade: unknown key; did you mean claude?"},
		"in an agent":      {v + "[agent.codex.paths]\nr0 = []", "P:3:1: agent.codex.paths.r0: unknown key; did you mean ro?"},
		"list":             {v + `groups = "git"`, "P:2:10: groups: a string, but it must be a list"},
		"table":            {v + "network = 1", "P:2:11: network: an integer, but it must be a table"},
		"boolean":          {v + "gateway = \"off\"", "P:2:11: gateway: a string, but it must be true or false"},
		"date":             {v + "gateway = 2020-01-01", "P:2:11: gateway: a date or a time, but it must be true or false"},
		"element":          {v + "[paths]\nro = [\n  \"/a\",\n  1.5,\n]", "P:5:3: paths.ro[1]: a number, but it must be a string"},
		"workspace":        {v + `workspace = "r"`, `P:2:13: workspace: "r" is none of ro, rox, rw, rwx; did you mean ro?`},
		"waive":            {v + `waive = ["upd"]`, `P:2:10: waive[0]: "upd" is none of`},
		"tripwires":        {v + `tripwires = "fial"`, `P:2:13: tripwires: "fial" is none of report, fail, off; did you mean fail?`},
		"relative":         {v + "[paths]\nro = [\"src\"]", `P:3:7: paths.ro[0]: "src" is a relative path, which would mean another place in every directory; begin it with /, ${workspace}, ${home}, ${state} or ${tmp}`},
		"tilde":            {v + "[paths]\nro = [\"~/src\"]", "P:3:7: paths.ro[0]: ~ is a shell's; write ${home}"},
		"dots":             {v + "[paths]\nro = [\"${home}/../x\"]", `P:3:7: paths.ro[0]: "/home/u/../x" has a .. in it, which leads elsewhere when a directory is a link; write where it leads`},
		"pattern":          {v + "[paths]\nrw = [\"${workspace}/**\"]", `P:3:7: paths.rw[0]: "/w/app/**": there are no patterns; name a directory: all below it is granted too`},
		"empty path":       {v + "[paths]\nro = [\"\"]", "P:3:7: paths.ro[0]: an empty path; name a file or a directory"},
		"NUL in a path":    {v + "[paths]\nro = [\"/a\\u0000\"]", "P:3:7: paths.ro[0]: a NUL byte in a path; name a file or a directory"},
		"variable":         {v + "[paths]\nro = [\"${workspce}/a\"]", "P:3:7: paths.ro[0]: unknown variable ${workspce}; did you mean workspace?"},
		"environment":      {v + "[paths]\nro = [\"${PWD}/a\"]", "P:3:7: paths.ro[0]: unknown variable ${PWD}; one of workspace, home, state, tmp"},
		"unclosed":         {v + "[env.set]\nA = \"${home\"", "P:3:5: env.set.A: a ${ without its }; write $${ for a literal ${"},
		"duplicate grant":  {v + "[paths]\nro = [\"/a\"]\noptional_ro = [\"/a/\"]", "P:4:16: paths.optional_ro[0]: said twice: read of /a; it stands in line 3 already"},
		"duplicate port":   {v + "[network]\nconnect_tcp = [1, 1]", "P:3:19: network.connect_tcp[1]: said twice: tcp connect 1; it stands in line 3 already"},
		"duplicate host":   {v + "[network]\nconnect = [\"localhost:1\", \"127.0.0.1:1\"]", "P:3:27: network.connect[1]: said twice: tcp connect 127.0.0.1:1; it stands in line 3 already"},
		"duplicate group":  {v + `groups = ["go", "go"]`, "P:2:17: groups[1]: said twice: group go; it stands in line 2 already"},
		"duplicate waiver": {v + `waive = ["udp", "udp"]`, "P:2:17: waive[1]: said twice: waive udp; it stands in line 2 already"},
		"env twice":        {v + "[env]\npass = [\"A\"]\nset.A = \"x\"", "P:4:5: env.set.A: said twice: variable A; it stands in line 3 already"},
		"env's name":       {v + "[env]\npass = [\"A=b\"]", `P:3:9: env.pass[0]: "A=b" is no name of a variable`},
		"env's value":      {v + "[env.set]\nA = \"\\u0000\"", "P:3:5: env.set.A: a NUL byte in the value; remove it"},
		"env's type":       {v + "[env.set]\nA = 1", "P:3:5: env.set.A: an integer, but it must be a string"},
		"port 0":           {v + "[network]\nconnect_tcp = [0]", "P:3:16: network.connect_tcp[0]: 0 is out of bounds; 1 to 65535"},
		"port 70000":       {v + "[network]\nbind_tcp = [70000]", "P:3:13: network.bind_tcp[0]: 70000 is out of bounds; 0 to 65535"},
		"port -1":          {v + "[network]\nbind_tcp = [-1]", "P:3:13: network.bind_tcp[0]: -1 is out of bounds; 0 to 65535"},
		"no domain":        {v + "[network]\ndomains = [\"*\"]", `P:3:12: network.domains[0]: "*": it would allow every host`},
		"a top level":      {v + "[network]\ndomains = [\"*.com\"]", `P:3:12: network.domains[0]: "*.com": it would allow everybody's hosts below a top-level domain`},
		"an address":       {v + "[network]\ndomains = [\"10.0.0.1\"]", `P:3:12: network.domains[0]: "10.0.0.1": an address and no name`},
		"this machine":     {v + "[network]\ndomains = [\"localhost:1\"]", `P:3:12: network.domains[0]: "localhost:1": most programs reach this machine without a proxy`},
		"an odd address":   {v + "[network]\ndomains = [\"0x7f.1\"]", `P:3:12: network.domains[0]: "0x7f.1": an address in an odd notation`},
		"no network":       {v + "[network]\ndomains = [\"a.b=10.0.0.1/8\"]", `P:3:12: network.domains[0]: "a.b=10.0.0.1/8": "10.0.0.1/8" is no address and no network`},
		"duplicate domain": {v + "[network]\ndomains = [\"a.b\", \"A.B.\"]", "P:3:19: network.domains[1]: said twice: domain a.b; it stands in line 3 already"},
		"no socket":        {v + "[network]\nconnect = [\"unix:/run/../a\"]", `P:3:12: network.connect[0]: "unix:/run/../a" is not the absolute, clean path of a socket`},
		"a name":           {v + "[network]\nconnect = [\"example.com:443\"]", `P:3:12: network.connect[0]: "example.com:443" is a host's name, which may lead elsewhere later; allow the name with --allow-domain`},
		"every host":       {v + "[network]\nconnect = [\"0.0.0.0:1\"]", `P:3:12: network.connect[0]: "0.0.0.0:1" is not the address of one host, with a port`},
		"no port":          {v + "[network]\nconnect = [\"1.2.3.4:0\"]", `P:3:12: network.connect[0]: "1.2.3.4:0" is not the address of one host, with a port`},
		"one link":         {v + "[network]\nconnect = [\"[fe80::1]:1\"]", `P:3:12: network.connect[0]: "[fe80::1]:1" is not the address of one host, with a port`},
		"memory":           {v + "[limits]\nmemory = \"2GB\"", `P:3:10: limits.memory: "2GB" is no size: write 512M or 2GiB`},
		"no memory":        {v + "[limits]\nmemory = \"0\"", `P:3:10: limits.memory: "0" is no size: write 512M or 2GiB`},
		"much memory":      {v + "[limits]\nmemory = \"9999999999T\"", `P:3:10: limits.memory: "9999999999T" is more than there can be`},
		"memory's type":    {v + "[limits]\nmemory = 5", "P:3:10: limits.memory: an integer, but it must be a string"},
		"pids":             {v + "[limits]\npids = 0", "P:3:8: limits.pids: 0 is out of bounds; 1 or more"},
		"cpus":             {v + "[limits]\ncpus = 0.0", "P:3:8: limits.cpus: 0.0 is out of bounds; a finite number above 0"},
		"cpus nan":         {v + "[limits]\ncpus = nan", "P:3:8: limits.cpus: nan is out of bounds; a finite number above 0"},
		"cpus inf":         {v + "[limits]\ncpus = inf", "P:3:8: limits.cpus: inf is out of bounds; a finite number above 0"},
		"timeout":          {v + "[limits]\ntimeout = \"10\"", `P:3:11: limits.timeout: "10" is no time: write 90s, 10m or 1h30m`},
		"no timeout":       {v + "[limits]\nidle_timeout = \"0s\"", `P:3:16: limits.idle_timeout: "0s" is no limit: leave it out for none`},
		"no rights":        {v + "[[paths.rule]]\npath = \"/a\"\nrights = []", "P:2:9: paths.rule[0].rights: empty; name at least one right"},
		"no path":          {v + "[[paths.rule]]\nrights = [\"refer\"]", "P:2:9: paths.rule[0].path: missing; The path."},
		"right":            {v + "[[paths.rule]]\npath = \"/a\"\nrights = [\"read\"]", `P:4:11: paths.rule[0].rights[0]: "read" is none of execute, write_file`},
		"right twice":      {v + "[[paths.rule]]\npath = \"/a\"\nrights = [\"refer\", \"refer\"]", `P:4:20: paths.rule[0].rights[1]: said twice: refer`},

		// What looks as if it took something back.
		"deny":             {v + "[paths]\nrw = [\"/a\"]\ndeny = [\"/a/b\"]", "P:4:1: paths.deny: a policy only grants: nothing can take a part back out of what is granted (Landlock's rules add up); what no rule grants is denied already, so grant narrower:"},
		"exclude":          {v + "exclude = []", "P:2:1: exclude: a policy only grants"},
		"exclamation":      {v + "[paths]\nrw = [\"/a\", \"!/a/b\"]", "P:3:13: paths.rw[1]: a policy only grants"},
		"narrower":         {v + "[paths]\nrw = [\"/a\"]\nro = [\"/a/b\"]", "P:4:7: paths.ro[0]: read of /a/b adds nothing to read+write of /a (P:3), and a policy only grants"},
		"in workspace":     {v + "workspace = \"rw\"\n[paths]\nro = [\"${workspace}/secret\"]", "P:4:7: paths.ro[0]: read of /w/app/secret adds nothing to read+write of /w/app (P:2), and a policy only grants"},
		"in private":       {v + "[paths]\nro = [\"${tmp}/x\"]", "P:3:7: paths.ro[0]: read of /s/tmp/x adds nothing to read+write+exec of /s/tmp (private), and a policy only grants"},
		"a domain and all": {v + "[network]\nconnect_tcp = [443]\ndomains = [\"a.b\"]", "P:4:12: network.domains[0]: connect_tcp grants port 443 on every host (P:3), so a.b narrows nothing; leave one of the two out"},
		"a host and all":   {v + "[network]\nconnect_tcp = [443]\nconnect = [\"1.2.3.4:443\"]", "P:4:12: network.connect[0]: connect_tcp grants port 443 on every host (P:3), so 1.2.3.4:443 narrows nothing; leave one of the two out"},
		"deny an address":  {v + "[network]\ndeny = [\"10.0.0.0/8\"]", "P:3:1: network.deny: a policy only grants"},

		// What is extended.
		"no such preset":  {v + `extends = ["preset:reviw"]`, `P:2:12: extends[0]: there is no preset "reviw"; did you mean review?`},
		"nothing like it": {v + `extends = ["preset:strict"]`, `P:2:12: extends[0]: there is no preset "strict"; one of ci, review`},
		"no prefix":       {v + `extends = ["review"]`, `P:2:12: extends[0]: a preset is named with a prefix; write preset:review`},
		"no such file":    {v + `extends = ["gone.toml"]`, `P:2:12: extends[0]: "gone.toml" cannot be read: no such file or directory`},
		"an empty name":   {v + `extends = [""]`, `P:2:12: extends[0]: "" is no file; name a file, or preset:NAME`},
		"a directory":     {v + `extends = ["."]`, `P:2:12: extends[0]: "." cannot be read: not a regular file`},
		"itself":          {v + `extends = ["policy.toml"]`, `P:2:12: extends[0]: "policy.toml" extends itself, through 1 files; leave one of them out`},
		"extends' type":   {v + "extends = [1]", "P:2:12: extends[0]: an integer, but it must be a string"},
		"extends' type 2": {v + "extends = 1", "P:2:11: extends: an integer, but it must be a list"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, realDir(t), "policy.toml", c.text)
			_, _, err := Load(path, testPlace())
			require.Error(t, err)
			fault := (*Error)(nil)
			require.ErrorAs(t, err, &fault)
			got := strings.ReplaceAll(err.Error(), path, "P")
			require.True(t, strings.HasPrefix(got, c.want), "got  %s\nwant %s", got, c.want)
			require.Equal(t, strings.Count(c.want, "\n"), strings.Count(got, "\n"), "one fault: %s", got)
		})
	}
}

func TestFaultsOfFiles(t *testing.T) {
	dir := realDir(t)
	_, _, err := Load(filepath.Join(dir, "gone.toml"), testPlace())
	require.EqualError(t, err, filepath.Join(dir, "gone.toml")+": cannot be read: no such file or directory")
	_, _, err = Load(dir, testPlace())
	require.EqualError(t, err, dir+": cannot be read: not a regular file")
	_, _, err = Load(write(t, dir, "large.toml", strings.Repeat("#\n", maxSize)), testPlace())
	require.ErrorContains(t, err, "large.toml: cannot be read: larger than 65536 bytes")

	// A fault in what is extended has its place there.
	write(t, dir, "base.toml", "version = 1\nworkspce = \"ro\"")
	_, _, err = Load(write(t, dir, "p.toml", "version = 1\nextends = [\"base.toml\"]"), testPlace())
	require.EqualError(t, err, filepath.Join(dir, "base.toml")+":2:1: workspce: unknown key; did you mean workspace?")

	// Through other files, and through a link.
	write(t, dir, "a.toml", "version = 1\nextends = [\"b.toml\"]")
	write(t, dir, "b.toml", "version = 1\nextends = [\"link.toml\"]")
	require.NoError(t, os.Symlink("a.toml", filepath.Join(dir, "link.toml")))
	_, _, err = Load(filepath.Join(dir, "a.toml"), testPlace())
	require.EqualError(t, err, filepath.Join(dir, "b.toml")+`:2:12: extends[0]: "link.toml" extends itself, through 2 files; leave one of them out`)

	for i := range 12 {
		write(t, dir, string(rune('a'+i))+"deep.toml", "version = 1\nextends = [\""+string(rune('b'+i))+"deep.toml\"]")
	}
	_, _, err = Load(filepath.Join(dir, "adeep.toml"), testPlace())
	require.ErrorContains(t, err, "extends[0]: more than 8 files deep")

	// Without a home directory its variable has no value, also in a group.
	place := testPlace()
	place.Home = ""
	p := write(t, dir, "home.toml", "version = 1\ngroups = [\"rust\"]\n[paths]\nro = [\"${home}/x\"]")
	_, _, err = Load(p, place)
	require.ErrorContains(t, err, p+":4:7: paths.ro[0]: ${home} has no value here; set HOME to an absolute path, or write the path")
	require.ErrorContains(t, err, p+":2:11: groups[0]: group rust:")

	many := "version = 1\n[paths]\nro = [" + strings.Repeat(`"a", `, 50) + "]"
	_, _, err = Load(write(t, dir, "many.toml", many), testPlace())
	require.Equal(t, maxErrors, strings.Count(err.Error(), "\n"))
	require.ErrorContains(t, err, "… and 30 more")
}
