//go:build system

package announce

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/kubetest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// page is docs/recipes.md with the addresses of the lab.
type page struct {
	t    testing.TB
	text string
}

// asInLab replaces the addresses of the page, and times that a busy machine may exceed.
var asInLab = strings.NewReplacer("10.0.0.21:9000", "127.0.0.1:9000", "10.0.0.", "10.78.0.", "2001:db8::", "fd78::",
	`timeout = "200ms"`, `timeout = "5s"`, `timeout = "1s"`, `timeout = "5s"`, `timeout = "2s"`, `timeout = "5s"`)

func readPage(t testing.TB) page {
	t.Helper()
	return page{t, asInLab.Replace(string(must.Get(os.ReadFile("../../docs/recipes.md"))(t)))}
}

// file returns a file of the page: the block that begins with its path.
func (p page) file(path string) string {
	p.t.Helper()
	m := regexp.MustCompile("(?ms)^```\\w+\n(# " + regexp.QuoteMeta(path) + "\n.*?)^```$").FindStringSubmatch(p.text)
	must.True(p.t, m != nil, "docs/recipes.md has no %s", path)
	return m[1]
}

// follow configures a host with a file of services of the page, and a service of another kind. Extra is added to [announce].
func (l *lab) follow(h *host, p page, services, extra string, replace ...string) {
	l.t.Helper()
	peers := regexp.MustCompile(`(?s)peers = .*key_file = "announce-key"`)
	text := p.file("/etc/ironvip/ironvip.toml")
	must.True(l.t, peers.MatchString(text), "no peers in %s", text)
	text = peers.ReplaceAllLiteralString(text, l.peers()+h.announceKeys()+extra) // the lab may have two hosts only
	other := fmt.Sprintf("[[service]]\nname = \"s1\"\nvips = [%q, %q]\nports = [{ port = %d }]\nbackends = [{ address = \"127.0.0.1\", port = 9000 }, { address = \"::1\", port = 9000 }]\nhealth = { type = \"none\" }\n",
		vip4(1), vip6(1), servicePort)
	h.configure(strings.NewReplacer(replace...).Replace(p.file("/etc/ironvip/services.d/"+services))+other,
		h.tables()+text+"[[pool]]\nname = \"other\"\ncidrs = [\"10.78.0.130-10.78.0.199\", \"fd78::1:0/120\"]\n")
}

// commands runs the commands of the page about a host.
func (h *host) commands() {
	h.t.Helper()
	run := 0
	for _, m := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(readPage(h.t).text, -1) {
		for line := range strings.Lines(m[1]) {
			command, _, _ := strings.Cut(strings.TrimSpace(line), "#")
			words := strings.Fields(strings.ReplaceAll(command, "/etc/ironvip", h.dir))
			must.True(h.t, len(words) > 1 && words[0] == "ironvip", "%s is no command of the program", line)
			h.must(words[1:]...)
			run++
		}
	}
	must.True(h.t, run > 0, "no commands")
}

// prefers is extra of a host that has the VIPs while it can.
func (l *lab) prefers(h *host) string {
	if h == l.hosts[0] {
		return patient + "priority = 200\n"
	}
	return patient
}

// standIn is a server at all addresses of a host that answers GET requests with a status, and the host's name.
func (h *host) standIn(port uint16, status func(path string) int) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status(r.URL.Path))
		io.WriteString(w, h.Name)
	}))
	s.Config.ErrorLog = nil
	s.Listener.Close()
	s.Listener = h.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	return s
}

// get asks a server from a node, with a new connection. Any certificate will do.
func get(from *netlab.Node, url string) (string, error) {
	web := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: from.DialContext, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	answer, err := web.Get(url)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return string(body), err
}

// awaitGet waits until a server answers a node with one of some texts.
func awaitGet(t testing.TB, from *netlab.Node, url string, texts ...string) {
	t.Helper()
	wait.For(t, fmt.Sprintf("%s from %s", url, from.Name), func() error {
		got, err := get(from, url)
		for _, want := range texts {
			if err == nil && got == want {
				return nil
			}
		}
		return fmt.Errorf("%q, %v", got, err)
	})
}

// newControlPlane starts three hosts with the control plane of docs/recipes.md. The first one has a real kube-apiserver, and start
// makes servers at the same port of the others. The function returns the address of a path at a VIP.
func newControlPlane(t *testing.T, start func(*host, *kubetest.Cluster)) (*lab, *kubetest.Cluster, func(vip netip.Addr) string) {
	t.Helper()
	l := prepareLab(t, 3)
	a := l.hosts[0]
	cluster := kubetest.Start(t, kubetest.Options{In: a.Node, Addr: a.Addr4, Flags: []string{"--bind-address=0.0.0.0"}})
	port := cluster.Addr.Port()
	p := readPage(t)
	for _, h := range l.hosts {
		if h != a {
			start(h, cluster)
		}
		l.follow(h, p, "kubernetes.toml", l.prefers(h), "6443", fmt.Sprint(port))
		h.edit(fmt.Sprintf("mode = %q", dataplane), `mode = "nft"`) // the proxy can't listen beside a listener at all addresses
		h.start()
	}
	return l, cluster, func(vip netip.Addr) string { return fmt.Sprintf("https://%s/readyz", netip.AddrPortFrom(vip, port)) }
}

// apiVIP is that of the control plane, and apiLocal the address for its own hosts.
var apiVIP, apiLocal = netip.MustParseAddr("10.78.0.210"), netip.MustParseAddr("192.0.2.10")

