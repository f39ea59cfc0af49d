package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"github.com/ironvip/ironvip/internal/sklookup"
	"github.com/ironvip/ironvip/internal/sockdiag"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/vip"
)

// steering is the entrance by sk_lookup: the kernel passes the clients of all VIPs to one socket for
// each protocol and family. The address and port of the client's packets select the frontend.
//
// Two kinds of frontends have sockets of their own: those of node ports, because the port may belong
// to another process, and those that have inherited one, because clients may wait in its queue.
//
// The sockets and the table may be those of an earlier process. This one then accepts the first client once it has every
// frontend; until then, clients go to the earlier process, or wait in the queues of the sockets.
type steering struct {
	target *Target
	table  *sklookup.Table
	files  []*os.File // the table's, in the set of sockets
	diag   *sockdiag.Conn

	closing sync.WaitGroup // goroutines of closeSocket

	mu        sync.RWMutex
	shared    map[sklookup.Slot]*sharedSocket
	tcp       map[sklookup.Key]*frontend
	udp       map[sklookup.Key]*udpListener
	unclaimed map[sklookup.Key]struct{} // of the earlier process
	stopped   bool
	missing   map[sklookup.Key]struct{} // entries of ours that the table didn't have at the last refresh
	detached  error                     // at the last refresh
}

// sharedSocket is the socket of a slot.
type sharedSocket struct {
	socket sockets.Socket
	intake *loop.Intake
	death  error // guarded by steering.mu
}

func newSteering(t *Target, inherited []*os.File) (*steering, error) {
	table, err := sklookup.Open(inherited)
	if err != nil {
		return nil, err
	}
	diag, err := sockdiag.Open()
	if err != nil {
		table.Close()
		return nil, err
	}
	s := &steering{target: t, table: table, diag: diag, shared: make(map[sklookup.Slot]*sharedSocket), tcp: make(map[sklookup.Key]*frontend),
		udp: make(map[sklookup.Key]*udpListener), unclaimed: make(map[sklookup.Key]struct{})}
	if err := s.adopt(); err != nil {
		diag.Close()
		table.Close()
		return nil, err
	}
	return s, nil
}

