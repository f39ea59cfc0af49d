package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/wake"
)

// Options say what to watch. Each part is optional.
type Options struct {
	Device     string     // with virtual addresses
	Anchor     netip.Addr // the address of IPv4 that the device must keep
	Protocol   uint8      // of the routes by which the host takes packets for these
	Forwarding bool       // of packets, for the whole host
	Table      string     // an nftables table of family inet
}

// Seen is what other programs have changed. The zero value is nothing.
type Seen struct {
	// Lost is set if the kernel dropped events, so that anything may have changed.
	Lost bool
	// Device is set if the device was removed, set down, made to speak ARP, or lost its anchor. The
	// kernel may have removed routes without telling.
	Device bool
	// Gone are the virtual addresses whose routes were removed.
	Gone map[netip.Addr]struct{}
	// Table is set if transactions touched the table: the author of the last one that is known.
	Table *Author
	// Unforwarded is set if the forwarding of packets was switched off for the whole host. The kernel doesn't say by whom.
	Unforwarded bool
}

// Any reports whether anything was seen.
func (s *Seen) Any() bool {
	return s.Lost || s.Device || len(s.Gone) > 0 || s.Table != nil || s.Unforwarded
}

// Watcher watches. A nil Watcher sees nothing. Its methods may be called concurrently.
type Watcher struct {
	o       Options
	changed wake.Signal
	running sync.WaitGroup

	mu      sync.Mutex
	sources []*source
	ask     *netlink.Conn // for the device
	seen    Seen
	index   uint32 // of the device; 0: it doesn't exist
	whole   bool   // it is up and doesn't speak ARP
	renamed bool   // it was renamed since the last Take
	touched bool   // the table, by the transaction that is being read
}

// source is one subscription.
type source struct {
	protocol int
	events   *netlink.Events
	read     func(*Watcher, netlink.Event)
}

