//go:build system

package program

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	consulapi "github.com/hashicorp/consul/api"
	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/dnstest"
	"github.com/ironvip/ironvip/test/freeport"
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
	return dnstest.Ask(n.from, 20*time.Second, transport, n.at, name, kind)
}

// resolves waits until a query has this answer by UDP, and then checks it by TCP.
func (n *named) resolves(name, kind, want string) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("%s %s is %s", name, kind, want), func() error {
		got, err := n.ask("udp", name, kind)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
	if got, err := n.ask("tcp", name, kind); err != nil || got != want {
		n.t.Errorf("%s %s by tcp is %s (%v), want %s", name, kind, got, err, want)
	}
}

// reload reloads the configuration, which must be accepted.
func (n *named) reload() {
	n.t.Helper()
	n.ok("reload")
}

// Names of services from files and the API resolve; commands, status and metrics show them; each key
// of [dns] takes effect at a reload; and an invalid one changes nothing.
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
	web := strings.TrimSpace(n.ok("service", "get", "shop/web", "-o", "json"))
	if !strings.Contains(web, `"shop.example.com"`) {
		t.Errorf("service get: %s", web)
	}
	_, tree := n.rest("GET", "/v1/services/shop/web", "")
	vip := tree["status"].(map[string]any)["vips"].([]any)[0].(string)

	n.resolves("web.shop.svc.vip.internal", "A", "NOERROR "+vip)
	n.resolves("Shop.Example.COM", "A", "NOERROR "+vip)
	n.resolves("api.vip.internal", "A", "NOERROR "+api)
	n.resolves("api.default.svc.vip.internal", "AAAA", "NOERROR")
	n.resolves("web.vip.internal", "A", "NXDOMAIN")
	n.resolves("www.example.com", "A", "REFUSED")
	n.resolves("_http._tcp.web.shop.svc.vip.internal", "SRV", "NOERROR 0 100 8080 web.shop.svc.vip.internal.")
	reverse, err := dns.ReverseAddr(vip)
	if err != nil {
		t.Fatal(err)
	}
	n.resolves(reverse, "PTR", "NOERROR web.shop.svc.vip.internal.")
	n.resolves("dns-version.vip.internal", "TXT", `NOERROR "1.1.0"`)

	n.status("OK", "dns", "names of 2 services in vip.internal at "+n.at)
	mentions(t, "dns list", n.ok("dns", "list"), "shop.example.com ", "web.shop.svc.vip.internal ", "answered")
	mentions(t, "dns query", n.ok("dns", "query", "shop.example.com"), "a hostname of service shop/web", vip)
	mentions(t, "dns query of a VIP", n.ok("dns", "query", vip), "a VIP of service shop/web", "web.shop.svc.vip.internal")
	mentions(t, "service list", n.ok("service", "list", "-o", "wide"), "DNS NAME", "api.default.svc.vip.internal")
	mentions(t, "service get", n.ok("service", "get", "api"), "api.default.svc.vip.internal,api.vip.internal")
	mentions(t, "explain", n.ok("service", "explain", "api"), "Its DNS names are api.default.svc.vip.internal, api.vip.internal.")
	mentions(t, "doctor", n.cli("doctor", "--config", n.dir).stdout, "ok    dns: "+n.at+" answers for vip.internal by UDP and TCP", "ok    dns: api.default.svc.vip.internal is "+api)
	mentions(t, "completion", n.ok("__complete", "dns", "query", "shop"), "shop.example.com")
	mentions(t, "metrics", n.metricsText(), `ironvip_dns_up{listen="`+n.at+`"} 1`, `ironvip_dns_queries_total{rcode="NXDOMAIN",transport="tcp",type="A"} 1`, "ironvip_dns_names ")

	// A new hostname is part of a plan, and resolves at once.
	n.write("draft.toml", service("api", `hostnames = ["draft.example.com"]`, a))
	if r := n.cli("service", "apply", "--dry-run", "-f", filepath.Join(n.dir, "draft.toml")); r.code != 10 {
		t.Errorf("service apply --dry-run: exit %d\n%s%s", r.code, r.stdout, r.stderr)
	} else {
		mentions(t, "plan", r.stdout, "hostnames none -> draft.example.com")
	}
	n.edit("services.d/web.toml", `["shop.example.com"]`, `["new.example.com"]`)
	n.resolves("new.example.com", "A", "NOERROR "+vip)
	n.resolves("shop.example.com", "A", "REFUSED")

	n.dns("domain = \"lb.example.org\"\nshort_names = false\nreverse = false\nttl = \"5s\"", "")
	n.reload()
	n.resolves("web.shop.svc.lb.example.org", "A", "NOERROR "+vip)
	n.resolves("web.shop.svc.vip.internal", "A", "REFUSED")
	n.resolves("api.lb.example.org", "A", "NXDOMAIN")
	n.resolves(reverse, "PTR", "REFUSED")

	for junk, want := range map[string]string{
		`ttl = "1h"`:            "dns.ttl: 1h is longer than ipam.reuse_delay",
		`listn = ["x"]`:         `dns.listn: unknown key`,
		`domain = "vip.local"`:  `dns.domain: resolvers do not look up names below "local" by DNS`,
		`allow = ["10.0.0/8"]`:  `dns.allow[0]: "10.0.0/8" is not a range of addresses`,
		`rate_limit = "many"`:   "dns.rate_limit:",
		`resolver = "dnsmasq"`:  `dns.resolver: "dnsmasq" is not a known value`,
		`negative_ttl = "-1ms"`: "dns.negative_ttl:",
	} {
		n.dns(junk, "")
		if r := n.cli("reload"); r.code != 1 || !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, "ironvip.toml:") {
			t.Errorf("reload with %s: exit %d\n%s", junk, r.code, r.stderr)
		}
		n.resolves("web.shop.svc.lb.example.org", "A", "NOERROR "+vip)
	}

	// Another port, no address, and the first one again.
	first := n.at
	n.at = fmt.Sprintf("127.0.0.1:%d", n.ports[2])
	n.dns("", "")
	n.reload()
	n.resolves("web.shop.svc.vip.internal", "A", "NOERROR "+vip)
	n.eventually("the former port is free", func() error { return free(first) })
	second := n.at
	n.config("")
	n.reload()
	n.eventually("the port is free", func() error { return free(second) })
	if r := n.cli("status"); strings.Contains(r.stdout, "dns ") {
		t.Errorf("status without dns.listen:\n%s", r.stdout)
	}
	n.at = first
	n.dns("", "")
	n.reload()
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