// adopt takes over the entries and sockets of an earlier process, and passes on what keeps the table.
func (s *steering) adopt() error {
	entries, err := s.table.All()
	if err != nil {
		return err
	}
	for k := range entries {
		s.unclaimed[k] = struct{}{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range sklookup.Slot(len(slotNames)) {
		if s.table.Cookie(slot) != 0 {
			if err := s.open(slot); err != nil {
				return err
			}
		}
	}
	files, err := s.table.Files()
	if err != nil {
		return err
	}
	s.target.opts.Sockets.AddBPF(files)
	s.files = files
	return nil
}

// Slots of the protocols and families.
var slotNames = [...]string{sklookup.TCP4: "tcp4", sklookup.TCP6: "tcp6", sklookup.UDP4: "udp4", sklookup.UDP6: "udp6"}

// slotOf returns the slot of a frontend.
func slotOf(key vip.FrontendKey) sklookup.Slot {
	slots := [2]sklookup.Slot{sklookup.TCP4, sklookup.TCP6}
	if key.Protocol == vip.UDP {
		slots = [2]sklookup.Slot{sklookup.UDP4, sklookup.UDP6}
	}
	if key.Addr.Is4() {
		return slots[0]
	}
	return slots[1]
}

func entryOf(key vip.FrontendKey) sklookup.Key {
	return sklookup.KeyOf(key.AddrPort(), uint8(key.Protocol))
}

func (s *steering) listen(f *frontend) (listener, error) {
	key := f.Key
	if f.spec.Kind != vip.OnVIP || s.target.opts.Sockets.Has(key.Protocol.String(), key.AddrPort()) {
		return ownListeners{}.listen(f)
	}
	if key.Protocol == vip.UDP {
		return listenUDP(f, &steered{s: s, isNew: f.listener == nil})
	}
	if err := s.enter(key, f.listener == nil, func() { s.tcp[entryOf(key)] = f }); err != nil {
		s.forget(key)
		return nil, err
	}
	return &steeredTCP{s: s, f: f}, nil
}

// steeredTCP is the listener of a frontend without a socket.
type steeredTCP struct {
	s       *steering
	f       *frontend
	stopped bool
}

func (l *steeredTCP) usable(bool) error { return nil }
func (l *steeredTCP) died() error       { return l.s.died(l.f.Key) }

func (l *steeredTCP) stop() {
	l.stopped = true
	l.s.forget(l.f.Key)
}

func (l *steeredTCP) close() {
	if !l.stopped {
		l.s.remove(l.f.Key)
	}
}

// enter makes the clients of a frontend arrive. It calls add before the first one arrives. A new frontend that no earlier process had doesn't take a
// port that a socket has. Later, a socket that is bound to the port gets nothing.
func (s *steering) enter(key vip.FrontendKey, isNew bool, add func()) error {
	entry, slot := entryOf(key), slotOf(key)
	if isNew && !s.succeedsTo(entry) {
		if err := isFree(s.diag, key); err != nil {
			return err
		}
	}
	s.mu.Lock()
	err := s.repair(slot)
	if err == nil && !s.stopped {
		add()
	}
	delete(s.unclaimed, entry)
	delete(s.missing, entry)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.table.Put(entry, slot)
}

// succeedsTo reports whether an earlier process had a frontend that this one doesn't have yet.
func (s *steering) succeedsTo(entry sklookup.Key) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, known := s.unclaimed[entry]
	return known
}

// keyOf is the reverse of entryOf.
func keyOf(entry sklookup.Key) vip.FrontendKey {
	at := entry.At()
	return vip.FrontendKey{Addr: at.Addr(), Port: at.Port(), Protocol: vip.Protocol(entry.Protocol())}
}

// repair makes the socket of a slot, and attaches the program, if that is necessary. The caller holds
// mu.
func (s *steering) repair(slot sklookup.Slot) error {
	if s.stopped {
		return net.ErrClosed
	}
	if s.detached != nil {
		if err := s.table.Reattach(); err != nil {
			return fmt.Errorf("attach the sk_lookup program: %w", err)
		}
		s.detached = nil
	}
	if shared := s.shared[slot]; shared != nil && shared.death == nil {
		return nil
	}
	return s.open(slot)
}

// open opens the socket of a slot, or adopts that of an earlier process. It is bound to a loopback
// address and a free port, where nothing is served. The caller holds mu.
func (s *steering) open(slot sklookup.Slot) error {
	at, inherited := s.target.opts.Sockets.AddressOf(s.table.Cookie(slot))
	if !inherited {
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
		if slot == sklookup.TCP6 || slot == sklookup.UDP6 {
			at = netip.AddrPortFrom(netip.IPv6Loopback(), 0)
		}
	}
	s.closeSocket(slot, (*sockets.Set).Remove) // if it has died
	if err := s.target.balance.Capacity.AddListener(); err != nil {
		return err
	}
	shared, err := s.openAt(slot, at)
	if err != nil {
		s.target.balance.Capacity.RemoveListener()
		return fmt.Errorf("open the common socket of %s: %w", slotNames[slot], err)
	}
	s.shared[slot] = shared
	err = s.table.SetSocket(slot, shared.socket)
	if err == nil {
		err = shared.intake.Start(&s.target.loops)
	}
	switch {
	case err == nil:
	case inherited:
		s.closeSocket(slot, (*sockets.Set).Release)
	default:
		s.closeSocket(slot, (*sockets.Set).Remove)
	}
	return err
}

func (s *steering) openAt(slot sklookup.Slot, at netip.AddrPort) (*sharedSocket, error) {
	protocol := "udp"
	if slot == sklookup.TCP4 || slot == sklookup.TCP6 {
		protocol = "tcp"
	}
	socket, err := s.target.opts.Sockets.ListenUnpolled(context.Background(), protocol, at)
	if err != nil {
		return nil, err
	}
	shared := &sharedSocket{socket: socket}
	died := func(err error) { s.die(shared, err) }
	if protocol == "tcp" {
		shared.intake = loop.NewAcceptor(socket, s.welcome, s.complain, died)
		return shared, nil
	}
	if err := receiveDestinations(socket, at.Addr()); err != nil {
		s.target.opts.Sockets.Remove(socket)
		return nil, err
	}
	shared.intake = loop.NewReceiver(socket, s.deliver, s.complain, died)
	return shared, nil
}

func (s *steering) die(shared *sharedSocket, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shared.death = err
}

// closeSocket closes the socket of a slot, if there is one. The caller holds mu, and clients that are
// accepted wait for it, so the end of accepting isn't awaited here, but by stop and close.
func (s *steering) closeSocket(slot sklookup.Slot, how func(*sockets.Set, sockets.Socket)) {
	if shared := s.shared[slot]; shared != nil {
		s.closing.Go(func() {
			shared.intake.Halt()
			how(s.target.opts.Sockets, shared.socket)
		})
		s.target.balance.Capacity.RemoveListener()
		delete(s.shared, slot)
	}
}

// complain reports an error that passes, of any client.
func (s *steering) complain(err error) {
	s.target.balance.Complain(vip.FrontendKey{}, "accept or receive", err)
	if loop.LacksDescriptor(err) { // the client waits
		s.target.balance.Refuse(nil, balance.NoDescriptor)
	}
}

// welcome passes a client to its frontend. The lock ensures that no client arrives once the frontend is closed.
func (s *steering) welcome(client *loop.Socket, peer netip.AddrPort, by *loop.Loop) {
	entry := sklookup.KeyOf(client.LocalAddr(), uint8(vip.TCP))
	s.mu.RLock()
	defer s.mu.RUnlock()
	if f := s.tcp[entry]; f != nil {
		f.welcome(client, peer, by)
	} else {
		client.Reset()
	}
}

// remove makes the kernel refuse the clients of a frontend, as it does those of a closed port.
func (s *steering) remove(key vip.FrontendKey) {
	if err := s.table.Delete(entryOf(key)); err != nil {
		s.target.log.Warn("frontend left in the map of sk_lookup", "frontend", key.String(), "err", err)
	}
	s.forget(key)
}

// forget leaves the clients of a frontend to other processes.
func (s *steering) forget(key vip.FrontendKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key.Protocol == vip.UDP {
		delete(s.udp, entryOf(key))
	} else {
		delete(s.tcp, entryOf(key))
	}
}

// died returns why the clients of a frontend don't arrive, as of the last refresh.
func (s *steering) died(key vip.FrontendKey) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.detached != nil {
		return s.detached
	}
	if _, missing := s.missing[entryOf(key)]; missing {
		return errors.New("it is missing in the map of sk_lookup")
	}
	if shared := s.shared[slotOf(key)]; shared != nil {
		return shared.death
	}
	return nil
}

