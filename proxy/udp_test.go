package proxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// udpBackend answers every datagram with its name and the datagram. Without a name, it answers with
// only its address.
func udpBackend(t testing.TB, addr, name string) netip.AddrPort {
	t.Helper()
	c := must.Get(net.ListenPacket("udp", net.JoinHostPort(addr, "0")))(t)
	var tasks sync.WaitGroup
	tasks.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			answer := append([]byte(name+" "), buf[:n]...)
			if name == "" {
				answer = []byte(c.LocalAddr().String())
			}
			c.WriteTo(answer, from)
		}
	})
	t.Cleanup(func() {
		c.Close()
		tasks.Wait()
	})
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// closedUDP returns an address that answers port unreachable.
func closedUDP(t testing.TB, addr string) netip.AddrPort {
	t.Helper()
	return freeKey(t, addr, vip.UDP).AddrPort()
}

// udpClient returns a client that is connected to the VIP, so that the kernel passes only datagrams
// from there.
func udpClient(t testing.TB, key vip.FrontendKey) *net.UDPConn {
	t.Helper()
	c := must.Get(net.Dial("udp", key.AddrPort().String()))(t)
	t.Cleanup(func() { c.Close() })
	return c.(*net.UDPConn)
}

func ask(c *net.UDPConn, s string) (string, error) {
	if _, err := c.Write([]byte(s)); err != nil {
		return "", err
	}
	_ = c.SetReadDeadline(time.Now().Add(testTimeout))
	buf := make([]byte, 64<<10)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

func mustAsk(t testing.TB, c *net.UDPConn, s string) (name string) {
	t.Helper()
	answer, err := ask(c, s)
	name, rest, _ := strings.Cut(answer, " ")
	if err != nil || rest != s {
		t.Fatalf("asked %.40q, got %.40q, %v", s, answer, err)
	}
	return name
}

func TestUDPSessionKeepsItsBackend(t *testing.T) {
	for _, family := range []struct{ name, vip, backend string }{
		{"ipv4", "127.96.0.1", "127.0.0.1"}, {"ipv6", "::1", "::1"},
	} {
		t.Run(family.name, func(t *testing.T) {
			a, b := udpBackend(t, family.backend, "a"), udpBackend(t, family.backend, "b")
			p := newTarget(t, Options{})
			key := freeKey(t, family.vip, vip.UDP)
			p.must(onVIP(key, vip.RoundRobin, a, b))
			seen := map[string]int{}
			for range 6 {
				c := udpClient(t, key)
				name := mustAsk(t, c, "x")
				seen[name]++
				for _, s := range []string{"", "y", strings.Repeat("z", 60000)} {
					must.Equal(t, mustAsk(t, c, s), name, "backend of the session")
				}
			}
			if seen["a"] != 3 || seen["b"] != 3 {
				t.Errorf("%v", seen)
			}
			if x, y := p.open(key, a), p.open(key, b); x != 3 || y != 3 {
				t.Errorf("%d and %d sessions", x, y)
			}
		})
	}
}

// A frontend that waits for clients holds no buffer for their datagrams.
func TestUDPFrontendsWaitWithoutBuffers(t *testing.T) {
	a := udpBackend(t, "127.0.0.1", "a")
	p := newTarget(t, Options{})
	const n = 100
	inUse := func() uint64 {
		runtime.GC()
		runtime.GC() // the second one frees what sync.Pool keeps
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	first := freeKey(t, "127.96.0.200", vip.UDP)
	p.must(onVIP(first, vip.RoundRobin, a))
	mustAsk(t, udpClient(t, first), "x") // its loop has room from now on
	before := inUse()
	var keys []vip.FrontendKey
	for i := range n {
		keys = append(keys, freeKey(t, fmt.Sprintf("127.96.0.%d", i+1), vip.UDP))
		p.must(onVIP(keys[i], vip.RoundRobin, a))
	}
	expect.AtMost(t, (int64(inUse())-int64(before))/n, 8<<10, "bytes of a frontend that waits")
	for _, key := range keys {
		mustAsk(t, udpClient(t, key), "x")
	}
	expect.AtMost(t, (int64(inUse())-int64(before))/n, 8<<10, "bytes of a frontend that waits for the second datagram")
}

// The source of a reply is the VIP and port, also for an unconnected client, which would accept any
// source.
func TestUDPAnswersComeFromTheVIP(t *testing.T) {
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.7", vip.UDP)
	p.must(onVIP(key, vip.RoundRobin, udpBackend(t, "127.0.0.1", "a")))
	c := must.Get(net.ListenUDP("udp4", &net.UDPAddr{}))(t)
	defer c.Close()
	must.Get(c.WriteToUDPAddrPort([]byte("x"), key.AddrPort()))(t)
	_ = c.SetReadDeadline(time.Now().Add(testTimeout))
	if _, from, err := c.ReadFromUDPAddrPort(make([]byte, 10)); err != nil || from != key.AddrPort() {
		t.Fatalf("answer from %v, %v; want %s", from, err, key.AddrPort())
	}
}

func TestUDPIdleSessionsEnd(t *testing.T) {
	const idle = 500 * time.Millisecond
	a := udpBackend(t, "127.0.0.1", "a")
	p := newTarget(t, Options{UDPIdle: idle})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	p.must(onVIP(key, vip.RoundRobin, a))
	busy, quiet := udpClient(t, key), udpClient(t, key)
	mustAsk(t, busy, "x")
	mustAsk(t, quiet, "x")
	background := time.Now()
	// On a machine that has no time for us, the busy one may be idle for too long.
	last, starts := time.Now(), uint64(2)
	wait.Until(t, "the quiet session has ended", func() bool {
		if time.Since(last) > idle/2 {
			starts++
		}
		mustAsk(t, busy, "y")
		last = time.Now()
		time.Sleep(idle / 10)
		return last.Sub(background) > 2*idle && p.Stats().Sessions == 1
	})
	before := p.carried(key)
	if before > starts {
		t.Fatalf("%+v: want the busy session and no other", p.Stats())
	}
	mustAsk(t, quiet, "again")
	if after := p.carried(key); after <= before {
		t.Errorf("%d sessions after %d", after, before)
	}
	wait.Until(t, "all ended", func() bool { return p.Stats().Sessions == 0 && p.open(key, a) == 0 })
}

// A backend disappears during a session: the client's next datagrams go to another.
func TestUDPBackendDiesMidSession(t *testing.T) {
	a := udpBackend(t, "127.0.0.1", "a")
	dying := must.Get(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	p.must(onVIP(key, vip.RoundRobin, dying.LocalAddr().(*net.UDPAddr).AddrPort()))
	c := udpClient(t, key)
	c.Write([]byte("x"))
	n, from, err := dying.ReadFromUDPAddrPort(make([]byte, 10))
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
	dying.WriteToUDPAddrPort([]byte("hello"), from)
	_ = c.SetReadDeadline(time.Now().Add(testTimeout))
	must.Get(c.Read(make([]byte, 10)))(t)
	p.must(onVIP(key, vip.RoundRobin, dying.LocalAddr().(*net.UDPAddr).AddrPort(), a))
	dying.Close()
	wait.Until(t, "answered by the other", func() bool {
		c.Write([]byte("y"))
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		buf := make([]byte, 10)
		n, err := c.Read(buf)
		return err == nil && string(buf[:n]) == "a y"
	})
}

// Without a usable backend, the kernel answers port unreachable. With a usable backend again, the
// frontend serves again.
func TestUDPNoBackendIsRefusedAtOnce(t *testing.T) {
	a := udpBackend(t, "127.0.0.1", "a")
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	none := onVIP(key, vip.RoundRobin)
	p.must(none)
	refused := func() {
		t.Helper()
		_, err := ask(udpClient(t, key), "x")
		must.Is(t, err, syscall.ECONNREFUSED, "%v, want port unreachable", err)
	}
	refused()
	f := onVIP(key, vip.RoundRobin, a)
	p.must(f)
	old := udpClient(t, key)
	mustAsk(t, old, "x")
	p.must(weigh(f, a, 0))
	refused()
	wait.Until(t, "sessions ended", func() bool { return p.open(key, a) == 0 })
	if got := p.actual(); len(got) != 1 || len(got[0].Damage) != 0 {
		t.Errorf("a socket closed on purpose: %v", got)
	}
	p.must(f)
	mustAsk(t, udpClient(t, key), "x")
}

// Another process uses the port while the socket is closed. This is reported as a problem that
// names the process's socket, and as damage, until the process closes its socket.
func TestUDPPortTakenWhileClosed(t *testing.T) {
	a := udpBackend(t, "127.0.0.1", "a")
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	p.must(onVIP(key, vip.RoundRobin))
	other := must.Get(net.ListenUDP("udp4", &net.UDPAddr{Port: int(key.Port)}))(t)
	defer other.Close()
	f := onVIP(key, vip.RoundRobin, a)
	for range 2 {
		// The kernel's list of sockets, which is searched for the holder, may lack some while others
		// open and close.
		wait.Until(t, "the holder is named", func() bool {
			var problem vip.Problem
			err := p.apply(f)
			if !errors.As(err, &problem) || !strings.Contains(problem.Message, "another process holds ") {
				t.Fatal(err)
			}
			return strings.Contains(problem.Message, "another process holds 0.0.0.0:")
		})
		if got := p.actual(); len(got) != 1 || len(got[0].Damage) != 1 {
			t.Fatal(got)
		}
	}
	other.Close()
	p.must(f)
	mustAsk(t, udpClient(t, key), "x")
	if got := p.actual(); len(got) != 1 || len(got[0].Damage) != 0 {
		t.Error(got)
	}
}

func TestUDPDrainKeepsSessions(t *testing.T) {
	a, b := udpBackend(t, "127.0.0.1", "a"), udpBackend(t, "127.0.0.1", "b")
	p := newTarget(t, Options{})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	f := onVIP(key, vip.RoundRobin, a, b)
	p.must(f)
	clients := map[string]*net.UDPConn{}
	for range 2 {
		c := udpClient(t, key)
		clients[mustAsk(t, c, "x")] = c
	}
	p.must(weigh(f, a, 0))
	expect.Equal(t, mustAsk(t, clients["a"], "y"), "a", "old session moved to")
	for range 3 {
		expect.Equal(t, mustAsk(t, udpClient(t, key), "x"), "b", "new session on the drained backend")
	}
	p.must(without(f, a))
	expect.Equal(t, mustAsk(t, clients["a"], "z"), "b", "session of a removed backend on")
	expect.Equal(t, p.open(key, a), 0, "sessions on it")
}

func TestUDPLimitAndAffinity(t *testing.T) {
	a, b := udpBackend(t, "127.0.0.1", "a"), udpBackend(t, "127.0.0.1", "b")
	p := newTarget(t, Options{Files: 1 + 3})
	key := freeKey(t, "127.96.0.1", vip.UDP)
	f := onVIP(key, vip.RoundRobin, a, b)
	f.Affinity = time.Hour
	p.must(f)
	first := mustAsk(t, udpClient(t, key), "x")
	for range 2 { // other ports, the same address
		expect.Equal(t, mustAsk(t, udpClient(t, key), "x"), first, "client moved")
	}
	fourth := udpClient(t, key)
	fourth.Write([]byte("x"))
	wait.Until(t, "refusal counted", func() bool { return p.Stats().OverLimit == 1 })
	p.remove(key)
	expect.Equal(t, p.Stats().Sessions, 0, "sessions")
}
