// Package steer passes the clients of VIPs to the sockets of the userspace proxy by sk_lookup: to one socket for each
// protocol and family, from which the address and port of the client's packets select who gets them.
//
// Its input is keys of frontends with the functions that take their clients or datagrams. It owns the program, its table
// and the common sockets, and knows nothing of backends. Bound sockets of other processes come first when a frontend
// begins: its port isn't taken from them. Package internal/sklookup has the objects of the kernel.
package steer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/sklookup"
	"github.com/ironvip/ironvip/internal/sockdiag"
	"github.com/ironvip/ironvip/internal/sockets"
	"github.com/ironvip/ironvip/proxy/loop"
	"github.com/ironvip/ironvip/vip"
)

// Options are the settings of a Steering.
type Options struct {
	Sockets *sockets.Set // opens the common sockets, and passes them and the table on to the next process
	Loops   *loop.Loops  // that receive
	Reserve func() error // reserves the descriptor of a listening socket, until Release
	Release func()
	Failed  func(error) // called with an error that passes, of any client
	Log     *slog.Logger
}

// Welcome takes a client. It is called in the loop that has accepted the client, and must not block.
type Welcome = func(client *loop.Socket, peer netip.AddrPort, by *loop.Loop)

// Deliver takes a datagram. It is called in the loop that has received the datagram, and must not block or keep it.
type Deliver = func(d loop.Datagram, by *loop.Loop)

// Steering is the program of sk_lookup with its common sockets. Its methods may be called concurrently.
//
// The sockets and the table may be those of an earlier process. This one then accepts the first client once it has every
// frontend; until then, clients go to the earlier process, or wait in the queues of the sockets.
type Steering struct {
	Table *sklookup.Table // what the kernel has

	o     Options
	files []*os.File // the table's, in the set of sockets
	diag  *sockdiag.Conn

	closing sync.WaitGroup // goroutines of closeSocket

	mu        sync.RWMutex
	shared    map[sklookup.Slot]*sharedSocket
	tcp       map[sklookup.Key]Welcome
	udp       map[sklookup.Key]Deliver
	unclaimed map[sklookup.Key]struct{} // of the earlier process
	stopped   bool
	missing   map[sklookup.Key]struct{} // entries of ours that the table didn't have at the last refresh
	detached  error                     // at the last refresh
}

// sharedSocket is the socket of a slot.
type sharedSocket struct {
	socket sockets.Socket
	intake *loop.Intake
	death  error // guarded by Steering.mu
}

// New attaches the program, or continues with the objects of an earlier process.
func New(o Options, inherited []*os.File) (*Steering, error) {
	table, err := sklookup.Open(inherited)
	if err != nil {
		return nil, err
	}
	diag, err := sockdiag.Open()
	if err != nil {
		table.Close()
		return nil, err
	}
	s := &Steering{Table: table, o: o, diag: diag, shared: make(map[sklookup.Slot]*sharedSocket), tcp: make(map[sklookup.Key]Welcome),
		udp: make(map[sklookup.Key]Deliver), unclaimed: make(map[sklookup.Key]struct{})}
	if err := s.adopt(); err != nil {
		diag.Close()
		table.Close()
		return nil, err
	}
	return s, nil
}

