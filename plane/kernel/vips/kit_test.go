package vips

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/proxy"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// bench is one Plane under test, with a proxy in this process.
type bench struct {
	testing.TB
	*Plane
	target  *proxy.Target
	closing sync.Once
}

func newPlane(t testing.TB, o Options) *bench {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	b := &bench{TB: t, target: proxy.New(proxy.Options{Sockets: proxy.NewSockets(), Log: log})}
	o.Plane, o.Sockets = b.target, true
	b.Plane = must.Get(New(o))(t)
	t.Cleanup(func() { expect.Succeed(t, b.Close()) })
	return b
}

// Close ends both.
func (b *bench) Close() error {
	var err error
	b.closing.Do(func() { err = errors.Join(b.Plane.Close(), b.target.Close()) })
	return err
}

// apply applies one frontend and returns the frontend's error.
func (b *bench) apply(f *vip.Frontend) error {
	b.Helper()
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: f.Key, New: f}}
	must.Succeed(b, b.Apply(context.Background(), batch))
	return batch[0].Err
}

func (b *bench) must(f *vip.Frontend) {
	b.Helper()
	must.Succeed(b, b.apply(f))
}

func (b *bench) remove(key vip.FrontendKey) {
	b.Helper()
	batch := []reconcile.Update[vip.FrontendKey, vip.Frontend]{{Key: key}}
	must.Succeed(b, errors.Join(b.Apply(context.Background(), batch), batch[0].Err))
}

func (b *bench) actual() []reconcile.Observed[vip.Frontend] {
	b.Helper()
	var out []reconcile.Observed[vip.Frontend]
	for o, err := range b.Actual(context.Background()) {
		must.Succeed(b, err)
		out = append(out, o)
	}
	slices.SortFunc(out, func(x, y reconcile.Observed[vip.Frontend]) int {
		return vip.CompareFrontendKeys(x.Value.Key, y.Value.Key)
	})
	return out
}

func onVIP(key vip.FrontendKey, backends ...netip.AddrPort) *vip.Frontend {
	f := &vip.Frontend{Key: key, Kind: vip.OnVIP, Service: vip.ServiceKey{Namespace: "default", Name: "web"}, Scheduler: vip.RoundRobin}
	for _, b := range backends {
		f.Backends = append(f.Backends, vip.Endpoint{Addr: b, Weight: 1})
	}
	slices.SortFunc(f.Backends, vip.CompareEndpoints)
	return f
}

// freeKey returns a key whose port nobody has.
func freeKey(t testing.TB, addr string, protocol vip.Protocol) vip.FrontendKey {
	t.Helper()
	l := must.Get(net.Listen("tcp", net.JoinHostPort(addr, "0")))(t)
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	return vip.FrontendKey{Addr: at.Addr(), Port: at.Port(), Protocol: protocol}
}

// echo starts a backend that sends back what it receives.
func echo(t testing.TB) netip.AddrPort {
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

// client is a connection of a client.
type client struct{ net.Conn }

func dial(t testing.TB, key vip.FrontendKey) client {
	t.Helper()
	c := must.Get(net.Dial("tcp", key.AddrPort().String()))(t)
	t.Cleanup(func() { c.Close() })
	return client{c}
}

// echoes sends something and gets it back.
func (c client) echoes() error {
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	buf := make([]byte, 5)
	_, err := io.ReadFull(c, buf)
	return err
}

// served fails unless a new client is served.
func served(t testing.TB, key vip.FrontendKey) {
	t.Helper()
	c := dial(t, key)
	expect.Succeed(t, c.echoes(), "a client of %s", key)
	c.Close()
}

// syncBuffer is a log.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
