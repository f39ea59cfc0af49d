package probe

import (
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// listenUDP runs a server that answers each datagram with what answer returns; nil is no answer.
func listenUDP(t testing.TB, host string, answer func([]byte) []byte) netip.AddrPort {
	t.Helper()
	c := must.Get(net.ListenPacket("udp", net.JoinHostPort(host, "0")))(t)
	var all sync.WaitGroup
	all.Go(func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply := answer(buf[:n]); reply != nil {
				c.WriteTo(reply, from)
			}
		}
	})
	t.Cleanup(func() {
		c.Close()
		all.Wait()
	})
	return netip.MustParseAddrPort(c.LocalAddr().String())
}

func TestUDP(t *testing.T) {
	inFamilies(t, func(t *testing.T, f family) {
		t.Parallel()
		echo := listenUDP(t, f.host, func(b []byte) []byte { return b })
		empty := listenUDP(t, f.host, func([]byte) []byte { return []byte{} })
		silent := listenUDP(t, f.host, func([]byte) []byte { return nil })
		// A connected socket keeps the port and receives nothing from others.
		closed := must.Get(net.Dial("udp", net.JoinHostPort(f.host, "9")))(t)
		defer closed.Close()
		check := func(send, expect string) vip.HealthCheck {
			return vip.HealthCheck{Type: vip.CheckUDP, Send: send, Expect: expect}
		}
		run(t, Options{}, []expectation{
			{"any answer", echo, check("x", ""), OK, ""},
			{"answer", echo, check("ping 1", "ping"), OK, ""},
			{"binary", echo, check("\x00\xff\x00", "\x00\xff"), OK, ""},
			{"empty answer", empty, check("x", ""), OK, ""},
			{"empty answer, but text expected", empty, check("x", "y"), BadAnswer, "does not begin"},
			{"other answer", echo, check("ping", "pong"), BadAnswer, `answer "ping" does not begin with "pong"`},
			{"answer too short", echo, check("po", "pong"), BadAnswer, `answer "po"`},
			{"silent", silent, check("x", ""), TimedOut, "no answer within 500ms"},
			{"silent, text expected", silent, check("x", "y"), TimedOut, "no answer within 500ms"},
			{"closed port", netip.MustParseAddrPort(closed.LocalAddr().String()), check("x", ""), Refused, "connection refused"},
		})
	})
}
