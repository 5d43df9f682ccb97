package cli

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/policyfile"
	"github.com/caisson-run/caisson/ports"
)

// policyFlags are the flags that say what a process may touch.
type policyFlags struct {
	paths      []pathFlag
	connectTCP []string
	connect    []string
	bindTCP    []string
	domains    []string
	udp        bool
	unix       string
	env        []string
	waive      []string
	memory     byteSize
	pids       uint64
	cpus       float64
	sandbox    string
	file       string         // --policy
	said       *pflag.FlagSet // which flags were given
}

// pathFlag is one use of a path flag.
type pathFlag struct {
	flag     string
	path     string
	access   domain.Access
	presence domain.Presence
}

func (f *policyFlags) add(flags *pflag.FlagSet) {
	f.said = flags
	flags.StringVar(&f.file, "policy", "", "the policy in `FILE`, to which the other flags add; none for no file. By default "+policyfile.Name+" of the workspace, if you have trusted it, or else your own (see caisson policy --help)")
	for _, a := range domain.UsualAccesses() {
		for _, presence := range []domain.Presence{domain.Required, domain.Optional} {
			name, usage := a.Name, "grant "+a.Grants+" of `PATH` and all below it"
			if presence == domain.Optional {
				name, usage = "optional-"+a.Name, "the same as --"+a.Name+", if `PATH` exists"
			}
			flags.Var(&pathValue{list: &f.paths, flag: pathFlag{flag: "--" + name, access: a.Access, presence: presence}}, name, usage)
		}
	}
	flags.StringArrayVar(&f.connectTCP, "connect-tcp", nil, "allow TCP connections to `PORT`, on any host")
	flags.StringArrayVar(&f.connect, "connect", nil, "allow TCP connections to `ADDRESS:PORT` and to no other host on that port (localhost is 127.0.0.1 and ::1), or to the unix socket unix:PATH")
	flags.StringArrayVar(&f.domains, "allow-domain", nil, "allow `HOST[:PORT]` by name, through a proxy that resolves it and that programs find in HTTPS_PROXY; *.HOST for its subdomains, HOST=ADDRESS for one in a private network; port 443 and 80 by default")
	flags.StringArrayVar(&f.bindTCP, "bind-tcp", nil, "allow to listen on TCP `PORT`")
	flags.BoolVar(&f.udp, "udp", false, "allow UDP, to any host: what resolves names by DNS needs it")
	flags.StringVar(&f.unix, "unix-sockets", "deny", "the `MODE` of unix sockets, which ones may be connected to: deny, own (below writable directories; needs Landlock ABI 9) or allow (docker.sock included)")
	flags.StringArrayVar(&f.env, "env", nil, "pass the variable `NAME[=VALUE]` on; without a value, Caisson's own")
	flags.Var(&f.memory, "memory", "the most memory of the whole tree, as `SIZE`, for example 512M or 4G; needs a delegated cgroup")
	flags.Uint64Var(&f.pids, "pids", 0, "the most processes and threads of the whole tree, `N`; needs a delegated cgroup")
	flags.Float64Var(&f.cpus, "cpus", 0, "the most processors that the whole tree uses, `N`, for example 1.5; needs a delegated cgroup")
	flags.StringArrayVar(&f.waive, "waive", nil, "do without `PROPERTY` where it cannot be enforced; the receipt says so")
	flags.StringVar(&f.sandbox, "sandbox", "required", "the `MODE`: required, or off to run without any sandbox")
}

// replacing are the flags that take the place of a key of a policy file, where
// both are given. All other flags add.
var replacing = map[string]string{
	"memory": "limits.memory", "pids": "limits.pids", "cpus": "limits.cpus",
	"timeout": "limits.timeout", "idle-timeout": "limits.idle_timeout",
	"unix-sockets": "network.unix_sockets", "tripwires": "tripwires", "gateway": "gateway",
}

// source returns where the policy comes from that the flags add to; nil for
// nowhere.
func (f *policyFlags) source(a *app) ports.PolicySource {
	if f.file == "none" {
		return nil
	}
	s := &policyfile.Source{LookupEnv: a.LookupEnv, Notice: a.once()}
	if f.file != "" {
		s.File = a.abs(f.file)
	}
	for flag, key := range replacing {
		if f.said.Changed(flag) {
			s.Replaced = append(s.Replaced, key)
		}
	}
	return s
}

// once returns what tells a person something, each thing once.
func (a *app) once() func(text string) {
	var mu sync.Mutex
	told := map[string]bool{}
	return func(text string) {
		mu.Lock()
		defer mu.Unlock()
		if !told[text] {
			told[text] = true
			a.tell(text)
		}
	}
}

// pathValue collects the uses of all path flags in their order.
type pathValue struct {
	list *[]pathFlag
	flag pathFlag
}

