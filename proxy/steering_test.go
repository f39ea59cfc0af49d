package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	bpflink "github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sklookup"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/test/descriptors"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/inherit"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// newSteered returns a Target that clients reach by sk_lookup.
func newSteered(t testing.TB, opts Options) *bench {
	t.Helper()
	need.Root(t)
	opts.SkLookup = true
	b := newTarget(t, opts)
	if !b.Entrance().SkLookup {
		t.Fatal(b.Entrance())
	}
	return b
}

// entryOf returns the key of a frontend in the kernel's table.
func entryOf(key vip.FrontendKey) sklookup.Key {
	return sklookup.KeyOf(key.AddrPort(), uint8(key.Protocol))
}

func TestConformanceBySkLookup(t *testing.T) {
	conforms(t, func(t *testing.T) reconcile.Plane { return newSteered(t, Options{}).Target })
}

// A frontend takes no port from another process. Once it has it, no other process gets its clients.
func TestNoOtherProcessTakesAPort(t *testing.T) {
	p := newSteered(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.TCP)
	f := onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a")))
	p.must(f)
	after := must.Get(net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", key.Port)))(t)
	serveOn(t, after, named("another process"))
	expect.Equal(t, who(t, key), "a", "the client")
	if err := p.steering.Table.Delete(entryOf(key)); err != nil { // someone else does
		t.Fatal(err)
	}
	p.actual()
	p.must(f)
	expect.Equal(t, who(t, key), "a", "after the repair, the client")
	p.remove(key)
	expect.Equal(t, who(t, key), "another process", "after the end of the frontend, the client")
}

// A port that another process has is reported as with listeners, until it is free.
func TestAPortOfAnotherProcess(t *testing.T) {
	for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP} {
		for _, at := range []string{"127.96.0.1", "0.0.0.0", "::"} {
			t.Run(protocol.String()+" "+at, func(t *testing.T) {
				p := newSteered(t, Options{})
				key, other := freeKey(t, "127.96.0.1", protocol), freeKey(t, "127.96.0.1", protocol)
				holder := heldBy(t, protocol, netip.AddrPortFrom(netip.MustParseAddr(at), key.Port))
				backend := netip.MustParseAddrPort("127.0.0.1:9")
				f, g := onVIP(key, vip.RoundRobin, backend), onVIP(other, vip.RoundRobin, backend)
				batch := []update{{Key: key, New: f}, {Key: other, New: g}}
				must.Succeed(t, p.Apply(t.Context(), batch))
				must.Succeed(t, batch[1].Err)
				for _, err := range []error{batch[0].Err, p.apply(f)} {
					if problem, ok := errors.AsType[vip.Problem](err); !ok || !strings.Contains(problem.Message, "another process holds") || !strings.Contains(problem.Hint, "ss -l") {
						t.Errorf("error %v", err)
					}
				}
				for _, seen := range p.actual() {
					expect.Empty(t, seen.Damage, "%+v", seen)
				}
				holder.Close()
				p.must(f)
			})
		}
	}
}

type update = reconcile.Update[vip.FrontendKey, vip.Frontend]

