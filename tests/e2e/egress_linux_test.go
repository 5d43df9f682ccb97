package e2e

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/caisson-run/caisson/application"
	"github.com/caisson-run/caisson/composition"
	"github.com/caisson-run/caisson/domain"
	"github.com/caisson-run/caisson/infrastructure/egress"
	"github.com/caisson-run/caisson/tests/modelserver"
	"github.com/caisson-run/caisson/tests/testkit"
)

// resolver is all the DNS that there is: names that end in .test, and example.com, for
// which httptest has a certificate, are this machine.
type resolver struct {
	mu    sync.Mutex
	asked []string
}

func (r *resolver) resolve(_ context.Context, host string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, host)
	if !strings.HasSuffix(host, ".test") && host != "example.com" {
		return nil, errors.New("no such host")
	}
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

func (r *resolver) option() composition.Option {
	return composition.WithEgressProxy(egress.New(egress.WithResolver(r.resolve)))
}

func egressNotices(events []domain.Event) []string {
	var list []string
	for _, n := range repliesOf[domain.Notice](events) {
		if n.Class == domain.NoticeEgress {
			list = append(list, n.Message)
		}
	}
	return list
}

// The real agents reach a model that they know by its name alone, in the clear and
// through TLS: with one port of one host, no UDP, and no DNS of their own.
func realEgress(t *testing.T, b *realBench) {
	target, err := url.Parse(b.model.URL())
	require.NoError(t, err)
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }})
	ca := filepath.Join(b.workspace, "ca.pem")
	front.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(t, "example.com", ca)}}
	front.StartTLS()
	defer front.Close()
	model := b.model.URL()
	for _, base := range []string{"http://model.test:" + portOf(model), "https://example.com:" + portOf(front.URL)} {
		for name, value := range b.env {
			b.env[name] = strings.ReplaceAll(value, model, base)
		}
		model = base
		host := base[strings.LastIndexByte(base, '/')+1:]
		const command = "curl -sS -m 20 http://elsewhere.test/ 2>&1; curl -sS -m 20 https://elsewhere.test/ 2>&1; echo over"
		b.model.Clear()
		b.model.Enqueue(
			modelserver.Reply{ToolCalls: []modelserver.ToolCall{b.agent.shell(command)}},
			modelserver.Reply{Text: "Done."},
		)
		dns := &resolver{}
		policy := application.Policy{Domains: testkit.EgressDomains(host + "=127.0.0.1")}
		for _, name := range []string{"NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"} {
			policy.Env = append(policy.Env, domain.EnvRule{Name: name, Value: ca, Literal: true})
		}
		session := b.open(t, b.compose(t, dns.option()), application.OpenRequest{DirectAPI: true, Policy: policy})
		plan := session.Plan()
		require.Empty(t, plan.ConnectTCP())
		require.False(t, plan.UDP())
		require.Equal(t, []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), plan.EgressPort())}, plan.ReachableDestinations())
		events, final := b.turn(t, session, "Run a tool.")
		require.NoError(t, session.Close(t.Context()))
		require.Equal(t, domain.OutcomeCompleted, final.Outcome, "%s: %+v", base, final.Error)
		require.Equal(t, "Done.", final.Text)
		receipt := realReceipt(t, events)
		for _, property := range []domain.Property{domain.PropertyUDP, domain.PropertyDestinations, domain.PropertyTCP} {
			require.Contains(t, receipt.InState(domain.StateEnforced), property)
		}
		require.Equal(t, plan.EgressNames(), receipt.Domains)
		told := egressNotices(events)
		require.Contains(t, told, "allowed "+host)
		require.NotEmpty(t, dns.asked)
		for _, asked := range dns.asked {
			require.True(t, strings.HasPrefix(host, asked+":"), "what is refused is not looked up: %s", asked)
		}
		result := repliesOf[domain.ToolResult](events)
		require.Len(t, result, 1)
		require.Contains(t, result[0].Output, "over")
		if b.agent.kind == domain.AgentCodex {
			// Its own filter leaves its tools no sockets at all.
			require.NotContains(t, result[0].Output, "Caisson")
			continue
		}
		require.Contains(t, result[0].Output, `Caisson refused a connection to "elsewhere.test" on port 80: the policy does not allow this domain`)
		require.Contains(t, result[0].Output, "CONNECT tunnel failed, response 403")
		require.Contains(t, told, "refused elsewhere.test:80: the policy does not allow this domain")
		require.Contains(t, told, "refused elsewhere.test:443: the policy does not allow this domain")
	}
}

