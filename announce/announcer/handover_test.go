package announcer

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce"
	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/announce/bgp"
	"github.com/ironvip/ironvip/announce/bgp/message"
	"github.com/ironvip/ironvip/announce/bgp/session"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// Connections find their sessions in the next process, in any order, once. Connections without a session, and
// all without the file, are closed; other descriptors don't matter.
func TestKeepAndInherit(t *testing.T) {
	l := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer l.Close()
	var fds []int
	kept := Kept{At: time.Now(), BFD: []bfd.Kept{{Mine: 7}}}
	var far []net.Conn
	for _, name := range []string{"10.0.0.1", "10.0.0.2"} {
		c := must.Get(net.Dial("tcp4", l.Addr().String()))(t)
		far = append(far, must.Get(l.Accept())(t))
		kept.BGP = append(kept.BGP, bgp.HandedOver{Peer: name, Conn: c, Kept: session.Kept{Unread: []byte("part")}})
	}
	store := func(_ string, c syscall.Conn) error {
		raw := must.Get(c.SyscallConn())(t)
		return raw.Control(func(fd uintptr) { fds = append([]int{must.Get(unix.Dup(int(fd)))(t)}, fds...) })
	}
	log, socket := slog.New(slog.DiscardHandler), filepath.Join(t.TempDir(), "socket")
	Keep(kept, socket, store, log)
	stray := must.Get(net.Dial("tcp4", l.Addr().String()))(t)
	far = append(far, must.Get(l.Accept())(t))
	store("", stray.(syscall.Conn))
	stray.Close()
	fds = append(fds, must.Get(unix.Eventfd(0, unix.EFD_CLOEXEC))(t))

	next := Inherit(socket, fds, log)
	must.Len(t, next.BGP, 2)
	expect.Equal(t, next.BFD[0].Mine, 7, "BFD")
	for i, h := range next.BGP {
		expect.Equal(t, h.Peer+string(h.Kept.Unread), kept.BGP[i].Peer+"part")
		must.Get(h.Conn.Write([]byte(h.Peer)))(t)
		b := make([]byte, len(h.Peer))
		must.Get(io.ReadFull(far[i], b))(t)
		expect.Equal(t, string(b), h.Peer, "the other end of the connection")
		h.Conn.Close()
	}
	for i, c := range far {
		c.SetReadDeadline(time.Now().Add(time.Minute))
		_, err := c.Read(make([]byte, 1))
		expect.Is(t, err, io.EOF, "connection %d is left open", i)
		c.Close()
	}
	expect.Len(t, Inherit(socket, nil, log).BGP, 0, "the sessions a second time")
}

// waiting is an announcer without settings, with a session of the earlier process.
type waiting struct {
	*bgpOutput
	socket string
	stored []int         // descriptors
	at     time.Time     // of the hand-over
	far    <-chan []byte // everything that the router has received
}

func newWaiting(t *testing.T) *waiting {
	t.Helper()
	l := must.Get(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer l.Close()
	c := must.Get(net.Dial("tcp4", l.Addr().String()))(t)
	router := must.Get(l.Accept())(t)
	t.Cleanup(func() { c.Close() })
	router.SetReadDeadline(time.Now().Add(time.Minute))
	far := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(router)
		router.Close()
		far <- b
	}()
	w := &waiting{socket: filepath.Join(t.TempDir(), "socket"), at: time.Now().Add(-time.Second), far: far}
	a := New(Options{Socket: w.socket, Log: slog.New(slog.DiscardHandler), inherited: Kept{At: w.at, BGP: []bgp.HandedOver{{Peer: "10.0.0.1", Conn: c}}},
		store: func(_ string, c syscall.Conn) error {
			raw := must.Get(c.SyscallConn())(t)
			return raw.Control(func(fd uintptr) { w.stored = append(w.stored, must.Get(unix.Dup(int(fd)))(t)) })
		}})
	w.bgpOutput = a.outputs[announce.BGP].(*bgpOutput)
	return w
}

// keeps checks that the next process has the session.
func (w *waiting) keeps(t *testing.T) {
	t.Helper()
	w.close(false)
	next := Inherit(w.socket, w.stored, slog.New(slog.DiscardHandler))
	must.Len(t, next.BGP, 1)
	expect.True(t, next.At.Equal(w.at), "another time of the hand-over")
	next.BGP[0].Conn.Close()
	expect.Len(t, <-w.far, 0, "bytes that the router has received")
}

// ceases checks that the router was told the end of the session.
func (w *waiting) ceases(t *testing.T) {
	t.Helper()
	b := <-w.far
	must.True(t, len(b) > 20, "no NOTIFICATION: %x", b)
	expect.SameList(t, b[18:21], []byte{byte(message.TypeNotification), message.CodeCease, message.CeaseDeconfigured})
}

// Sessions wait for the settings, also over several restarts. They end with a NOTIFICATION when the host goes down, and when the
// settings have no BGP. Settings without routers are those of an agent that can't read them.
func TestSessionsThatWaitForSettings(t *testing.T) {
	newWaiting(t).keeps(t)
	down := newWaiting(t)
	down.close(true)
	down.ceases(t)
	off := newWaiting(t)
	must.Succeed(t, off.configure(&announce.Settings{}))
	off.ceases(t)

	routed := announce.Settings{Pools: []announce.Pool{{Mode: announce.BGP}}, RouterID: netip.MustParseAddr("10.0.0.2")}
	unreadable := newWaiting(t)
	expect.True(t, unreadable.configure(&routed) != nil, "no problem")
	unreadable.keeps(t)
}

