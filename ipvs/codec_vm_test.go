//go:build linux && vm

package ipvs

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	moby "github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// The kernel stores what we write. Our own reader, ipvsadm and moby/ipvs confirm it.
func TestKernelKeepsWhatIsWritten(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	back4 := addrs("10.77.1.2:8080", "10.77.1.2:8081", "10.77.2.2:8080")
	back6 := addrs("[fd77:1::2]:8080", "[fd77:2::2]:65535")
	type variant func(*vip.Frontend)
	scheduler := func(s vip.Scheduler) variant { return func(f *vip.Frontend) { f.Scheduler = s } }
	cases := []struct {
		at      string
		proto   vip.Protocol
		variant variant
		line    string // the text after the address in ipvsadm -Sn
	}{
		{"10.96.0.1:80", vip.TCP, scheduler(vip.RoundRobin), "-s rr"},
		{"10.96.0.2:80", vip.UDP, scheduler(vip.WeightedRoundRobin), "-s wrr"},
		{"10.96.0.3:80", vip.TCP, scheduler(vip.LeastConnection), "-s lc"},
		{"10.96.0.4:80", vip.TCP, scheduler(vip.WeightedLeastConnection), "-s wlc"},
		{"10.96.0.5:80", vip.TCP, scheduler(vip.SourceHash), "-s sh -b sh-fallback"},
		{"10.96.0.6:80", vip.TCP, func(f *vip.Frontend) { f.Scheduler, f.SchedulerFallback = vip.SourceHash, true }, "-s sh -b sh-fallback"},
		{"10.96.0.7:80", vip.TCP, func(f *vip.Frontend) { f.Scheduler, f.SchedulerPort = vip.SourceHash, true }, "-s sh -b sh-fallback,sh-port"},
		{"10.96.0.8:80", vip.TCP, func(f *vip.Frontend) {
			f.Scheduler, f.SchedulerPort, f.SchedulerFallback = vip.MaglevHash, true, true
		}, "-s mh -b mh-fallback,mh-port"},
		{"10.96.0.9:80", vip.TCP, func(f *vip.Frontend) { f.Affinity = vip.MaxAffinity }, "-s wrr -p 86400"},
		{"10.96.0.10:65535", vip.TCP, func(f *vip.Frontend) { f.Affinity = 1500 * time.Millisecond }, "-s wrr -p 2"},
		{"10.96.0.11:80", vip.TCP, func(f *vip.Frontend) {
			f.Backends[0].Weight, f.Backends[1].Weight = 0, vip.MaxWeight
		}, "-s wrr"},
		{"[fd96::1]:80", vip.TCP, func(f *vip.Frontend) { f.Affinity = time.Hour }, "-s wrr -p 3600"},
		{"[fd96::2]:80", vip.UDP, scheduler(vip.MaglevHash), "-s mh -b mh-fallback"},
	}
	var all []*vip.Frontend
	var want []string
	for _, c := range cases {
		backends := back4
		if netip.MustParseAddrPort(c.at).Addr().Is6() {
			backends = back6
		}
		f := frontend(c.at, c.proto, backends...)
		c.variant(f)
		all = append(all, f)
		flag := map[vip.Protocol]string{vip.TCP: "-t", vip.UDP: "-u"}[c.proto]
		want = append(want, fmt.Sprintf("-A %s %s %s", flag, c.at, c.line))
		for _, b := range f.Backends {
			want = append(want, fmt.Sprintf("-a %s %s -r %s -m -w %d", flag, c.at, b.Addr, b.Weight))
		}
	}
	p.Create(t, all...)
	p.Wants(t, all...)

	var lines []string
	for line := range strings.Lines(run(t, lab.Director, "ipvsadm", "-Sn")) {
		lines = append(lines, strings.TrimSpace(line))
	}
	slices.Sort(lines)
	slices.Sort(want)
	expect.NoDiff(t, gocmp.Diff(want, lines), "ipvsadm -Sn")
	lab.Director.Do(func() { crossCheck(t, all) })
}

