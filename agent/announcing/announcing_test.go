package announcing

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/nodes"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/hostnet"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/problemtest"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

type bench struct {
	leases *table.Table[ipam.Resource, *ipam.Lease]
	*Announcing
	dir   string
	cfg   *configs.Config
	hosts int // of the fleet

	network *table.Table[struct{}, hostnet.Snapshot] // of the host
}

var host = hostnet.Snapshot{Addrs: []hostnet.Addr{
	{Prefix: netip.MustParsePrefix("127.0.0.1/8"), Link: "lo"},
	{Prefix: netip.MustParsePrefix("10.0.0.1/24"), Link: "eth0"},
	{Prefix: netip.MustParsePrefix("10.0.0.9/24"), Link: "eth0", Secondary: true},
	{Prefix: netip.MustParsePrefix("10.0.0.77/32"), Link: "ironvip0"},
	{Prefix: netip.MustParsePrefix("172.16.0.1/16"), Link: "eth1"},
	{Prefix: netip.MustParsePrefix("fe80::1/64"), Link: "eth0"},
	{Prefix: netip.MustParsePrefix("2001:db8::1/64"), Link: "eth0"},
}}

func newBench(t *testing.T, fleet bool, text string) *bench {
	t.Helper()
	b := &bench{dir: t.TempDir(), hosts: 2}
	b.configure(t, text)
	db := must.Get(store.Open(filepath.Join(b.dir, "state")))(t)
	t.Cleanup(func() { db.Close() })
	records := must.Get(registry.NewLocal(store.NewBucket[nodes.Record](db, nodes.Folder)))(t)
	clock := &table.Clock{}
	hosts := table.New(clock, hostnet.KeyOf, hostnet.Same)
	hosts.Set(host)
	b.network = hosts
	b.leases = table.New(clock, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil)
	b.Announcing = New(Options{Config: func() *configs.Config { return b.cfg }, Store: records, Fleet: fleet, Balancers: func() int { return b.hosts }, Host: hosts,
		Applied: table.New(clock, reconcile.KeyOfApplied, nil), Services: table.New(clock, vip.KeyOfService, nil), Leases: b.leases, Synced: make(chan struct{}), Healthy: func() bool { return true }, Forwards: func() bool { return true },
		Clock: clock, Events: event.NewLog(100, time.Now), Log: slog.New(slog.DiscardHandler)})
	close(b.known)
	return b
}

func (b *bench) configure(t *testing.T, text string) {
	t.Helper()
	cfg, problems := configs.Parse(filepath.Join(b.dir, "ironvip.toml"), []byte(text))
	if len(problems) > 0 {
		t.Fatal(problemtest.Text(problems))
	}
	b.cfg = cfg
}

func (b *bench) write(t *testing.T, name, content string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(filepath.Join(b.dir, name), []byte(content), 0o600))
}

const pair = `
[node]
name = "lb1"
[announce]
mode = "l2"
peers = ["10.0.0.1", "10.0.0.2", "[2001:db8::2]:7000"]
key_file = "key"
[[pool]]
name = "lan"
cidrs = ["10.0.0.64/26", "2001:db8::1:0/112"]
[[pool]]
name = "routed"
cidrs = ["198.51.100.0/24"]
announce = "off"
`

func TestSettingsOfAPair(t *testing.T) {
	b := newBench(t, false, pair)
	b.write(t, "key", "# the newer one\n0123456789abcdef\n\nfedcba9876543210\n")
	b.update()
	s, changed := b.Settings()
	expect.Equal(t, b.Problem(), "")
	got := fmt.Sprint(announce.Interfaces(s.LANs), s.Peers, len(s.Keys), s.Node, s.Hold, s.Device)
	expect.Equal(t, got, "[eth0] [10.0.0.2:7481 [2001:db8::2]:7000] 2lb15m0sironvip0")
	if !s.Uses(announce.L2) || s.Uses(announce.BGP) || len(s.Ranges(announce.L2)) != 2 {
		t.Errorf("%+v", s.Pools)
	}
	b.write(t, "key", "short")
	b.update()
	if s, _ := b.Settings(); len(s.Keys) != 2 || table.IsClosed(changed) {
		t.Error("a bad key file changes the secrets in use")
	}
	must.Succeed(t, b.Nodes.SetDrain(t.Context(), "lb1", true, "root"))
	b.update()
	if s, _ := b.Settings(); !s.Draining || !table.IsClosed(changed) {
		t.Error("the drain is not in the settings")
	}
}

