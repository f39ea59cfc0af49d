//go:build linux

package l2_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/l2"
	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/gate"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
)

// Exactly the owner answers, in both families, and a client's neighbor cache follows a move at once.
func TestAnswersAndCachesFollowTheOwner(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	must.True(t, strings.Contains(l.watchTwo(), l.a.MAC("eth0")), "without announcers, the kernel doesn't answer for the virtual addresses: the test proves nothing")
	a, b := start(t, l.a, defaults()), start(t, l.b, defaults())
	l.watch.answered("nobody owns the addresses", vips)
	a.own(vips...)
	a.is(l2.Announced, vips...)
	l.watch.answered("a owns them", vips, a.mac)
	learn(t, l.client, vips...)
	points(t, l.client, a.mac, vips...)

	for range 3 {
		for _, move := range [][2]*speaker{{a, b}, {b, a}} {
			from, to := move[0], move[1]
			from.release(vips...)
			released := time.Now()
			to.own(vips...)
			points(t, l.client, to.mac, vips...) // without a question of the client's
			l.watch.answered("moved to "+to.name, vips, to.mac)
			l.watch.silentSince(released.Add(askEvery), from.mac, vips...)
			from.is(l2.Released, vips...)
		}
	}
	a.release(vips...)
	l.watch.answered("released", vips)
	l.watch.answered("the hosts' own addresses are not affected", nil)
	learn(t, l.client, l.a.Addr4, l.b.Addr4, l.a.Addr6) // although the pools contain them
}

// watchTwo returns the stations that answer for the IPv4 address when no announcer runs.
func (l *lab) watchTwo() string {
	start := time.Now()
	wait.Until(l.watch.t, "two answers of kernels", func() bool { return len(l.watch.after(start, vip4)) > 3 })
	var all []string
	for _, s := range l.watch.after(start, vip4) {
		all = append(all, s.mac)
	}
	return strings.Join(all, " ")
}

const shortDeadMan = 300 * time.Millisecond

// slack is what the requirements allow beyond the dead-man time.
const slack = 100 * time.Millisecond

// An announcer that is stopped answers no longer, and when it continues, it doesn't speak for
// addresses that it owned before.
func TestStoppedAnnouncer(t *testing.T) {
	l := newLab(t)
	c := defaults()
	c.DeadMan = shortDeadMan
	a, b := start(t, l.a, c), start(t, l.b, defaults())
	lapses := l.watch.owns(a, vips...)
	a.signal(syscall.SIGSTOP)
	stopped := time.Now()
	time.Sleep(shortDeadMan) // as other hosts wait before they take over
	b.own(vips...)
	l.watch.answered("b took over", vips, b.mac)
	continued := time.Now()
	a.signal(syscall.SIGCONT)
	wait.Until(t, "a notices that it was stopped", func() bool { return a.lapsed() > lapses })
	l.watch.answered("a continues", vips, b.mac)
	l.watch.silentSince(stopped.Add(shortDeadMan+slack), a.mac, vips...)
	l.watch.silentSince(continued, a.mac, vips...)
	a.waitFor("closed gate", func(r l2.Report) bool { return r.State == l2.GateClosed })
	b.release(vips...)
	l.watch.owns(a, vips...)
	a.is(l2.Announced, vips...)
}

// An announcer that runs but calls Refresh no longer is silent after the dead-man time.
func TestRefreshEnds(t *testing.T) {
	l := newLab(t)
	c := defaults()
	c.DeadMan = shortDeadMan
	a, _ := start(t, l.a, c), start(t, l.b, defaults())
	lapses := l.watch.owns(a, vips...)
	a.do("pause")
	paused := time.Now()
	a.waitFor("closed gate", func(r l2.Report) bool { return r.State == l2.GateClosed })
	l.watch.answered("no refresh", vips)
	for _, v := range vips {
		expect.AtMost(t, l.watch.lastClaim(a.mac, v).Sub(paused), shortDeadMan+slack, "%v: answered after the last refresh", v)
	}
	a.do("continue")
	wait.Until(t, "the next refresh reports it", func() bool { return a.lapsed() > lapses })
	l.watch.answered("refreshed, but nothing is owned", vips)
}

// After a crash, the gate is closed in the dead-man time, and the next run begins with a closed gate.
func TestCrash(t *testing.T) {
	l := newLab(t)
	a, _ := start(t, l.a, defaults()), start(t, l.b, defaults())
	a.own(vips...)
	l.watch.answered("a owns the addresses", vips, a.mac)
	a.kill()
	l.watch.answered("a crashed", vips)
	again := start(t, l.a, defaults())
	l.watch.answered("a new run", vips)
	again.own(vips...)
	l.watch.answered("a new run owns the addresses", vips, again.mac)
	again.quit()
	l.watch.answered("a graceful end", vips)
}

