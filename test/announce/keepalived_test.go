//go:build system

package announce

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// pair is a segment with two hosts on which keepalived holds a VIP of each family. The first one has the
// higher priority. Servers on both hosts accept connections to any of their addresses.
type pair struct {
	*lab
	daemons []*process.Process
	dirs    []string             // of the daemons
	servers map[int]net.Listener // by host
}

// withKeepalived is a pair with an interval of advertisements in seconds.
func withKeepalived(advert string, happen, undo func(*pair)) func(b *testing.B) *scene {
	return func(b *testing.B) *scene {
		bin := need.Program(b, "keepalived")
		k := &pair{lab: &lab{LAN: netlab.NewLAN(b, "lb1", "lb2"), t: b}, servers: map[int]net.Listener{}}
		k.client = k.Join("client")
		for i, n := range k.Nodes[:2] {
			k.hosts = append(k.hosts, &host{Node: n, t: b, port: n.Name + ".eth0"})
			dir := b.TempDir()
			config := filepath.Join(dir, "keepalived.conf")
			must.Succeed(b, os.WriteFile(config, []byte(keepalivedConfig(n.Name, 200-100*i, advert)), 0o644))
			p := process.New(bin, filepath.Join(dir, "log"), n, "--dont-fork", "--vrrp", "--log-console", "--use-file", config,
				"--pid", filepath.Join(dir, "pid"), "--vrrp_pid", filepath.Join(dir, "vrrp.pid"))
			p.Nice = -10 // as the announcers have
			k.daemons, k.dirs = append(k.daemons, p), append(k.dirs, dir)
			b.Cleanup(func() { _ = p.Stop() }) // it ends its child
		}
		for i := range k.daemons {
			k.begin(i)
		}
		k.awaitHolder(0)
		return &scene{client: k.client, vips: []netip.Addr{vip4(0), vip6(0)},
			happen: func() { happen(k); k.awaitHolder(1) },
			undo:   func() { undo(k); k.awaitHolder(0); time.Sleep(time.Second) }}
	}
}

func keepalivedConfig(name string, priority int, advert string) string {
	text := fmt.Sprintf("global_defs {\n  router_id %s\n  vrrp_version 3\n}\n", name)
	for i, vip := range []netip.Addr{vip4(0), vip6(0)} {
		text += fmt.Sprintf("vrrp_instance v%d {\n  state BACKUP\n  interface eth0\n  virtual_router_id %d\n  priority %d\n  advert_int %s\n  virtual_ipaddress {\n    %s/%d dev eth0\n  }\n}\n",
			i, 51+i, priority, advert, vip, vip.BitLen())
	}
	return text
}

// begin starts what doesn't run on a host.
func (k *pair) begin(i int) {
	k.t.Helper()
	must.Succeed(k.t, k.daemons[i].Start())
	if k.servers[i] != nil {
		return
	}
	k.servers[i] = k.Nodes[i].Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), servicePort)) // of both families
	go echo(k.servers[i])
}

// echo answers the first line of each connection with itself.
func echo(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if line, err := bufio.NewReader(c).ReadString('\n'); err == nil {
				_, _ = io.WriteString(c, line)
			}
		}()
	}
}

// stop ends keepalived on the first host as an operator does.
func (k *pair) stop() {
	must.Succeed(k.t, k.daemons[0].Stop())
}

// kill ends keepalived and the servers of the first host at once. The main process is paused first:
// otherwise its child would notice its end, and resign in good order.
func (k *pair) kill() {
	k.t.Helper()
	p := k.daemons[0]
	children := must.Get(os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", p.Pid())))(k.t)
	must.Succeed(k.t, p.Pause())
	for _, text := range strings.Fields(string(children)) {
		if pid, err := strconv.Atoi(text); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	p.Kill()
	for _, name := range []string{"pid", "vrrp.pid"} { // of processes that their parent may not have reaped yet
		_ = os.Remove(filepath.Join(k.dirs[0], name))
	}
	k.servers[0].Close()
	delete(k.servers, 0)
}

// awaitHolder waits until a host has the VIPs. The first host must be the only one.
func (k *pair) awaitHolder(i int) {
	k.t.Helper()
	wait.Until(k.t, "the VIPs on "+k.Nodes[i].Name, func() bool { return k.holds(i) == 2 && (i > 0 || k.holds(1) == 0) },
		func() any { return k.daemons[i].LogEnd(2000) })
}

// holds returns how many VIPs a host has.
func (k *pair) holds(i int) (n int) {
	k.t.Helper()
	link := must.Get(k.Nodes[i].Netlink.LinkByName("eth0"))(k.t)
	for _, a := range netlab.List(k.t, func() ([]netlink.Addr, error) { return k.Nodes[i].Netlink.AddrList(link, netlink.FAMILY_ALL) }) {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && (ip.Unmap() == vip4(0) || ip.Unmap() == vip6(0)) {
			n++
		}
	}
	return n
}