func (v *pathValue) Set(path string) error {
	if path == "" {
		return fmt.Errorf("an empty path: name a file or a directory")
	}
	use := v.flag
	use.path = path
	*v.list = append(*v.list, use)
	return nil
}

func (*pathValue) String() string { return "" }

func (*pathValue) Type() string { return "path" }

// policy returns what the flags ask for.
func (f *policyFlags) policy(abs func(string) string) (application.Policy, error) {
	var p application.Policy
	for _, use := range f.paths {
		p.Rules = append(p.Rules, domain.PathRule{Path: abs(use.path), Access: use.access, Presence: use.presence, Why: use.flag})
	}
	var err error
	if p.ConnectTCP, err = portNumbers("--connect-tcp", f.connectTCP, 1); err != nil {
		return p, err
	}
	if p.BindTCP, err = portNumbers("--bind-tcp", f.bindTCP, 0); err != nil {
		return p, err
	}
	for _, s := range f.connect {
		path, isUnix, err := domain.ParseUnixDestination(s)
		if err != nil {
			return p, fmt.Errorf("--connect: %w", err)
		}
		if isUnix {
			p.UnixDestinations = append(p.UnixDestinations, path)
			continue
		}
		ds, err := domain.ParseDestination(s)
		if err != nil {
			return p, fmt.Errorf("--connect: %w", err)
		}
		p.Destinations = append(p.Destinations, ds...)
	}
	for _, s := range f.domains {
		d, err := domain.ParseEgressDomain(s)
		if err != nil {
			return p, fmt.Errorf("--allow-domain: %w", err)
		}
		p.Domains = append(p.Domains, d)
	}
	p.UDP = f.udp
	switch f.unix {
	case "deny":
	case "own":
		p.UnixSockets = domain.UnixSocketsOwn
	case "allow":
		p.UnixSockets = domain.UnixSocketsAllow
	default:
		return p, &domain.InvalidError{What: "--unix-sockets", Value: f.unix, Reason: "unknown", Remedy: "deny, own or allow"}
	}
	for _, s := range f.env {
		name, value, literal := strings.Cut(s, "=")
		if name == "" {
			return p, &domain.InvalidError{What: "--env", Value: s, Reason: "no name", Remedy: "NAME or NAME=VALUE"}
		}
		p.Env = append(p.Env, domain.EnvRule{Name: name, Value: value, Literal: literal, Secret: true, Why: "--env"})
	}
	p.Origins = f.origins(p)
	p.Limits = domain.Limits{MemoryBytes: uint64(f.memory), Pids: f.pids, CPUs: f.cpus}
	for _, name := range f.waive {
		property, err := domain.ParseProperty(name)
		if err != nil {
			return p, fmt.Errorf("--waive: %w", err)
		}
		p.Waivers = append(p.Waivers, property)
	}
	return p, nil
}

// byteSize is a number of bytes as a flag, 0 for no limit.
type byteSize uint64

