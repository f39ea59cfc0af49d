package unnumbered

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/parallel"
	"github.com/ironvip/ironvip/internal/sockopt"
	"github.com/ironvip/ironvip/internal/wake"
)

// Discovery finds the router at the other end of an interface. Create one with New and start Run.
type Discovery struct {
	name string // of the interface

	mu    sync.Mutex
	addr  netip.Addr // of the router, with the zone; invalid: unknown
	err   error      // why it is unknown
	found wake.Broadcast
}

const (
	// advertiseEvery is the pause between advertisements; the RFC allows 3 s at least (6.2.1).
	// Solicitations are answered at once.
	advertiseEvery = 10 * time.Second
	// firstAdvertisements are sent in short order, advertiseFirst apart.
	firstAdvertisements = 3
	advertiseFirst      = 500 * time.Millisecond
	// findTimeout is how long an attempt to connect waits for the router. Routers answer a
	// solicitation within 0.5 s (RFC 4861, 10).
	findTimeout = 2 * time.Second
)

// New returns the discovery on the interface with a name, which need not exist.
func New(name string) *Discovery {
	return &Discovery{name: name, err: fmt.Errorf("interface %s not read yet", name)}
}

// Router returns the router's link-local address. It waits a while for it.
func (d *Discovery) Router(ctx context.Context) (netip.Addr, error) {
	timer := time.NewTimer(findTimeout)
	defer timer.Stop()
	for {
		d.mu.Lock()
		addr, err, found := d.addr, d.err, d.found.Next()
		d.mu.Unlock()
		if addr.IsValid() {
			return addr, nil
		}
		select {
		case <-found:
		case <-timer.C:
			return netip.Addr{}, err
		case <-ctx.Done():
			return netip.Addr{}, ctx.Err()
		}
	}
}

func (d *Discovery) set(addr netip.Addr, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if addr.IsValid() && addr != d.addr {
		d.found.Send()
	}
	d.addr, d.err = addr, err
}

// Run sends and receives advertisements until the context ends. It follows an interface that is
// missing, down, or created again.
func (d *Discovery) Run(ctx context.Context) {
	retry := backoff.Backoff{Lo: 100 * time.Millisecond, Hi: 2 * time.Second}
	for {
		err := parallel.Recovered(func() error { return d.serve(ctx, retry.Reset) })
		if ctx.Err() != nil {
			return
		}
		d.set(netip.Addr{}, err)
		if !backoff.Sleep(ctx, retry.Next()) {
			return
		}
	}
}

// serve opens the socket and uses it until it fails.
func (d *Discovery) serve(ctx context.Context, opened func()) error {
	device, err := net.InterfaceByName(d.name)
	if err != nil {
		return fmt.Errorf("interface %s does not exist", d.name)
	}
	c, err := listenICMP(device)
	if err != nil {
		return fmt.Errorf("router discovery on %s: %w", d.name, err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.set(netip.Addr{}, fmt.Errorf("no router advertisement on %s: enable router advertisements on the router's interface", d.name))
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer c.Close() // ends the reading
		cancel(d.send(ctx, c, device.Index, opened))
	})
	err = d.receive(c)
	cancel(err)
	wg.Wait()
	return context.Cause(ctx)
}

// send sends a solicitation, so that the router answers at once, and advertisements.
func (d *Discovery) send(ctx context.Context, c *net.IPConn, index int, opened func()) error {
	for n := 0; ; n++ {
		if now, err := net.InterfaceByName(d.name); err != nil || now.Index != index {
			return fmt.Errorf("interface %s was removed or created again", d.name)
		}
		err := d.write(c, advertisement(), allNodes)
		if err == nil && n < firstAdvertisements {
			err = d.write(c, solicitation(), allRouters)
		}
		if err != nil {
			return fmt.Errorf("router advertisement on %s: %w", d.name, err)
		}
		opened()
		pause := advertiseEvery
		if n < firstAdvertisements {
			pause = advertiseFirst
		}
		if !backoff.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

func (d *Discovery) write(c *net.IPConn, b []byte, to netip.Addr) error {
	_, err := c.WriteTo(b, &net.IPAddr{IP: to.AsSlice(), Zone: d.name})
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// receive reads advertisements, and answers solicitations.
func (d *Discovery) receive(c *net.IPConn) error {
	b, oob := make([]byte, 1500), make([]byte, 64)
	for {
		n, oobn, _, from, err := c.ReadMsgIP(b, oob)
		if err != nil {
			return err
		}
		addr, _ := netip.AddrFromSlice(from.IP)
		addr = addr.WithZone(d.name)
		switch typ := accept(b[:n], addr, sockopt.HopLimit(oob[:oobn])); typ {
		case icmpAdvertisement:
			d.set(addr, nil)
		case icmpSolicitation:
			d.write(c, advertisement(), allNodes)
		}
	}
}
