package planes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/configs"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/proxy/process"
	"github.com/ironvip/ironvip/proxy/remote"
	"github.com/ironvip/ironvip/vip"
)

// proxyClient returns a client of the proxy: of the process at dataplane.proxy_socket, or of the one in this process. Passive
// gets what it finds of backends; nil: it isn't needed.
func (p *Planes) proxyClient(passive *table.Table[vip.PassiveKey, vip.PassiveHealth]) *remote.Client {
	cfg := p.o.Started
	o := remote.ClientOptions{Socket: cfg.Dataplane.ProxySocket, Name: cfg.Node.StateDir, Settings: process.Settings{SkLookup: cfg.Dataplane.SkLookup == configs.SkLookupAuto},
		Host: p.o.Tables.Host, Passive: passive, Events: p.o.Events, Log: p.o.Log}
	if o.Socket == "" {
		if p.proxy == nil {
			p.proxy = process.New(process.Options{Version: p.o.Version, Log: p.o.Log})
		}
		o.Dial = p.proxy.Dial
	}
	return remote.NewClient(o)
}

// proxyLeaver is the userspace proxy after a switch to a dataplane of the kernel.
type proxyLeaver struct {
	*remote.Client
	planes *Planes
	end    context.CancelFunc
}

// proxyWait bounds the wait for its answer.
const proxyWait = 5 * time.Second

// findProxy returns the proxy, if it has frontends, or connections of earlier ones.
func (p *Planes) findProxy(ctx context.Context) (plane.Leaver, error) {
	if p.o.Started.Dataplane.ProxySocket == "" { // the process has ended, and they with it
		return nil, nil
	}
	l := p.proxyOf(ctx)
	report, err := l.report(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ask the proxy for its frontends: %w", err), l.Close())
	}
	if report.Frontends+report.Draining == 0 {
		return nil, l.Close()
	}
	return l, nil
}

// proxyOf returns the proxy as one that leaves, until it is closed.
func (p *Planes) proxyOf(ctx context.Context) *proxyLeaver {
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	l := &proxyLeaver{p.proxyClient(nil), p, end}
	go func() { _ = l.Run(running) }()
	return l
}

// handshakeTime is how long a proxy that leaves still accepts the clients that are connecting to it: as long as TCP waits
// before it repeats a packet. The kernel serves all later clients, and nobody accepts those once the proxy's listeners are
// closed.
const handshakeTime = time.Second

// Leave lets the proxy take no new connections.
func (l *proxyLeaver) Leave(ctx context.Context) error {
	if !backoff.Sleep(ctx, handshakeTime) {
		return ctx.Err()
	}
	within := max(0, time.Until(l.planes.leavesSince(configs.ModeProxy).Add(l.planes.hardStopAfter())))
	ctx, cancel := context.WithTimeout(ctx, proxyWait)
	defer cancel()
	return unlessEnded(l.Retire(ctx, within))
}

// report returns the state of the proxy.
func (l *proxyLeaver) report(ctx context.Context) (process.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, proxyWait)
	defer cancel()
	r, err := l.Ask(ctx)
	return r, unlessEnded(err)
}

// unlessEnded returns err, unless it says that the process of the proxy has ended, and all connections with it.
func unlessEnded(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	return err
}

// Open returns the number of connections of each protocol.
func (l *proxyLeaver) Open(ctx context.Context) (map[vip.FrontendKey]int, error) {
	r, err := l.report(ctx)
	out := map[vip.FrontendKey]int{}
	if r.Draining > 0 {
		out[vip.FrontendKey{Protocol: vip.TCP}] = int(r.Draining)
	}
	return out, err // UDP clients have moved with their next datagram
}

// Left has nothing to do: the proxy knows what it has.
func (l *proxyLeaver) Left(context.Context) (usage.Left, error) { return usage.Left{}, nil }

// Remove has nothing to do: the proxy ends its connections in time.
func (l *proxyLeaver) Remove(context.Context) error { return nil }

func (l *proxyLeaver) Close() error {
	l.end()
	return nil
}