// metricsText returns the metrics.
func (n *named) metricsText() string {
	n.t.Helper()
	resp, err := n.http().Get("http://ironvip/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

// A port that another program has is a warning. Traffic is not affected, and names resolve when the
// port is free.
func TestDNSPortTaken(t *testing.T) {
	parallel(t)
	n := newNamed(t, "")
	a := newBackend(t, "a")
	n.write("services.d/web.toml", service("web", "", a))
	other, err := net.ListenPacket("udp", n.at)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	n.start()
	web := n.vip("web")
	n.serves(web+":8080", "a")
	n.status("WARN", "dns", "DNS queries are not answered at "+n.at)
	n.status("WARN", "dns", "address already in use")
	mentions(t, "doctor", n.cli("doctor", "--config", n.dir).stdout, "FAIL  dns: "+n.at+" does not answer for vip.internal by udp", "the port is in use", "ss -lp 'sport = :")
	mentions(t, "metrics", n.metricsText(), `ironvip_dns_up{listen="`+n.at+`"} 0`)
	n.serves(web+":8080", "a")

	other.Close()
	n.resolves("web.vip.internal", "A", "NOERROR "+web)
	n.status("OK", "dns", n.at)
	if text := n.ok("events"); !strings.Contains(text, "address already in use") {
		t.Errorf("events:\n%s", text)
	}
}

// Two sources have a service with one hostname. The older one has the name, also after a restart, and
// the status of the other names it.
func TestDNSConflict(t *testing.T) {
	parallel(t)
	n := newNamed(t, "")
	a := newBackend(t, "a")
	n.start()
	put := func(name string) string {
		t.Helper()
		code, tree := n.rest("PUT", "/v1/services/default/"+name, `{"ports": [{"port": 8080}], "backends": [`+a.json()+`], "hostnames": ["shop.example.com"]}`, "Prefer", "wait=30")
		if code != 201 {
			t.Fatalf("%d %v", code, tree)
		}
		return tree["status"].(map[string]any)["vips"].([]any)[0].(string)
	}
	older := put("older")
	n.write("services.d/newer.toml", service("newer", `hostnames = ["shop.example.com", "newer.example.com"]`, a))
	newer := n.vip("newer")
	n.resolves("newer.example.com", "A", "NOERROR "+newer)
	lost := func(when string) {
		t.Helper()
		n.resolves("shop.example.com", "A", "NOERROR "+older)
		n.eventually("the newer service names the winner "+when, func() error {
			out := n.cli("service", "explain", "newer").stdout
			if !strings.Contains(out, "newer is degraded") || !strings.Contains(out, "shop.example.com resolves to service older, which has the older lease") {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
		mentions(t, "dns list "+when, n.ok("dns", "list"), "taken by older")
		mentions(t, "dns query "+when, n.ok("dns", "query", "shop.example.com"), "newer wants this name, too: taken by older.")
		n.serves(newer+":8080", "a")
	}
	lost("at first")
	if text := n.ok("events"); !strings.Contains(text, "service newer can't have the DNS name shop.example.com: service older has it") {
		t.Errorf("events:\n%s", text)
	}
	n.kill()
	n.start()
	lost("after a crash")

	n.config("")
	n.reload()
	if out := n.ok("dns", "list"); strings.Contains(out, "taken by") {
		t.Errorf("dns list without dns.listen:\n%s", out)
	}
	n.dns("", "")
	n.reload()
	lost("with dns.listen again")

	if code, tree := n.rest("DELETE", "/v1/services/default/older", ""); code/100 != 2 {
		t.Fatalf("DELETE: %d %v", code, tree)
	}
	n.resolves("shop.example.com", "A", "NOERROR "+newer)
	n.eventually("the conflict is over", func() error {
		if out := n.ok("service", "explain", "newer"); strings.Contains(out, "degraded") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}

// awaitMore waits until an asker has more answers than that.
func (n *named) awaitMore(a *dnstest.Asker, than int) {
	n.t.Helper()
	n.eventually("an answer for "+a.Name, func() error {
		if _, all := a.Answers(); all <= than {
			return fmt.Errorf("%d answers", all)
		}
		return nil
	})
}

func (n *named) keepAsking(name string) *dnstest.Asker {
	return dnstest.KeepAsking(n.t, n.from, n.at, name)
}

// The names of services resolve after a crash although Consul is away, and nothing says meanwhile that
// they don't exist.
func TestDNSWithoutConsul(t *testing.T) {
	parallel(t)
	consul := consultest.Start(t, consultest.Options{})
	n := newNamed(t, "")
	n.dns("", fmt.Sprintf("[consul]\naddress = %q\n[[source]]\ntype = \"consul\"\n[[source]]\ntype = \"static\"\npath = \"services.d\"\n", consul.URL))
	a := newBackend(t, "a")
	if _, err := consul.Client.Catalog().Register(&consulapi.CatalogRegistration{Node: "node-a", Address: "127.0.0.1",
		Service: &consulapi.AgentService{ID: "web-a", Service: "web", Tags: []string{"ironvip"}, Port: a.port, Address: "127.0.0.1",
			Meta: map[string]string{"ironvip-port": "8080", "ironvip-hostnames": "shop.example.com,www.example.com"}}}, nil); err != nil {
		t.Fatal(err)
	}
	n.write("services.d/db.toml", service("db", "", a))
	n.start()
	web, db := n.vip("web"), n.vip("db")
	n.resolves("www.example.com", "A", "NOERROR "+web)
	n.keeps("cache consul", "default/web", func(string) bool { return true })
	consul.Stop()
	asking := []*dnstest.Asker{n.keepAsking("web.vip.internal"), n.keepAsking("db.default.svc.vip.internal")}
	n.kill()
	var before []int
	for _, a := range asking {
		_, all := a.Answers()
		before = append(before, all)
	}
	n.start()
	n.resolves("web.vip.internal", "A", "NOERROR "+web)
	n.resolves("www.example.com", "A", "NOERROR "+web)
	n.resolves("db.vip.internal", "A", "NOERROR "+db)
	for i, want := range []string{"NOERROR " + web, "NOERROR " + db} {
		n.awaitMore(asking[i], before[i]+1) // one may have been on its way before
		if seen, _ := asking[i].Answers(); !slices.Equal(seen, []string{want}) {
			t.Errorf("answers for %s during the restart: %q, want only %s", asking[i].Name, seen, want)
		}
	}
}

// A source that can't be read since the start: its names of the last run resolve, because their leases
// are known, and other names fail instead of not existing. The wait for the source ends after 30 s.
func TestDNSWithoutSource(t *testing.T) {
	parallel(t)
	n := newNamed(t, "")
	a := newBackend(t, "a")
	n.write("services.d/web.toml", service("web", `hostnames = ["shop.example.com"]`, a))
	n.start()
	web := n.vip("web")
	n.resolves("shop.example.com", "A", "NOERROR "+web)
	n.kill()
	n.forgets("last-good") // which knows hostnames, and is stored with a delay
	away := filepath.Join(n.dir, "away")
	if err := os.Rename(filepath.Join(n.dir, "services.d"), away); err != nil {
		t.Fatal(err)
	}
	n.dns("", "[[source]]\ntype = \"static\"\npath = \"services.d\"\n") // without it, a missing directory is no services
	// All of them ask from the start on, because the answers are others after the timeout.
	asking := map[*dnstest.Asker]string{n.keepAsking("web.vip.internal"): "NOERROR " + web, n.keepAsking("web.default.svc.vip.internal"): "NOERROR " + web,
		n.keepAsking("none.vip.internal"): "SERVFAIL", n.keepAsking("shop.example.com"): "SERVFAIL"}
	n.launch()
	for a, want := range asking {
		n.awaitMore(a, 0)
		a.Stop()
		if seen, _ := a.Answers(); seen[0] != want {
			t.Errorf("the first answer for %s is %s, want %s", a.Name, seen[0], want)
		}
	}
	n.resolves("none.vip.internal", "A", "NXDOMAIN") // after the timeout
	if err := os.Rename(away, filepath.Join(n.dir, "services.d")); err != nil {
		t.Fatal(err)
	}
	n.resolves("shop.example.com", "A", "NOERROR "+web)
	n.resolves("web.vip.internal", "A", "NOERROR "+web)
	n.resolves("www.example.com", "A", "REFUSED")
	n.ready()
	wait.Within(t, maxWait, "status is ok", func() error {
		if r := n.cli("status"); r.code != 0 {
			return fmt.Errorf("%s", r.stdout)
		}
		return nil
	})
}

// After a restart, the source of the service that has a contested name is late. Clients never get the
// address of the service that has lost it.
func TestDNSConflictWithALateSource(t *testing.T) {
	parallel(t)
	n := newNamed(t, "")
	n.dns("", "[[source]]\nname = \"first\"\ntype = \"static\"\npath = \"older.d\"\n[[source]]\nname = \"second\"\ntype = \"static\"\npath = \"newer.d\"\n")
	a := newBackend(t, "a")
	for _, dir := range []string{"older.d", "newer.d"} {
		if err := os.Mkdir(filepath.Join(n.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
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
	n.forgets("last-good") // of the sources, which is stored with a delay

	away, place := filepath.Join(n.dir, "away"), filepath.Join(n.dir, "older.d")
	if err := os.Rename(place, away); err != nil {
		t.Fatal(err)
	}
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
	if err := os.Rename(away, place); err != nil {
		t.Fatal(err)
	}
	n.resolves("shop.example.com", "A", "NOERROR "+older)
	asking.Stop()
	seen, _ := asking.Answers()
	for _, answer := range seen {
		if answer != "SERVFAIL" && answer != "NOERROR "+older {
			t.Errorf("the answers are %q, want SERVFAIL and then %s only", seen, older)
		}
	}
}