// The model is reached through the gateway and not through the proxy, other hosts
// through the proxy, and neither the agent nor its tools hold the key.
func realGatewayAndEgress(t *testing.T, b *realBench) {
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "from the host") }))
	defer host.Close()
	at := "tools.test:" + portOf(host.URL)
	b.model.Enqueue(
		modelserver.Reply{ToolCalls: []modelserver.ToolCall{b.agent.shell("curl -sS -m 20 http://" + at + "/ 2>&1; env; echo over")}},
		modelserver.Reply{Text: "Done."},
	)
	dns := &resolver{}
	session := b.open(t, b.compose(t, dns.option()), application.OpenRequest{Policy: application.Policy{Domains: testkit.EgressDomains(at + "=127.0.0.1")}})
	events, final := b.turn(t, session, "Run a tool.")
	require.Equal(t, domain.OutcomeCompleted, final.Outcome, "%+v", final.Error)
	require.Equal(t, "Done.", final.Text)
	receipt := realReceipt(t, events)
	for _, property := range []domain.Property{domain.PropertyUDP, domain.PropertyDestinations, domain.PropertyTCP} {
		require.Contains(t, receipt.InState(domain.StateEnforced), property)
	}
	require.Len(t, gatewayReports(events), 1)
	for _, r := range b.model.Requests() {
		require.Equal(t, dummyKey, b.agent.key(r.Header))
	}
	result := repliesOf[domain.ToolResult](events)
	require.Len(t, result, 1)
	require.NotContains(t, result[0].Output, dummyKey)
	require.NotContains(t, result[0].Output, egressSecret(session.Plan()))
	if b.agent.kind == domain.AgentCodex {
		require.Empty(t, egressNotices(events), "its own filter leaves its tools no sockets")
		return
	}
	require.Contains(t, result[0].Output, "from the host")
	require.Equal(t, []string{"allowed " + at}, egressNotices(events), "and nothing else went through the proxy")
	require.Equal(t, []string{"tools.test"}, dns.asked)
}

// egressSecret is the secret of a plan's proxy.
func egressSecret(plan domain.SandboxPlan) string {
	u, _ := url.Parse(plan.EgressEnv()[0].Value)
	secret, _ := u.User.Password()
	return secret
}

// certificate returns one for the host, by an authority whose own it writes to a file.
// That of httptest is both at once, which Codex's TLS refuses.
func certificate(t *testing.T, host, authority string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: host}, NotBefore: root.NotBefore, NotAfter: root.NotAfter,
		DNSNames: []string{host}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), 0o600))
	// The authority's key serves for both.
	signed, err = x509.CreateCertificate(rand.Reader, leaf, root, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{signed}, PrivateKey: key}
}

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

// egressTools are what agents fetch things with, each as it is when nobody has
// configured it: it has to find the proxy by the environment. What goes before the
// fetching is no network.
var egressTools = []struct {
	name  string
	tools []string
	where []string
	// script runs in an empty directory and ends with 0 if it has fetched. $BASE is
	// the server, and $SERVED a directory that it serves below /files.
	script string
}{
	{name: "curl", tools: []string{"curl"}, script: `curl -fsS $BASE/hello | grep hello`},
	{name: "wget", tools: []string{"wget"}, script: `echo "ca_certificate = $CURL_CA_BUNDLE" > rc && WGETRC=$PWD/rc wget -qO- $BASE/hello | grep hello`},
	{name: "git", tools: []string{"git"}, script: `
		export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
		git init -q src && cd src && echo hello > file && git add . && git commit -qm first && cd ..
		git clone -q --bare src $SERVED/repo.git && git -C $SERVED/repo.git update-server-info
		git clone -q $BASE/files/repo.git out && grep hello out/file`},
	{name: "npm", tools: []string{"node", "npm"}, script: `
		echo '{"name":"top","version":"1.0.0"}' > package.json
		npm install --registry $BASE/npm/ --no-audit --no-fund --no-update-notifier tiny && grep hello node_modules/tiny/index.js`},
	{name: "pip", tools: []string{"python3"}, where: []string{"python3", "-c", "import sys; print(sys.base_prefix)"}, script: `
		case $BASE in http:*) trust="--trusted-host example.com";; esac
		python3 -m pip download -q --disable-pip-version-check --no-deps -d out --index-url $BASE/simple $trust tiny && ls out | grep tiny-1.0-py3`},
	{name: "go", tools: []string{"go"}, where: []string{"go", "env", "GOROOT"}, script: `
		export GOTOOLCHAIN=local GOPROXY=$BASE/go GOSUMDB=off GOFLAGS=-modcacherw GOPATH=$PWD/go
		go mod download example.com/tiny@v1.0.0 && grep tiny go/pkg/mod/example.com/tiny@v1.0.0/tiny.go`},
	{name: "node", tools: []string{"node"}, script: `
		node -e '
		const [major, minor] = process.versions.node.split(".").map(Number);
		if (major < 22 || major === 22 && minor < 21) { console.log("SKIP: node before 22.21 has no NODE_USE_ENV_PROXY"); process.exit(0); }
		fetch(process.env.BASE + "/hello").then(r => r.text()).then(t => { if (!t.includes("hello")) process.exit(1); });'`},
}

