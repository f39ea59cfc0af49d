package cli

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/output"
	"github.com/ironvip/ironvip/cmd/ironvip/cli/render"
	"github.com/ironvip/ironvip/test/expect"
)

// fullAgent returns an agent with responses for all reading commands.
func fullAgent(t *testing.T) *fakeAgent {
	a := newAgent(t)
	a.on("GET /v1/status", 200, nodeStatus())
	a.on("GET /v1/services?limit=1000", 200, v1.ServiceList{Items: []v1.Service{web(), db()}, Next: "p2", Revision: 230})
	a.on("GET /v1/services?cursor=p2&limit=1000", 200, v1.ServiceList{Items: []v1.Service{waiting()}, Revision: 231})
	a.on("GET /v1/services?label=team%3Dshop&limit=1000&source=static&state=healthy", 200, v1.ServiceList{Items: []v1.Service{web()}, Revision: 230})
	a.on("GET /v1/services?limit=1000&source=rest", 200, v1.ServiceList{Items: []v1.Service{media()}, Revision: 230})
	a.on("GET /v1/services/default/web", 200, web())
	a.on("GET /v1/services/shop/db", 200, db())
	a.on("GET /v1/services/default/media", 200, media())
	a.on("GET /v1/services/shop/db/backends?limit=1000", 200, v1.BackendList{Items: db().Status.Backends, Revision: 99})
	a.on("GET /v1/services/default/web/backends?limit=1000", 200, v1.BackendList{Items: web().Status.Backends, Revision: 214})
	a.on("GET /v1/services/shop/db/explain", 200, v1.Explanation{Service: "shop/db", State: v1.StateDegraded, Revision: 99,
		Lines: []string{"shop/db is degraded since 12m: 10.1.0.22:5432 is in maintenance.",
			"vips[0]: 192.0.2.12 is held by api. Hint: ask for another address.",
			"192.0.2.11 was assigned from pool public-v4 on 2026-11-08 and is held by this service."},
		Problems: db().Status.Problems})
	a.on("GET /v1/stats", 200, statsList())
	a.on("GET /v1/services/default/web/stats", 200, webStats())
	a.on("GET /v1/services/shop/db/stats", 200, dbStats())
	a.on("GET /v1/overrides?limit=1000", 200, overrides())
	a.on("GET /v1/tokens", 200, v1.TokenList{Items: []v1.Token{
		{Name: "deploy", TokenSpec: v1.TokenSpec{Role: "registrar", Namespaces: []string{"shop", "web"}, Hostnames: []string{"*.shop.example"}, Expires: ago(-48 * time.Hour)}, Created: *ago(time.Hour), Author: "root"},
		{Name: "old", TokenSpec: v1.TokenSpec{Role: "viewer", Expires: ago(time.Hour)}, Created: *ago(48 * time.Hour), Expired: true, Author: "token ci"},
		{Name: "prometheus", TokenSpec: v1.TokenSpec{Role: "viewer"}, Created: *ago(48 * time.Hour)}}})
	a.on("GET /v1/vips?limit=1000", 200, vips())
	a.on("GET /v1/vips?kind=node_port&limit=1000", 200, v1.VIPList{Items: vips().Items[6:]})
	a.on("GET /v1/vips/192.0.2.11", 200, vips().Items[1])
	a.on("GET /v1/pools", 200, pools())
	a.on("GET /v1/sources", 200, sourceList())
	a.on("GET /v1/nodes?limit=1000", 200, nodes())
	a.on("GET /v1/dns/names?limit=1000", 200, dnsNames())
	a.on("GET /v1/dns/query?name=shop.example.com", 200, dnsAnswer())
	a.on("GET /v1/dns/query?name=www.example.com", 200, v1.DNSAnswer{Name: "www.example.com", Type: "A", RCode: "SERVFAIL", Why: "several services wanted this name before the restart, and not every source has listed its services yet",
		Answer: []v1.DNSRecord{}, Authority: []v1.DNSRecord{}, Additional: []v1.DNSRecord{}, Conflicts: dnsNames().Items[6:7]})
	a.on("GET /v1/dns/query?name=none.vip.internal&type=AAAA", 200, v1.DNSAnswer{Name: "none.vip.internal", Type: "AAAA", RCode: "NXDOMAIN", Why: "no service has this name",
		Answer: []v1.DNSRecord{}, Additional: []v1.DNSRecord{}, Authority: []v1.DNSRecord{{Name: "vip.internal", TTL: 1, Type: "SOA", Data: "ns.dns.vip.internal hostmaster.vip.internal 1763900000 7200 1800 86400 1"}}})
	a.on("GET /v1/dataplane", 200, shownPlane())
	a.on("GET /v1/dataplane/frontends?limit=1000", 200, frontends())
	a.on("GET /v1/dataplane/frontends?limit=1000&service=shop%2Fdb", 200, v1.FrontendList{Items: frontends().Items[1:2]})
	a.on("GET /v1/dataplane/diff", 200, diff())
	a.on("POST /v1/config/plan", 200, plan())
	a.on("GET /v1/events", 200, v1.EventList{Items: append([]v1.Event{{ID: 40, Time: now.Add(-3 * time.Hour), Kind: "lease_given", Service: "shop/db", Object: "192.0.2.11",
		Message: "192.0.2.11 is given to shop/db from pool public-v4"}}, events()...), Last: 42})
	a.on("GET /v1/debug/tables", 200, v1.DebugTableList{Items: []v1.DebugTableInfo{{Name: "services", Rows: 2, Revision: 99}, {Name: "host", Rows: 0, Revision: 3}}})
	a.on("GET /v1/debug/tables/services", 200, v1.DebugTable{Name: "services", Revision: 99, Columns: []string{"service", "node_ports"},
		Rows: [][]string{{"shop/db", ""}, {"web", "80/tcp=30080"}}})
	return a
}

