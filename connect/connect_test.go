package connect

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/ironvip/ironvip/internal/bpf"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

// lab has two backends and a host that has none of the virtual addresses: only a program that was balanced reaches one.
type lab struct {
	testing.TB
	*netlab.Lab
	*Plane
	cgroup string
	all    bool // planes that are opened serve all network namespaces
	have   map[vip.FrontendKey]*vip.Frontend
}

const backendPort = 7000

func newLab(t testing.TB) *lab {
	t.Helper()
	l := &lab{TB: t, cgroup: netlab.Cgroup(t), Lab: netlab.New(t), have: map[vip.FrontendKey]*vip.Frontend{}}
	for _, b := range l.Backends {
		for _, a := range []netip.Addr{b.Addr4, b.Addr6} {
			b.Serve("tcp", netip.AddrPortFrom(a, backendPort))
			b.Serve("udp", netip.AddrPortFrom(a, backendPort))
		}
	}
	l.Plane = l.opened()
	return l
}

// next has another process go on with everything.
func (l *lab) next() {
	l.Helper()
	files := must.Get(l.Files())(l)
	l.Plane.Close()
	l.Plane = l.opened(files...)
}

// opened returns a Plane that goes on with files.
func (l *lab) opened(files ...*os.File) (p *Plane) {
	l.Helper()
	l.Director.Do(func() {
		p = must.Get(Open(Options{Cgroup: l.cgroup, Files: files, Host: "here", AllNamespaces: l.all}))(l)
	})
	l.Cleanup(p.Close)
	return p
}

func key(at string, protocol vip.Protocol) vip.FrontendKey {
	a := netip.MustParseAddrPort(at)
	return vip.FrontendKey{Addr: a.Addr(), Port: a.Port(), Protocol: protocol}
}

// frontend returns one with backends of its family: 0, 1 or both.
func (l *lab) frontend(at string, protocol vip.Protocol, backends ...int) *vip.Frontend {
	f := &vip.Frontend{Key: key(at, protocol), Kind: vip.OnVIP, Scheduler: vip.WeightedRoundRobin}
	for _, i := range backends {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: l.backend(i, f.Key.Addr), Weight: 1})
	}
	return f
}

func (l *lab) backend(i int, like netip.Addr) netip.AddrPort {
	a := l.Backends[i].Addr4
	if like.Is6() {
		a = l.Backends[i].Addr6
	}
	return netip.AddrPortFrom(a, backendPort)
}

// set applies frontends, nil as a removal of the key.
func (l *lab) set(all ...*vip.Frontend) {
	l.Helper()
	for _, f := range all {
		l.apply(f.Key, f)
	}
}

func (l *lab) apply(k vip.FrontendKey, f *vip.Frontend) {
	l.Helper()
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: k, Old: l.have[k], New: f}}
	must.Succeed(l, l.Apply(l.Context(), batch))
	must.Succeed(l, batch[0].Err)
	l.have[k] = f
}

// ask connects a program of the host, and returns which backend answers.
func (l *lab) ask(network, at string) string {
	l.Helper()
	a, err := l.Director.Ask(network, netip.MustParseAddrPort(at))
	if err != nil {
		return err.Error()
	}
	return a.Name
}

func (l *lab) dial(network, at string) *netlab.Conn {
	l.Helper()
	return must.Get(l.Director.Dial(network, netip.MustParseAddrPort(at)))(l)
}

// The names of both backends.
const first, second = "backend1", "backend2"

// names returns who answers n clients.
func (l *lab) names(network, at string, n int) map[string]int {
	l.Helper()
	out := map[string]int{}
	for range n {
		out[l.ask(network, at)]++
	}
	return out
}

