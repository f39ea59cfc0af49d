package status

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// lan is an ironvip.toml with one pool.
const lan = "[[pool]]\nname = \"lan\"\ncidrs = [\"192.0.2.0/29\"]\n"

// Validate finds without an agent what a plan finds, with the line of the field and a hint.
func TestValidateFindsWhatAPlanFinds(t *testing.T) {
	service := func(name string, lines ...string) string {
		s := "[[service]]\nname = \"" + name + "\"\nbackends = [{ address = \"10.1.0.1\" }]\n"
		if !strings.Contains(strings.Join(lines, "\n"), "ports =") {
			s += "ports = [{ port = 80 }]\n"
		}
		return s + strings.Join(lines, "\n") + "\n"
	}
	for _, tc := range []struct {
		name, config, services string
		mode                   string   // the dataplane in use
		problems, warnings     []string // "line code field: part of the message"
	}{
		{name: "all is well", config: lan, services: service("web")},
		{name: "unknown pool", config: lan, services: service("web", `pool = "wan"`), problems: []string{`5 no_pool pool: there is no pool "wan"`}},
		{name: "no pool at all", services: service("web"), problems: []string{`1 no_pool pool: none that serves namespace "default" has auto_assign`}},
		{name: "neither pool nor service", services: "# none\n", warnings: []string{`toml no_pool pool: missing`}},
		{name: "VIP in no pool", config: lan, services: service("web", `vips = ["198.51.100.1"]`), problems: []string{`5 outside_pool vips: 198.51.100.1`}},
		{name: "VIP in another pool", config: lan + "[[pool]]\nname = \"wan\"\ncidrs = [\"198.51.100.0/24\"]\n", services: service("web", `pool = "lan"`, `vips = ["198.51.100.1"]`),
			problems: []string{`6 outside_pool vips[0]: 198.51.100.1`}},
		{name: "one VIP and port", config: lan, services: service("a", `vips = ["192.0.2.1"]`) + service("b", `vips = ["192.0.2.1"]`),
			problems: []string{`10 address_taken vips[0]: 192.0.2.1`}},
		{name: "one shared VIP and port", config: lan, services: service("a", `vips = ["192.0.2.1"]`, `share_key = "k"`) + service("b", `vips = ["192.0.2.1"]`, `share_key = "k"`),
			problems: []string{`10 port_taken ports[0].port: 80/tcp`}},
		{name: "a shared VIP, two ports", config: lan, services: service("a", `vips = ["192.0.2.1"]`, `share_key = "k"`) + service("b", `vips = ["192.0.2.1"]`, `share_key = "k"`, "ports = [{ port = 81 }]")},
		{name: "a pool with nothing to give", config: lan + "exclude = [\"192.0.2.0/29\"]\n", services: "# none\n", warnings: []string{`4 notice pool[0].exclude: pool "lan" has nothing to give`}},
		{name: "full pool", config: "[[pool]]\nname = \"lan\"\ncidrs = [\"192.0.2.1/32\"]\n", services: service("a") + service("b"), problems: []string{`6 pool_full pool: `}},
		{name: "no addresses of that family", config: lan, services: "[[service]]\nname = \"web\"\nports = [{ port = 80 }]\nfamilies = [\"ipv6\"]\n", problems: []string{`4 no_pool families: no IPv6 range`}},
		{name: "bad node port", config: lan, services: service("web", "ports = [\n  { port = 80 },\n  { port = 81, node_port = 80 },\n]"), problems: []string{`6 outside_pool ports[1].node_port: 80`}},
		{name: "one node port", config: lan, services: service("a", "ports = [{ port = 80, node_port = 30001 }]") + service("b", "ports = [{ port = 80, node_port = 30001 }]"),
			problems: []string{`8 port_taken ports[0].node_port: 30001`}},
		{name: "one hostname", config: lan + "[dns]\nlisten = [\"127.0.0.1:8653\"]\n", services: service("a", `hostnames = ["shop.example.com"]`) + service("b", `hostnames = ["shop.example.com"]`),
			problems: []string{`10 name_taken hostnames: shop.example.com is a name of service a, too`}},
		{name: "one hostname, which is not answered", config: lan, services: service("a", `hostnames = ["shop.example.com"]`) + service("b", `hostnames = ["shop.example.com"]`),
			warnings: []string{`10 name_taken hostnames: shop.example.com is a name of service a, too`}},
		{name: "reserved hostname", config: lan + "[dns]\nlisten = [\"127.0.0.1:8653\"]\n", services: service("a", `hostnames = ["ns.dns.vip.internal"]`),
			problems: []string{`5 name_taken hostnames: ironvip needs itself`}},
		{name: "ipvs rejects", config: lan + "[dataplane]\nmode = \"ipvs\"\n", services: service("web", `proxy_protocol = "v2"`), problems: []string{`5 unsupported proxy_protocol: the ipvs dataplane`}},
		{name: "ipvs ignores", config: lan + "[dataplane]\nmode = \"ipvs\"\n", services: service("web", `idle_timeout = "30m"`), warnings: []string{`5 ineffective idle_timeout: the ipvs dataplane`}},
		{name: "the proxy rejects", config: lan + "[dataplane]\nmode = \"proxy\"\n", services: service("web", `ports = [{ port = "1000-1999" }]`),
			problems: []string{`4 unsupported ports.port: port range`}},
		{name: "the dataplane in use", config: lan, mode: configs.ModeProxy, services: service("web", `scheduler = "dh"`), problems: []string{`5 unsupported scheduler: the userspace proxy`}},
		{name: "mode auto", config: lan, services: service("web", `scheduler = "dh"`, `idle_timeout = "30m"`)},
		{name: "no effect", config: lan, services: service("web", "max_queue = 5"), warnings: []string{`5 ineffective max_queue: has no effect`}},
		{name: "a pool's range without effect", config: lan + "exclude = [\"203.0.113.0/24\"]\n", services: service("web"), warnings: []string{`4 notice pool[0].exclude: 203.0.113.0/24`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "ironvip.toml"), tc.config)
			write(t, filepath.Join(dir, "services.d", "web.toml"), tc.services)
			v := Validate(t.Context(), dir, tc.mode)
			expectProblems(t, "problems", v.Problems, tc.problems)
			expectProblems(t, "warnings", v.Warnings, tc.warnings)
			for _, p := range slices.Concat(v.Problems, v.Warnings) {
				if p.Hint == "" && p.Code != vip.CodeUnsupported {
					t.Errorf("no hint: %v", p)
				}
			}
		})
	}
}

