//go:build system

package program

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/dnstest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// named is a host that answers DNS queries.
type named struct {
	*host
	ports freeport.Block
	at    string       // where queries are answered
	from  dnstest.Dial // from where they come
}

// newNamed creates a host that answers DNS queries at a free port of loopback. More is appended to
// [dns].
func newNamed(t *testing.T, more string) *named {
	t.Helper()
	n := &named{host: newHost(t), ports: freeport.Reserve(t, nil, netip.MustParseAddr("127.0.0.1")), from: dnstest.Here}
	n.at = fmt.Sprintf("127.0.0.1:%d", n.ports[1])
	n.dns(more, "")
	return n
}

// dns writes the configuration with more in [dns] and others appended.
func (n *named) dns(more, others string) {
	n.t.Helper()
	n.config(fmt.Sprintf("%s\n[dns]\nlisten = [%q]\n%s\n", others, n.at, more))
}

// ask sends one query by "udp" or "tcp" and returns the answer in short form: the response code, and
// the data of the records in the answer.
func (n *named) ask(transport, name, kind string) (string, error) {
	return dnstest.Ask(n.from, wait.Reply, transport, n.at, name, kind)
}

// resolves waits until a query has this answer by UDP and TCP. A server that starts has UDP first.
func (n *named) resolves(name, kind, want string) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("%s %s is %s", name, kind, want), func() error {
		for _, transport := range []string{"udp", "tcp"} {
			if got, err := n.ask(transport, name, kind); err != nil || got != want {
				return fmt.Errorf("by %s it is %s (%v)", transport, got, err)
			}
		}
		return nil
	})
}

// Names of services from files and the API resolve; commands, status and metrics show them; each key
// of [dns] takes effect at a reload.
func TestDNSNames(t *testing.T) {
	parallel(t)
	n := newNamed(t, "")
	a := newBackend(t, "a")
	n.write("services.d/web.toml", `[[service]]
name = "web"
namespace = "shop"
ports = [ { name = "http", port = 8080 } ]
backends = [ `+a.toml()+` ]
hostnames = ["shop.example.com"]
`)
	n.start()
	api := n.put("api", a)
	_, tree := n.rest("GET", "/v1/services/shop/web", "")
	vip := tree["status"].(map[string]any)["vips"].([]any)[0].(string)

	n.resolves("web.shop.svc.vip.internal", "A", "NOERROR "+vip)
	n.resolves("Shop.Example.COM", "A", "NOERROR "+vip)
	n.resolves("api.vip.internal", "A", "NOERROR "+api)
	n.resolves("api.default.svc.vip.internal", "AAAA", "NOERROR")
	n.resolves("web.vip.internal", "A", "NXDOMAIN")
	n.resolves("www.example.com", "A", "REFUSED")
	n.resolves("_http._tcp.web.shop.svc.vip.internal", "SRV", "NOERROR 0 100 8080 web.shop.svc.vip.internal.")
	reverse := must.Get(dns.ReverseAddr(vip))(t)
	n.resolves(reverse, "PTR", "NOERROR web.shop.svc.vip.internal.")
	n.resolves("dns-version.vip.internal", "TXT", `NOERROR "1.1.0"`)

	n.status("OK", "dns", "names of 2 services in vip.internal at "+n.at)
	mentions(t, "dns list", n.ok("dns", "list"), "shop.example.com ", "web.shop.svc.vip.internal ", "answered")
	mentions(t, "dns query", n.ok("dns", "query", vip), "a VIP of service shop/web", "web.shop.svc.vip.internal")
	mentions(t, "metrics", n.scrape(), `ironvip_dns_up{listen="`+n.at+`"} 1`)

	n.edit("services.d/web.toml", `["shop.example.com"]`, `["new.example.com"]`)
	n.resolves("new.example.com", "A", "NOERROR "+vip)
	n.resolves("shop.example.com", "A", "REFUSED")

	n.dns("domain = \"lb.example.org\"\nshort_names = false\nreverse = false\nttl = \"5s\"", "")
	n.ok("reload")
	n.resolves("web.shop.svc.lb.example.org", "A", "NOERROR "+vip)
	n.resolves("web.shop.svc.vip.internal", "A", "REFUSED")
	n.resolves("api.lb.example.org", "A", "NXDOMAIN")
	n.resolves(reverse, "PTR", "REFUSED")

	// Another port, no address, and the first one again.
	first := n.at
	n.at = fmt.Sprintf("127.0.0.1:%d", n.ports[2])
	n.dns("", "")
	n.ok("reload")
	n.resolves("web.shop.svc.vip.internal", "A", "NOERROR "+vip)
	n.eventually("the former port is free", func() error { return free(first) })
	second := n.at
	n.config("")
	n.ok("reload")
	n.eventually("the port is free", func() error { return free(second) })
	r := n.cli("status")
	expect.False(t, strings.Contains(r.stdout, "dns "), "status without dns.listen:\n%s", r.stdout)
	n.at = first
	n.dns("", "")
	n.ok("reload")
	n.resolves("api.vip.internal", "A", "NOERROR "+api)
}