func TestSchedulers(t *testing.T) {
	l := newLab(t)
	f := l.frontend("192.0.2.1:80", vip.TCP, 0, 1)
	f.Backends[0].Weight, f.Backends[1].Weight = 29, 10 // in three groups of slots
	l.set(f)
	got := l.names("tcp", "192.0.2.1:80", 200)
	expect.Between(t, got[first], 120, 180, "of 200 clients with three quarters of the weight: %v", got)
	expect.Equal(t, got[first]+got[second], 200, "%v", got)
	l.apply(f.Key, nil)
	l.nothingIsLeft()
	for _, s := range []vip.Scheduler{vip.SourceHash, vip.MaglevHash} {
		f := l.frontend("192.0.2.1:80", vip.TCP, 0, 1)
		f.Scheduler = s
		l.set(f)
		expect.Len(t, l.names("tcp", "192.0.2.1:80", 20), 1, "backends of one client with %s", s)
	}
	f = l.frontend("192.0.2.1:80", vip.TCP, 0, 1)
	f.Affinity = time.Hour
	l.set(f)
	kept := l.names("tcp", "192.0.2.1:80", 20)
	expect.Len(t, kept, 1, "backends of one client with affinity")
	for i, name := range []string{first, second} {
		if kept[name] > 0 { // it takes no clients
			g := *f
			g.Backends = slices.Clone(f.Backends)
			g.Backends[i].Weight = 0
			l.set(&g)
		}
	}
	moved := l.names("tcp", "192.0.2.1:80", 20)
	expect.Len(t, moved, 1, "backends of one client with affinity, later")
	for name := range moved {
		expect.Equal(t, kept[name], 0, "clients of %s before, which was taken out", name)
	}
}

// All that Left names is left, also where another frontend of the address and port is not: the one for clients of this host
// decides.
func TestLeft(t *testing.T) {
	l := newLab(t)
	served := l.frontend("192.0.2.1:80", vip.TCP, 0)
	l.set(served)
	inside := l.frontend("192.0.2.1:80", vip.TCP, 1)
	inside.Key.Audience = vip.InternalClients
	l.set(inside)
	expect.Equal(t, l.ask("tcp", "192.0.2.1:80"), second)
	with := func(change func(f *vip.Frontend)) *vip.Frontend {
		f := *inside
		f.Backends = slices.Clone(inside.Backends)
		change(&f)
		return &f
	}
	for _, f := range []*vip.Frontend{
		with(func(f *vip.Frontend) { f.Scheduler = vip.LeastConnection }),
		with(func(f *vip.Frontend) { f.Scheduler, f.SchedulerPort = vip.SourceHash, true }),
		with(func(f *vip.Frontend) { f.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }),
		with(func(f *vip.Frontend) { f.Relay = &vip.ProxySettings{MaxConnections: 5} }),
		with(func(f *vip.Frontend) { f.Backends[0].MaxConnections = 1 }),
		with(func(f *vip.Frontend) { f.Forward = vip.ForwardDirect }),
		with(func(f *vip.Frontend) { f.Backends[0].Weight = 0 }),
	} {
		l.set(f)
		expect.Contains(t, l.ask("tcp", "192.0.2.1:80"), "unreachable", "%s", Left(f))
	}
	l.apply(inside.Key, nil)
	expect.Equal(t, l.ask("tcp", "192.0.2.1:80"), first)
	l.apply(served.Key, nil)
	expect.Contains(t, l.ask("tcp", "192.0.2.1:80"), "unreachable")
	expect.Empty(t, l.actual(), "frontends that are left behind")
	l.nothingIsLeft()
}

// nothingIsLeft checks that there are no entries of frontends.
func (l *lab) nothingIsLeft() {
	l.Helper()
	for name, m := range l.objects.maps {
		if name == "slots" || name == "backends" || name == "services" || name == "counters" {
			var k, v []byte
			expect.False(l, m.Iterate().Next(&k, &v), "%s has an entry", name)
		}
	}
}

func (l *lab) clean() {
	l.Helper()
	l.Director.Do(func() { must.Succeed(l, l.Clean(l.Context())) })
}

