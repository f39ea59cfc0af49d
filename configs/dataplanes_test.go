package configs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/vip"
)

// All that asks a dataplane works for each one of the list, also if it has left out what is optional.
func TestDataplanes(t *testing.T) {
	f := vip.Frontend{Key: vip.FrontendKey{Addr: netip.MustParseAddr("192.0.2.1"), Port: 80, Protocol: vip.TCP}, Scheduler: vip.DefaultScheduler}
	whole := vip.Frontend{Key: vip.FrontendKey{Addr: f.Key.Addr}}
	userspace := 0
	for _, k := range Dataplanes {
		if _, problems := Parse("/etc/ironvip/"+ConfigName, []byte("[dataplane]\nmode = \""+k.Mode+"\"\n")); len(problems) > 0 {
			t.Errorf("%s: %v", k.Mode, problems)
		}
		_, problems := Parse("/etc/ironvip/"+ConfigName, []byte("[dataplane]\nmode = \""+k.Mode+"\"\nrole = \"real-server\"\n"))
		if refused := len(problems) > 0; refused == k.RealServer {
			t.Errorf("%s on a real server: %v", k.Mode, problems)
		}
		if DataplaneOf(k.Mode) != k || (k.Refuses(&f) == nil) != (k.Mode != ModeOff) || k.Refuses(&whole) != nil || len(k.Ignores(&vip.Service{})) > 0 {
			t.Errorf("%s: not found, or refuses an ordinary frontend or a whole VIP", k.Mode)
		}
		if (k.Needs == nil) != (len(k.TablesOf("vips")) == 0) || k.Needs == nil && len(k.NeedsOf(false)) > 0 || k.Needs != nil && k.Reads == "" {
			t.Errorf("%s: what it needs of the kernel, and its tables, contradict", k.Mode)
		}
		if q := FirewallQuery(k.Mode, "vips", false, nil); len(q.Paths) != len(k.Packets) || !strings.Contains(strings.Join(q.Ours, " "), "vips_nft") {
			t.Errorf("%s: %+v", k.Mode, q)
		}
		if k.Userspace {
			userspace++
		}
		if k.Open == nil && !k.Userspace {
			t.Errorf("%s can't be opened", k.Mode)
		}
	}
	if userspace != 1 || DataplaneOf(ModeAuto) != nil {
		t.Errorf("%d dataplanes in userspace, and auto is %v", userspace, DataplaneOf(ModeAuto))
	}
}
