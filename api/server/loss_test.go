package server

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/connlimit"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
)

// lossOf returns the time after which the kernel ends an accepted connection without answers.
func lossOf(t *testing.T, c net.Conn) (ms int) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	must.Succeed(t, err)
	if e := raw.Control(func(fd uintptr) { ms, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return ms
}

// A peer that no longer answers, which is not the same as one that closes, ends its connection.
func TestLostPeer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	peer := must.Get(net.Dial("tcp", l.Addr().String()))(t)
	defer peer.Close()
	accepted := must.Get(New(Options{}).connections().Listener(l).Accept())(t)
	defer accepted.Close()
	withConnection(t.Context(), accepted)
	c := accepted.(*connlimit.Conn).Conn
	if ms := lossOf(t, c); ms != int(lossTimeout/time.Millisecond) {
		t.Errorf("an accepted connection without answers ends after %d ms, want %s", ms, lossTimeout)
	}
	// The filter drops everything that arrives at the peer, so it answers nothing.
	raw := must.Get(peer.(*net.TCPConn).SyscallConn())(t)
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing[0]})
	}); e != nil || err != nil {
		need.Root(t) // some hosts let only root filter a socket
		t.Fatal(e, err)
	}
	noticeLoss(c, 500*time.Millisecond)
	must.Get(c.Write([]byte("a line")))(t)
	must.Succeed(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("the connection ended with %v", err)
	}
}