// crossCheck compares the kernel with all through moby/ipvs, which reads
// weights as 16 bits.
func crossCheck(t *testing.T, all []*vip.Frontend) {
	h := must.Get(moby.New(""))(t)
	defer h.Close()
	services := must.Get(h.GetServices())(t)
	expect.Equal(t, len(services), len(all), "moby/ipvs sees %d services", len(services))
	for _, s := range services {
		addr, _ := netip.AddrFromSlice(s.Address)
		key := vip.FrontendKey{Addr: addr.Unmap(), Port: s.Port, Protocol: vip.Protocol(s.Protocol)}
		i := slices.IndexFunc(all, func(f *vip.Frontend) bool { return f.Key == key })
		if i < 0 {
			t.Errorf("moby/ipvs sees %s", key)
			continue
		}
		want := desired(all[i], 0)
		got := kernel.Service{Key: key, Scheduler: s.SchedName, Flags: s.Flags &^ kernel.FlagHashed, Timeout: s.Timeout, Netmask: s.Netmask}
		expect.Equal(t, got, want.Service, "moby/ipvs sees")
		dests := must.Get(h.GetDestinations(s))(t)
		var have []kernel.Dest
		for _, d := range dests {
			a, _ := netip.AddrFromSlice(d.Address)
			have = append(have, kernel.Dest{
				Addr: netip.AddrPortFrom(a.Unmap(), d.Port), Weight: uint32(d.Weight), Forward: d.ConnectionFlags & kernel.ForwardMask,
				Upper: d.UpperThreshold, Lower: d.LowerThreshold,
			})
		}
		slices.SortFunc(have, kernel.CompareDests)
		expect.SameList(t, have, want.Dests, "moby/ipvs sees %s with", key)
	}
}

// A weight beyond 16 bits, a threshold and a foreign flag that ipvsadm has written are read
// unchanged.
func TestReadsWhatOthersWrite(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	runWith(t, lab.Director, `-A -u 10.96.0.1:80 -s sed -p 77 -M 255.255.255.0 -o
-a -u 10.96.0.1:80 -r 10.77.1.2:80 -i -w 70000 -x 9 -y 3
-A -f 5 -s rr
-A -f 5 -6 -s wrr
`, "ipvsadm", "-R")
	all := must.Get(p.kernel.Services(t.Context()))(t)
	key := frontend("10.96.0.1:80", vip.UDP).Key
	slices.SortFunc(all, func(a, b kernel.Service) int { return cmp.Or(int(a.Mark)-int(b.Mark), a.Key.Addr.Compare(b.Key.Addr)) })
	want := []kernel.Service{
		{Key: key, Scheduler: "sed", Flags: kernel.FlagPersistent | kernel.FlagOnePacket, Timeout: 77, Netmask: 0x00ffffff},
		{Key: vip.FrontendKey{Addr: netip.IPv4Unspecified()}, Scheduler: "rr", Mark: 5, Netmask: kernel.Netmask4},
		{Key: vip.FrontendKey{Addr: netip.IPv6Unspecified()}, Scheduler: "wrr", Mark: 5, Netmask: kernel.Netmask6},
	}
	if d := gocmp.Diff(want, all, gocmp.AllowUnexported(kernel.Service{}), gocmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("services, -want +got:\n%s", d)
	}
	have := must.Get(p.kernel.State(t.Context(), key, 0))(t)
	dests := have.Dests
	if w := []kernel.Dest{{Addr: addrs("10.77.1.2:80")[0], Weight: 70000, Forward: kernel.ForwardTunnel, Upper: 9, Lower: 3}}; !slices.Equal(dests, w) {
		t.Errorf("destinations %+v, want %+v", dests, w)
	}
}