// A pool differs from [announce] in what it states, and the digest that all hosts share doesn't have it.
func TestPolicyOfPools(t *testing.T) {
	b := newBench(t, false, pair)
	b.write(t, "key", "0123456789abcdef")
	b.update()
	s, _ := b.Settings()
	digest := s.Digest()
	text := strings.Replace(pair, `mode = "l2"`, "mode = \"l2\"\npriority = 150\nstandby = true\nmin_backends = \"50%\"", 1)
	b.configure(t, strings.Replace(text, `announce = "off"`, "announce_priority = 0\nannounce_standby = false\nannounce_min_backends = 2", 1))
	b.update()
	s, _ = b.Settings()
	expect.Equal(t, s.Pools[0].Policy, announce.Policy{Above: 50, Standby: true})
	expect.Equal(t, s.Pools[0].MinBackends, announce.Least{Percent: 50})
	expect.Equal(t, s.Pools[1].Policy, announce.Policy{Above: -100})
	expect.Equal(t, s.Pools[1].MinBackends, announce.Least{Number: 2})
	b.configure(t, text)
	b.update()
	s, _ = b.Settings()
	expect.Equal(t, s.Digest(), digest, "digest")
	for zone, standby := range map[string]bool{"": true, "rack1": false, "rack2": true} {
		b.configure(t, strings.NewReplacer("name = \"lan\"", "name = \"lan\"\nannounce_zone = \"rack1\"", "name = \"lb1\"", "name = \"lb1\"\nzone = \""+zone+"\"").Replace(pair))
		b.update()
		s, _ = b.Settings()
		expect.Equal(t, s.Pools[0].Policy, announce.Policy{Standby: standby}, "a host of zone %q", zone)
		expect.Equal(t, s.Digest(), digest, "digest of a host of zone %q", zone)
	}
}

// Without its secret, a host of a pair must not believe that it is alone.
func TestNoSecretNoLayer2(t *testing.T) {
	b := newBench(t, false, pair)
	b.update()
	if s, _ := b.Settings(); s.Announces() || !strings.Contains(b.Problem(), "nothing is announced at layer 2") {
		t.Errorf("%+v, %q", s, b.Problem())
	}
	if c := b.Checks(); len(c) != 1 || c[0].Level != v1.LevelFail {
		t.Errorf("%+v", c)
	}
	b = newBench(t, true, strings.ReplaceAll(pair, "key_file", "# key_file")+"\n[ipam]\nstore = \"consul\"\n")
	b.update()
	if s, _ := b.Settings(); s.Announces() || !strings.Contains(b.Problem(), "the fleet's secret") {
		t.Errorf("%+v, %q", s, b.Problem())
	}
}

func TestSettingsOfRouters(t *testing.T) {
	b := newBench(t, false, `
[announce]
mode = "bgp"
[[announce.bgp]]
peer = "10.0.0.254"
asn = 4200000000
local_asn = 65010
password_file = "password"
bfd = "3x50ms"
communities = ["65010:100", "no-export"]
[[pool]]
name = "routed"
cidrs = ["198.51.100.0/24"]
`)
	b.write(t, "password", "secret\n")
	b.update()
	s, _ := b.Settings()
	r := s.BGP[0]
	if s.RouterID.String() != "10.0.0.1" || r.Password != "secret" || r.ASN != 4200000000 || r.BFDInterval != 50*time.Millisecond || r.BFDMultiplier != 3 || b.Problem() != "" {
		t.Errorf("%+v, %q", s, b.Problem())
	}
	if got := routerID("lb1", "ironvip0", hostnet.Snapshot{}); !got.Is4() || got != routerID("lb1", "ironvip0", hostnet.Snapshot{}) {
		t.Error(got)
	}
}