// A plan on a host with leases finds the same problems as Validate, and those with other sources.
func TestProposalUsesTheStateOfTheHost(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "ironvip.toml"), lan+"[dns]\nlisten = [\"127.0.0.1:8653\"]\n")
	write(t, filepath.Join(dir, "services.d", "web.toml"), "[[service]]\nname = \"b\"\nports = [{ port = 80 }]\nhostnames = [\"shop.example.com\"]\n")
	config, problems := configs.Load(dir)
	services, more := config.Services()
	if len(problems)+len(more) > 0 {
		t.Fatal(problems, more)
	}
	other := Planned{Service: vip.Service{Key: vip.ServiceKey{Namespace: "default", Name: "z"}, Hostnames: vip.HostnamesOf("shop.example.com")},
		Allocation: vip.Allocation{Since: 1}}
	outside := ipam.Lease{Resource: ipam.Resource{Addr: netip.MustParseAddr("192.0.2.9")}, State: ipam.Held, Pool: "lan", Holders: []ipam.Holder{{Service: other.Service.Key, Source: "rest"}}}
	plan, err := (&Proposal{Config: config, Services: services, Others: []Planned{other}, Leases: slices.Values([]*ipam.Lease{&outside})}).Plan(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	expectProblems(t, "problems", plan.Problems, []string{"4 name_taken hostnames: shop.example.com is a name of service z, too"})
	expectProblems(t, "warnings", plan.Warnings, []string{`3 notice pool[0].cidrs: pool "lan" has shrunk: addresses outside of its ranges, which their services keep: 1`})
	expect.Equal(t, plan.Add, 1, "services added")
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o644))
}

// expect compares problems with "line code field: part of the message". The line is the end of the
// place.
func expectProblems(t *testing.T, what string, got []vip.Problem, want []string) {
	t.Helper()
	matches := func(p vip.Problem, w string) bool {
		head, message, _ := strings.Cut(w, ": ")
		words := strings.Fields(head)
		return strings.HasSuffix(p.Place, words[0]) && p.Code == words[1] && p.Field == words[2] && strings.Contains(p.Message, message)
	}
	if len(got) != len(want) || !slices.EqualFunc(got, want, matches) {
		var lines []string
		for _, p := range got {
			lines = append(lines, p.Code+" "+p.Error())
		}
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}
