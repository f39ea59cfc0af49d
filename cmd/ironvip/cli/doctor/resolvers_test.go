package doctor

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/dns/resolved"
)

func TestResolvers(t *testing.T) {
	pools := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	listen := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8653")}
	want := Want{Mode: configs.ModeAuto, StateDir: "/s", Pools: pools, DNS: DNS{Domain: "vip.internal", Listen: listen}}
	public := want
	public.Pools = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	off := want
	off.DNS = DNS{Domain: "vip.internal"}
	set := want
	set.DNS.Resolved = resolved.NewSettings("ironvip0", "vip.internal", listen, pools)
	const dropIn = "etc/systemd/resolved.conf.d/x.conf"
	for _, c := range []struct {
		name     string
		files    map[string]string
		want     Want
		resolved *resolved.Problem
		lookup   error
		findings string // level, check and a part of the text or fix of each, one a line
	}{
		{name: "nothing", want: want},
		{name: "off", want: off, files: map[string]string{dropIn: "DNS=127.0.0.1:8653", "etc/dnsmasq.conf": "server=/vip.internal/127.0.0.1#8653\nstop-dns-rebind"}},
		{name: "global server", want: want, files: map[string]string{dropIn: "[Resolve]\n#DNS=127.0.0.1:8653\nDNS=192.0.2.1 127.0.0.1:8653#name\n"}, findings: "warn resolved /etc/systemd/resolved.conf.d/x.conf sends every name to the agent"},
		{name: "other global server", want: want, files: map[string]string{"etc/systemd/resolved.conf": "DNS=127.0.0.1:53 127.0.0.1\nDomains=x"}},
		{name: "dnsmasq", want: want, files: map[string]string{"etc/dnsmasq.conf": "server=/vip.internal/127.0.0.1#8653\n# stop-dns-rebind"}, findings: "ok dnsmasq forwards vip.internal"},
		{name: "dnsmasq with a filter", want: want, files: map[string]string{"etc/dnsmasq.conf": "stop-dns-rebind # now", "etc/dnsmasq.d/a": "server=/other.test/vip.internal/127.0.0.1#8653"}, findings: "warn dnsmasq add rebind-domain-ok=/vip.internal/"},
		{name: "dnsmasq with a filter, public addresses", want: public, files: map[string]string{"etc/dnsmasq.conf": "stop-dns-rebind\nserver=/vip.internal/127.0.0.1#8653"}, findings: "ok dnsmasq forwards"},
		{name: "dnsmasq with a filter and its exception", want: want, files: map[string]string{"etc/dnsmasq.conf": "stop-dns-rebind\nserver=/vip.internal/127.0.0.1#8653\nrebind-domain-ok=/vip.internal/"}, findings: "ok dnsmasq forwards"},
		{name: "dnsmasq for others", want: want, files: map[string]string{"etc/dnsmasq.conf": "stop-dns-rebind\nserver=/example.com/127.0.0.1#8653\nserver=192.0.2.1"}},
		{name: "unbound", want: want, files: map[string]string{"etc/unbound/unbound.conf.d/a.conf": "server:\n  do-not-query-localhost: no\n  private-address: 10.0.0.0/8\n  private-domain: \"vip.internal\"\n  domain-insecure: \"vip.internal.\"\n  auto-trust-anchor-file: \"x\"\nstub-zone:\n  name: \"vip.internal\"\n  stub-addr: 127.0.0.1@8653\n"}, findings: "ok unbound forwards vip.internal"},
		{name: "unbound with everything wrong", want: want, files: map[string]string{"etc/unbound/unbound.conf": "server:\n  private-address: 10.0.0.0/8\n  trust-anchor-file: x\nforward-zone:\n  name: vip.internal.\n"},
			findings: "warn unbound add do-not-query-localhost: no\nwarn unbound private-domain: \"vip.internal\"\nwarn unbound domain-insecure: \"vip.internal\""},
		{name: "unbound for others", want: want, files: map[string]string{"etc/unbound/unbound.conf": "server:\n  private-address: 10.0.0.0/8\nstub-zone:\n  name: example.com\n"}},
		{name: "resolved", want: set, findings: "ok resolved looks up vip.internal, 96.10.in-addr.arpa at the agent, through interface ironvip0\nok lookup finds dns-version.vip.internal"},
		{name: "resolved without an address", want: set, files: map[string]string{resolved.RuleFile[1:]: "x"}, resolved: &resolved.Problem{Message: "no address", Hint: "add one"}, lookup: errors.New("no such host"),
			findings: "warn resolved no address add one\nwarn lookup link /etc/resolv.conf"},
		{name: "resolved without the rule", want: set, resolved: &resolved.Problem{Message: "other settings"}, lookup: errors.New("no such host"),
			findings: "warn resolved other settings\nwarn resolved polkit rule /etc/polkit-1/rules.d/50-ironvip.rules does not exist\nwarn lookup no such host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := host(c.files)
			h.Resolved = func(s resolved.Settings) resolved.State {
				return resolved.State{Settings: s, Applied: c.resolved == nil, Problem: c.resolved}
			}
			h.Lookup = func(string) error { return c.lookup }
			var found []Finding
			for _, check := range []string{"resolved", "dnsmasq", "unbound", "lookup"} {
				found = append(found, only(Examine(h, c.want), check)...)
			}
			var lines []string
			if c.findings != "" {
				lines = strings.Split(c.findings, "\n")
			}
			if len(found) != len(lines) {
				t.Fatalf("found %+v, want %d", found, len(lines))
			}
			for i, f := range found {
				words := strings.SplitN(lines[i], " ", 3)
				if string(f.Level) != words[0] || f.Check != words[1] || !strings.Contains(f.Text+" "+f.Fix, words[2]) {
					t.Errorf("found %+v, want %s", f, lines[i])
				}
			}
		})
	}
}