// free returns an error if a port of loopback is in use.
func free(at string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := net.ListenPacket("udp", at)
	if err != nil {
		return err
	}
	return c.Close()
}

func (n *named) keepAsking(name string) *dnstest.Asker {
	return dnstest.KeepAsking(n.t, n.from, n.at, name)
}

// After a restart, the source of the service that has a contested name is late. Clients never get the
// address of the service that has lost it.
func TestDNSConflictWithALateSource(t *testing.T) {
	parallel(t)
	n := newNamed(t, "")
	n.dns("", "[[source]]\nname = \"first\"\ntype = \"static\"\npath = \"older.d\"\n[[source]]\nname = \"second\"\ntype = \"static\"\npath = \"newer.d\"\n")
	a := newBackend(t, "a")
	for _, dir := range []string{"older.d", "newer.d"} {
		must.Succeed(t, os.Mkdir(filepath.Join(n.dir, dir), 0o755))
	}
	n.write("older.d/older.toml", service("older", `hostnames = ["shop.example.com"]`, a))
	n.start()
	older := n.vip("older")
	n.write("newer.d/newer.toml", service("newer", `hostnames = ["shop.example.com", "newer.example.com"]`, a))
	newer := n.vip("newer")
	n.resolves("newer.example.com", "A", "NOERROR "+newer)
	n.resolves("shop.example.com", "A", "NOERROR "+older)
	n.keeps("contested names", "shop.example.com", func(winner string) bool { return strings.Contains(winner, "older") })
	n.kill()
	n.forgets("cache first") // the services of older.d, which are stored with a delay

	away, place := filepath.Join(n.dir, "away"), filepath.Join(n.dir, "older.d")
	must.Succeed(t, os.Rename(place, away))
	asking := n.keepAsking("shop.example.com")
	n.launch()
	n.resolves("newer.example.com", "A", "NOERROR "+newer)
	mentions(t, "dns query", n.ok("dns", "query", "shop.example.com"), "SERVFAIL", "several services wanted this name before the restart", "newer wants this name: held for older.")
	mentions(t, "dns list", n.ok("dns", "list"), "held for older")
	n.eventually("explain says that the name is held", func() error {
		out := n.cli("service", "explain", "newer").stdout
		for _, line := range []string{"newer is degraded", "shop.example.com is not answered yet: service older had it before the restart", "Its DNS names are newer.default.svc.vip.internal, newer.vip.internal, newer.example.com."} {
			if !strings.Contains(out, line) {
				return fmt.Errorf("no %q in\n%s", line, out)
			}
		}
		return nil
	})
	must.Succeed(t, os.Rename(away, place))
	n.resolves("shop.example.com", "A", "NOERROR "+older)
	asking.Stop()
	seen, _ := asking.Answers()
	for _, answer := range seen {
		if answer != "SERVFAIL" && answer != "NOERROR "+older {
			t.Errorf("the answers are %q, want SERVFAIL and then %s only", seen, older)
		}
	}
}
