//go:build linux && vm

package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/vip"
)

func TestConformance(t *testing.T) {
	lab := netlab.New(t)
	var last *planeIn
	reconciletest.RunPlane(t, reconciletest.Harness{
		New: func(t *testing.T) reconcile.Plane {
			last = newPlane(t, lab.Director)
			return last
		},
		VIPs: []netip.Addr{nth(pool4, 10), nth(pool4, 11), nth(pool6, 10)},
		Backends: func(t *testing.T, p vip.Protocol, f vip.Family, n int) []netip.AddrPort {
			var all []netip.AddrPort
			for i := range n {
				all = append(all, lab.Backends[i%len(lab.Backends)].ServeAddress(p, f))
			}
			return all
		},
		Ask:     func(t *testing.T, k vip.FrontendKey) (string, error) { return lab.Client.AskAddress(k) },
		Durable: true,
		Writes:  func() uint64 { return last.writes() },
		Witness: func(t *testing.T, want []vip.Frontend) { witness(t, lab.Director, want) },
	})
}

// witness compares the kernel's services with want as ipvsadm lists them, the routes as ip
// lists them, and the filters as nft lists them.
func witness(t *testing.T, node *netlab.Node, want []vip.Frontend) {
	t.Helper()
	witnessServices(t, node, want)
	witnessFilters(t, node, want)
	vips := map[netip.Addr]bool{}
	for _, f := range want {
		if f.Kind != vip.OnHost {
			vips[f.Key.Addr] = true
		}
	}
	if _, err := node.Netlink.LinkByName(DefaultDevice); err != nil && len(vips) == 0 {
		return // no address has needed the device
	}
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(run(t, node, "ip", family, "route", "show", "table", "local", "dev", DefaultDevice, "proto", "178")) {
			a, err := netip.ParseAddr(strings.Fields(line)[1])
			if err != nil || !vips[a] {
				t.Errorf("ip shows %q, which nobody wants", line)
			}
			delete(vips, a)
		}
	}
	for a := range vips {
		t.Errorf("%s has no local route by %s", a, DefaultDevice)
	}
	expect.Contains(t, run(t, node, "ip", "-4", "-o", "addr", "show", "dev", DefaultDevice), "169.254.255.1/32", "addresses of the device")
	expect.Contains(t, run(t, node, "ip", "link", "show", "dev", DefaultDevice), "NOARP,UP", "the device")
}

var forwardFlag = map[vip.Forward]string{vip.ForwardNAT: "-m", vip.ForwardDirect: "-g", vip.ForwardTunnel: "-i"}

func witnessServices(t *testing.T, node *netlab.Node, want []vip.Frontend) {
	t.Helper()
	lines, limits := map[string]bool{}, map[string]string{}
	var marks map[vip.FrontendKey]uint32
	for _, f := range want {
		proto := "-t"
		if f.Key.Protocol == vip.UDP {
			proto = "-u"
		}
		persistence := ""
		if f.Affinity > 0 {
			persistence = fmt.Sprintf(" -p %d", int(f.Affinity.Seconds()))
		}
		flags := ""
		if isHash(f.Scheduler) {
			flags = fmt.Sprintf(" -b %s-fallback", f.Scheduler)
		}
		if f.OnePacket {
			flags = " -o" + flags
		}
		at, family := fmt.Sprintf("%s %s", proto, f.Key.AddrPort()), ""
		listed := fmt.Sprintf("%s %s", strings.ToUpper(f.Key.Protocol.String()), f.Key.AddrPort())
		switch {
		case f.Kind == vip.OnRealServer:
			continue
		case filter.ByMark(f.Key):
			if marks == nil {
				marks = witnessMarks(t, node)
			}
			at = fmt.Sprintf("-f %d", marks[f.Key])
			listed = fmt.Sprintf("FWM %d", marks[f.Key])
			if f.Key.Addr.Is6() {
				family = " -6"
			}
		}
		lines[fmt.Sprintf("-A %s%s -s %s%s%s", at, family, f.Scheduler, persistence, flags)] = true
		for _, b := range f.Backends {
			lines[fmt.Sprintf("-a %s%s -r %s %s -w %d", at, family, b.Addr, forwardFlag[f.Forward], b.Weight)] = true
			limits[fmt.Sprintf("%s -> %s", listed, b.Addr)] = fmt.Sprintf("%d 0", b.MaxConnections)
		}
	}
	for line := range strings.Lines(run(t, node, "ipvsadm", "-Sn")) {
		line = strings.TrimSpace(line)
		if !lines[line] {
			t.Errorf("ipvsadm has %q, which nobody wants", line)
		}
		delete(lines, line)
	}
	for line := range lines {
		t.Errorf("ipvsadm doesn't have %q", line)
	}
	expect.NoDiff(t, cmp.Diff(limits, thresholds(t, node)), "thresholds")
}

// thresholds returns the upper and lower thresholds of destinations, which "ipvsadm -S" doesn't
// list. A key is "TCP 10.96.0.1:80 -> 10.1.0.1:80" or "FWM 1 -> 10.1.0.1:80".
func thresholds(t *testing.T, node *netlab.Node) map[string]string {
	t.Helper()
	out, service := map[string]string{}, ""
	for line := range strings.Lines(run(t, node, "ipvsadm", "-Ln", "--thresholds")) {
		switch field := strings.Fields(line); {
		case len(field) < 3 || field[1] == "RemoteAddress:Port":
		case field[0] == "->":
			out[service+" -> "+field[1]] = field[2] + " " + field[3]
		default:
			service = field[0] + " " + field[1]
		}
	}
	return out
}
