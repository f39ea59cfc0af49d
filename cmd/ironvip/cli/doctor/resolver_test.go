package doctor

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/dns/resolved"
	"github.com/ironvip/ironvip/test/must"
)

func TestResolver(t *testing.T) {
	pools := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	listen := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8653")}
	want := Want{Mode: configs.ModeAuto, StateDir: "/s", Pools: pools, DNS: DNS{Domain: "vip.internal"}}
	set := want
	set.DNS.Resolved = resolved.NewSettings("ironvip0", "vip.internal", listen, pools)
	for _, c := range []struct {
		name     string
		files    map[string]string
		want     Want
		resolved *resolved.Problem
		lookup   error
		findings string // level, check and a part of the text or fix of each, one a line
	}{
		{name: "nothing", want: want},
		{name: "resolved", want: set, findings: "ok resolved looks up vip.internal, 96.10.in-addr.arpa at the agent, through interface ironvip0\nok lookup finds dns-version.vip.internal"},
		{name: "resolved without an address", want: set, files: map[string]string{resolved.RuleFile[1:]: "x"}, resolved: &resolved.Problem{Message: "no address", Hint: "add one"}, lookup: errors.New("no such host"),
			findings: "warn resolved no address add one\nwarn lookup link /etc/resolv.conf"},
		{name: "resolved without the rule", want: set, resolved: &resolved.Problem{Message: "other settings"}, lookup: errors.New("no such host"),
			findings: "warn resolved other settings\nwarn resolved polkit rule /etc/polkit-1/rules.d/50-ironvip.rules does not exist\nwarn lookup no such host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := machine(c.files)
			h.Resolved = func(s resolved.Settings) resolved.State {
				return resolved.State{Settings: s, Applied: c.resolved == nil, Problem: c.resolved}
			}
			h.Lookup = func(string) error { return c.lookup }
			var found []Finding
			for _, check := range []string{"resolved", "lookup"} {
				found = append(found, only(Examine(h, c.want), check)...)
			}
			var lines []string
			if c.findings != "" {
				lines = strings.Split(c.findings, "\n")
			}
			must.Len(t, found, len(lines), "found")
			for i, f := range found {
				words := strings.SplitN(lines[i], " ", 3)
				if string(f.Level) != words[0] || f.Check != words[1] || !strings.Contains(f.Text+" "+f.Fix, words[2]) {
					t.Errorf("found %+v, want %s", f, lines[i])
				}
			}
		})
	}
}