// Someone deletes the gate. It is back before long, with the same content, and that is reported.
func TestGateIsRestored(t *testing.T) {
	t.Parallel()
	need.Program(t, "nft")
	l := newLab(t)
	a, b := start(t, l.a, defaults()), start(t, l.b, defaults())
	a.own(vips...)
	l.watch.answered("a owns the addresses", vips, a.mac)
	restored := func(args ...string) {
		t.Helper()
		for s, n := range map[*speaker]int{a: 0, b: 1} {
			if s == b && args[1] == "set" {
				continue // its set is empty
			}
			mark := s.mark()
			var out []byte
			var err error
			l.Nodes[n].Do(func() { out, err = exec.Command("nft", args...).CombinedOutput() })
			must.Succeed(t, err, "nft %v: %s", args, out)
			s.since(mark, "restored gate", func(r l2.Report) bool { return r.State == l2.GateRestored })
		}
		l.watch.answered("nft "+strings.Join(args, " "), vips, a.mac)
	}
	restored("flush", "ruleset")
	restored("delete", "table", "arp", gate.TableName)
	var egress bool
	var err error
	l.a.Do(func() { egress, err = gate.HasEgress(t.Context()) })
	must.Succeed(t, err)
	need.KernelFeature(t, linux.Egress, egress) // without it, the gate has no second table
	restored("delete", "table", "netdev", gate.TableName)
	restored("flush", "set", "netdev", gate.TableName, "mine6")
}

// The kernel's ARP requests don't have virtual addresses as their senders: other stations would send
// packets for these to this host.
func TestRequestsOfTheKernel(t *testing.T) {
	l := newLab(t)
	a := start(t, l.a, defaults())
	wait.Until(t, "arp_announce is set", func() bool {
		return strings.TrimSpace(read(t, l.a, "/proc/sys/net/ipv4/conf/eth0/arp_announce")) == "2"
	})
	expect.Equal(t, strings.TrimSpace(read(t, l.a, "/proc/sys/net/ipv4/conf/all/arp_announce")), "0", "net.ipv4.conf.all.arp_announce, which belongs to the operator")
	start := time.Now()
	l.a.Do(func() { sendFrom(t, vip4, l.client.Addr4) })
	points(t, l.a, l.client.MAC("eth0"), l.client.Addr4) // resolved, with another sender
	l.watch.silentSince(start, a.mac, vip4)
}

// The former arp_announce of an interface is restored when nothing is announced on it any more, also
// after a crash, but not if somebody has changed it since.
func TestFormerSettingsAreRestored(t *testing.T) {
	l := newLab(t)
	const dev = "/proc/sys/net/ipv4/conf/eth0/arp_announce"
	set := func(value string) { l.a.Do(func() { must.Succeed(t, os.WriteFile(dev, []byte(value), 0)) }) }
	is := func(when, want string) {
		t.Helper()
		wait.Until(t, when+": arp_announce is "+want, func() bool { return strings.TrimSpace(read(t, l.a, dev)) == want })
	}
	remove := func(record string) {
		t.Helper()
		l.a.Do(func() { must.Succeed(t, l2.Remove(t.Context(), record)) })
	}
	c := defaults()
	c.Record = filepath.Join(t.TempDir(), "arp-announce")
	remove(c.Record) // nothing was recorded

	set("1")
	a := start(t, l.a, c)
	is("announcing", "2")
	a.kill()
	a = start(t, l.a, c)
	a.quit()
	is("it has ended, and its gate remains", "2")
	remove(c.Record)
	is("the gate is removed", "1")

	a = start(t, l.a, c)
	is("announcing", "2")
	a.do("interfaces", "other")
	is("no longer announced on", "1")
	a.do("interfaces", "eth0")
	is("again", "2")
	must.Succeed(t, l.a.Netlink.LinkSetDown(device(t, l.a, "eth0")))
	must.Succeed(t, l.a.Netlink.LinkSetName(device(t, l.a, "eth0"), "lan0"))
	wait.Until(t, "renamed: arp_announce is 1", func() bool { return strings.TrimSpace(read(t, l.a, strings.ReplaceAll(dev, "eth0", "lan0"))) == "1" })
	must.Succeed(t, l.a.Netlink.LinkSetName(device(t, l.a, "lan0"), "eth0"))
	must.Succeed(t, l.a.Netlink.LinkSetUp(device(t, l.a, "eth0")))
	is("renamed back", "2")
	a.quit()
	set("0")
	remove(c.Record)
	is("somebody else has changed it", "0")

	// A value that was 2 before stays.
	set("2")
	a = start(t, l.a, c)
	a.quit()
	remove(c.Record)
	is("it was 2 before", "2")
}

// The host is a member of the groups in which it is asked for its IPv6 addresses.
func TestGroups(t *testing.T) {
	l := newLab(t)
	a := start(t, l.a, defaults())
	group := frame.SolicitedNode(vip6).As16()
	member := func() bool {
		for _, line := range strings.Split(read(t, l.a, "/proc/thread-self/net/igmp6"), "\n") {
			if f := strings.Fields(line); len(f) > 2 && f[1] == "eth0" && f[2] == hex(group[:]) {
				return true
			}
		}
		return false
	}
	must.False(t, member(), "a member before the address is owned")
	a.own(vip6)
	wait.Until(t, "membership", member)
	a.release(vip6)
	wait.Until(t, "end of the membership", func() bool { return !member() })
}
