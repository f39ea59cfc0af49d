package l2

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ironvip/ironvip/announce/l2/claim"
	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/announce/l2/gate"
	"github.com/ironvip/ironvip/announce/l2/link"
	"github.com/ironvip/ironvip/announce/l2/wire"
	"github.com/ironvip/ironvip/internal/backoff"
	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/wake"
)

// ErrLapsed means that the dead-man switch had closed the gate before a Refresh: other hosts may own
// the addresses now. All addresses are released. The caller decides again from the present state of
// its peers, calls Own for what it owns, and calls Refresh again, which opens the gate.
var ErrLapsed = errors.New("the dead-man switch closed the gate: all addresses were released")

// errEnded is the result of calls after the end of Run.
var errEnded = errors.New("the speaker has ended")

// Speaker announces addresses. Use New, then Run. All methods but Run may be called concurrently, and
// also before Run.
type Speaker struct {
	log     *slog.Logger
	receive func(Report)
	links   *link.Follower
	events  *netlink.Events // of nftables
	arp, nd *wire.Socket
	wake    wake.Signal // of the loop

	mu       sync.Mutex // guards the following fields
	config   Config
	gate     *gate.Gate
	lans     []*lan                     // with what the caller owns
	changes  map[netip.Addr]bool        // not in the gate yet: true is open
	observed map[netip.Addr]observation // of the machines' addresses, not seen by them yet
	joins    []netip.Addr               // addresses whose groups are to be joined or left
	reported map[string]State           // of interfaces
	opened   bool                       // reported as open
	state    link.State                 // the newest
	seen     link.State                 // as of the last step
	alive    time.Time                  // end of the time of the last Refresh; zero: never, or lapsed
	lapsed   bool                       // the next Refresh returns ErrLapsed
	ended    bool                       // Run has ended
	dirty    damage                     // the kernel's tables may differ from the gate's state
	buffer   []byte

	// The following fields belong to the loop.
	groups  wire.Groups
	warned  map[int]bool // interfaces on which groups can't be joined
	repairs repairs
}

// observation is the last thing that another station said about an address.
type observation struct {
	kind frame.Kind
	from claim.Rival
}

// damage is why the tables may differ from the gate's state.
type damage uint8

const (
	intact  damage = iota
	unsure         // a write failed, or events were lost
	foreign        // another program changed them
)

// New opens all sockets in the network namespace of the calling thread and replaces what an earlier
// process left in the kernel by a closed gate: until Own and Refresh, this host is silent about the
// pools. It needs CAP_NET_ADMIN and CAP_NET_RAW.
func New(ctx context.Context, c Config) (*Speaker, error) {
	s := &Speaker{
		log: c.Log, receive: c.Report, config: c, wake: wake.New(), changes: map[netip.Addr]bool{},
		observed: map[netip.Addr]observation{}, warned: map[int]bool{}, reported: map[string]State{},
		repairs: repairs{pause: backoff.Backoff{Lo: 50 * time.Millisecond, Hi: 10 * time.Second}},
	}
	s.setLANs(time.Now(), c.LANs)
	if err := s.openAll(ctx); err != nil {
		s.close()
		return nil, fmt.Errorf("announce on layer 2: %w", err)
	}
	if !s.gate.Egress {
		c.Log.Warn("this kernel has no nftables egress hook (Linux 5.16): only this process itself ends its announcements in time")
	}
	return s, nil
}

func (s *Speaker) openAll(ctx context.Context) (err error) {
	if s.events, err = gate.Watch(); err != nil {
		return err
	}
	if s.links, err = link.Follow(ctx, s.config.filter(), s.config.Record, s.setLinks); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate, err = gate.New(ctx, s.config.guarded(s.state.Own), interfaces(s.state)); err != nil {
		return err
	}
	if s.arp, err = wire.Open(frame.TypeARP); err != nil {
		return err
	}
	s.nd, err = wire.Open(frame.TypeIPv6)
	return err
}

// close closes all sockets, as far as they are open.
func (s *Speaker) close() {
	if s.events != nil {
		s.events.Close()
	}
	if s.links != nil {
		s.links.Close()
	}
	for _, w := range []*wire.Socket{s.arp, s.nd} {
		if w != nil {
			w.Close()
		}
	}
	s.groups.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gate != nil {
		s.gate.Close()
	}
}

// Remains are what a Speaker that no longer runs has left in the kernel.
type Remains struct {
	Tables   []string       // of the gate, as nft(8) writes them
	Settings []link.Setting // what Config.Record has
}

// Find looks for what a Speaker has left, in the network namespace of the calling thread. It changes
// nothing.
func Find(ctx context.Context, record string) (Remains, error) {
	tables, err := gate.Find(ctx)
	return Remains{Tables: tables, Settings: link.Recorded(record)}, err
}

// Remove deletes the gate of a Speaker that no longer runs, in the network namespace of the calling
// thread, and restores what is recorded in its Config.Record. From then on, the kernel answers ARP for
// virtual addresses, as on a host that doesn't announce.
func Remove(ctx context.Context, record string) error {
	return errors.Join(gate.Remove(ctx), link.Restore(ctx, record))
}

