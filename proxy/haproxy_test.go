//go:build system

package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/freeport"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// haproxy runs HAProxy with this configuration until the test ends, and returns when all of the
// addresses accept connections.
func haproxy(t *testing.T, config string, addrs ...netip.AddrPort) {
	t.Helper()
	bin := need.Program(t, "haproxy")
	file, log := filepath.Join(t.TempDir(), "haproxy.cfg"), filepath.Join(t.TempDir(), "log")
	const defaults = "defaults\n mode tcp\n timeout connect 10s\n timeout client 60s\n timeout server 60s\n"
	must.Succeed(t, os.WriteFile(file, []byte(defaults+config), 0o600))
	p := process.New(bin, log, nil, "-db", "-f", file)
	must.Succeed(t, p.Start())
	t.Cleanup(func() { p.Kill() })
	wait.Until(t, "HAProxy accepts connections", func() bool {
		if !p.Running() {
			text, _ := os.ReadFile(log)
			t.Fatalf("HAProxy ended: %s", text)
		}
		for _, a := range addrs {
			c, err := net.Dial("tcp", a.String())
			if err != nil {
				return false
			}
			c.Close()
		}
		return true
	})
}

// loopbacks are the addresses of each family: of HAProxy, and of the VIP.
var loopbacks = map[string]struct{ haproxy, bits, vip string }{
	"ipv4": {"127.0.0.9", "/32", "127.96.0.1"},
	"ipv6": {"::1", "/128", "::1"},
}

// source returns an address as HAProxy's directive of this name needs it.
func source(addr string) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), 0).String()
}

// twoPorts returns two free ports of an address.
func twoPorts(t *testing.T, addr string) (a, b netip.AddrPort) {
	t.Helper()
	at := netip.MustParseAddr(addr)
	block := freeport.Reserve(t, nil, at)
	return netip.AddrPortFrom(at, block[1]), netip.AddrPortFrom(at, block[2])
}

// TestHAProxyInFront sends HAProxy's headers to the proxy.
func TestHAProxyInFront(t *testing.T) {
	for family, on := range loopbacks {
		for _, option := range []string{"send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options crc32c,unique-id",
			"send-proxy-v2 check inter 50ms", "send-proxy check inter 50ms"} {
			t.Run(family+" "+option, func(t *testing.T) {
				p := newTarget(t, Options{})
				key := freeKey(t, on.vip, vip.TCP)
				p.must(accepts(sends(onVIP(key, vip.SourceHash, tcpBackend(t, "127.0.0.1", headed("a"))), vip.ProxyV2), on.haproxy+on.bits))
				front, _ := twoPorts(t, on.haproxy)
				config := fmt.Sprintf("listen front\n bind %s\n unique-id-format %%{+X}o\\ %%ci\n source %s\n server s %s %s\n", front, source(on.haproxy), key.AddrPort(), option)
				haproxy(t, config, front)
				c := must.Get(net.Dial("tcp", front.String()))(t)
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(testTimeout))
				want := fmt.Sprintf("a %s %s\n", c.LocalAddr(), front)
				got := make([]byte, len(want))
				if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
					t.Errorf("the backend gets %q, want %q, %v", got, want, err)
				}
				if strings.Contains(option, "check") { // HAProxy's own connections begin with LOCAL or UNKNOWN
					wait.Until(t, "HAProxy checks", func() bool { return p.carried(key) > 5 })
				}
				bad := badHeaders(p)
				delete(bad, "header_absent") // the test closed a connection before HAProxy had connected
				expect.Empty(t, bad, "counted")
			})
		}
	}
}

// TestHAProxyBehind sends the proxy's headers to HAProxy, also after another backend refused.
func TestHAProxyBehind(t *testing.T) {
	for family, on := range loopbacks {
		for _, v := range []vip.ProxyVersion{vip.ProxyV1, vip.ProxyV2} {
			t.Run(fmt.Sprint(family, " ", v), func(t *testing.T) {
				behind, _ := twoPorts(t, on.haproxy)
				haproxy(t, fmt.Sprintf("frontend f\n mode http\n bind %s accept-proxy\n", behind)+
					" http-request return status 200 content-type text/plain lf-string \"%[src] %[src_port] %[dst] %[dst_port]\"\n", behind)
				p := newTarget(t, Options{})
				key := freeKey(t, on.vip, vip.TCP)
				p.must(sends(onVIP(key, vip.RoundRobin, closedPort(t, "127.0.0.2"), behind), v))
				var local net.Addr
				transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := new(net.Dialer).DialContext(ctx, network, addr)
					if err == nil {
						local = c.LocalAddr()
					}
					return c, err
				}}
				for range 4 {
					r := must.Get((&http.Client{Transport: transport, Timeout: testTimeout}).Get("http://" + key.AddrPort().String()))(t)
					got, err := io.ReadAll(r.Body)
					r.Body.Close()
					from := addrPort(local)
					if want := fmt.Sprint(from.Addr(), " ", from.Port(), " ", key.Addr, " ", key.Port); err != nil || string(got) != want {
						t.Errorf("HAProxy sees %q, want %q, %v", got, want, err)
					}
				}
				expect.True(t, p.Stats().Failures != 0, "no backend refused")
			})
		}
	}
}