// adopt takes over the entries and sockets of an earlier process, and passes on what keeps the table.
func (s *Steering) adopt() error {
	entries, err := s.Table.All()
	if err != nil {
		return err
	}
	for k := range entries {
		s.unclaimed[k] = struct{}{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range sklookup.Slot(len(slotNames)) {
		if s.Table.Cookie(slot) != 0 {
			if err := s.open(slot); err != nil {
				return err
			}
		}
	}
	files, err := s.Table.Files()
	if err != nil {
		return err
	}
	s.o.Sockets.AddBPF(files)
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

// EnterTCP makes the clients of a frontend arrive, and EnterUDP its datagrams. A new frontend that no earlier process had
// doesn't take a port that a socket has: the error is a HeldError. Later, a socket that is bound to the port gets nothing.
func (s *Steering) EnterTCP(key vip.FrontendKey, isNew bool, welcome Welcome) error {
	return s.enter(key, isNew, func(entry sklookup.Key) { s.tcp[entry] = welcome })
}

// EnterUDP makes the datagrams of a frontend arrive; see EnterTCP.
func (s *Steering) EnterUDP(key vip.FrontendKey, isNew bool, deliver Deliver) error {
	return s.enter(key, isNew, func(entry sklookup.Key) { s.udp[entry] = deliver })
}

// enter calls add before the first client or datagram arrives. After an error, none does.
func (s *Steering) enter(key vip.FrontendKey, isNew bool, add func(sklookup.Key)) (err error) {
	entry, slot := entryOf(key), slotOf(key)
	if isNew && !s.succeedsTo(entry) {
		if err := isFree(s.diag, key); err != nil {
			return err
		}
	}
	defer func() {
		if err != nil {
			s.Forget(key)
		}
	}()
	s.mu.Lock()
	err = s.repair(slot)
	if err == nil {
		add(entry)
	}
	delete(s.unclaimed, entry)
	delete(s.missing, entry)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	return s.Table.Put(entry, slot)
}

// succeedsTo reports whether an earlier process had a frontend that this one doesn't have yet.
func (s *Steering) succeedsTo(entry sklookup.Key) bool {
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
func (s *Steering) repair(slot sklookup.Slot) error {
	if s.stopped {
		return net.ErrClosed
	}
	if s.detached != nil {
		if err := s.Table.Reattach(); err != nil {
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
func (s *Steering) open(slot sklookup.Slot) error {
	at, inherited := s.o.Sockets.AddressOf(s.Table.Cookie(slot))
	if !inherited {
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0)
		if slot == sklookup.TCP6 || slot == sklookup.UDP6 {
			at = netip.AddrPortFrom(netip.IPv6Loopback(), 0)
		}
	}
	s.closeSocket(slot, (*sockets.Set).Remove) // if it has died
	if err := s.o.Reserve(); err != nil {
		return err
	}
	shared, err := s.openAt(slot, at)
	if err != nil {
		s.o.Release()
		return fmt.Errorf("open the common socket of %s: %w", slotNames[slot], err)
	}
	s.shared[slot] = shared
	err = s.Table.SetSocket(slot, shared.socket)
	if err == nil {
		err = shared.intake.Start(s.o.Loops)
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

func (s *Steering) openAt(slot sklookup.Slot, at netip.AddrPort) (*sharedSocket, error) {
	protocol := "udp"
	if slot == sklookup.TCP4 || slot == sklookup.TCP6 {
		protocol = "tcp"
	}
	socket, err := s.o.Sockets.ListenUnpolled(context.Background(), protocol, at)
	if err != nil {
		return nil, err
	}
	shared := &sharedSocket{socket: socket}
	died := func(err error) { s.die(shared, err) }
	if protocol == "tcp" {
		shared.intake = loop.NewAcceptor(socket, s.welcome, s.o.Failed, died)
		return shared, nil
	}
	if err := receiveDestinations(socket, at.Addr()); err != nil {
		s.o.Sockets.Remove(socket)
		return nil, err
	}
	shared.intake = loop.NewReceiver(socket, s.deliver, s.o.Failed, died)
	return shared, nil
}

func (s *Steering) die(shared *sharedSocket, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	shared.death = err
}

// closeSocket closes the socket of a slot, if there is one. The caller holds mu, and clients that are
// accepted wait for it, so the end of accepting isn't awaited here, but by stop and close.
func (s *Steering) closeSocket(slot sklookup.Slot, how func(*sockets.Set, sockets.Socket)) {
	if shared := s.shared[slot]; shared != nil {
		s.closing.Go(func() {
			shared.intake.Halt()
			how(s.o.Sockets, shared.socket)
		})
		s.o.Release()
		delete(s.shared, slot)
	}
}

// welcome passes a client to its frontend. The lock ensures that no client arrives once the frontend is closed.
func (s *Steering) welcome(client *loop.Socket, peer netip.AddrPort, by *loop.Loop) {
	entry := sklookup.KeyOf(client.LocalAddr(), uint8(vip.TCP))
	s.mu.RLock()
	defer s.mu.RUnlock()
	if welcome := s.tcp[entry]; welcome != nil {
		welcome(client, peer, by)
	} else {
		client.Reset()
	}
}

// Remove makes the kernel refuse the clients of a frontend, as it does those of a closed port.
func (s *Steering) Remove(key vip.FrontendKey) {
	if err := s.Table.Delete(entryOf(key)); err != nil {
		s.o.Log.Warn("frontend left in the map of sk_lookup", "frontend", key.String(), "err", err)
	}
	s.Forget(key)
}

// Refuse makes the kernel answer port unreachable to the datagrams of a frontend, although it is not removed.
func (s *Steering) Refuse(key vip.FrontendKey) error {
	defer s.Forget(key)
	return s.Table.Put(entryOf(key), sklookup.Refused)
}

// Forget leaves the clients of a frontend to other processes.
func (s *Steering) Forget(key vip.FrontendKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key.Protocol == vip.UDP {
		delete(s.udp, entryOf(key))
	} else {
		delete(s.tcp, entryOf(key))
	}
}

// Died returns why the clients of a frontend don't arrive, as of the last refresh.
func (s *Steering) Died(key vip.FrontendKey) error {
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

// Refresh reads what the kernel has, for Died. It reads the table before it takes the lock, because clients wait for the
// lock in the event loops.
func (s *Steering) Refresh() error {
	detached := s.Table.Attached()
	entries, err := s.Table.All()
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
func (s *Steering) missingIn(entries map[sklookup.Key]sklookup.Slot) (missing map[sklookup.Key]struct{}) {
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

// Settle refuses the clients of frontends that an earlier process had and this one doesn't. Until then they wait.
func (s *Steering) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	for entry := range s.unclaimed {
		if err := s.Table.Delete(entry); err != nil {
			s.o.Log.Warn("frontend of an earlier process left in the map of sk_lookup", "frontend", keyOf(entry).String(), "err", err)
		}
	}
	clear(s.unclaimed)
}

// Stop leaves new clients to other processes. Close follows.
func (s *Steering) Stop() {
	s.mu.Lock()
	s.stopped = true
	for slot := range s.shared {
		s.closeSocket(slot, (*sockets.Set).Release)
	}
	clear(s.unclaimed)
	s.mu.Unlock()
	s.closing.Wait()
}

// Close ends what this process has of the objects.
func (s *Steering) Close() {
	s.closing.Wait()
	for _, f := range s.files {
		s.o.Sockets.Release(f)
	}
	s.diag.Close()
	s.Table.Close()
}

// receiveDestinations makes the kernel report the destination of each datagram, of the family of like.
func receiveDestinations(conn *sockets.Unpolled, like netip.Addr) (err error) {
	level, name := unix.SOL_IPV6, unix.IPV6_RECVORIGDSTADDR
	if like.Is4() {
		level, name = unix.SOL_IP, unix.IP_RECVORIGDSTADDR
	}
	_ = conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, name, 1) })
	return err
}

// destination returns the destination in the control messages of a datagram.
func destination(control []byte) (at netip.AddrPort, ok bool) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return at, false
	}
	for _, m := range messages {
		// struct sockaddr_in and sockaddr_in6: family, port, for IPv6 a flow label, address
		switch {
		case m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_ORIGDSTADDR && len(m.Data) >= 8:
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(m.Data[4:8])), binary.BigEndian.Uint16(m.Data[2:])), true
		case m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_ORIGDSTADDR && len(m.Data) >= 24:
			return netip.AddrPortFrom(netip.AddrFrom16([16]byte(m.Data[8:24])), binary.BigEndian.Uint16(m.Data[2:])), true
		}
	}
	return at, false
}

// deliver passes a datagram to its frontend. It holds no lock of s meanwhile: the listener takes no
// datagram once it is closed.
func (s *Steering) deliver(d loop.Datagram, by *loop.Loop) {
	to, ok := destination(d.Control())
	if !ok {
		return
	}
	s.mu.RLock()
	deliver := s.udp[sklookup.KeyOf(to, uint8(vip.UDP))]
	s.mu.RUnlock()
	if deliver != nil {
		deliver(d, by)
	}
}