func heldBy(t *testing.T, protocol vip.Protocol, at netip.AddrPort) io.Closer {
	t.Helper()
	var c io.Closer
	var err error
	if protocol == vip.UDP {
		c, err = net.ListenPacket("udp", at.String())
	} else {
		c, err = net.Listen("tcp", at.String())
	}
	must.Succeed(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// Of two agents in one network namespace, the second one reports what the first one has.
func TestTwoAgents(t *testing.T) {
	for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP} {
		t.Run(protocol.String(), func(t *testing.T) {
			key, own := freeKey(t, "127.96.0.1", protocol), freeKey(t, "127.96.0.1", protocol)
			backend := netip.MustParseAddrPort("127.0.0.1:9")
			first := newSteered(t, Options{})
			first.must(onVIP(key, vip.RoundRobin, backend))
			second := newSteered(t, Options{})
			second.must(onVIP(own, vip.RoundRobin, backend))
			err := second.apply(onVIP(key, vip.RoundRobin, backend))
			if problem, ok := errors.AsType[vip.Problem](err); !ok || !strings.Contains(problem.Message, "such as a second agent") {
				t.Errorf("error %v", err)
			}
			first.remove(key)
			second.must(onVIP(key, vip.RoundRobin, backend))
		})
	}
}

// A node port belongs to whoever is first, and keeps a listener of its own.
func TestNodePortsHaveTheirOwnListeners(t *testing.T) {
	p := newSteered(t, Options{})
	key := freeKey(t, "127.0.0.1", vip.TCP)
	f := onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a")))
	f.Kind = vip.OnHost
	p.must(f)
	expect.Equal(t, who(t, key), "a", "not served")
	if l, err := net.Listen("tcp", key.AddrPort().String()); err == nil {
		l.Close()
		t.Error("another process can listen on the port")
	}
}

// Any number of frontends needs one descriptor for each protocol and family.
func TestFrontendsNeedNoDescriptors(t *testing.T) {
	p := newSteered(t, Options{})
	a := tcpBackend(t, "127.0.0.1", named("a"))
	u := udpBackend(t, "127.0.0.1", "u")
	before := descriptors.Open(t)
	const n = 500
	var batch []reconcile.Update[vip.FrontendKey, vip.Frontend]
	for i := range n {
		for protocol, backend := range map[vip.Protocol]netip.AddrPort{vip.TCP: a, vip.UDP: u} {
			f := onVIP(vip.FrontendKey{Addr: netip.AddrFrom4([4]byte{127, 97, byte(i >> 8), byte(i)}), Port: 20053, Protocol: protocol}, vip.RoundRobin, backend)
			batch = append(batch, reconcile.Update[vip.FrontendKey, vip.Frontend]{Key: f.Key, New: f})
		}
	}
	must.Succeed(t, p.Apply(t.Context(), batch))
	for _, u := range batch {
		must.Succeed(t, u.Err)
	}
	got := descriptors.Open(t) - before
	expect.AtMost(t, got, 4, "%d frontends have taken %d descriptors", len(batch), got)
	for _, u := range batch[n : n+2] {
		if u.Key.Protocol == vip.TCP && who(t, u.Key) != "a" {
			t.Errorf("%s is not served", u.Key)
		}
		if u.Key.Protocol == vip.UDP {
			mustAsk(t, udpClient(t, u.Key), "x")
		}
	}
}

// Replies come from the address and port that the client used, for several VIPs and one client socket.
func TestUDPRepliesBySkLookup(t *testing.T) {
	for _, family := range []struct{ client, one, two, backend string }{
		{"127.0.0.1", "127.96.0.1", "127.96.0.2", "127.0.0.1"}, {"::1", "::1", "::1", "::1"},
	} {
		p := newSteered(t, Options{})
		one, two := freeKey(t, family.one, vip.UDP), freeKey(t, family.two, vip.UDP)
		p.must(onVIP(one, vip.RoundRobin, udpBackend(t, family.backend, "one")))
		p.must(onVIP(two, vip.RoundRobin, udpBackend(t, family.backend, "two")))
		c := must.Get(net.ListenPacket("udp", net.JoinHostPort(family.client, "0")))(t)
		defer c.Close()
		for range 3 {
			for name, key := range map[string]vip.FrontendKey{"one": one, "two": two} {
				must.Get(c.WriteTo([]byte("x"), net.UDPAddrFromAddrPort(key.AddrPort())))(t)
				buf := make([]byte, 100)
				n, from, err := c.ReadFrom(buf)
				if err != nil || string(buf[:n]) != name+" x" || from.String() != key.AddrPort().String() {
					t.Errorf("%q from %v instead of %s: %v", buf[:n], from, key, err)
				}
			}
		}
		expect.Equal(t, int64(p.opts.Files)-p.Usage().Files, 3, "sockets: one receives, and one replies for each frontend with sessions")
	}
}

// Without a backend, the kernel answers port unreachable, although another process has the port.
func TestUDPRefusesBesideAnotherProcess(t *testing.T) {
	p := newSteered(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	backend := udpBackend(t, "127.0.0.1", "a")
	f := onVIP(key, vip.RoundRobin, backend)
	p.must(f)
	mustAsk(t, udpClient(t, key), "x")
	p.must(weigh(f, backend, 0))
	other := must.Get(net.ListenPacket("udp4", fmt.Sprintf("0.0.0.0:%d", key.Port)))(t)
	defer other.Close()
	answer, err := ask(udpClient(t, key), "x")
	expect.Is(t, err, unix.ECONNREFUSED, "got %q", answer)
	other.Close()
	p.must(f)
	mustAsk(t, udpClient(t, key), "x")
}

// dialLater connects to a key in the background.
func dialLater(t *testing.T, key vip.FrontendKey) <-chan string {
	out := make(chan string, 1)
	connected := make(chan struct{})
	go func() {
		c, err := net.Dial("tcp", key.AddrPort().String())
		close(connected)
		if err != nil {
			out <- err.Error()
			return
		}
		defer c.Close()
		buf := make([]byte, 100)
		n, err := c.Read(buf)
		if err != nil {
			out <- err.Error()
			return
		}
		out <- strings.TrimSpace(string(buf[:n]))
	}()
	select {
	case <-connected:
	case <-t.Context().Done():
	}
	return out
}

// The clients of an ended process wait until the next one has every frontend.
func TestClientsWaitForTheNextProcess(t *testing.T) {
	a := tcpBackend(t, "127.0.0.1", named("a"))
	u := udpBackend(t, "127.0.0.1", "u")
	keys := []vip.FrontendKey{freeKey(t, "127.96.0.1", vip.TCP), freeKey(t, "127.96.0.2", vip.TCP), freeKey(t, "127.96.0.3", vip.TCP)}
	asked := freeKey(t, "127.96.0.1", vip.UDP)
	set := loop.NewSockets()
	first := newSteered(t, Options{Sockets: set})
	for _, key := range keys {
		first.must(onVIP(key, vip.RoundRobin, a))
	}
	first.must(onVIP(asked, vip.RoundRobin, u))
	mustAsk(t, udpClient(t, asked), "x")
	for range 3 { // each process has a next one
		next := inherit.From(t, set)
		first.Close()
		var clients []<-chan string
		for _, key := range keys {
			clients = append(clients, dialLater(t, key))
		}
		second := newSteered(t, Options{Sockets: next, Succeeds: true})
		_, known := must.Get(second.steering.Table.All())(t)[entryOf(asked)]
		must.True(t, known, "the table is new")
		second.must(onVIP(asked, vip.RoundRobin, u))
		second.must(onVIP(keys[0], vip.RoundRobin, a))
		second.must(onVIP(keys[1], vip.RoundRobin, a))
		select {
		case answer := <-clients[0]:
			t.Errorf("answered %q before the process has every frontend", answer)
		default:
		}
		second.Settle()
		mustAsk(t, udpClient(t, asked), "x")
		expect.Equal(t, <-clients[0], "a", "the first client")
		expect.Equal(t, <-clients[1], "a", "the second client")
		expect.Contains(t, <-clients[2], "reset", "the client of a frontend that is gone")
		wantNobody(t, keys[2])
		expect.Empty(t, next.RemoveUnclaimed(), "left")
		second.must(onVIP(keys[2], vip.RoundRobin, a))
		first, set = second, next
	}
}

// While the earlier process still accepts clients, the next one leaves them to it.
func TestSuccessorWaitsUntilItIsSettled(t *testing.T) {
	key := freeKey(t, "127.96.0.1", vip.TCP)
	set := loop.NewSockets()
	first := newSteered(t, Options{Sockets: set})
	first.must(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("first"))))
	next := inherit.From(t, set)
	second := newSteered(t, Options{Sockets: next, Succeeds: true})
	second.must(onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("second"))))
	for range 20 {
		must.Equal(t, who(t, key), "first", "the client")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	first.Drain(ctx)
	late := dialLater(t, key)
	second.Settle()
	expect.Equal(t, <-late, "second", "the late client")
	first.Close()
	expect.Equal(t, who(t, key), "second", "the client")
}

