package heartbeat

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// A full queue is an error of its own; others concern the peer.
func TestWriteErrors(t *testing.T) {
	c, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	to := netip.MustParseAddrPort(c.Addr().String())
	if err := c.Write(to, []byte("x")); err != nil {
		t.Error(err)
	}
	for fault, want := range map[error]error{unix.ENOBUFS: ErrBusy, unix.EAGAIN: ErrBusy, unix.EHOSTUNREACH: unix.EHOSTUNREACH} {
		c.sendto = func([]byte, netip.AddrPort) (int, error) { return 0, fault }
		if err := c.Write(to, []byte("x")); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", fault, err, want)
		}
	}
}