// ipvsadm prints our services in the form in which it writes them itself. Services that ipvsadm
// has written from that form are equal to ours.
func TestWritesAndReadsAsIpvsadm(t *testing.T) {
	type variant func(*vip.Frontend)
	type form struct {
		at      string // of a service by mark: its family's address
		mark    uint32
		proto   vip.Protocol
		last    uint16
		variant variant
		line    string // the text after the service in ipvsadm -Sn
		dest    string // the text after a destination's address
	}
	way := func(w vip.Forward) variant {
		return func(f *vip.Frontend) {
			f.Forward = w
			for i, b := range f.Backends {
				port := f.Key.Port
				if f.Key.Ranged() {
					port = 0
				}
				f.Backends[i].Addr = netip.AddrPortFrom(b.Addr.Addr(), port)
			}
		}
	}
	const ipip = "-i -w 1 --tun-type ipip"
	cases := []form{
		{at: "10.96.0.20:80", proto: vip.TCP, variant: way(vip.ForwardDirect), line: "-s wrr", dest: "-g -w 1"},
		{at: "10.96.0.21:80", proto: vip.TCP, variant: way(vip.ForwardTunnel), line: "-s wrr", dest: ipip},
		{at: "[fd96::21]:80", proto: vip.TCP, variant: way(vip.ForwardTunnel), line: "-s wrr", dest: ipip},
		{at: "[fd96::22]:80", proto: vip.UDP, variant: way(vip.ForwardDirect), line: "-s wrr", dest: "-g -w 1"},
		{at: "10.96.0.23:5060", proto: vip.UDP, variant: func(f *vip.Frontend) { way(vip.ForwardDirect)(f); f.OnePacket = true }, line: "-s wrr -o", dest: "-g -w 1"},
		{at: "10.96.0.24:36412", proto: vip.SCTP, line: "-s wrr", dest: "-m -w 1"},
		{at: "10.96.0.25:10000", last: 10099, mark: 0x01000005, proto: vip.TCP, line: "-s wrr", dest: "-m -w 1"},
		{at: "[fd96::25]:10000", last: 10099, mark: 0x01000005, proto: vip.UDP, line: "-s wrr", dest: "-m -w 1"},
		{at: "10.96.0.26:10000", last: 10099, mark: 0x7f00007f, proto: vip.TCP, variant: way(vip.ForwardDirect), line: "-s wrr", dest: "-g -w 1"},
		{at: "10.96.0.27:10000", last: 10099, mark: 0x02000000, proto: vip.TCP, variant: func(f *vip.Frontend) {
			way(vip.ForwardTunnel)(f)
			f.Affinity, f.Scheduler, f.SchedulerFallback = time.Hour, vip.MaglevHash, true
		}, line: "-s mh -p 3600 -b mh-fallback", dest: ipip},
	}
	for i, s := range kernel.Schedulers() {
		line := "-s " + s.String()
		if isHash(s) {
			line += fmt.Sprintf(" -b %s-fallback", s)
		}
		cases = append(cases, form{at: fmt.Sprintf("10.96.1.%d:80", i+1), proto: vip.TCP, line: line, dest: "-m -w 1",
			variant: func(f *vip.Frontend) { f.Scheduler, f.SchedulerFallback = s, true }})
	}
	var states []kernel.State
	var want []string
	var ops []op
	for i, c := range cases {
		backends := addrs("10.77.1.2:8080", "10.77.2.2:8080")
		family := ""
		if netip.MustParseAddrPort(c.at).Addr().Is6() {
			backends, family = addrs("[fd77:1::2]:8080", "[fd77:2::2]:8080"), " -6"
		}
		f := frontend(c.at, c.proto, backends...)
		f.Key.LastPort = c.last
		if c.variant != nil {
			c.variant(f)
		}
		expect.Succeed(t, Unsupported(f), f.Key)
		s := desired(f, c.mark)
		states = append(states, s)
		ops = plan(ops, i, nil, &s)
		name := map[vip.Protocol]string{vip.TCP: "-t ", vip.UDP: "-u ", vip.SCTP: "--sctp-service "}[c.proto] + c.at
		if c.mark != 0 {
			name = fmt.Sprintf("-f %d%s", c.mark, family)
		}
		want = append(want, fmt.Sprintf("-A %s %s", name, c.line))
		for _, b := range f.Backends {
			want = append(want, fmt.Sprintf("-a %s -r %s %s", name, b.Addr, c.dest))
		}
	}
	ours, theirs := netlab.New(t), netlab.New(t)
	p := newPlane(t, ours.Director)
	err := runOps(t.Context(), p.kernel, ops, func(i int, err error) {
		if err != nil {
			t.Errorf("%s: %v", &ops[i], err)
		}
	})
	must.Succeed(t, err)
	sorted := func(lab *netlab.Lab) []string {
		var lines []string
		for line := range strings.Lines(run(t, lab.Director, "ipvsadm", "-Sn")) {
			lines = append(lines, strings.TrimSpace(line))
		}
		slices.Sort(lines)
		return lines
	}
	unsorted := strings.Join(want, "\n") + "\n"
	slices.Sort(want)
	expect.NoDiff(t, gocmp.Diff(want, sorted(ours)), "ipvsadm -Sn of what we wrote")
	runWith(t, theirs.Director, unsorted, "ipvsadm", "-R")
	q := newPlane(t, theirs.Director)
	for _, s := range states {
		have, err := q.kernel.State(t.Context(), s.Key, s.Mark)
		switch {
		case err != nil || have == nil:
			t.Errorf("%s, mark %#x: %v, %v", s.Key, s.Mark, have, err)
		case have.Service != s.Service || !slices.Equal(have.Dests, s.Dests):
			t.Errorf("ipvsadm wrote %+v, want %+v", have, s)
		}
	}
	if all, err := q.kernel.Services(t.Context()); err != nil || len(all) != len(states) {
		t.Errorf("%d services of %d are listed: %v", len(all), len(states), err)
	}
}