// Without a password there are no routers, and the problem names its file.
func TestUnreadablePassword(t *testing.T) {
	b := newBench(t, false, `
[announce]
mode = "bgp"
[[announce.bgp]]
peer = "10.0.0.254"
asn = 65000
local_asn = 65010
password_file = "missing-password"
[[pool]]
name = "routed"
cidrs = ["198.51.100.0/24"]
`)
	b.update()
	s, _ := b.Settings()
	expect.True(t, s.Uses(announce.BGP) && len(s.BGP) == 0, "%+v", s)
	expect.Contains(t, b.Problem(), "missing-password")
}

func TestOwnAddress(t *testing.T) {
	for listen, want := range map[string]string{":7481": "10.0.0.1:7481", "172.16.0.1:7000": "172.16.0.1:7000", "[::]:7481": "10.0.0.1:7481"} {
		if got := ownAddress(listen, []string{"eth0"}, host); got.String() != want {
			t.Errorf("%s: %s, want %s", listen, got, want)
		}
	}
	if got := ownAddress(":7481", nil, host); got.IsValid() {
		t.Error(got)
	}
}

// The status line names each problem, and how to repair it.
func TestChecks(t *testing.T) {
	b := newBench(t, false, pair)
	b.write(t, "key", "0123456789abcdef")
	b.update()
	c := b.Checks()[0]
	if c.Level != v1.LevelFail || !strings.Contains(c.Message, "the announcer is not reachable") || c.Hint != "systemctl status ironvip-announcer" || c.InMessage != 0 {
		t.Errorf("%+v", c)
	}
	fleet := newBench(t, true, "[ipam]\nstore = \"consul\"\n[[pool]]\nname = \"lan\"\ncidrs = [\"10.0.0.64/26\"]\n")
	fleet.update()
	if c := fleet.Checks(); len(c) != 1 || c[0].Level != v1.LevelWarn || !strings.Contains(c[0].Message, "2 hosts of the fleet answer ARP") {
		t.Errorf("%+v", c)
	}
	if fleet.hosts = 1; len(fleet.Checks()) != 0 {
		t.Errorf("one host alone: %+v", fleet.Checks())
	}
	some := newBench(t, true, strings.ReplaceAll(pair, `peers = ["10.0.0.1", "10.0.0.2", "[2001:db8::2]:7000"]`, "")+"[[pool]]\nname = \"plain\"\ncidrs = [\"10.0.0.192/28\"]\nannounce = \"off\"\n[ipam]\nstore = \"consul\"\n")
	some.write(t, "key", "0123456789abcdef")
	some.update()
	if c := some.Checks(); len(c) != 1 || c[0].InMessage != 0 || !slices.ContainsFunc(c[0].Problems, func(p v1.Problem) bool { return strings.Contains(p.Message, "off, and pool plain is in the subnet") }) {
		t.Errorf("%+v", c)
	}
	off := newBench(t, false, "[[pool]]\nname = \"lan\"\ncidrs = [\"10.0.0.64/26\"]\n")
	off.update()
	expect.Empty(t, off.Checks())
	must.Succeed(t, off.Nodes.SetDrain(t.Context(), off.cfg.Node.Name, true, ""))
	if c := off.Checks(); len(c) != 1 || !strings.Contains(c[0].Message, "drains") {
		t.Errorf("%+v", c)
	}
}

