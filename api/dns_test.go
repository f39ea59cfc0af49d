package api

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/dns"
	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/test/dnstest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// noNames is a stage without names.
func noNames() *dns.Stage {
	tables := dnstest.NewTables()
	stage, err := dns.New(dns.Options{Settings: zone.Settings{Domain: "vip.internal"}, Clock: tables.Clock, Services: tables.Services, Allocations: tables.Allocations, Leases: tables.Leases})
	if err != nil {
		panic(err)
	}
	return stage
}

// eventually waits until the answer to a GET has all texts.
func (r *rig) eventually(path string, texts ...string) {
	r.t.Helper()
	var last string
	wait.Until(r.t, fmt.Sprintf("%s has %q", path, texts), func() bool {
		last = string(r.ask("GET", path, "").body)
		for _, text := range texts {
			if !strings.Contains(last, text) {
				return false
			}
		}
		return true
	})
}

// Two services want one hostname: the older one has it, and every view of the other names the
// winner. When the winner gives it up, the other has it.
func TestHostnameConflict(t *testing.T) {
	r := newRig(t)
	const body = `{"ports":[{"port":80,"name":"http"}],"backends":[{"address":"10.0.0.1"}],"hostnames":[%s]}`
	decode[v1.Service](r, "PUT", v1.ServicePath("shop", "older"), fmt.Sprintf(body, `"shop.example.com"`), "Prefer: wait=60")
	decode[v1.Service](r, "PUT", v1.ServicePath("default", "newer"), fmt.Sprintf(body, `"shop.example.com","newer.example.com"`), "Prefer: wait=60")
	newer := v1.ServicePath("default", "newer")
	r.eventually(newer, `"state":"degraded"`, `"field":"hostnames","message":"shop.example.com resolves to service shop/older, which has the older lease"`, `"dns_names":["newer.default.svc.vip.internal","newer.vip.internal","newer.example.com"]`)
	r.eventually(v1.ExplainPath("default", "newer"), "newer is degraded: a part of it is not served as requested.",
		"hostnames: shop.example.com resolves to service shop/older, which has the older lease. Hint: remove it from one of the two services.",
		"Its DNS names are newer.default.svc.vip.internal, newer.vip.internal, newer.example.com.")
	r.eventually(v1.PathStatus, "1 degraded")

	list := decode[v1.DNSNameList](r, "GET", v1.PathDNSNames+"?state=conflict", "")
	if list.Domain != "vip.internal" || len(list.Listen) != 1 || len(list.Items) != 1 {
		t.Fatalf("%+v", list)
	}
	if n := list.Items[0]; n.Name != "shop.example.com" || n.Kind != v1.NameHostname || n.Service != "newer" || n.Winner != "shop/older" || n.State != v1.NameConflict || n.Since == nil {
		t.Errorf("%+v", n)
	}
	older := decode[v1.DNSNameList](r, "GET", v1.PathDNSNames+"?service=shop/older", "").Items
	if len(older) != 2 || older[0].Name != "older.shop.svc.vip.internal" || older[0].Kind != v1.NameCanonical || older[1].State != v1.NameAnswered {
		t.Errorf("%+v", older)
	}
	answer := decode[v1.DNSAnswer](r, "GET", v1.PathDNSQuery+"?name=SHOP.example.com.", "")
	if answer.RCode != "NOERROR" || len(answer.Answer) != 1 || answer.Answer[0].Data != older[1].Addresses[0].String() || answer.Service != "shop/older" ||
		answer.Why != "a hostname of service shop/older" || len(answer.Conflicts) != 1 || answer.Conflicts[0].Service != "newer" {
		t.Errorf("%+v", answer)
	}

	// While nobody answers, nothing is wrong with the service.
	stage := r.deps.Tables.Naming
	settings := stage.Settings
	off := settings
	off.Servers = nil
	for _, c := range []struct {
		settings zone.Settings
		service  string
		degraded bool
	}{{off, `"state":"unchecked"`, false}, {settings, `"state":"degraded"`, true}} {
		must.Succeed(t, stage.Reconfigure(c.settings))
		r.eventually(newer, c.service)
		if text := string(r.ask("GET", v1.PathStatus, "").body); strings.Contains(text, "1 degraded") != c.degraded {
			t.Errorf("the status with servers %v: %s", c.settings.Servers, text)
		}
	}

	degraded := decode[v1.Service](r, "GET", newer, "")
	decode[v1.Deleted](r, "DELETE", v1.ServicePath("shop", "older"), "", "Prefer: wait=60")
	if next := decode[v1.Service](r, "GET", fmt.Sprintf("%s?wait=60s&revision=%d", newer, degraded.Revision), ""); next.Revision <= degraded.Revision {
		t.Errorf("a blocking read has missed the end of the conflict: revision %d after %d", next.Revision, degraded.Revision)
	}
	r.eventually(newer, `"state":"unchecked"`, `"problems":[]`)
	if answer = decode[v1.DNSAnswer](r, "GET", v1.PathDNSQuery+"?name=shop.example.com", ""); answer.Service != "newer" || len(answer.Conflicts) != 0 {
		t.Errorf("after the deletion: %+v", answer)
	}
}