// open returns the open connections of a frontend.
func (l *lab) open(k vip.FrontendKey) (n map[netip.AddrPort]int) {
	l.Helper()
	l.Director.Do(func() { n = must.Get(l.Connections(l.Context(), k))(l) })
	return n
}

func (l *lab) actual() (out []vip.Frontend) {
	for o, err := range l.Actual(context.Background()) {
		must.Succeed(l, err)
		expect.Empty(l, o.Damage)
		out = append(out, o.Value)
	}
	return out
}

// A removed backend loses its connections, of this frontend alone. UDP clients also leave one that is taken out, connected or
// not.
func TestRemovedBackends(t *testing.T) {
	l := newLab(t)
	l.set(l.frontend("192.0.2.1:80", vip.TCP, 0, 1), l.frontend("192.0.2.2:80", vip.TCP, 0), l.frontend("192.0.2.1:80", vip.UDP, 0))
	conns := map[string]*netlab.Conn{}
	for conns[first] == nil || conns[second] == nil {
		c := l.dial("tcp", "192.0.2.1:80")
		conns[must.Get(c.Ask())(t).Name] = c
	}
	other, udp := l.dial("tcp", "192.0.2.2:80"), l.dial("udp", "192.0.2.1:80")
	direct := l.dial("tcp", l.backend(0, netip.IPv4Unspecified()).String())
	must.Get(udp.Ask())(t)
	var loose *net.UDPConn
	l.Director.Do(func() { loose = must.Get(net.ListenUDP("udp4", nil))(t) })
	defer loose.Close()
	answer := func() string {
		var buf [100]byte
		must.Succeed(t, loose.SetDeadline(time.Now().Add(10*time.Second)))
		must.Get(loose.WriteToUDPAddrPort([]byte("?"), netip.MustParseAddrPort("192.0.2.1:80")))(t)
		n := must.Get(loose.Read(buf[:]))(t)
		return string(buf[:n])
	}
	expect.Contains(t, answer(), first)

	drained := l.frontend("192.0.2.1:80", vip.TCP, 0, 1)
	drained.Backends[0].Weight = 0
	outUDP := l.frontend("192.0.2.1:80", vip.UDP, 0, 1)
	outUDP.Backends[0].Weight = 0
	l.set(drained, outUDP)
	must.True(t, l.Unclean())
	l.clean()
	must.Get(conns[first].Ask())(t)
	_, err := udp.Read(make([]byte, 1))
	expect.Is(t, err, unix.ECONNABORTED, "a connected UDP socket")
	expect.Equal(t, l.ask("udp", "192.0.2.1:80"), second)
	expect.Contains(t, answer(), second)

	l.set(l.frontend("192.0.2.1:80", vip.TCP, 1))
	l.clean()
	_, err = conns[first].Ask()
	expect.Is(t, err, unix.ECONNABORTED, "a connection to a removed backend")
	for name, c := range map[string]*netlab.Conn{"another backend": conns[second], "another frontend": other, "directly": direct} {
		_, err := c.Ask()
		expect.Succeed(t, err, "%s", name)
	}
	expect.False(t, l.Unclean())
}