// Set takes a number with K, M, G or T behind it, by which powers of 1024 are
// meant, as the kernel does.
func (b *byteSize) Set(s string) error {
	digits, shift := s, 0
	if i := strings.IndexByte("KMGT", upper(s)); s != "" && i >= 0 {
		digits, shift = s[:len(s)-1], 10*(i+1)
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > math.MaxInt64>>shift {
		return errors.New("no size: write 512M or 4G")
	}
	*b = byteSize(n << shift)
	return nil
}

// upper returns the last byte of s as a capital letter, 0 if there is none.
func upper(s string) byte {
	if s == "" {
		return 0
	}
	return strings.ToUpper(s[len(s)-1:])[0]
}

func (b *byteSize) String() string { return strconv.FormatUint(uint64(*b), 10) }

func (*byteSize) Type() string { return "size" }

// origins says which flag put what there.
func (f *policyFlags) origins(p application.Policy) map[string]string {
	origins := map[string]string{}
	for _, port := range p.ConnectTCP {
		origins[fmt.Sprintf("tcp connect %d", port)] = "--connect-tcp"
	}
	for _, d := range p.Destinations {
		origins["tcp connect "+netip.AddrPortFrom(d.Addr().Unmap(), d.Port()).String()] = "--connect"
	}
	for _, d := range p.Domains {
		origins["domain "+d.String()] = "--allow-domain"
	}
	for _, path := range p.UnixDestinations {
		origins[domain.UnixDestinationGrant(path)] = "--connect"
	}
	for _, port := range p.BindTCP {
		origins[fmt.Sprintf("tcp bind %d", port)] = "--bind-tcp"
	}
	if p.UDP {
		origins["udp allow"] = "--udp"
	}
	if p.UnixSockets != domain.UnixSocketsDeny {
		origins["unix sockets "+p.UnixSockets.String()] = "--unix-sockets"
	}
	for _, w := range p.Waivers {
		origins["waive "+string(w)] = "--waive"
	}
	for flag, limit := range map[string]string{"memory": "memory", "pids": "pids", "cpus": "cpus", "timeout": "timeout", "idle-timeout": "idle"} {
		if f.said.Changed(flag) {
			origins["limit "+limit] = "--" + flag
		}
	}
	return origins
}

// portNumbers parses port numbers. Port 0, which is any free port, can only be bound.
func portNumbers(flag string, values []string, least uint64) ([]uint16, error) {
	var list []uint16
	for _, s := range values {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n < least {
			return nil, &domain.InvalidError{What: flag, Value: s, Reason: "no port number", Remedy: fmt.Sprintf("%d to 65535", least)}
		}
		list = append(list, uint16(n))
	}
	return list, nil
}

// mode returns what --sandbox says.
func (f *policyFlags) mode() (application.SandboxMode, error) {
	switch f.sandbox {
	case "required":
		return application.SandboxMode{}, nil
	case "off":
		return application.SandboxOff("--sandbox off"), nil
	}
	return application.SandboxMode{}, &domain.InvalidError{What: "--sandbox", Value: f.sandbox, Reason: "unknown", Remedy: "required or off"}
}

// gatewayFlags are the flags that say how an agent reaches its model API.
type gatewayFlags struct {
	mode  string
	files []string
}

func (f *gatewayFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.mode, "gateway", "on", "the `MODE`: on, the agent reaches its model API through Caisson, which keeps the key; off, by itself, with the key, and with DNS if it needs it")
	flags.StringArrayVar(&f.files, "credential-file", nil, "the gateway takes the credential from a file: `NAME=PATH`, for example ANTHROPIC_API_KEY=/run/secrets/key")
}

// addLogin adds the flag for a login of the agent's own.
func addLogin(flags *pflag.FlagSet, name *string) {
	flags.StringVar(name, "login", "", "let the agent hold its own login, made by caisson login, and reach its provider by itself; =`NAME` if it has several")
	flags.Lookup("login").NoOptDefVal = application.DefaultLogin
}

// parse returns whether the gateway is off, and the files by variable.
func (f *gatewayFlags) parse(abs func(string) string) (off bool, files map[string]string, err error) {
	if f.mode != "on" && f.mode != "off" {
		return false, nil, &domain.InvalidError{What: "--gateway", Value: f.mode, Reason: "unknown", Remedy: "on or off"}
	}
	for _, s := range f.files {
		name, path, ok := strings.Cut(s, "=")
		if !ok || name == "" || path == "" {
			return false, nil, &domain.InvalidError{What: "--credential-file", Value: s, Reason: "no name and path", Remedy: "NAME=PATH"}
		}
		if files == nil {
			files = map[string]string{}
		}
		files[name] = abs(path)
	}
	return f.mode == "off", files, nil
}

// duration is a limit on time as a flag.
type duration time.Duration

func (d *duration) Set(s string) error {
	parsed, err := time.ParseDuration(s)
	switch _, number := strconv.ParseUint(s, 10, 64); {
	case err != nil && number == nil:
		return fmt.Errorf("no unit: write %ss or %sm", s, s)
	case err != nil:
		return fmt.Errorf("no time: write 90s, 10m or 1h30m")
	case parsed < 0:
		return fmt.Errorf("negative: 0 is for no limit")
	}
	*d = duration(parsed)
	return nil
}

func (d *duration) String() string { return time.Duration(*d).String() }

func (*duration) Type() string { return "duration" }

// output is the form in which results are printed.
type output struct{ json bool }

func (o *output) add(flags *pflag.FlagSet) {
	flags.Var(o, "output", "the `FORM`: text for people, or json for JSON Lines")
	flags.Var((*jsonFlag)(o), "json", "the same as --output json")
	flags.Lookup("json").NoOptDefVal = "true"
}

// jsonFlag is the other name of --output json. Of both the last one counts.
type jsonFlag output

func (o *jsonFlag) Set(s string) error {
	on, err := strconv.ParseBool(s)
	if err != nil {
		return errors.New("neither true nor false")
	}
	o.json = on
	return nil
}

func (o *jsonFlag) String() string { return strconv.FormatBool(o.json) }

func (*jsonFlag) Type() string { return "bool" }

func (o *output) Set(s string) error {
	switch s {
	case "text", "json":
		o.json = s == "json"
		return nil
	}
	return fmt.Errorf("%q is neither text nor json", s)
}

func (o *output) String() string {
	if o.json {
		return "json"
	}
	return "text"
}

func (*output) Type() string { return "form" }
