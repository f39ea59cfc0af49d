package connlimit

import (
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// addressed is a connection between two addresses.
type addressed struct {
	net.Conn
	far, near string
}

func (a addressed) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a.far))
}
func (a addressed) LocalAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(a.near))
}

func TestClients(t *testing.T) {
	for _, c := range []struct{ far, name string }{
		{"192.0.2.1:1", "192.0.2.1"}, {"[::ffff:192.0.2.1]:1", "192.0.2.1"}, {"[2001:db8::1]:1", "2001:db8::/64"}, {"[fe80::1%eth0]:1", "fe80::/64"},
		{"127.0.0.1:1", "127.0.0.1"}, // its socket doesn't exist
	} {
		expect.Equal(t, ClientOf(addressed{far: c.far, near: "192.0.2.9:80"}).String(), c.name)
	}
	near, far := net.Pipe()
	defer far.Close()
	expect.Equal(t, ClientOf(near), Client{}, "unknown")
}

// from runs f as a user of this host.
func from(uid int, f func()) {
	done := make(chan bool)
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		if uid != 0 {
			unix.SetfsuidRetUid(uid)
		}
		f()
	}()
	<-done
}

// The users of this host are clients of their own, by TCP as on a unix socket.
func TestUsersOfThisHost(t *testing.T) {
	need.Root(t)
	for at, host := range map[string]string{"127.0.0.1:0": "127.0.0.1", "[::1]:0": "::1", "[::]:0": "127.0.0.1"} {
		l := must.Get(net.Listen("tcp", at))(t)
		defer l.Close()
		to := netip.AddrPortFrom(netip.MustParseAddr(host), netip.MustParseAddrPort(l.Addr().String()).Port()).String()
		for _, uid := range []int{0, 4321} {
			var mine net.Conn
			from(uid, func() { mine = must.Get(net.Dial("tcp", to))(t) })
			accepted := must.Get(l.Accept())(t)
			expect.Equal(t, ClientOf(accepted), Client{Local: true, UID: uint32(uid)}, at)
			mine.Close()
			accepted.Close()
		}
	}
}

// pipe returns a connection of a client.
func pipe(t *testing.T) net.Conn {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return near
}

// The limit holds whatever callers do, and each connection is counted once.
func TestConnectionsAreCountedOnce(t *testing.T) {
	refused := 0
	l := &Limit{Most: 2, Excess: 3, Refused: func(bool) { refused++ }}
	var all []*Conn
	for range 100 {
		if c := l.Admit(pipe(t)); c != nil {
			c.Busy()
			all = append(all, c)
		}
	}
	open, busy := l.Open()
	expect.Equal(t, [5]int{len(all), open, busy, l.excess.Open, refused}, [5]int{5, 2, 2, 3, 98}, "accepted, open, busy, in excess, refused")
	for _, c := range all {
		c.Silent()
		c.Close()
		c.Close()
		c.Silent()
	}
	for _, cs := range []*connections{&l.within, &l.excess} {
		expect.Equal(t, [2]int{cs.Open, cs.silent.Len()}, [2]int{}, "open and silent after all are closed")
	}
}

// A client at its limit replaces its own connections that have been silent for a second, and no other client's.
func TestReplacement(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		who := Client{Local: true, UID: 1}
		l := &Limit{Most: 4, Each: 2, Who: func(net.Conn) Client { return who }}
		first, second := l.Admit(pipe(t)), l.Admit(pipe(t))
		expect.True(t, l.Admit(pipe(t)) == nil, "a third one is admitted")
		first.Busy()
		time.Sleep(minIdle)
		third := l.Admit(pipe(t))
		expect.True(t, third != nil && second.of == nil && first.of != nil, "the silent one isn't replaced")
		who.UID = 2
		for range 2 {
			expect.True(t, l.Admit(pipe(t)) != nil, "another client is refused")
		}
		who.UID = 3
		expect.True(t, l.Admit(pipe(t)) == nil, "one beyond the limit of all is admitted")
		time.Sleep(minIdle)
		expect.True(t, l.Admit(pipe(t)) != nil && third.of == nil, "the oldest silent one isn't replaced")
	})
}