func TestCounts(t *testing.T) {
	l := newLab(t)
	f := l.frontend("192.0.2.1:80", vip.TCP, 0, 1)
	l.set(f, l.frontend("192.0.2.2:80", vip.UDP, 0))
	for range 5 {
		l.ask("tcp", "192.0.2.1:80")
	}
	open := l.dial("tcp", "192.0.2.1:80")
	udp := l.dial("udp", "192.0.2.2:80")
	var totals map[vip.FrontendKey]reconcile.Traffic
	var b reconcile.Breakdown
	var list []reconcile.Connection
	l.Director.Do(func() {
		totals = must.Get(l.Totals(t.Context(), func(vip.FrontendKey) bool { return true }))(t)
		b = must.Get(l.Breakdown(t.Context(), f.Key, slices.Values([]netip.AddrPort{f.Backends[0].Addr, f.Backends[1].Addr})))(t)
		must.Succeed(t, l.ListConnections(t.Context(), func(vip.FrontendKey) bool { return true }, func(c reconcile.Connection) bool {
			if c.State == "ESTABLISHED" || c.State == reconcile.StateUDP { // others have just ended
				list = append(list, c)
			}
			return true
		}))
	})
	expect.Equal(t, totals[f.Key].Connections, 6)
	expect.Equal(t, totals[f.Key].Active, 1)
	expect.Equal(t, totals[key("192.0.2.2:80", vip.UDP)].Active, 1)
	expect.Equal(t, b.Connections, 6)
	expect.Equal(t, b.Endpoints[f.Backends[0].Addr].Connections+b.Endpoints[f.Backends[1].Addr].Connections, 6)
	expect.Equal(t, b.Endpoints[f.Backends[0].Addr].Active+b.Endpoints[f.Backends[1].Addr].Active, 1)
	must.Len(t, list, 2)
	expect.Equal(t, fmt.Sprint(list[0].Client, list[0].State), fmt.Sprint(open.LocalAddr(), "ESTABLISHED"))
	expect.Equal(t, fmt.Sprint(list[1].Client, list[1].State), fmt.Sprint(udp.LocalAddr(), reconcile.StateUDP))
	n := l.open(f.Key)
	expect.AtLeast(t, n[list[0].Backend], 1)
	l.set(l.frontend("192.0.2.1:80", vip.TCP, 0, 1)) // an equal table: numbers stay
	totals = must.Get(l.Totals(t.Context(), func(k vip.FrontendKey) bool { return k == f.Key }))(t)
	expect.Equal(t, totals[f.Key].Connections, 6, "after a change")
}

// Descriptors that somebody keeps, as systemd does, keep everything when the process ends. The next one goes on with it: it
// finds the frontends, and no client fails meanwhile.
func TestTheNextProcessContinues(t *testing.T) {
	l := newLab(t)
	f := l.frontend("192.0.2.1:80", vip.TCP, 0)
	l.set(f, l.frontend("192.0.2.1:80", vip.UDP, 0))
	udp := l.dial("udp", "192.0.2.1:80")
	open := l.dial("tcp", "192.0.2.1:80")
	files := must.Get(l.Files())(t)
	l.Plane.Close()
	expect.Equal(t, l.ask("tcp", "192.0.2.1:80"), first, "without a process")
	done := make(chan map[string]int)
	stop := make(chan struct{})
	go func() {
		got := map[string]int{}
		for {
			select {
			case <-stop:
				done <- got
				return
			default:
				got[l.ask("tcp", "192.0.2.1:80")]++
			}
		}
	}()
	l.Plane = l.opened(files...)
	have := l.actual()
	must.Len(t, have, 2)
	expect.True(t, l.Same(f, &have[slices.IndexFunc(have, func(g vip.Frontend) bool { return g.Key == f.Key })]))
	l.set(l.frontend("192.0.2.1:80", vip.TCP, 0))
	close(stop)
	got := <-done
	expect.Len(t, got, 1, "%v", got)
	expect.Equal(t, must.Get(udp.Ask())(t).Name, first)
	expect.Equal(t, open.RemoteAddr().String(), "192.0.2.1:80")
	n := l.open(f.Key)
	expect.AtLeast(t, n[f.Backends[0].Addr], 1, "connections")
	l.Plane.Close()
	expect.Contains(t, l.ask("tcp", "192.0.2.1:80"), "unreachable", "at the end")
	_, err := open.Ask()
	expect.Succeed(t, err, "an open connection at the end")
}

// Objects of another layout end: the dataplane serves alone until the next ones have everything.
func TestObjectsOfAnotherLayout(t *testing.T) {
	l := newLab(t)
	l.set(l.frontend("192.0.2.1:80", vip.TCP, 0))
	files := must.Get(l.Files())(t)
	l.Plane.Close()
	l.Plane = l.opened(files[1:]...)
	files[0].Close()
	expect.Empty(t, l.actual())
	expect.Contains(t, l.ask("tcp", "192.0.2.1:80"), "unreachable")
}