// Every reading command, in every format.
func TestReadingCommands(t *testing.T) {
	a := fullAgent(t)
	for _, command := range []string{
		"status", "service list", "service get web", "service get shop/db web", "service get media", "service explain shop/db", "backend list",
		"backend list shop/db", "backend list web shop/db", "override list", "token list", "vip list", "vip get 192.0.2.11", "pool list", "pool get public-v4", "source list", "node list", "fleet status", "dns list", "dns query shop.example.com", "dns query none.vip.internal aaaa", "dns query www.example.com", "dataplane show", "dataplane diff", "config plan", "events", "events --object 192.0.2.11",
		"debug table", "debug table services",
	} {
		t.Run(command, func(t *testing.T) {
			var all strings.Builder
			for _, format := range output.Formats() {
				line := command
				if format != output.Table {
					line += " -o " + string(format)
				}
				all.WriteString("$ ironvip " + line + "\n" + a.run(t, line).String())
			}
			golden(t, strings.NewReplacer(" ", "_", "/", "-").Replace(command)+".txt", all.String())
		})
	}
}

func TestReadingCommandsWithFilters(t *testing.T) {
	a := fullAgent(t)
	var all strings.Builder
	for _, line := range []string{
		"service list --source static --state healthy -l team=shop",
		"service list --source rest",
		"vip list --kind node-port",
		"dataplane show shop/db",
		"events --service web",
	} {
		all.WriteString("$ ironvip " + line + "\n" + a.run(t, line).String())
	}
	golden(t, "filters.txt", all.String())
}

// A configuration that can't be read isn't a plan without changes.
func TestPlanWithProblems(t *testing.T) {
	a := newAgent(t)
	var all strings.Builder
	for _, changes := range [][]v1.PlanChange{{}, plan().Changes[:1]} {
		a.on("POST /v1/config/plan", 200, v1.Plan{Add: len(changes), Changes: changes, Problems: []v1.Problem{{Code: "invalid", Place: "/etc/ironvip/ironvip.toml:13", Message: "not valid TOML: unexpected EOF"}}})
		for _, line := range []string{"config plan", "config plan -o name", "reload --dry-run"} {
			all.WriteString("$ ironvip " + line + "\n" + a.run(t, line).String())
		}
	}
	golden(t, "config_plan_problems.txt", all.String())
}

// Commands without results write nothing to stdout that a program could treat as data. In JSON,
// they write an empty list.
func TestNothingToShow(t *testing.T) {
	a := newAgent(t)
	a.on("GET /v1/services?limit=1000", 200, v1.ServiceList{Items: []v1.Service{}})
	a.on("GET /v1/services?limit=1000&state=refused", 200, v1.ServiceList{Items: []v1.Service{}})
	a.on("GET /v1/overrides?limit=1000", 200, v1.OverrideList{Items: []v1.Override{}})
	a.on("GET /v1/vips?limit=1000", 200, v1.VIPList{Items: []v1.VIP{}})
	a.on("GET /v1/pools", 200, v1.PoolList{Items: []v1.Pool{}})
	a.on("GET /v1/dns/names?limit=1000", 200, v1.DNSNameList{Items: []v1.DNSName{}, Listen: []string{}})
	a.on("GET /v1/events", 200, v1.EventList{Items: []v1.Event{}})
	a.on("GET /v1/dataplane/diff", 200, v1.DataplaneDiff{InSync: true, Items: []v1.DiffEntry{}})
	a.on("POST /v1/config/plan", 200, v1.Plan{Changes: []v1.PlanChange{}, Problems: []v1.Problem{}})
	a.on("GET /v1/status", 200, healthyStatus())
	var all strings.Builder
	for _, line := range []string{"service list", "service list --state refused", "service list -o json", "backend list", "backend list -o json",
		"override list", "vip list", "pool list", "dns list", "events", "dataplane diff", "dataplane diff -o json", "config plan", "status"} {
		all.WriteString("$ ironvip " + line + "\n" + a.run(t, line).String())
	}
	golden(t, "nothing.txt", all.String())
}

func TestColoursNeedATerminal(t *testing.T) {
	a := fullAgent(t)
	r := a.run(t, "status")
	expect.False(t, strings.Contains(r.stdout+r.stderr, "\x1b"), "escape sequences in output to a pipe: %q", r.stdout)
	for level, word := range map[string]string{"ok": "OK", "warn": "WARN", "fail": "FAIL"} {
		if c := render.Level(level); c.Style == output.Plain || strings.TrimSpace(c.Text) != word {
			t.Errorf("%s: %+v, want a colour and the word %s", level, c, word)
		}
	}
}
