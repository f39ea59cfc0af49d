//go:build linux && vm

package ipvs

import (
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

func needTunnels(t *testing.T) {
	t.Helper()
	need.Module(t, "ipip")
	need.Module(t, "ip6_tunnel")
}

func ends(n *netlab.Node) []netip.Addr { return []netip.Addr{n.Addr4, n.Addr6} }

// Ensure creates and repairs the device, and writes nothing if the device is intact. Remove
// deletes it and no other device.
func TestTunnelDevice(t *testing.T) {
	needTunnels(t)
	node := netlab.New(t).Backends[0]
	tun := host.NewTunnels(DefaultDevice, host.Sysctls{Root: host.ProcSysNet})
	do := func(what string, f func() error) {
		t.Helper()
		node.Do(func() {
			expect.Succeed(t, f(), what)
		})
	}
	wants := func(when string, want map[netip.Addr]bool) {
		t.Helper()
		do(when, func() error {
			have, err := tun.Read()
			expect.True(t, maps.Equal(have, want), "%s: %v, want %v", when, have, want)
			return err
		})
	}
	run(t, node, "ip", "link", "add", "foreign", "type", "ipip", "local", node.Addr4.String(), "remote", "192.0.2.1")
	before := run(t, node, "ip", "-d", "link", "show")
	wants("before", map[netip.Addr]bool{})
	whole := map[netip.Addr]bool{}
	for _, a := range ends(node) {
		do("ensure", func() error { return tun.Ensure(a) })
		whole[a] = true
	}
	wants("after", whole)
	expect.Contains(t, run(t, node, "ip", "-d", "link", "show", "dev", "ironvip0a4d0102"), "ipip ipip remote any local 10.77.1.2", "the device")
	made := run(t, node, "ip", "-d", "addr", "show")
	for _, a := range ends(node) {
		do("ensure again", func() error { return tun.Ensure(a) })
	}
	expect.Equal(t, run(t, node, "ip", "-d", "addr", "show"), made, "devices that were whole")
	for _, a := range ends(node) {
		run(t, node, "ip", "link", "set", tun.Name(a), "down")
	}
	node.Sysctl("ipv4/conf/"+tun.Name(node.Addr4)+"/rp_filter", "1")
	wants("damaged", map[netip.Addr]bool{node.Addr4: false, node.Addr6: false})
	for _, a := range ends(node) {
		do("repair", func() error { return tun.Ensure(a) })
	}
	wants("repaired", whole)
	run(t, node, "ip", "addr", "flush", "dev", tun.Name(node.Addr4))
	wants("without its address, which gets packets past the reverse path filter", map[netip.Addr]bool{node.Addr4: false, node.Addr6: true})
	do("repair", func() error { return tun.Ensure(node.Addr4) })
	wants("repaired again", whole)
	do("remove", func() error { return tun.Remove(node.Addr6) })
	do("remove again", func() error { return tun.Remove(node.Addr6) })
	do("remove all", tun.RemoveAll)
	expect.Equal(t, run(t, node, "ip", "-d", "link", "show"), before, "the other devices")
}

// A foreign device with the name of ours is left alone, and the error names it.
func TestTunnelDeviceOfOthers(t *testing.T) {
	needTunnels(t)
	tun := host.NewTunnels(DefaultDevice, host.Sysctls{Root: host.ProcSysNet})
	for _, c := range []struct {
		name string
		made []string
		says string
	}{
		{"the same tunnel", []string{"link", "add", "other", "type", "ipip", "local", "10.77.1.2"}, "another device is the tunnel to 10.77.1.2"},
		{"the name", []string{"link", "add", "ironvip0a4d0102", "type", "dummy"}, "device ironvip0a4d0102 is not the tunnel to 10.77.1.2"},
		{"the fallback", []string{"link", "set", "tunl0", "up"}, "device tunl0 is up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := netlab.New(t).Backends[0]
			run(t, node, append([]string{"ip"}, c.made...)...)
			before := run(t, node, "ip", "-d", "addr", "show")
			node.Do(func() {
				if err := tun.Ensure(node.Addr4); err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v, want %q", err, c.says)
				}
				expect.Succeed(t, tun.Remove(node.Addr4))
			})
			expect.Equal(t, run(t, node, "ip", "-d", "addr", "show"), before, "the other device")
		})
	}
}