func TestDNSQueries(t *testing.T) {
	r := newRig(t)
	web := decode[v1.Service](r, "PUT", v1.ServicePath("default", "web"), `{"ports":[{"port":80,"name":"http"}]}`, "Prefer: wait=60")
	address := web.Status.VIPs[0].String()
	r.eventually(v1.PathDNSQuery+"?name=web.vip.internal", address)
	for query, want := range map[string]string{
		"name=web.vip.internal&type=aaaa":                       `NOERROR 0 the short name of service web; the service has no address of this type`,
		"name=" + address:                                       `NOERROR 1 a VIP of service web`,
		"name=_http._tcp.web.default.svc.vip.internal&type=SRV": `NOERROR 1 a port of service web`,
		"name=vip.internal&type=SOA":                            `NOERROR 1 a name of the zone itself`,
		"name=none.vip.internal":                                `NXDOMAIN 0 no service has this name`,
		"name=www.example.com":                                  `REFUSED 0 the name is in no zone of ironvip`,
		"name=web.vip.internal&type=AXFR":                       `NOTIMP 0 the short name of service web; queries of this type are not supported`,
		"name=2001:db8::1":                                      `REFUSED 0 the name is in no zone of ironvip`,
	} {
		got := decode[v1.DNSAnswer](r, "GET", v1.PathDNSQuery+"?"+query, "")
		expect.Equal(t, fmt.Sprintf("%s %d %s", got.RCode, len(got.Answer), got.Why), want, query)
	}
	for query, want := range map[string]string{
		"":              "query.name",
		"name=a&type=X": "query.type",
		"name=a..b":     "query.name",
		"name=" + strings.Repeat("a.", 127) + "a": "query.name",
	} {
		a := r.ask("GET", v1.PathDNSQuery+"?"+query, "")
		if doc := a.problem(t); a.StatusCode/100 != 4 || len(doc.Errors) != 1 || doc.Errors[0].Field != want {
			t.Errorf("%s: %d %+v", query, a.StatusCode, doc)
		}
	}
	if a := r.ask("GET", v1.PathDNSNames+"?service=A", ""); a.StatusCode != http.StatusBadRequest {
		t.Errorf("a service that can't exist: %s", a.Status)
	}
}

// formerWinners are what a dns.Stage has stored in its last run.
type formerWinners map[string]vip.ServiceKey

func (f formerWinners) All() (map[string]vip.ServiceKey, error)       { return f, nil }
func (formerWinners) Write(map[string]vip.ServiceKey, []string) error { return nil }

// After a restart, a name of a service that has not been read yet is undecided, and says so, until every
// source has been read.
func TestUndecidedName(t *testing.T) {
	tables := dnstest.NewTables()
	stage, err := dns.New(dns.Options{Settings: zone.Settings{Domain: "vip.internal", Servers: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}, Clock: tables.Clock,
		Services: tables.Services, Allocations: tables.Allocations, Leases: tables.Leases, Store: formerWinners{"shop.example.com": dnstest.Key("old")}})
	if err != nil {
		t.Fatal(err)
	}
	scope.Go(t, stage.Run)
	r := newRig(t, func(d *Deps) { d.Tables.Naming = stage })
	tables.Service("young", "shop.example.com")
	tables.Allocate("young", 2, "192.0.2.7")
	const undecided = `"name":"shop.example.com","kind":"hostname","service":"young","addresses":["192.0.2.7"],"state":"undecided","winner":"old"`
	r.eventually(v1.PathDNSNames+"?state=undecided", undecided)
	r.eventually(v1.PathDNSNames+"?service=young", undecided, `"name":"young.default.svc.vip.internal","kind":"canonical","service":"young","addresses":["192.0.2.7"],"state":"answered"`)
	for _, state := range []string{v1.NameAnswered, v1.NameConflict} {
		text := string(r.ask("GET", v1.PathDNSNames+"?state="+state, "").body)
		expect.False(t, strings.Contains(text, "shop.example.com"), "names that are %s: %s", state, text)
	}
	const query = v1.PathDNSQuery + "?name=shop.example.com"
	answer := decode[v1.DNSAnswer](r, "GET", query, "")
	if answer.RCode != "SERVFAIL" || answer.Service != "" || !strings.HasPrefix(answer.Why, "several services wanted this name before the restart") ||
		len(answer.Conflicts) != 1 || answer.Conflicts[0].Service != "young" || answer.Conflicts[0].State != v1.NameUndecided {
		t.Errorf("%+v", answer)
	}
	tables.Listed()
	r.eventually(query, `"rcode":"NOERROR"`, `"service":"young"`, "192.0.2.7")
	r.eventually(v1.PathDNSNames+"?state=answered", "shop.example.com")
}