// Busy returns how many frames the kernel had no room for.
func (s *Speaker) Busy() uint64 { return s.arp.Busy() + s.nd.Busy() }

// Own makes this host answer for an address and announces it. With probe, it first asks for 4 to 7 s
// (IPv6: 1 to 2 s) whether another station has it, which is for an address that is new to the fleet.
// Own returns at once. It does nothing for an address that is owned.
func (s *Speaker) Own(addr netip.Addr, probe bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errEnded
	}
	l := s.lanFor(addr)
	if l == nil {
		return fmt.Errorf("own %v: the address is in no pool", addr)
	}
	if !l.owns(addr) {
		s.own(time.Now(), l, addr, probe)
		s.wake.Set()
	}
	return nil
}

// own gives an address to the machine of a LAN, unless another interface of this host has it. The caller holds mu.
func (s *Speaker) own(now time.Time, l *lan, a netip.Addr, probe bool) {
	if slices.Contains(s.state.Own, a) {
		l.blocked[a] = struct{}{}
		s.report(Report{Addr: a, At: l.At(), State: Conflict, Reason: "another interface of this host has the address"})
	} else {
		l.machine.Own(now, a, probe)
	}
	s.joins = append(s.joins, a)
}

// release takes an address away that the caller owns. The caller holds mu.
func (s *Speaker) release(l *lan, a netip.Addr) {
	delete(l.blocked, a)
	delete(s.observed, a) // it was of this LAN
	l.machine.Release(a)
	s.joins = append(s.joins, a)
	s.report(Report{Addr: a, At: l.At(), State: Released})
}

// Release makes this host silent about addresses. When it returns, the host no longer answers. It
// sends one batch to the kernel for all of them. An error means that this is not certain before the
// dead-man time has passed.
func (s *Speaker) Release(addrs ...netip.Addr) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errEnded
	}
	for _, a := range addrs {
		if l := s.first(func(l *lan) bool { return l.owns(a) }); l != nil {
			s.release(l, a)
		}
	}
	s.wake.Set()
	return s.changeGate()
}

// Refresh keeps the gate open for another Config.DeadMan. It sends one batch of three messages to the
// kernel, whatever the number of addresses. If the error is ErrLapsed, the caller must decide anew;
// after any other error, the next Refresh may work.
func (s *Speaker) Refresh() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errEnded
	}
	now := time.Now()
	s.checkAlive(now)
	if s.lapsed {
		s.lapsed = false
		s.forget()
		return ErrLapsed
	}
	if s.alive.IsZero() {
		s.wake.Set()
	}
	s.alive = now.Add(s.config.DeadMan)
	return s.refreshGate()
}

// Reannounce announces all addresses again, for stations that may have missed it or that another
// host has told otherwise: a peer returned, a partition healed.
func (s *Speaker) Reannounce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lans {
		l.machine.Reannounce(time.Now())
	}
	s.wake.Set()
}

// Reconfigure changes the configuration. Log, Report and Record can't be changed. Addresses that are no
// longer in a pool are released, and those of other interfaces than before are announced again.
func (s *Speaker) Reconfigure(c Config) error {
	s.links.SetFilter(c.filter())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errEnded
	}
	s.config = c
	s.setLANs(time.Now(), c.LANs)
	s.dirty = max(s.dirty, unsure) // other pools
	s.wake.Set()
	return s.changeGate()
}

// checkAlive notices that the time of the last Refresh is over. The caller holds mu.
func (s *Speaker) checkAlive(now time.Time) {
	if s.alive.IsZero() || now.Before(s.alive) {
		return
	}
	s.alive, s.lapsed = time.Time{}, true
	s.forget()
	s.doubt(s.gate.Shut(context.Background()))
}

// forget releases everything. The caller holds mu.
func (s *Speaker) forget() {
	for _, l := range s.lans {
		s.joins = slices.AppendSeq(s.joins, l.machine.Addrs())
		l.machine.Clear()
		l.machine.SetUsable(time.Now(), false)
		clear(l.blocked)
	}
	clear(s.changes)
	clear(s.observed)
	if s.opened {
		s.opened = false
		s.report(Report{State: GateClosed, Reason: "no refresh in time: all addresses are released"})
	}
	s.wake.Set()
}

// refreshGate tells the kernel which interfaces are open until when. The caller holds mu.
func (s *Speaker) refreshGate() error {
	var usable []int
	for _, l := range s.state.Links {
		if l.Usable() {
			usable = append(usable, l.Index)
		}
	}
	err := s.gate.Refresh(context.Background(), s.alive, usable...)
	s.doubt(err)
	return err
}

// doubt makes the loop write the tables again if a write failed. The caller holds mu.
func (s *Speaker) doubt(err error) {
	if err != nil {
		s.dirty = max(s.dirty, unsure)
		s.wake.Set()
	}
}