// Services that moby/ipvs has written are read unchanged. Services that are as a frontend wants
// them need no change.
func TestReadsWhatMobyWrites(t *testing.T) {
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	all := []*vip.Frontend{
		frontend("10.96.0.1:80", vip.TCP, addrs("10.77.1.2:8080", "10.77.2.2:8081")...),
		with(frontend("10.96.0.2:53", vip.UDP, addrs("10.77.1.2:53")...), func(f *vip.Frontend) { f.Affinity = 300e9 }),
		with(frontend("[fd96::1]:443", vip.TCP, addrs("[fd77:1::2]:443", "[fd77:2::2]:443")...), func(f *vip.Frontend) {
			f.Scheduler, f.Backends[1].Weight = vip.LeastConnection, 0
		}),
	}
	for _, f := range all {
		f.Masquerade = vip.MasqueradeNever // it needs nothing but what moby/ipvs supports
	}
	lab.Director.Do(func() {
		h := must.Get(moby.New(""))(t)
		defer h.Close()
		for _, f := range all {
			want := desired(f, 0)
			s := &moby.Service{
				Address: net.IP(f.Key.Addr.AsSlice()), Protocol: uint16(f.Key.Protocol), Port: f.Key.Port, AddressFamily: kernel.FamilyOf(f.Key.Addr),
				SchedName: want.Scheduler, Flags: want.Flags, Timeout: want.Timeout, Netmask: want.Netmask,
			}
			must.Succeed(t, h.NewService(s), f.Key)
			for _, b := range f.Backends {
				d := &moby.Destination{
					Address: net.IP(b.Addr.Addr().AsSlice()), Port: b.Addr.Port(), Weight: int(b.Weight), AddressFamily: kernel.FamilyOf(b.Addr.Addr()),
					ConnectionFlags: moby.ConnectionFlagMasq, UpperThreshold: 0, LowerThreshold: 0,
				}
				must.Succeed(t, h.NewDestination(s, d), b.Addr)
			}
		}
		// This service belongs to no frontend.
		foreign := &moby.Service{FWMark: 77, AddressFamily: unix.AF_INET, SchedName: "sed", Netmask: kernel.Netmask4}
		must.Succeed(t, h.NewService(foreign))
	})
	for _, f := range all {
		want := desired(f, 0)
		got, err := p.kernel.State(t.Context(), f.Key, 0)
		if err != nil || got == nil || got.Service != want.Service || !slices.Equal(got.Dests, want.Dests) {
			t.Errorf("%s is read as %+v, %v, want %+v", f.Key, got, err, want)
		}
		o, there := p.Read(t)[f.Key]
		if !there || !p.Same(&o.Value, f) {
			t.Errorf("%s is taken for %+v", f.Key, o.Value)
		}
	}
	services, err := p.kernel.Services(t.Context())
	if err != nil || len(services) != len(all)+1 {
		t.Errorf("%d services, %v", len(services), err)
	}
	if !slices.ContainsFunc(services, func(s kernel.Service) bool { return s.Mark == 77 && s.Scheduler == "sed" }) {
		t.Errorf("the service by mark is missing: %+v", services)
	}
}