// Each pool is announced at its own interfaces, or at those in its subnets, or at those in the subnets of all pools.
func TestInterfacesOfPools(t *testing.T) {
	b := newBench(t, false, pair)
	b.write(t, "key", "0123456789abcdef")
	b.network.Set(hostnet.Snapshot{Addrs: []hostnet.Addr{
		{Prefix: netip.MustParsePrefix("10.0.0.1/24"), Link: "eth0"}, {Prefix: netip.MustParsePrefix("10.1.0.1/24"), Link: "eth1"}}})
	for _, c := range []struct{ extra, mail, routed, want string }{
		{want: "lan@eth0 mail@eth1 routed@eth0,eth1"},
		{mail: `announce_interfaces = ["eth0"]`, want: "lan+mail@eth0 routed@eth0,eth1"},
		{mail: `announce_interfaces = ["eth3", "eth2"]`, routed: `announce_interfaces = ["eth2", "eth3"]`, want: "lan@eth0 mail+routed@eth2,eth3"},
		{extra: `interfaces = ["eth1"]`, mail: `announce_interfaces = ["eth0"]`, want: "lan+routed@eth1 mail@eth0"},
		{routed: `announce = "bgp"`, want: "lan@eth0 mail@eth1"},
	} {
		text := strings.Replace(pair, `key_file = "key"`, "key_file = \"key\"\n"+c.extra, 1)
		text = strings.Replace(text, `announce = "off"`, c.routed+"\n[[pool]]\nname = \"mail\"\ncidrs = [\"10.1.0.128/25\"]\n"+c.mail, 1)
		text = strings.Replace(text, "[[pool]]", "[[announce.bgp]]\npeer = \"10.0.0.3\"\nasn = 1\nlocal_asn = 2\n[[pool]]", 1)
		b.configure(t, text)
		b.update()
		s, _ := b.Settings()
		var got []string
		for _, l := range s.LANs {
			got = append(got, strings.Join(slices.Sorted(slices.Values(l.Pools)), "+")+"@"+l.At())
			expect.True(t, l.Has(l.CIDRs[0].Addr()) && !l.Has(netip.MustParseAddr("192.0.2.1")), "%+v", l)
		}
		slices.Sort(got)
		expect.Equal(t, strings.Join(got, " "), c.want, "%+v", c)
		expect.Equal(t, b.Problem(), "", "problem")
	}
	b.network.Set(hostnet.Snapshot{Addrs: []hostnet.Addr{{Prefix: netip.MustParsePrefix("10.2.0.1/24"), Link: "eth0"}}})
	b.configure(t, strings.Replace(pair, `announce = "off"`, `announce_interfaces = ["eth1"]`, 1))
	b.update()
	expect.Equal(t, b.Problem(), "no interface has an address in the range of pool lan: set announce.interfaces", "problem")
}

// Two interfaces that announce in one subnet answer with two link addresses, which status says.
func TestTwoInterfacesOnOneLAN(t *testing.T) {
	b := newBench(t, false, pair)
	b.write(t, "key", "0123456789abcdef")
	for _, c := range []struct {
		more  []string // "LINK PREFIX"
		extra string   // of [announce]
		want  string
	}{
		{more: []string{"eth1 fe80::2/64", "ironvip0 10.0.0.78/24", "eth1 10.0.0.200/32", "eth1 10.1.0.1/24"}},
		{more: []string{"eth1 10.0.0.10/24"}, want: "eth0 and eth1 are on one LAN, 10.0.0.0/24: VIPs there are answered for with the link address of each of them"},
		{more: []string{"eth1 10.0.0.10/24"}, extra: `interfaces = ["eth0"]`},
		{more: []string{"eth1 2001:db8::2/64"}, extra: `interfaces = ["eth0", "eth1"]`, want: "eth0 and eth1 are on one LAN, 2001:db8::/64:"},
	} {
		s := hostnet.Snapshot{Addrs: slices.Clone(host.Addrs)}
		for _, line := range c.more {
			link, prefix, _ := strings.Cut(line, " ")
			s.Addrs = append(s.Addrs, hostnet.Addr{Prefix: netip.MustParsePrefix(prefix), Link: link})
		}
		b.network.Set(s)
		b.configure(t, strings.Replace(pair, `key_file = "key"`, "key_file = \"key\"\n"+c.extra, 1))
		b.update()
		got := ""
		for _, p := range b.Checks()[0].Problems {
			if strings.Contains(p.Message, "on one LAN") {
				got += p.Message
			}
		}
		if !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%v, %s: %q, want %q", c.more, c.extra, got, c.want)
		}
	}
}

