package routes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/reconcile"
)

// The pace of changes. A router that follows the kernel's routes loses messages if they come faster
// than it reads them: of 10,000 routes in one burst, BIRD learned 362 only with its next scan. Its
// socket holds about 270 messages by default. At this pace, the router may be stalled for 80 ms in
// the middle of many changes; 10,000 per second still lost some on a busy machine.
const (
	perSecond = 2000
	burst     = 100
)

// loopback is the index of the device lo in every network namespace. Routers take a route through
// it as reachable.
const loopback = 1

// errForeign means that another program has a route to the prefix in our table.
var errForeign = errors.New("another program has a route to it in this table")

// kernel is the reconcile.Target: one route for each prefix.
type kernel struct {
	reconcile.Quiet[netip.Prefix, netip.Prefix]

	conn     *netlink.Conn
	stats    netlink.Counters
	table    uint32
	protocol uint8
	pace     *rate.Limiter
}

func newKernel(tableID uint32, protocol uint8) *kernel {
	k := &kernel{table: tableID, protocol: protocol, pace: rate.NewLimiter(perSecond, burst)}
	k.conn = netlink.NewConn(unix.NETLINK_ROUTE, &k.stats)
	return k
}

// Close closes the socket.
func (k *kernel) Close() { k.conn.Close() }

// Same implements reconcile.Target.
func (k *kernel) Same(a, b *netip.Prefix) bool { return *a == *b }

// Apply implements reconcile.Target. A change of one prefix is one message.
func (k *kernel) Apply(ctx context.Context, batch []reconcile.Update[netip.Prefix, netip.Prefix]) error {
	for len(batch) > 0 {
		part := batch[:min(len(batch), burst)]
		batch = batch[len(part):]
		if err := k.pace.WaitN(ctx, len(part)); err != nil {
			return err
		}
		put := func(b []byte, i int) []byte {
			if part[i].New == nil {
				return k.appendRoute(b, unix.RTM_DELROUTE, 0, part[i].Key)
			}
			return k.appendRoute(b, unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, part[i].Key)
		}
		exist := map[netip.Prefix]*error{}
		err := k.conn.Write(ctx, len(part), put, func(i int, err error) {
			if part[i].Err = k.outcome(&part[i], err); errors.Is(err, unix.EEXIST) {
				exist[part[i].Key] = &part[i].Err
			}
		})
		if err == nil && len(exist) > 0 {
			err = k.adopt(ctx, exist)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// adopt clears the errors of routes that exist and are ours, from an attempt with a lost answer. It costs O(routes).
func (k *kernel) adopt(ctx context.Context, exist map[netip.Prefix]*error) error {
	for o, err := range k.Actual(ctx) {
		if err != nil {
			return err
		}
		if failed := exist[o.Value]; failed != nil {
			*failed = nil
		}
	}
	return nil
}

// outcome interprets the kernel's answer.
func (k *kernel) outcome(u *reconcile.Update[netip.Prefix, netip.Prefix], err error) error {
	switch {
	case err == nil:
		return nil
	case u.New == nil && errors.Is(err, unix.ESRCH):
		return nil // it is gone
	case errors.Is(err, unix.EEXIST): // unless adopt finds that it is ours
		err = errForeign
	}
	return fmt.Errorf("route %s in table %d: %w", u.Key, k.table, err)
}

// Actual implements reconcile.Target. The kernel filters by table and protocol, so other routes cost
// nothing to read.
func (k *kernel) Actual(ctx context.Context) iter.Seq2[reconcile.Observed[netip.Prefix], error] {
	return reconcile.ReadAll(ctx, func(ctx context.Context) (found []reconcile.Observed[netip.Prefix], err error) {
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			if err := k.dump(ctx, family, func(p netip.Prefix) { found = append(found, reconcile.Observed[netip.Prefix]{Value: p}) }); err != nil {
				return nil, fmt.Errorf("read routing table %d: %w", k.table, err)
			}
		}
		return found, nil
	})
}

func (k *kernel) dump(ctx context.Context, family byte, each func(netip.Prefix)) error {
	if k.conn.FD() < 0 {
		if err := k.conn.Open(); err != nil {
			return err
		}
	}
	// Without it, the kernel (before 4.20) ignores the filter; decode filters again.
	_ = unix.SetsockoptInt(k.conn.FD(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	put := func(b []byte) []byte {
		b = netlink.BeginMessage(b, unix.RTM_GETROUTE, unix.NLM_F_DUMP)
		b = append(b, family, 0, 0, 0, 0, k.protocol, 0, 0, 0, 0, 0, 0)
		return netlink.AppendAttr32(b, unix.RTA_TABLE, k.table)
	}
	err := k.conn.Query(ctx, put, func(typ uint16, data []byte) error {
		if typ != unix.RTM_NEWROUTE {
			return nil
		}
		if p, ok := k.decode(data); ok {
			each(p)
		}
		return nil
	})
	if errors.Is(err, unix.ENOENT) { // no such table yet
		return nil
	}
	return err
}

// appendRoute appends a message for the route of a prefix (struct rtmsg). For a deletion, the kernel
// compares the protocol.
func (k *kernel) appendRoute(b []byte, typ, flags uint16, p netip.Prefix) []byte {
	family, scope := byte(unix.AF_INET6), byte(unix.RT_SCOPE_UNIVERSE)
	if p.Addr().Is4() {
		family, scope = unix.AF_INET, unix.RT_SCOPE_LINK
	}
	b = netlink.BeginMessage(b, typ, flags)
	b = append(b, family, byte(p.Bits()), 0, 0, unix.RT_TABLE_UNSPEC, k.protocol, scope, unix.RTN_UNICAST, 0, 0, 0, 0)
	b = netlink.AppendAddr(b, unix.RTA_DST, p.Addr())
	b = netlink.AppendAttr32(b, unix.RTA_TABLE, k.table)
	return netlink.AppendAttr32(b, unix.RTA_OIF, loopback)
}

// decode returns the prefix of one of our routes. It returns false for other routes, and for
// malformed messages.
func (k *kernel) decode(data []byte) (p netip.Prefix, ok bool) {
	const header = 12
	if len(data) < header || data[5] != k.protocol || data[7] != unix.RTN_UNICAST {
		return p, false
	}
	family, bits := data[0], int(data[1])
	addr := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		addr = netip.IPv6Unspecified()
	}
	if dst, err := netlink.Find(data[header:], unix.RTA_DST); err == nil && len(dst) > 0 {
		if addr, ok = netip.AddrFromSlice(dst); !ok {
			return p, false
		}
	}
	for _, want := range []struct {
		attr  uint16
		value uint32
	}{{unix.RTA_TABLE, k.table}, {unix.RTA_OIF, loopback}} {
		v, err := netlink.Find(data[header:], want.attr)
		if err != nil || len(v) < 4 || binary.NativeEndian.Uint32(v) != want.value {
			return p, false
		}
	}
	p = netip.PrefixFrom(addr, bits)
	return p, p.IsValid()
}
