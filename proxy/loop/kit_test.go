package loop

import (
	"net"
	"net/netip"
	"testing"

	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/test/must"
)

// listen returns a listening socket of TCP, and its address.
func listen(t *testing.T) (*sockets.Unpolled, netip.AddrPort) {
	t.Helper()
	set := NewSockets()
	l := must.Get(set.ListenUnpolled(t.Context(), "tcp", netip.MustParseAddrPort("127.96.0.1:0")))(t)
	t.Cleanup(func() { set.Remove(l) })
	var at netip.AddrPort
	must.Succeed(t, l.Control(func(fd uintptr) { at = (&Socket{FD: int(fd)}).LocalAddr() }))
	return l, at
}

// accepting returns the intake of a listening socket, and a channel with its clients. A client that is not received from
// the channel is closed at the end of the test.
func accepting(t *testing.T, loops *Loops, l *sockets.Unpolled, failed func(error)) (*Intake, <-chan *Socket) {
	t.Helper()
	taken := make(chan *Socket, 1000)
	in := NewAcceptor(l, func(client *Socket, _ netip.AddrPort, _ *Loop) { taken <- client }, failed, func(err error) { t.Error(err) })
	must.Succeed(t, in.Start(loops))
	t.Cleanup(func() {
		in.Halt()
		for len(taken) > 0 {
			(<-taken).Close()
		}
	})
	return in, taken
}

func connect(t *testing.T, to netip.AddrPort) {
	t.Helper()
	c := must.Get(net.Dial("tcp", to.String()))(t)
	t.Cleanup(func() { c.Close() })
}
