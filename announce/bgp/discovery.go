package bgp

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/backoff"
)

// discovery finds the router at the other end of an interface, and lets the router find this host:
// both send router advertisements (RFC 4861). FRR connects to and accepts an unnumbered peer only
// after it has received one.
//
// The advertisements have a router lifetime of 0, so no host uses this one as its default router.
type discovery struct {
	name string // of the interface

	mu    sync.Mutex
	addr  netip.Addr // of the router, with the zone; invalid: unknown
	err   error      // why it is unknown
	found chan struct{}
}

const (
	icmpSolicitation  = 133
	icmpAdvertisement = 134
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

var allNodes, allRouters = netip.MustParseAddr("ff02::1"), netip.MustParseAddr("ff02::2")

func newDiscovery(name string) *discovery {
	return &discovery{name: name, found: make(chan struct{}), err: fmt.Errorf("interface %s not read yet", name)}
}

// router returns the router's link-local address. It waits a while for it.
func (d *discovery) router(ctx context.Context) (netip.Addr, error) {
	timer := time.NewTimer(findTimeout)
	defer timer.Stop()
	for {
		d.mu.Lock()
		addr, err, found := d.addr, d.err, d.found
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

func (d *discovery) set(addr netip.Addr, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if addr.IsValid() && addr != d.addr {
		close(d.found)
		d.found = make(chan struct{})
	}
	d.addr, d.err = addr, err
}

// run sends and receives advertisements until the context ends. It follows an interface that is
// missing, down, or created again.
func (d *discovery) run(ctx context.Context) {
	retry := backoff.Backoff{Lo: 100 * time.Millisecond, Hi: 2 * time.Second}
	for {
		err := d.serve(ctx, retry.Reset)
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
func (d *discovery) serve(ctx context.Context, opened func()) error {
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
func (d *discovery) send(ctx context.Context, c *net.IPConn, index int, opened func()) error {
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

func (d *discovery) write(c *net.IPConn, b []byte, to netip.Addr) error {
	_, err := c.WriteTo(b, &net.IPAddr{IP: to.AsSlice(), Zone: d.name})
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// receive reads advertisements, and answers solicitations.
func (d *discovery) receive(c *net.IPConn) error {
	b, oob := make([]byte, 1500), make([]byte, 64)
	for {
		n, oobn, _, from, err := c.ReadMsgIP(b, oob)
		if err != nil {
			return err
		}
		addr, _ := netip.AddrFromSlice(from.IP)
		addr = addr.WithZone(d.name)
		switch typ := accept(b[:n], addr, hopLimit(oob[:oobn])); typ {
		case icmpAdvertisement:
			d.set(addr, nil)
		case icmpSolicitation:
			d.write(c, advertisement(), allNodes)
		}
	}
}

// accept validates a message (RFC 4861, 6.1.1 and 6.1.2), and returns its type, or 0. A hop limit
// of 255 proves that no router forwarded it.
func accept(b []byte, from netip.Addr, limit int) int {
	switch {
	case limit != 255 || len(b) < 8 || b[1] != 0:
		return 0
	case b[0] == icmpAdvertisement && len(b) >= 16 && from.IsLinkLocalUnicast():
		return icmpAdvertisement
	case b[0] == icmpSolicitation:
		return icmpSolicitation
	}
	return 0
}

// advertisement returns a router advertisement of this host: no hop limit, lifetime or prefix is
// given. The kernel adds the checksum.
func advertisement() []byte { return append([]byte{icmpAdvertisement}, make([]byte, 15)...) }

func solicitation() []byte { return append([]byte{icmpSolicitation}, make([]byte, 7)...) }

func hopLimit(oob []byte) int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		if m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}

// listenICMP opens a socket for router advertisements and solicitations on one device.
func listenICMP(device *net.Interface) (*net.IPConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		return cmp.Or(raw.Control(func(fd uintptr) { failed = setICMPOptions(int(fd), device) }), failed)
	}}
	c, err := lc.ListenPacket(context.Background(), "ip6:ipv6-icmp", "::")
	if err != nil {
		return nil, err
	}
	return c.(*net.IPConn), nil
}

func setICMPOptions(fd int, device *net.Interface) error {
	var filter unix.ICMPv6Filter // a set bit blocks
	for i := range filter.Data {
		filter.Data[i] = ^uint32(0)
	}
	for _, typ := range []int{icmpSolicitation, icmpAdvertisement} {
		filter.Data[typ>>5] &^= 1 << (typ & 31)
	}
	return errors.Join(
		unix.BindToDevice(fd, device.Name),
		unix.SetsockoptICMPv6Filter(fd, unix.IPPROTO_ICMPV6, unix.ICMPV6_FILTER, &filter),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1),
		// Solicitations go to all routers. A device is in the group of all nodes anyway.
		unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: allRouters.As16(), Interface: uint32(device.Index)}),
	)
}