// Settings without routers keep those of before.
func TestNoRoutersInTheSettings(t *testing.T) {
	o := New(Options{Socket: filepath.Join(t.TempDir(), "socket")}).outputs[announce.BGP].(*bgpOutput)
	s := announce.Settings{Pools: []announce.Pool{{Mode: announce.BGP}}, RouterID: netip.MustParseAddr("10.0.0.2"),
		BGP: []announce.BGPPeer{{Peer: netip.MustParseAddr("127.0.0.1"), Port: 1, ASN: 1, LocalASN: 2}}}
	must.Succeed(t, o.configure(&s))
	defer o.close(true)
	s.BGP = nil
	expect.True(t, o.configure(&s) != nil, "no problem")
	must.True(t, o.speaker != nil, "the sessions have ended")
	expect.Len(t, o.speaker.Sessions(), 1, "sessions")
}

// The state of BFD is not used after its time, and a file of another version not at all.
func TestInheritOldState(t *testing.T) {
	socket, log := filepath.Join(t.TempDir(), "socket"), slog.New(slog.DiscardHandler)
	for age, want := range map[time.Duration]int{0: 1, nextProcess: 0} {
		Keep(Kept{At: time.Now().Add(-age), BFD: []bfd.Kept{{Mine: 7}}}, socket, nil, log)
		expect.Len(t, Inherit(socket, nil, log).BFD, want, "BFD sessions after %s", age)
	}
	for version, want := range map[int]int{keptVersion: 1, keptVersion + 1: 0} {
		text := fmt.Sprintf(`{"Version":%d,"At":%q,"BFD":[{"Mine":7}]}`, version, time.Now().Format(time.RFC3339))
		must.Succeed(t, os.WriteFile(keptFile(socket), []byte(text), 0o600))
		expect.Len(t, Inherit(socket, nil, log).BFD, want, "BFD sessions of version %d", version)
	}
}

// A session that is too large for the file ends alone.
func TestKeepTooMuch(t *testing.T) {
	var k Kept
	for _, size := range []int{1, maxKept * 3 / 4, 1} {
		c, far := net.Pipe()
		defer far.Close()
		k.BGP = append(k.BGP, bgp.HandedOver{Conn: fakeConn{c}, Kept: session.Kept{Unread: make([]byte, size)}})
	}
	stored := 0
	Keep(k, filepath.Join(t.TempDir(), "socket"), func(string, syscall.Conn) error { stored++; return nil }, slog.New(slog.DiscardHandler))
	expect.Equal(t, stored, 2, "sessions in the store")
}

// fakeConn is a connection without a descriptor.
type fakeConn struct{ net.Conn }

func (fakeConn) SyscallConn() (syscall.RawConn, error) { return nil, os.ErrInvalid }

// deciding is an announcer without goroutines that announces a VIP at layer 2 and one by BGP.
func deciding(t *testing.T, now time.Time, o Options) (a *Announcer, routed *fakeOutput) {
	t.Helper()
	o.Socket = filepath.Join(t.TempDir(), "socket")
	a, routed = New(o), &fakeOutput{has: map[netip.Addr]bool{}}
	a.outputs = map[announce.Mode]output{announce.L2: &fakeOutput{has: map[netip.Addr]bool{}}, announce.BGP: routed}
	a.configure(&announce.Settings{Node: "lb1", Weight: 1, Heartbeat: time.Second, Missed: 3, Hold: time.Minute}, now)
	agentEligible{a}.SetAll([]announce.Eligible{{Addr: netip.MustParseAddr("10.0.0.1"), Mode: announce.L2, Services: 1}, {Addr: netip.MustParseAddr("10.0.0.2"), Mode: announce.BGP, Services: 1}})
	a.step(now, nil)
	must.Equal(t, routed.vips(), 1, "VIPs by BGP")
	return a, routed
}

// A stop moves the VIPs at layer 2 to other hosts. VIPs by BGP stay for the next process, and routers don't avoid the host.
func TestStopWithoutTheHost(t *testing.T) {
	for _, down := range []bool{false, true} {
		now := time.Now()
		a, routed := deciding(t, now, Options{ShuttingDown: func() bool { return down }})
		a.leave(now)
		expect.Equal(t, routed.drains, down, "drains")
		last := a.leaving.Add(-1)
		a.step(last, nil)
		expect.Equal(t, routed.vips() == 0, down, "withdrawn, the host goes down: %t", down)
		expect.False(t, a.announces(announce.L2), "announced at layer 2")
	}
}

// Without an agent for too long, routes of the earlier process end like those of this one.
func TestAgentGoneBeforeItHasSentEverything(t *testing.T) {
	now := time.Now()
	a, routed := deciding(t, now, Options{})
	a.gone(now)
	a.step(now.Add(time.Minute-1), nil)
	expect.False(t, routed.whole, "complete although the agent may come back")
	a.step(now.Add(time.Minute), nil)
	expect.True(t, routed.whole, "not complete")
	expect.Equal(t, routed.vips(), 0, "VIPs by BGP")
}
