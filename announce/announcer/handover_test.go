package announcer

import (
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/bfd"
	"github.com/ironvip/ironvip/announce/bgp"
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
	kept := Kept{BFD: []bfd.Kept{{Mine: 7}}}
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
