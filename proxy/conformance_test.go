package proxy

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/vip"
)

// TestConformance runs the suite for every dataplane. Its IPv6 VIP is ::1 on loopback.
func TestConformance(t *testing.T) {
	conforms(t, func(t *testing.T) reconcile.Plane { return newTarget(t, Options{}).Target })
}

func conforms(t *testing.T, open func(*testing.T) reconcile.Plane) {
	reconciletest.RunPlane(t, reconciletest.Harness{
		New: open,
		VIPs: []netip.Addr{
			netip.MustParseAddr("127.96.1.1"), netip.MustParseAddr("127.96.1.2"), netip.MustParseAddr("::1"),
		},
		Backends: func(t *testing.T, p vip.Protocol, f vip.Family, n int) []netip.AddrPort {
			loopback := map[vip.Family]string{vip.IPv4: "127.0.0.1", vip.IPv6: "::1"}[f]
			var out []netip.AddrPort
			for range n {
				if p == vip.UDP {
					out = append(out, udpBackend(t, loopback, ""))
				} else {
					out = append(out, tcpBackend(t, loopback, func(c *net.TCPConn) { io.WriteString(c, c.LocalAddr().String()) }))
				}
			}
			return out
		},
		Ask: func(t *testing.T, k vip.FrontendKey) (string, error) {
			c, err := net.DialTimeout(k.Protocol.String(), k.AddrPort().String(), testTimeout)
			if err != nil {
				return "", err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(testTimeout))
			if k.Protocol == vip.UDP {
				answer, err := ask(c.(*net.UDPConn), "")
				return answer, err
			}
			all, err := io.ReadAll(c)
			return string(all), err
		},
	})
}