// An agent that was killed in the middle of a change has left a part of a table. The next one removes it.
func TestKilledInAChange(t *testing.T) {
	l := newLab(t)
	f := l.frontend("192.0.2.1:80", vip.TCP, 0)
	l.set(f)
	must.Succeed(t, l.slots.Put(&group{99, 0}, &places{}))
	must.Succeed(t, l.backends.Put(new(backendOf(99, f.Backends[0].Addr)), new(uint32(1))))
	l.next()
	expect.Len(t, l.actual(), 1)
	_, found, _ := lookup[group, places](l.slots, group{99, 0})
	expect.False(t, found, "a slot is left")
	_, found, _ = lookup[backend, uint32](l.backends, backendOf(99, f.Backends[0].Addr))
	expect.False(t, found, "a backend is left")
	expect.Equal(t, l.ask("tcp", "192.0.2.1:80"), first)
}

// counting returns a program for connect4 that does nothing but count its runs.
func counting(t testing.TB) (p *ebpf.Program, runs func() uint64) {
	m := must.Get(ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}))(t)
	t.Cleanup(func() { m.Close() })
	p = must.Get(ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL", Instructions: asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("end"),
		asm.Return(),
	}}))(t)
	t.Cleanup(func() { p.Close() })
	return p, func() (n uint64) {
		t.Helper()
		must.Succeed(t, m.Lookup(new(uint32), &n))
		return n
	}
}

// Programs of others at the same place go on, whether they were attached earlier or later, and one that is detached comes back.
func TestBesideOtherPrograms(t *testing.T) {
	l := newLab(t)
	l.set(l.frontend("192.0.2.1:80", vip.TCP, 0))
	earlier, runsOfEarlier := counting(t)
	later, runsOfLater := counting(t)
	attach := func(p *ebpf.Program) {
		beside := must.Get(link.AttachCgroup(link.CgroupOptions{Path: l.cgroup, Attach: ebpf.AttachCGroupInet4Connect, Program: p}))(t)
		t.Cleanup(func() { beside.Close() })
	}
	l.Plane.Close()
	attach(earlier)
	l.Plane = l.opened()
	clear(l.have)
	l.set(l.frontend("192.0.2.1:80", vip.TCP, 0))
	attach(later)
	expect.Equal(t, l.ask("tcp", "192.0.2.1:80"), first)
	must.Succeed(t, l.objects.links[ebpf.AttachCGroupInet4Connect].Detach())
	expect.Contains(t, l.ask("tcp", "192.0.2.1:80"), "unreachable", "without the program")
	l.actual()
	expect.Equal(t, l.ask("tcp", "192.0.2.1:80"), first, "after a resync")
	expect.Equal(t, fmt.Sprint(runsOfEarlier(), runsOfLater()), "3 3", "runs of the other programs")
}

// A program of others that allows no others at its place stays alone there, and one that wants to be alone is refused.
func TestProgramsThatAllowNoOthers(t *testing.T) {
	l := newLab(t)
	l.set(l.frontend("192.0.2.1:80", vip.TCP, 0))
	alone, runs := counting(t)
	dir := must.Get(os.Open(l.cgroup))(t)
	defer dir.Close()
	exclusive := link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: alone, Attach: ebpf.AttachCGroupInet4Connect}
	expect.Is(t, link.RawAttachProgram(exclusive), unix.EPERM)
	expect.Equal(t, l.ask("tcp", "192.0.2.1:80"), first)
	l.Plane.Close()
	must.Succeed(t, link.RawAttachProgram(exclusive))
	defer link.RawDetachProgram(link.RawDetachProgramOptions{Target: exclusive.Target, Program: alone, Attach: exclusive.Attach})
	_, err := Open(Options{Cgroup: l.cgroup})
	must.Is(t, err, unix.EPERM)
	expect.Equal(t, err.Error(), "connect4: another program is attached there that allows no others (EPERM)")
	expect.Equal(t, bpf.Hint(err), "see it with: bpftool cgroup show "+l.cgroup)
	expect.Contains(t, l.ask("tcp", "192.0.2.1:80"), "unreachable")
	expect.Equal(t, runs(), 1)
}

