// Package proxytest has frontends, backends and clients for tests of planes that forward by sockets of this process.
package proxytest

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// OnVIP returns a frontend of a service whose backends take turns.
func OnVIP(key vip.FrontendKey, backends ...netip.AddrPort) *vip.Frontend {
	f := &vip.Frontend{Key: key, Kind: vip.OnVIP, Service: vip.ServiceKey{Namespace: "default", Name: "web"}, Scheduler: vip.RoundRobin}
	for _, b := range backends {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: b, Weight: 1})
	}
	slices.SortFunc(f.Backends, vip.CompareEndpoints)
	return f
}

// FreeKey returns a key whose port nobody has.
func FreeKey(t testing.TB, addr string, protocol vip.Protocol) vip.FrontendKey {
	t.Helper()
	l := must.Get(net.Listen("tcp", net.JoinHostPort(addr, "0")))(t)
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	return vip.FrontendKey{Addr: at.Addr(), Port: at.Port(), Protocol: protocol}
}

// Echo starts a backend that sends back what it receives.
func Echo(t testing.TB) netip.AddrPort {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); work.Wait() })
	return netip.MustParseAddrPort(l.Addr().String())
}

// Client is a connection of a client.
type Client struct{ net.Conn }

// Dial connects a client to a frontend until the end of the test.
func Dial(t testing.TB, key vip.FrontendKey) Client {
	t.Helper()
	c := must.Get(net.Dial("tcp", key.AddrPort().String()))(t)
	t.Cleanup(func() { c.Close() })
	return Client{c}
}

// Echoes sends something and gets it back.
func (c Client) Echoes() error {
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	buf := make([]byte, 5)
	_, err := io.ReadFull(c, buf)
	return err
}

// Served fails unless a new client is served.
func Served(t testing.TB, key vip.FrontendKey) {
	t.Helper()
	c := Dial(t, key)
	expect.Succeed(t, c.Echoes(), "a client of %s", key)
	c.Close()
}