// A control plane: a real kube-apiserver on the first host, and stand-ins on the others. The VIP follows readiness. On a host
// whose apiserver is down, the address for the hosts themselves works.
// Slow: kube-apiserver takes some seconds to start.
func TestKubernetesControlPlane(t *testing.T) {
	t.Parallel()
	l, cluster, at := newControlPlane(t, func(h *host, c *kubetest.Cluster) {
		h.standIn(c.Addr.Port(), func(string) int { return http.StatusOK }).StartTLS()
	})
	a := l.hosts[0]
	l.awaitFloating(a, apiVIP)
	awaitGet(t, l.client, at(apiVIP), "ok")
	cluster.API.Kill(t)
	awaitGet(t, l.client, at(apiVIP), l.hosts[1].Name, l.hosts[2].Name)
	if got, err := get(a.Node, at(apiVIP)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%s on a host whose apiserver is down: %q, %v", apiVIP, got, err)
	}
	for _, h := range l.hosts {
		awaitGet(t, h.Node, at(apiLocal), l.hosts[1].Name, l.hosts[2].Name)
	}
}

// An address follows what Patroni's REST API says, here that of stand-ins: nobody has it while there is no primary.
func TestPostgresFollowsThePrimary(t *testing.T) {
	t.Parallel()
	l := prepareLab(t, 2)
	a, b := l.hosts[0], l.hosts[1]
	p := readPage(t)
	var primary atomic.Pointer[host]
	for _, h := range l.hosts {
		h.standIn(8008, func(path string) int {
			if isPrimary := primary.Load() == h; path == "/primary" && isPrimary || path == "/replica" && !isPrimary {
				return http.StatusOK
			}
			return http.StatusServiceUnavailable
		}).Start()
		l.follow(h, p, "postgres.toml", patient)
		h.start()
	}
	writes, reads := netip.MustParseAddr("10.78.0.211"), netip.MustParseAddr("10.78.0.212")
	primary.Store(a)
	l.awaitFloating(a, writes)
	l.awaitFloating(b, reads)
	primary.Store(nil)
	l.awaitFloating(nil, writes)
	primary.Store(b)
	l.awaitFloating(b, writes)
	l.awaitFloating(a, reads)
}

var resolverVIPs = []netip.Addr{netip.MustParseAddr("10.78.0.213"), netip.MustParseAddr("10.78.0.214")}

// recipeQuery is a query that the resolvers answer.
func recipeQuery(t testing.TB) []byte {
	return must.Get(new(dns.Msg).SetQuestion("www.recipe.example.", dns.TypeA).Pack())(t)
}

// newResolvers starts two hosts with two addresses for unbound, which does not run yet.
func newResolvers(t testing.TB, extra string) (*lab, []*process.Process) {
	t.Helper()
	bin := need.Daemon(t, "unbound")
	l := prepareLab(t, 2)
	p := readPage(t)
	var programs []*process.Process
	for _, h := range l.hosts {
		conf := filepath.Join(h.dir, "unbound.conf")
		must.Succeed(t, os.WriteFile(conf, fmt.Appendf(nil, "%sserver:\n  chroot: \"\"\n  username: \"\"\n  pidfile: \"\"\n  use-syslog: no\n  log-queries: yes\n", p.file("/etc/unbound/unbound.conf.d/floating.conf")), 0o600))
		program := process.New(bin, filepath.Join(h.dir, "unbound.log"), h.Node, "-d", "-c", conf)
		t.Cleanup(program.Kill)
		programs = append(programs, program)
		l.follow(h, p, "resolver.toml", extra)
		h.start()
	}
	return l, programs
}

// Two resolvers with two addresses: while one of them is down, the other one has both. It answers from the address that was
// asked, and sees the client. A planned move loses no query.
func TestResolversShareTwoAddresses(t *testing.T) {
	t.Parallel()
	l, programs := newResolvers(t, patient)
	for i := range programs {
		must.Succeed(t, programs[i].Start())
	}
	ask := func() {
		t.Helper()
		for _, vip := range resolverVIPs {
			for _, network := range []string{"udp", "tcp"} {
				wait.For(t, fmt.Sprintf("an answer of %s/%s", vip, network), func() error {
					conn, err := l.client.DialContext(t.Context(), network, net.JoinHostPort(vip.String(), "53"))
					if err != nil {
						return err
					}
					defer conn.Close()
					c := dns.Client{Net: network, Timeout: time.Second}
					answer, _, err := c.ExchangeWithConnContext(context.Background(), new(dns.Msg).SetQuestion("www.recipe.example.", dns.TypeA), &dns.Conn{Conn: conn})
					if err == nil && (len(answer.Answer) != 1 || !strings.HasSuffix(answer.Answer[0].String(), "192.0.2.80")) {
						err = errors.New(answer.String())
					}
					return err
				})
			}
		}
	}
	ask()
	for i, h := range l.hosts {
		programs[i].Kill()
		l.awaitFloating(l.hosts[1-i], resolverVIPs...)
		ask()
		expect.Contains(t, programs[1-i].LogEnd(4000), l.client.Addr4.String()+" www.recipe.example.")
		must.Succeed(t, programs[i].Start())
		h.awaitPassed()
	}
	for _, h := range l.hosts {
		load := startRequests(&load{t: t, from: l.client, to: netip.AddrPortFrom(resolverVIPs[0], 53), patience: requestTime, query: recipeQuery(t)}, 2*time.Millisecond)
		load.awaitAnswers(10)
		drainNode(l, h)
		load.awaitAnswers(10)
		if o := load.end(); o.lost > 0 {
			t.Errorf("while %s gives its addresses away: %s", h.Name, o)
		}
		undrainNode(l, h)
	}
}