// A move ends with the lease of its VIP.
func TestMoveEndsWithItsLease(t *testing.T) {
	b := newBench(t, false, pair)
	synced := make(chan struct{})
	b.Synced = synced
	scope.Go(t, b.Nodes.Run)
	addrs := []netip.Addr{netip.MustParseAddr("10.0.0.65"), netip.MustParseAddr("10.0.0.66"), netip.MustParseAddr("10.0.0.67"), netip.MustParseAddr("10.0.0.68")}
	for _, addr := range addrs {
		must.Succeed(t, b.Nodes.SetMove(t.Context(), announce.Move{Addr: addr, Node: "lb1", Pin: true}))
	}
	for _, addr := range addrs[:3] { // the last one was given up while no agent ran
		b.leases.Set(&ipam.Lease{Resource: ipam.Resource{Addr: addr}, State: ipam.Held})
	}
	scope.Go(t, b.endMoves)
	left := func(n int) func() bool { return func() bool { return b.Nodes.Moves.Len() == n } }
	wait.Until(t, "the moves are known", left(4))
	close(synced)
	wait.Until(t, "the move of a VIP without a lease is over", left(3))
	b.leases.Set(&ipam.Lease{Resource: ipam.Resource{Addr: addrs[0]}, State: ipam.Cooling})
	b.leases.Delete(ipam.Resource{Addr: addrs[1]})
	wait.Until(t, "two more moves are over", left(1))
	_, _, kept := b.Nodes.Moves.Get(addrs[2])
	expect.True(t, kept, "the move of a VIP that is held")
}

// In a fleet, a move that arrives before the lease of its VIP stays.
func TestMoveBeforeItsLease(t *testing.T) {
	b := newBench(t, true, pair)
	synced := make(chan struct{})
	close(synced)
	b.Synced = synced
	scope.Go(t, b.Nodes.Run)
	early, released := netip.MustParseAddr("10.0.0.65"), netip.MustParseAddr("10.0.0.66")
	for _, addr := range []netip.Addr{early, released} {
		must.Succeed(t, b.Nodes.SetMove(t.Context(), announce.Move{Addr: addr, Node: "lb1", Pin: true}))
	}
	wait.Until(t, "the moves are known", func() bool { return b.Nodes.Moves.Len() == 2 })
	b.leases.Set(&ipam.Lease{Resource: ipam.Resource{Addr: released}, State: ipam.Cooling})
	scope.Go(t, b.endMoves)
	wait.Until(t, "the move of the VIP that was given up is over", func() bool { return b.Nodes.Moves.Len() == 1 })
	_, _, kept := b.Nodes.Moves.Get(early)
	expect.True(t, kept, "the move without a lease")
}