// packages is a server that has something for each of the tools.
func packages(t *testing.T, files string) http.Handler {
	t.Helper()
	archive := func(names ...string) []byte {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for i := 0; i < len(names); i += 2 {
			w, err := z.Create(names[i])
			require.NoError(t, err)
			_, err = io.WriteString(w, names[i+1])
			require.NoError(t, err)
		}
		require.NoError(t, z.Close())
		return b.Bytes()
	}
	var tgz bytes.Buffer
	gz := gzip.NewWriter(&tgz)
	tarball := tar.NewWriter(gz)
	for name, text := range map[string]string{"package/package.json": `{"name":"tiny","version":"1.0.0"}`, "package/index.js": "// hello"} {
		require.NoError(t, tarball.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}))
		_, err := io.WriteString(tarball, text)
		require.NoError(t, err)
	}
	require.NoError(t, errors.Join(tarball.Close(), gz.Close()))
	sum := sha512.Sum512(tgz.Bytes())
	const wheel = "tiny-1.0-py3-none-any.whl"
	answers := map[string][]byte{
		"/hello":        []byte("hello"),
		"/tiny.tgz":     tgz.Bytes(),
		"/simple/tiny/": []byte(`<!DOCTYPE html><a href="/` + wheel + `">` + wheel + `</a>`),
		"/" + wheel: archive("tiny.py", "", "tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
			"tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n", "tiny-1.0.dist-info/RECORD", ""),
		"/go/example.com/tiny/@v/v1.0.0.info": []byte(`{"Version":"v1.0.0","Time":"2026-01-01T00:00:00Z"}`),
		"/go/example.com/tiny/@v/v1.0.0.mod":  []byte("module example.com/tiny\n"),
		"/go/example.com/tiny/@v/v1.0.0.zip":  archive("example.com/tiny@v1.0.0/go.mod", "module example.com/tiny\n", "example.com/tiny@v1.0.0/tiny.go", "package tiny\n"),
	}
	mux := http.NewServeMux()
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(files))))
	mux.HandleFunc("/npm/tiny", func(w http.ResponseWriter, r *http.Request) {
		scheme := "http"
		if r.TLS != nil {
			scheme = "https"
		}
		fmt.Fprintf(w, `{"name":"tiny","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"tiny","version":"1.0.0","dist":{"tarball":"%s://%s/tiny.tgz","integrity":"sha512-%s"}}}}`,
			scheme, r.Host, base64.StdEncoding.EncodeToString(sum[:]))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if r.URL.Path == "/simple/tiny/" {
			w.Header().Set("Content-Type", "text/html")
		}
		_, _ = w.Write(answer)
	})
	return mux
}

