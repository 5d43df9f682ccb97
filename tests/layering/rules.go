package layering

// pure are the packages of the standard library that open nothing, start
// nothing and make no system call on behalf of their caller.
var pure = []string{
	"bytes", "cmp", "context", "crypto/sha256", "encoding/hex", "errors", "fmt", "io", "iter",
	"maps", "math", "math/bits", "net/netip", "net/url", "path", "slices", "sort", "strconv", "strings", "time",
	"unicode", "unicode/utf8",
}

// container is dependency injection, which stops at the edge.
var container = []string{"go.uber.org/fx", "go.uber.org/dig"}

// Caisson returns the rules of this project.
func Caisson() Rules {
	return Rules{
		Module: "github.com/caisson-run/caisson",
		Layers: []Layer{
			{Dir: "domain", Own: []string{"domain"}, Std: pure, NoTags: true},
			// Since no more than this can be imported, no signature of a port
			// can mention an exec.Cmd, an os.File or a type of x/sys.
			{Dir: "ports", Own: []string{"domain"}, Std: pure, NoTags: true},
			{Dir: "ports/portstest", Own: []string{"domain", "ports", "tests/testkit"}, Modules: []string{"github.com/google/uuid", "github.com/stretchr/testify", "go.uber.org/goleak"}},
			// The command itself runs it, so it stays clear of what is for tests alone.
			{Dir: "ports/portstest/escape", Own: []string{"domain"}, Denied: []string{"testing"}, Modules: []string{"golang.org/x/sys"}},
			{Dir: "ports/portsmock", Own: []string{"domain", "ports"}, Modules: []string{"go.uber.org/mock"}},
			{Dir: "application", Own: []string{"domain", "ports", "application"}, Denied: []string{"net", "plugin"}, Modules: []string{"github.com/google/uuid"}},
			{Dir: "infrastructure", Own: []string{"domain", "ports"}, Denied: container, Modules: []string{"*"}},
			// An adapter of an agent says what to run and never runs it.
			{Dir: "infrastructure/agents", Own: []string{"domain", "ports"}, Denied: append([]string{"net/http", "plugin", "syscall"}, container...), Modules: []string{"github.com/go-json-experiment/json"}},
			{Dir: "infrastructure/agents/lookup", Own: []string{"domain", "ports"}, Denied: append([]string{"net/http", "plugin"}, container...), Modules: []string{"github.com/go-json-experiment/json", "golang.org/x/sys"}},
			{Dir: "composition", Own: []string{"domain", "ports", "application", "infrastructure", "composition"}, Modules: []string{"*"}},
			{Dir: "cmd", Own: []string{"domain", "ports", "application", "infrastructure", "composition", "cmd"}, Modules: []string{"*"}},
			{Dir: "tests", Own: []string{"domain", "ports", "application", "infrastructure", "composition", "cmd", "tests"}, Modules: []string{"*"}},
			// An example shows what an embedder writes, who has no more than this.
			{Dir: "examples", Own: []string{"domain", "ports", "application", "infrastructure", "composition"}, Modules: []string{"*"}},
		},
		Adapters: []Exception{
			{"infrastructure/session", "infrastructure/process", "a session is a policy over the spawner: when to run a process and what its output means; a port between the two would only repeat the spawner's shape"},
			{"infrastructure/terminal", "infrastructure/process", "the same as for a session: a policy over the spawner, and it has the other side of the terminal"},
			{"infrastructure/gateway", "infrastructure/loopback", "what listens to confined processes, and its bounds, is one piece of machinery"},
			{"infrastructure/egress", "infrastructure/loopback", "what listens to confined processes, and its bounds, is one piece of machinery"},
			{"infrastructure/sandbox", "infrastructure/landlock", "it composes the layers of the default enforcer"},
			{"infrastructure/sandbox", "infrastructure/privileges", "it composes the layers of the default enforcer"},
			{"infrastructure/sandbox", "infrastructure/seccomp", "it composes the layers of the default enforcer"},
			{"infrastructure/store", "infrastructure/jsonl", "the events of a log are encoded as everywhere else: one reader, one writer, one schema"},
			{"infrastructure/agents/claude", "infrastructure/agents/lookup", "how npm lays out a native program behind its launcher is one piece of knowledge"},
			{"infrastructure/agents/codex", "infrastructure/agents/lookup", "how npm lays out a native program behind its launcher is one piece of knowledge"},
		},
		Spawners: []Exception{
			{From: "infrastructure/process", Why: "it is the spawner: everything that runs is started here, under its plan"},
			{From: "infrastructure/fakecli", Why: "the fake agent is itself the confined child, and tests what becomes of the children that it starts"},
			{From: "ports/portstest/escape", Why: "its attempts are the confined child, which starts programs to get out"},
			{From: "tests/testkit", Why: "it builds the fake agent for tests"},
		},
		Unsafe: []Exception{
			{From: "infrastructure/seccomp/load_linux.go", Why: "the filter and the answers to its questions are handed to the kernel by address, and x/sys has no functions for it"},
		},
	}
}
