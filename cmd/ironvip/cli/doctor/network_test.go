package doctor

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/firewall"
	"github.com/ironvip/ironvip/ipvs"
	"github.com/ironvip/ironvip/test/expect"
)

// A firewall that drops packets is named, with its own command (TestAdvice of internal/firewall has them all).
func TestFirewall(t *testing.T) {
	drop := firewall.Drop{Family: "inet", Table: "mine", Chain: "in", To: netip.MustParsePrefix("2001:db8::/64")}
	h := machine(nil)
	h.Firewall = func(firewall.Query) ([]firewall.Drop, error) { return []firewall.Drop{drop}, nil }
	found := firewalls(h, want)
	if len(found) != 1 || found[0].Level != Warn || !strings.Contains(found[0].Text, drop.String()) || found[0].Fix != drop.Remedy() {
		t.Errorf("%+v", found)
	}
}

// The dataplane of the configuration or, with auto, the one that the kernel can run is asked for. Our own tables are no foreign ones. An unreadable ruleset is reported.
func TestFirewallQuery(t *testing.T) {
	broken := []ipvs.Finding{{Name: "kernel module ip_vs", Required: true}}
	for _, c := range []struct {
		mode          string
		noIPVS, noNFT bool
		want          string
	}{{configs.ModeProxy, false, false, configs.ModeProxy}, {configs.ModeNFT, false, false, configs.ModeNFT}, {configs.ModeAuto, false, false, configs.ModeIPVS},
		{configs.ModeAuto, true, false, configs.ModeNFT}, {configs.ModeAuto, true, true, configs.ModeProxy}} {
		h, w := machine(nil), want
		w.Mode, w.RealServer, w.Device = c.mode, c.noNFT, configs.DefaultDevice
		var noIPVS, noNFT []ipvs.Finding
		if c.noIPVS {
			noIPVS = broken
		}
		if c.noNFT {
			noNFT = broken
		}
		h.Needs = needing(noIPVS, noNFT)
		paths := configs.DataplaneOf(c.want).Packets
		if w.RealServer {
			paths = []firewall.Path{firewall.ToVIP}
		}
		h.Firewall = func(q firewall.Query) ([]firewall.Drop, error) {
			if !slices.Equal(q.Paths, paths) || len(q.Pools) != 2 || len(q.Ours) != 3 || q.Ours[0] != "ironvip" {
				t.Errorf("%+v asks %+v", c, q)
			}
			return nil, nil
		}
		if f := firewalls(h, w); len(f) != 1 || f[0].Level != OK {
			t.Errorf("%+v", f)
		}
	}
	h := machine(nil)
	for _, err := range []error{unix.EPERM, errors.New("no nf_tables")} {
		h.Firewall = func(firewall.Query) ([]firewall.Drop, error) { return nil, err }
		if f := firewalls(h, want); len(f) != 1 || f[0].Level != Warn || !strings.Contains(f[0].Text, "not checked") {
			t.Errorf("%+v", f)
		}
	}
}

// A device with too small an MTU for tunnels is named, with what it needs.
func TestTunnelMTU(t *testing.T) {
	h, w := machine(nil), want
	mtu := 1500
	h.Route = func(a netip.Addr) (string, int, error) {
		if a == netip.MustParseAddr("10.9.9.9") {
			return "", 0, unix.ENETUNREACH
		}
		return "eth0", mtu, nil
	}
	if f := tunnels(h, w); f != nil {
		t.Errorf("without tunnels: %+v", f)
	}
	w.Tunnels = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.9.9.9"), netip.MustParseAddr("fd00::1")}
	f := tunnels(h, w)
	if len(f) != 2 || f[0].Level != Warn || f[0].Text != "eth0 has MTU 1500: a packet of 1500 bytes from a client has 1520 in the tunnel to 10.0.0.1, 10.0.0.2" ||
		!strings.HasPrefix(f[0].Fix, "ip link set eth0 mtu 1520,") || !strings.HasSuffix(f[0].Fix, "advmss 1440") || !strings.Contains(f[1].Text, "1540 in the tunnel to fd00::1") {
		t.Errorf("%+v", f)
	}
	mtu = 9000
	if f := tunnels(h, w); len(f) != 1 || f[0].Level != OK {
		t.Errorf("with jumbo frames: %+v", f)
	}
}

