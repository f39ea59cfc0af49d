package sockopt

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
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
		p := must.Get(lc.ListenPacket(t.Context(), c.network, c.addr))(t)
		u := p.(*net.UDPConn)
		u.SetDeadline(time.Now().Add(time.Minute))
		must.Get(u.WriteTo([]byte("x"), u.LocalAddr()))(t)
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
	_, err := d.DialContext(context.Background(), "udp4", "127.0.0.1:9")
	expect.Is(t, err, want)
}

func FuzzHopLimit(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 24))
	f.Fuzz(func(_ *testing.T, oob []byte) { HopLimit(oob) })
}