// A process that can't continue with the program of the earlier one fails, and that one goes on.
func TestTheEarlierProcessGoesOn(t *testing.T) {
	key := freeKey(t, "127.96.0.1", vip.TCP)
	set := loop.NewSockets()
	first := newSteered(t, Options{Sockets: set})
	f := onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("first")))
	first.must(f)
	next := inherit.From(t, set)
	part := next.InheritedBPF() // as if the other objects had another layout
	next.AddBPF(part[:1])
	again := inherit.From(t, next)
	second := newTarget(t, Options{Sockets: again, SkLookup: true, Succeeds: true})
	if err := second.Apply(t.Context(), []update{{Key: key, New: f}}); err == nil || !strings.Contains(err.Error(), "earlier process") {
		t.Errorf("error %v", err)
	}
	second.Close()
	again.Close()
	next.Close()
	expect.Equal(t, who(t, key), "first", "the client")
	expect.Empty(t, first.actual()[0].Damage, "damage")
}

// A listener that has clients in its queue is kept.
func TestSkLookupAfterListeners(t *testing.T) {
	need.Root(t)
	tcp, udp := freeKey(t, "127.96.0.1", vip.TCP), freeKey(t, "127.96.0.1", vip.UDP)
	a, u := tcpBackend(t, "127.0.0.1", named("a")), udpBackend(t, "127.0.0.1", "u")
	set := loop.NewSockets()
	first := newTarget(t, Options{Sockets: set})
	first.must(onVIP(tcp, vip.RoundRobin, a))
	first.must(onVIP(udp, vip.RoundRobin, u))
	next := inherit.From(t, set)
	first.Close()
	waits := dialLater(t, tcp)
	second := newSteered(t, Options{Sockets: next})
	second.must(onVIP(tcp, vip.RoundRobin, a))
	second.must(onVIP(udp, vip.RoundRobin, u))
	second.Settle()
	next.RemoveUnclaimed()
	expect.Equal(t, <-waits, "a", "the client")
	mustAsk(t, udpClient(t, udp), "x")
}