// refresh reads the table before it takes the lock, because clients wait for the lock in the event
// loops.
func (s *steering) refresh() error {
	detached := s.table.Attached()
	entries, err := s.table.All()
	if err != nil {
		return err
	}
	missing := s.missingIn(entries)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.detached, s.missing = detached, missing
	return nil
}

// missingIn returns the entries of ours that the table doesn't have; nil: none.
func (s *steering) missingIn(entries map[sklookup.Key]sklookup.Slot) (missing map[sklookup.Key]struct{}) {
	look := func(entry sklookup.Key) {
		if slot, ok := entries[entry]; ok && slot == slotOf(keyOf(entry)) {
			return
		}
		if missing == nil {
			missing = make(map[sklookup.Key]struct{})
		}
		missing[entry] = struct{}{}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for entry := range s.tcp {
		look(entry)
	}
	for entry := range s.udp {
		look(entry)
	}
	return missing
}

func (s *steering) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	for entry := range s.unclaimed {
		if err := s.table.Delete(entry); err != nil {
			s.target.log.Warn("frontend of an earlier process left in the map of sk_lookup", "frontend", keyOf(entry).String(), "err", err)
		}
	}
	clear(s.unclaimed)
}

func (s *steering) stop() {
	s.mu.Lock()
	s.stopped = true
	for slot := range s.shared {
		s.closeSocket(slot, (*sockets.Set).Release)
	}
	clear(s.unclaimed)
	s.mu.Unlock()
	s.closing.Wait()
}

func (s *steering) close() {
	s.closing.Wait()
	for _, f := range s.files {
		s.target.opts.Sockets.Release(f)
	}
	s.diag.Close()
	s.table.Close()
}
