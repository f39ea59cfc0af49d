package hostnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/backoff"
	wire "github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
)

const (
	settle   = 100 * time.Millisecond // changes within this interval are read together
	longest  = time.Second            // but no change waits longer than this
	slowPoll = time.Minute            // in case a subscription loses changes
	again    = time.Second            // after a failed read or a broken subscription
)

// Watcher updates a table's only row to the host's network.
type Watcher struct {
	out   *table.Table[struct{}, Snapshot]
	ours  func(link string, addr netip.Addr) bool
	log   *slog.Logger
	first func()

	changed wake.Signal
}

// NewWatcher returns a Watcher that does nothing until Run. Out is not Ready before its first read.
// Ours reports which addresses ironvip itself put on the host. They are left out.
func NewWatcher(out *table.Table[struct{}, Snapshot], ours func(link string, addr netip.Addr) bool, log *slog.Logger) *Watcher {
	return &Watcher{out: out, ours: ours, log: log, first: out.Initializer(), changed: wake.New()}
}

// Changed delivers after addresses or routes were added or removed and no change followed for a
// short time. It includes what the table leaves out: ironvip's own addresses, and routes of other
// tables. It delivers after a read that follows a time without watching, too. It has one reader.
func (w *Watcher) Changed() <-chan struct{} { return w.changed }

// Run watches until the context ends and returns its error. If the kernel can't be read, it logs
// the error and retries, and the last snapshot remains.
func (w *Watcher) Run(ctx context.Context) error {
	for {
		err := w.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.log.Warn("watch the host's network", "err", err, "again_in", again)
		if !backoff.Sleep(ctx, again) {
			return ctx.Err()
		}
	}
}

// follow watches until an error.
func (w *Watcher) follow(ctx context.Context) error {
	events, err := wire.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return err
	}
	arrived := make(chan struct{}, 1)
	var running sync.WaitGroup
	running.Go(func() { notify(events, arrived) })
	defer running.Wait()
	defer events.Close()

	read := time.NewTimer(0)
	defer read.Stop()
	var oldest time.Time // the oldest change that is not read yet
	missed := true       // changes before the subscription may have been
	touch := func() {
		if oldest.IsZero() {
			oldest = time.Now()
		}
		read.Reset(max(0, min(settle, longest-time.Since(oldest))))
	}
	poll := time.NewTicker(slowPoll)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, open := <-arrived:
			if !open {
				return errors.New("the subscription ended")
			}
			touch()
		case <-poll.C:
			read.Reset(0)
		case <-read.C:
			polled := oldest.IsZero()
			oldest = time.Time{}
			s, err := Read(w.ours)
			if err != nil {
				return err
			}
			w.out.Set(s)
			w.first()
			if !polled || missed {
				missed = false
				w.changed.Set()
			}
		}
	}
}

// notify delivers after events have arrived, until the subscription ends. It doesn't read what they say: if some were
// lost, others have arrived.
func notify(events *wire.Events, arrived wake.Signal) {
	defer close(arrived)
	for events.Wait() == nil {
		if err := events.Drain(func(wire.Event) {}); err != nil && !errors.Is(err, wire.ErrLost) {
			return
		}
		arrived.Set()
	}
}

// Read returns the host's present network, without the addresses for which ours reports true.
func Read(ours func(link string, addr netip.Addr) bool) (Snapshot, error) {
	list, err := netlink.LinkList()
	if err != nil {
		return Snapshot{}, fmt.Errorf("list interfaces: %w", err)
	}
	names := make(map[int]string, len(list))
	for _, l := range list {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	name := func(index int) string { return cmp.Or(names[index], fmt.Sprintf("if%d", index)) }
	var s Snapshot
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return Snapshot{}, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addrs {
		prefix, ok := prefixOf(a.IPNet)
		if !ok || ours(name(a.LinkIndex), prefix.Addr()) {
			continue
		}
		s.Addrs = append(s.Addrs, Addr{Prefix: prefix, Link: name(a.LinkIndex),
			Secondary: prefix.Addr().Is4() && a.Flags&unix.IFA_F_SECONDARY != 0})
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL) // of table main
	if err != nil {
		return Snapshot{}, fmt.Errorf("list routes: %w", err)
	}
	for i := range routes {
		s.addRoute(&routes[i], name, ours)
	}
	s.sort()
	return s, nil
}

// addRoute adds a route of the main table: its gateways, or its range if it belongs to one
// interface.
func (s *Snapshot) addRoute(r *netlink.Route, name func(int) string, ours func(string, netip.Addr) bool) {
	gateways := []net.IP{r.Gw}
	for _, hop := range r.MultiPath {
		gateways = append(gateways, hop.Gw)
	}
	through := false
	for _, g := range gateways {
		if a, ok := netip.AddrFromSlice(g); ok && !a.Unmap().IsUnspecified() {
			s.Gateways = append(s.Gateways, a.Unmap())
			through = true
		}
	}
	prefix, ok := prefixOf(r.Dst)
	if through || !ok || prefix.Bits() == 0 || r.Type != unix.RTN_UNICAST || ours(name(r.LinkIndex), prefix.Addr()) {
		return
	}
	s.Routes = append(s.Routes, Route{Prefix: prefix.Masked(), Link: name(r.LinkIndex)})
}

func (s *Snapshot) sort() {
	slices.SortFunc(s.Addrs, func(a, b Addr) int { return cmp.Or(a.Prefix.Compare(b.Prefix), cmp.Compare(a.Link, b.Link)) })
	slices.SortFunc(s.Gateways, netip.Addr.Compare)
	s.Gateways = slices.Compact(s.Gateways)
	slices.SortFunc(s.Routes, func(a, b Route) int { return cmp.Or(a.Prefix.Compare(b.Prefix), cmp.Compare(a.Link, b.Link)) })
	s.Routes = slices.Compact(s.Routes)
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	bits, size := n.Mask.Size()
	if !ok || size == 0 {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a.Unmap(), bits), true
}