// A change of our objects by others is damage, and is repaired.
func TestSkLookupIsRepaired(t *testing.T) {
	for what, break_ := range map[string]func(*bench, vip.FrontendKey) error{
		"detached":      func(p *bench, _ vip.FrontendKey) error { return detach(p.steering.Table) },
		"entry deleted": func(p *bench, key vip.FrontendKey) error { return p.steering.Table.Delete(entryOf(key)) },
		"entry changed": func(p *bench, key vip.FrontendKey) error { return p.steering.Table.Put(entryOf(key), sklookup.Refused) },
		"socket was shut down": func(p *bench, _ vip.FrontendKey) error {
			return shutDown(p.opts.Sockets, p.steering.Table.Cookie(sklookup.TCP4))
		},
	} {
		for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP} {
			if protocol == vip.UDP && strings.HasPrefix(what, "socket") {
				continue // has no effect
			}
			t.Run(what+" "+protocol.String(), func(t *testing.T) {
				p := newSteered(t, Options{})
				key := freeKey(t, "127.96.0.1", protocol)
				f := onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a")))
				served := func() bool { return who(t, key) == "a" }
				if protocol == vip.UDP {
					f = onVIP(key, vip.RoundRobin, udpBackend(t, "127.0.0.1", "a"))
					served = func() bool { answer, err := ask(udpClient(t, key), "x"); return err == nil && answer == "a x" }
				}
				p.must(f)
				if damage := p.actual()[0].Damage; len(damage) > 0 || !served() {
					t.Errorf("damage before anything happened: %v", damage)
				}
				must.Succeed(t, break_(p, key))
				wait.Until(t, "damage", func() bool { return len(p.actual()[0].Damage) > 0 })
				p.must(f)
				expect.True(t, served(), "not served after the repair")
				expect.Empty(t, p.actual()[0].Damage, "still damaged")
			})
		}
	}
}

// detach detaches the program, as bpftool does.
func detach(table *sklookup.Table) error {
	files, err := table.Files()
	if err != nil {
		return err
	}
	for _, f := range files {
		defer f.Close()
		if f.Name() != "ironvip_lookup" {
			continue
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		l, err := bpflink.NewFromFD(fd)
		if err != nil {
			return err
		}
		defer l.Close()
		return l.Detach()
	}
	return errors.New("there is no link")
}

func shutDown(set *sockets.Set, cookie uint64) error {
	files, err := set.Files()
	if err != nil {
		return err
	}
	for _, f := range files {
		defer f.Close()
		if of, err := unix.GetsockoptUint64(int(f.Fd()), unix.SOL_SOCKET, unix.SO_COOKIE); err == nil && of == cookie {
			return unix.Shutdown(int(f.Fd()), unix.SHUT_RDWR)
		}
	}
	return errors.New("no such socket")
}

// A process that may not use BPF has listeners, and says why.
func TestListenersWithoutTheRights(t *testing.T) {
	need.Root(t)
	done := make(chan struct{})
	go func() { // the thread ends with the goroutine
		defer close(done)
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&header, &data[0]); err != nil {
			t.Error(err)
			return
		}
		data[1].Effective &^= 1 << (unix.CAP_BPF - 32)
		data[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
		if err := unix.Capset(&header, &data[0]); err != nil {
			t.Error(err)
			return
		}
		p := New(Options{SkLookup: true})
		defer p.Close()
		e := p.Entrance()
		if e.SkLookup || !strings.Contains(e.Reason, "lacks CAP_BPF") || !strings.Contains(e.Hint, "CAP_BPF CAP_NET_ADMIN") {
			t.Errorf("%+v", e)
		}
		key := freeKey(t, "127.96.0.1", vip.TCP)
		f := onVIP(key, vip.RoundRobin, tcpBackend(t, "127.0.0.1", named("a")))
		batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: key, New: f}}
		if err := errors.Join(p.Apply(context.Background(), batch), batch[0].Err); err != nil || who(t, key) != "a" {
			t.Errorf("not served: %v", err)
		}
	}()
	<-done
}
