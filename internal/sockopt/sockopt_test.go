package sockopt

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The hop limit of packets on loopback, for both families.
func TestHopLimit(t *testing.T) {
	for _, c := range []struct {
		network, addr                     string
		level, receive, send, class, want int
	}{
		{"udp4", "127.0.0.1:0", unix.IPPROTO_IP, unix.IP_RECVTTL, unix.IP_TTL, unix.IP_TOS, 77},
		{"udp6", "[::1]:0", unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, unix.IPV6_UNICAST_HOPS, unix.IPV6_TCLASS, 78},
	} {
		lc := net.ListenConfig{Control: Control(func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, c.level, c.receive, 1), unix.SetsockoptInt(fd, c.level, c.send, c.want),
				unix.SetsockoptInt(fd, c.level, c.class, ClassSelector6))
		})}
		p, err := lc.ListenPacket(t.Context(), c.network, c.addr)
		if err != nil {
			t.Fatal(err)
		}
		u := p.(*net.UDPConn)
		u.SetDeadline(time.Now().Add(time.Minute))
		if _, err := u.WriteTo([]byte("x"), u.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		b, oob := make([]byte, 10), make([]byte, 64)
		_, n, _, _, err := u.ReadMsgUDP(b, oob)
		if got := HopLimit(oob[:n]); got != c.want || err != nil {
			t.Errorf("%s: hop limit %d, %v, want %d", c.network, got, err, c.want)
		}
		u.Close()
	}
}

func TestControlFails(t *testing.T) {
	want := errors.New("no")
	d := net.Dialer{Control: Control(func(int) error { return want })}
	if _, err := d.DialContext(context.Background(), "udp4", "127.0.0.1:9"); !errors.Is(err, want) {
		t.Errorf("%v, want %v", err, want)
	}
}

func FuzzHopLimit(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 24))
	f.Fuzz(func(_ *testing.T, oob []byte) { HopLimit(oob) })
}