func TestToolsFetchThroughTheEgressProxy(t *testing.T) {
	testkit.RequireLandlock(t, 6)
	for _, w := range egressTools {
		t.Run(w.name, func(t *testing.T) {
			testkit.NoLeaks(t)
			var path []string
			for _, tool := range w.tools {
				found, err := exec.LookPath(tool)
				if err != nil {
					t.Skipf("the host has no %s for this user", tool)
				}
				path = append(path, filepath.Dir(found))
			}
			var rules []domain.PathRule
			if w.where != nil {
				out, err := exec.Command(w.where[0], w.where[1:]...).Output()
				require.NoError(t, err)
				tools, err := filepath.EvalSymlinks(strings.TrimSpace(string(out)))
				require.NoError(t, err)
				rules = append(rules, domain.PathRule{Path: tools, Access: domain.AccessReadExec})
				path = append([]string{filepath.Join(tools, "bin")}, path...)
			}
			here := func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
			}
			s := newStage(t, domain.AgentClaude, composition.WithEgressProxy(egress.New(egress.WithResolver(here))))
			for _, scheme := range []string{"http", "https"} {
				dir := filepath.Join(s.workspace, scheme)
				served := filepath.Join(dir, "served")
				require.NoError(t, os.MkdirAll(served, 0o700))
				var server *httptest.Server
				ca := filepath.Join(dir, "ca.pem")
				if scheme == "http" {
					server = httptest.NewServer(packages(t, served))
				} else {
					server = httptest.NewTLSServer(packages(t, served))
					require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
				}
				at := "example.com:" + portOf(server.URL)
				literal := func(name, value string) domain.EnvRule {
					return domain.EnvRule{Name: name, Value: value, Literal: true}
				}
				policy := application.Policy{Rules: rules, Domains: testkit.EgressDomains(at + "=127.0.0.1"), Env: []domain.EnvRule{
					literal("PATH", strings.Join(append(path, "/usr/local/bin", "/usr/bin", "/bin"), ":")),
					literal("BASE", scheme+"://"+at), literal("SERVED", served),
				}}
				if scheme == "https" {
					for _, name := range []string{"CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "npm_config_cafile", "PIP_CERT", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"} {
						policy.Env = append(policy.Env, literal(name, ca))
					}
				}
				require.NoError(t, os.WriteFile(filepath.Join(dir, "fetch.sh"), []byte("set -e\nmkdir work && cd work\n"+w.script+"\n"), 0o600))
				session := s.open(t, application.OpenRequest{Policy: policy})
				require.Empty(t, session.Plan().ConnectTCP())
				require.False(t, session.Plan().UDP())
				events := s.run(t, session, "sh cd "+dir+" && sh fetch.sh 2>&1")
				require.NoError(t, session.Close(t.Context()))
				server.Close()
				for _, p := range []domain.Property{domain.PropertyDestinations, domain.PropertyTCP, domain.PropertyUDP} {
					require.Contains(t, receiptOf(events).InState(domain.StateEnforced), p)
				}
				results := resultsOf(events)
				require.Len(t, results, 1)
				require.Equal(t, domain.ToolCompleted, results[0].Status, "%s: %s", scheme, results[0].Output)
				if _, why, skip := strings.Cut(results[0].Output, "SKIP: "); skip {
					t.Skip(strings.TrimSpace(why))
				}
				require.Contains(t, egressNotices(events), "allowed "+at)
			}
		})
	}
}

// A child that is led to the proxy cannot go past it: not to another address on the
// proxy's port, not to the host that the proxy would connect to, not to the proxy of
// another session, and not by UDP.
func TestNothingGoesPastTheEgressProxy(t *testing.T) {
	for _, agent := range agents {
		t.Run(string(agent), func(t *testing.T) {
			testkit.RequireLandlock(t, 6)
			testkit.NoLeaks(t)
			host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
			t.Cleanup(host.Close)
			s := newStage(t, agent, (&resolver{}).option())
			policy := application.Policy{Domains: testkit.EgressDomains("a.test:" + portOf(host.URL) + "=127.0.0.1")}
			mine := s.open(t, application.OpenRequest{Policy: policy})
			sibling, err := s.Orchestrator.Open(t.Context(), application.OpenRequest{Agent: agent, Workspace: s.outside, Policy: policy})
			require.NoError(t, err)
			var listen net.ListenConfig
			decoy, err := listen.Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.2:%d", mine.Plan().EgressPort()))
			require.NoError(t, err)
			defer func() { require.NoError(t, decoy.Close()) }()
			targets := []string{
				fmt.Sprintf("127.0.0.1:%d", mine.Plan().EgressPort()), decoy.Addr().String(), host.Listener.Addr().String(),
				fmt.Sprintf("127.0.0.1:%d", sibling.Plan().EgressPort()),
			}
			var script []string
			for _, to := range targets {
				require.True(t, dials(t, to), "the companion")
				script = append(script, "connect "+to)
			}
			events := s.run(t, mine, script...)
			var statuses []domain.ToolStatus
			for _, r := range resultsOf(events) {
				statuses = append(statuses, r.Status)
			}
			require.Equal(t, []domain.ToolStatus{domain.ToolCompleted, domain.ToolFailed, domain.ToolFailed, domain.ToolFailed}, statuses, "its own proxy and nothing else")
			require.Contains(t, receiptOf(events).InState(domain.StateEnforced), domain.PropertyUDP)

			// Neither the secret of the proxy is in what Caisson keeps, nor is it the same
			// the next time.
			secret := egressSecret(mine.Plan())
			require.NoError(t, mine.Close(t.Context()))
			require.NoError(t, sibling.Close(t.Context()))
			for _, file := range append(globbed(t, s.root, "sessions/*/record.json"), globbed(t, s.root, "sessions/*/events.jsonl")...) {
				require.NotContains(t, fileText(t, file), secret)
			}
		})
	}
}