// The capabilities of a unit are enough. The verifier is stricter with them than with all.
func TestCapabilities(t *testing.T) {
	l := newLab(t)
	l.Director.Do(func() {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3} // of this thread
		var all [2]unix.CapUserData
		must.Succeed(t, unix.Capget(&header, &all[0]))
		few := all
		few[0].Effective = 1 << unix.CAP_NET_ADMIN
		few[1].Effective = 1 << (unix.CAP_BPF - 32)
		must.Succeed(t, unix.Capset(&header, &few[0]))
		p, err := Open(Options{Cgroup: l.cgroup})
		if err == nil {
			p.Close()
		}
		few[1].Effective = 0
		must.Succeed(t, unix.Capset(&header, &few[0]))
		_, without := Open(Options{Cgroup: l.cgroup})
		must.Succeed(t, unix.Capset(&header, &all[0]))
		expect.Succeed(t, err)
		expect.Contains(t, without.Error(), "lacks CAP_BPF")
		expect.Contains(t, bpf.Hint(without), "systemd unit")
	})
	_, err := Open(Options{Cgroup: t.TempDir()})
	expect.Contains(t, err.Error(), "the kernel", "a folder that is no cgroup")
}

// The committed object is that of the source.
func TestObjectIsThatOfTheSource(t *testing.T) {
	need.Program(t, "clang-14")
	need.Program(t, "llvm-strip-14")
	made := filepath.Join(t.TempDir(), "connect.o")
	out, err := exec.CommandContext(t.Context(), "bpf/build.sh", made).CombinedOutput()
	must.Succeed(t, err, "%s", out)
	if !bytes.Equal(must.Get(os.ReadFile(made))(t), object) {
		t.Error("bpf/connect.o differs: run go generate ./connect")
	}
}

// Kernels before 6.9 refuse a part of a word of the stack that was written whole, without CAP_PERFMON.
func TestStackIsWrittenInWords(t *testing.T) {
	spec := must.Get(ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object)))(t)
	words := 0
	for name, p := range spec.Programs {
		for _, i := range p.Instructions {
			if i.OpCode.Class().IsStore() && i.Dst == asm.RFP {
				expect.Equal(t, i.OpCode.Size(), asm.DWord, "%s: %v", name, i)
				words++
			}
		}
	}
	expect.AtLeast(t, words, 1, "writes to the stack")
}

// A frontend for which there is no room is left to the dataplane, and nothing of it stays.
func TestFullMaps(t *testing.T) {
	l := newLab(t)
	l.set(l.frontend("192.0.2.1:80", vip.TCP, 0))
	n := l.slots.MaxEntries() - 1
	keys := make([]group, n)
	for i := range keys {
		keys[i] = group{1 << 30, uint32(i)}
	}
	must.Get(l.slots.BatchUpdate(keys, make([]places, n), nil))(t)
	f := l.frontend("192.0.2.1:80", vip.TCP, 1)
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: f.Key, Old: l.have[f.Key], New: f}}
	must.Succeed(t, l.Apply(t.Context(), batch))
	expect.Is(t, batch[0].Err, unix.E2BIG)
	expect.Contains(t, l.ask("tcp", "192.0.2.1:80"), "unreachable")
	var b backend
	var weight uint32
	expect.False(t, l.backends.Iterate().Next(&b, &weight), "a backend is left")
	must.Succeed(t, removeAll(l.slots, keys[:10]))
	l.set(f)
	expect.Equal(t, l.ask("tcp", "192.0.2.1:80"), second)
}