// A VIP that moves is an event, and so is the death of a peer. Many at once are counted.
func TestEvents(t *testing.T) {
	b := newBench(t, false, pair)
	var told atomic.Int64
	b.Events.Follow(func(event.Event) { told.Add(1) })
	var rows []announce.Announcement
	for i := range 30 {
		rows = append(rows, announce.Announcement{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(64 + i)}), Mode: announce.L2, Here: true, Why: "lb1: the only eligible host"})
	}
	place := func(i int) announce.Announced {
		return announce.Announced{Place: announce.Place{Addr: rows[i].Addr, At: "eth0"}, State: announce.StateAnnounced}
	}
	for i := range rows {
		b.Announced.Set(place(i))
	}
	b.Announcements.SetAll(rows)
	scope.Go(t, b.followResults) // one round reads all of them, so they are one group
	b.await(t, "announced", func(e []event.Event) bool {
		return len(e) == event.MaxMany+1 && strings.Contains(e[event.MaxMany].Message, "10 more VIPs") && b.announced.Load() == 30
	})
	expect.Equal(t, told.Load(), 30, "followers of the events, such as hooks, get all")
	rows[0].Here, rows[0].Why = false, "lb2: highest of 2 eligible"
	b.Announcements.Set(rows[0])
	peer := announce.Peer{PeerKey: announce.PeerKey{Kind: announce.Neighbor, Name: "lb2"}, State: "alive", Up: true}
	b.Peers.Set(peer)
	b.await(t, "up", func(e []event.Event) bool {
		has := func(kind string) bool {
			return slices.ContainsFunc(e, func(x event.Event) bool { return x.Kind == kind })
		}
		return has(eventPeerUp) && has(eventWithdrawn)
	})
	peer.Up, peer.State, peer.Reason = false, "dead", "no heartbeat within 300ms"
	b.Peers.Set(peer)
	conflict := place(1)
	conflict.State, conflict.Reason = announce.StateConflict, "02:00:00:00:00:01 has it"
	b.Announced.Set(conflict)
	b.await(t, "all", func(e []event.Event) bool {
		seen := map[string]string{}
		for _, x := range e {
			seen[x.Kind] += x.Message
		}
		return strings.Contains(seen[eventWithdrawn], "highest of 2") && strings.Contains(seen[eventWithdrawn], "10.0.0.65 is no longer announced here: eth0: 02:00") && seen[eventPeerDown] == "host lb2 is dead: no heartbeat within 300ms" && strings.Contains(seen[eventConflict], "02:00")
	})
}

// A VIP is announced to routers when a session carries its family, and no longer than that.
func TestEventsOfRoutes(t *testing.T) {
	b := newBench(t, false, pair)
	scope.Go(t, b.followResults)
	session := announce.Peer{PeerKey: announce.PeerKey{Kind: announce.BGPSession, Name: "10.0.0.254"}, State: "established", Up: true}
	session.Lacks[1] = "IPv6 prefixes are not announced"
	b.Peers.Set(session)
	for _, vip := range []string{"198.51.100.1", "2001:db8::1:1"} {
		b.Announcements.Set(announce.Announcement{Addr: netip.MustParseAddr(vip), Mode: announce.BGP, Here: true, Why: "lb1: eligible"})
	}
	last := func(what, kind, message string, announced, waiting int64) {
		t.Helper()
		b.await(t, what, func(e []event.Event) bool {
			end := e[len(e)-1]
			return end.Kind == kind && end.Message == message && b.announced.Load() == announced && b.waiting.Load() == waiting
		})
	}
	last("one family", eventAnnounced, "198.51.100.1 is announced here: lb1: eligible", 1, 1)
	expect.Equal(t, b.summary(), "1 VIP announced here, 1 waiting")
	session.Lacks = [2]string{}
	b.Peers.Set(session)
	last("both families", eventAnnounced, "2001:db8::1:1 is announced here: lb1: eligible", 2, 0)
	other := session
	other.Name = "10.0.0.253"
	b.Peers.Set(other)
	session.Up, session.State, session.Reason = false, "idle", "hold timer expired"
	b.Peers.Set(session)
	last("one session", eventPeerDown, "router 10.0.0.254 is idle: hold timer expired", 2, 0)
	b.Peers.Delete(other.PeerKey)
	last("none", eventWithdrawn, "2001:db8::1:1 is no longer announced here: 10.0.0.254: hold timer expired", 0, 2)
	b.Announcements.Delete(netip.MustParseAddr("2001:db8::1:1"))
	b.await(t, "a VIP is gone", func([]event.Event) bool { return b.waiting.Load() == 1 })
}

func (b *bench) await(t *testing.T, what string, ok func([]event.Event) bool) {
	t.Helper()
	wait.Until(t, what, func() bool {
		all, _ := b.Events.Since(0)
		return len(all) > 0 && ok(all)
	}, func() any { all, _ := b.Events.Since(0); return all })
}