// A host without IPv6 is told so if a pool has IPv6.
func TestIPv6(t *testing.T) {
	const off = "proc/sys/net/ipv6/conf/all/disable_ipv6"
	four := want
	four.Pools = want.Pools[:1]
	for _, c := range []struct {
		files map[string]string
		want  Want
		says  string
	}{
		{nil, want, ""}, // unknown
		{map[string]string{off: "0\n"}, want, ""},
		{map[string]string{off: "1\n"}, four, ""},
		{map[string]string{off: "1\n"}, want, "net.ipv6.conf.all.disable_ipv6 is 1"},
		{map[string]string{off: "0\n", strings.Replace(off, "all", "default", 1): "1\n"}, want, "net.ipv6.conf.default.disable_ipv6 is 1"}, // the device doesn't exist yet
		{map[string]string{"proc/sys/net/core/somaxconn": "1\n"}, want, "this kernel runs without IPv6"},
	} {
		c.want.Device = configs.DefaultDevice
		got := only(Examine(machine(c.files), c.want), "ipv6")
		if c.says == "" && len(got) > 0 || c.says != "" && (len(got) != 1 || got[0].Level != Warn || got[0].Fix == "" || !strings.Contains(got[0].Text, c.says)) {
			t.Errorf("%v: %+v", c.files, got)
		}
	}
}

// An interface that forwards nothing is named if the host forwards and the dataplane needs it.
func TestForwarding(t *testing.T) {
	files := map[string]string{}
	for device, value := range map[string]string{"all": "1", "default": "0", "lo": "0", "ironvip0": "0", "eth0": "1", "eth1.5": "0", "eth2": "0"} {
		files["proc/sys/net/ipv4/conf/"+device+"/forwarding"] = value + "\n"
	}
	for mode, found := range map[string]int{configs.ModeIPVS: 1, configs.ModeNFT: 1, configs.ModeProxy: 0} {
		w := want
		w.Mode, w.Device = mode, configs.DefaultDevice
		got := only(Examine(machine(files), w), "forwarding")
		if len(got) != found || found > 0 && (!strings.Contains(got[0].Text, "arrive at eth1.5, eth2 are") || !strings.HasSuffix(got[0].Fix, "sysctl -w net/ipv4/conf/eth1.5/forwarding=1 net/ipv4/conf/eth2/forwarding=1")) {
			t.Errorf("%s: %+v", mode, got)
		}
		w.RealServer = true
		expect.Empty(t, only(Examine(machine(files), w), "forwarding"), "a real server")
	}
	files["proc/sys/net/ipv4/conf/all/forwarding"] = "0\n" // the dataplane's own finding
	expect.Empty(t, only(Examine(machine(files), want), "forwarding"), "the host doesn't forward")
}

// Packets that the kernel has dropped for their way back are named with the interfaces of strict checks.
func TestReversePath(t *testing.T) {
	for _, c := range []struct {
		all, eth0, eth1, dropped string
		strict                   []string
	}{
		{"0", "1", "1", "3", []string{"eth0", "eth1"}},
		{"1", "0", "2", "3", []string{"eth0"}},
		{"0", "1", "2", "3", []string{"eth0"}},
		{"1", "0", "0", "0", nil},
		{"2", "1", "1", "3", nil}, // loose
		{"0", "0", "0", "3", nil}, // since then, it was switched off
	} {
		files := map[string]string{"proc/net/netstat": "TcpExt: SyncookiesSent IPReversePathFilter Other\nTcpExt: 7 " + c.dropped + " 9\nIpExt: InNoRoutes\nIpExt: 5\n"}
		for device, value := range map[string]string{"all": c.all, "default": "1", "lo": "1", "ironvip0": "1", "eth0": c.eth0, "eth1": c.eth1} {
			files["proc/sys/net/ipv4/conf/"+device+"/rp_filter"] = value + "\n"
		}
		w := want
		w.Device = configs.DefaultDevice
		got := only(Examine(machine(files), w), "rp_filter")
		var fixes []string
		for _, device := range c.strict {
			fixes = append(fixes, "net/ipv4/conf/"+device+"/rp_filter=2")
		}
		if found := c.strict != nil; found != (len(got) == 1) || found && (!strings.Contains(got[0].Text, "dropped 3 packets") ||
			!strings.HasSuffix(got[0].Text, "strict at "+strings.Join(c.strict, ", ")) || !strings.HasSuffix(got[0].Fix, "sysctl -w "+strings.Join(fixes, " "))) {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}