// Open subscribes in the network namespace of the calling thread. Watching a table needs CAP_NET_ADMIN.
func Open(o Options) (*Watcher, error) {
	w := &Watcher{o: o, changed: wake.New()}
	var groups []int
	if o.Device != "" {
		groups = append(groups, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	}
	if o.Forwarding {
		groups = append(groups, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	}
	if len(groups) > 0 {
		err := w.subscribe((*Watcher).readNetwork, unix.NETLINK_ROUTE, groups...)
		if err == nil {
			w.ask, err = netlink.Dial(unix.NETLINK_ROUTE, &netlink.Counters{})
		}
		if err == nil {
			err = w.find() // after the subscription, which sees what follows
		}
		if err != nil {
			w.Close()
			return nil, fmt.Errorf("watch the network: %w", err)
		}
	}
	if o.Table != "" {
		if err := w.subscribe((*Watcher).readTable, unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES); err != nil {
			w.Close()
			return nil, fmt.Errorf("watch nftables table inet %s: %w", o.Table, err)
		}
	}
	for _, s := range w.sources {
		w.running.Go(func() { w.run(s) })
	}
	return w, nil
}

func (w *Watcher) subscribe(read func(*Watcher, netlink.Event), protocol int, groups ...int) error {
	events, err := netlink.Subscribe(protocol, groups...)
	if err == nil {
		_ = events.Ignore(netlink.NoPort) // events that pass in vain only cost time
		w.sources = append(w.sources, &source{protocol, events, read})
	}
	return err
}

// IgnoreTable ignores the transactions that the socket with that port commits.
func (w *Watcher) IgnoreTable(port uint32) error { return w.ignore(unix.NETLINK_NETFILTER, port) }

// IgnoreRoutes ignores changes of routes and of IPv4 addresses by the socket with that port.
func (w *Watcher) IgnoreRoutes(port uint32) error { return w.ignore(unix.NETLINK_ROUTE, port) }

func (w *Watcher) ignore(protocol int, port uint32) error {
	for _, s := range w.sources {
		if s.protocol == protocol {
			return s.events.Ignore(port)
		}
	}
	return nil
}

// Muted calls commit, which commits one transaction of nftables, without events: the kernel would make one for each element,
// which takes as long as the rest. Generation returns the number of all transactions so far. It shows whether another program
// has committed one meanwhile. Then the table counts as touched, by an unknown program.
func (w *Watcher) Muted(generation func() (uint32, error), commit func() error) error {
	if w == nil {
		return commit()
	}
	events := w.tables()
	before, err := generation()
	if events == nil || err != nil || events.Leave(unix.NFNLGRP_NFTABLES) != nil {
		return commit()
	}
	want := before + 1
	done := commit()
	if done != nil {
		want = before
	}
	err = events.Join(unix.NFNLGRP_NFTABLES)
	if after, failed := generation(); err != nil || failed != nil || after != want {
		w.mu.Lock()
		w.seen.touch(Author{})
		w.mu.Unlock()
		w.changed.Set()
	}
	return done
}

// tables returns the subscription of nftables, or nil.
func (w *Watcher) tables() *netlink.Events {
	for _, s := range w.sources {
		if s.protocol == unix.NETLINK_NETFILTER {
			return s.events
		}
	}
	return nil
}

// Changed delivers after something was seen. It has one reader. For a nil Watcher, it is nil.
func (w *Watcher) Changed() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.changed
}

// Take returns what was seen since the last call. It includes every change that was made before the call. Of the addresses,
// it returns as gone those for which wanted is true, so that a dataplane doesn't see what it removed itself. Nil returns none.
func (w *Watcher) Take(wanted func(netip.Addr) bool) Seen {
	if w == nil {
		return Seen{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sources {
		w.drain(s)
	}
	seen := w.seen
	w.seen, w.renamed = Seen{}, false
	for a := range seen.Gone {
		if wanted == nil || !wanted(a) {
			delete(seen.Gone, a)
		}
	}
	return seen
}

// Touched reports whether the table may have been touched since the last Take, which returns it, too. It includes every change
// that was made before the call. For a nil Watcher, it is always true.
func (w *Watcher) Touched() bool {
	if w == nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sources {
		if s.protocol == unix.NETLINK_NETFILTER {
			_ = w.drain(s) // an error ends the subscription, see run
		}
	}
	return w.seen.Lost || w.seen.Table != nil
}

// find asks for the index and the state of the device.
func (w *Watcher) find() error {
	w.index, w.whole = 0, false
	if w.o.Device == "" {
		return nil
	}
	err := w.ask.Query(context.Background(), func(b []byte) []byte {
		b = append(netlink.BeginMessage(b, unix.RTM_GETLINK, 0), make([]byte, unix.SizeofIfInfomsg)...)
		return netlink.AppendAttrString(b, unix.IFLA_IFNAME, w.o.Device)
	}, func(_ uint16, data []byte) error {
		if len(data) < unix.SizeofIfInfomsg {
			return netlink.ErrMalformed
		}
		w.index, w.whole = binary.NativeEndian.Uint32(data[4:]), wholeBy(data)
		return nil
	})
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// Close ends the subscriptions.
func (w *Watcher) Close() {
	if w == nil {
		return
	}
	for _, s := range w.sources {
		_ = s.events.Close()
	}
	w.running.Wait()
	if w.ask != nil {
		w.ask.Close()
	}
}

// run signals what arrives, until Close or an error of the subscription, which is not expected: then the resync finds
// what others change.
func (w *Watcher) run(s *source) {
	for s.events.Wait() == nil {
		w.mu.Lock()
		err := w.drain(s)
		any := w.seen.Any()
		w.mu.Unlock()
		if any {
			w.changed.Set()
		}
		if err != nil {
			return
		}
	}
}

// drain reads the events that have arrived. The caller holds the lock.
func (w *Watcher) drain(s *source) error {
	err := s.events.Drain(func(e netlink.Event) { s.read(w, e) })
	if errors.Is(err, netlink.ErrLost) {
		w.seen.Lost, err = true, nil
		if s.protocol == unix.NETLINK_NETFILTER {
			w.touched = false // the end of that transaction may be lost
		} else if w.find() != nil {
			w.index = 0 // the next event of the device has it
		}
	}
	return err
}
