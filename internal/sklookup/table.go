package sklookup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/bpf"
)

// MaxFrontends bounds the addresses and ports of a Table. The kernel needs 2 MiB for the map's
// buckets at once, and about 100 bytes for each entry.
const MaxFrontends = 1 << 17

// Slot is where the clients of a frontend go: one socket for each protocol and family, or Refused.
type Slot uint32

// The slots.
const (
	TCP4 Slot = iota
	TCP6
	UDP4
	UDP6
	slots // the number of sockets

	// Refused makes the kernel answer as for a closed port, whatever other sockets there are.
	Refused Slot = 0xff
)

// The names of the maps, by which the next process recognizes them. The number is that of their
// layout: a process that needs another one doesn't recognize them.
const (
	frontendsName = "ironvip_front1"
	socketsName   = "ironvip_sock1"
	programName   = "ironvip_lookup"
)

// Key is an address and port of clients' packets with a protocol of IP, as in the map.
type Key [20]byte

// KeyOf returns the Key of an address and port. The protocol is 6 or 17.
func KeyOf(at netip.AddrPort, protocol uint8) (k Key) {
	addr := at.Addr().As16()
	copy(k[:], addr[:])
	binary.NativeEndian.PutUint16(k[16:], at.Port())
	binary.NativeEndian.PutUint16(k[18:], uint16(protocol))
	return k
}

// At returns the address and port.
func (k Key) At() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(k[:16])).Unmap(), binary.NativeEndian.Uint16(k[16:]))
}

// Protocol returns the protocol of IP.
func (k Key) Protocol() uint8 { return uint8(binary.NativeEndian.Uint16(k[18:])) }

// Table is the attached program with its maps. Its methods may be called concurrently, except Close.
type Table struct {
	frontends *ebpf.Map
	sockets   *ebpf.Map
	program   *ebpf.Program
	link      *link.NetNsLink
}

// Open loads the program and attaches it. With files, those of another process's Files, it continues with their
// maps and link: the program is replaced without a gap, and all entries stay. Open closes the files. If it returns
// an error, the other process has its program as before. An error of the kernel is a *RefusedError.
func Open(files []*os.File) (*Table, error) {
	_ = rlimit.RemoveMemlock() // before Linux 5.11; a failure shows when a map is made
	t := &Table{}
	if err := t.adopt(files); err != nil {
		t.Close()
		return nil, err
	}
	if err := t.complete(); err != nil {
		t.Close()
		return nil, bpf.Refusal(err, "sk_lookup, which Linux 5.9 and later have (CONFIG_BPF_SYSCALL, CONFIG_INET)", "bpftool net show")
	}
	return t, nil
}

// complete makes what the table doesn't have, and attaches the program.
func (t *Table) complete() error {
	if err := t.load(); err != nil {
		return err
	}
	if t.link != nil {
		return t.link.Update(t.program)
	}
	return t.Reattach()
}

// load makes the maps, unless they are those of another process, and the program.
func (t *Table) load() (err error) {
	if t.frontends == nil {
		if t.frontends, err = ebpf.NewMap(frontendsSpec()); err != nil {
			return err
		}
		if t.sockets, err = ebpf.NewMap(socketsSpec()); err != nil {
			return err
		}
	}
	t.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: programName, Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup,
		License: "Dual MIT/GPL", Instructions: program(t.frontends, t.sockets)})
	return err
}

// Reattach attaches the program to the network namespace of this thread, also after someone has detached it.
func (t *Table) Reattach() error {
	namespace, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer namespace.Close()
	l, err := link.AttachNetNs(int(namespace.Fd()), t.program)
	if err != nil {
		return err
	}
	if t.link != nil {
		t.link.Close()
	}
	t.link = l
	return nil
}

func frontendsSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: frontendsName, Type: ebpf.Hash, KeySize: 20, ValueSize: 4, MaxEntries: MaxFrontends, Flags: unix.BPF_F_NO_PREALLOC}
}

// socketsSpec has values of 8 bytes, so that a lookup returns the cookie of a socket.
func socketsSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: socketsName, Type: ebpf.SockMap, KeySize: 4, ValueSize: 8, MaxEntries: uint32(slots)}
}

// adopt takes the maps and the link of another process, if there is one.
func (t *Table) adopt(files []*os.File) error {
	for _, f := range files {
		t.recognize(f)
		f.Close()
	}
	switch {
	case len(files) == 0:
		return nil
	case t.frontends == nil || t.sockets == nil || t.link == nil:
		return errors.New("the sk_lookup program of the earlier process has maps of another layout")
	}
	return t.Attached()
}

// recognize takes a copy of f into the table, if it is a part of it.
func (t *Table) recognize(f *os.File) {
	l, m := bpf.Open(f)
	switch n, ok := l.(*link.NetNsLink); {
	case m != nil:
		t.recognizeMap(m)
	case ok && t.link == nil:
		t.link = n
	case l != nil:
		l.Close()
	}
}

func (t *Table) recognizeMap(m *ebpf.Map) {
	info, err := m.Info()
	switch {
	case err == nil && t.frontends == nil && info.Name == frontendsName && frontendsSpec().Compatible(m) == nil:
		t.frontends = m
	case err == nil && t.sockets == nil && info.Name == socketsName && socketsSpec().Compatible(m) == nil:
		t.sockets = m
	default:
		m.Close()
	}
}

// Files returns copies of the descriptors that keep program, link and maps alive, for Open.
func (t *Table) Files() (files []*os.File, err error) {
	for name, fd := range map[string]int{frontendsName: t.frontends.FD(), socketsName: t.sockets.FD(), programName: t.link.FD()} {
		f, failed := bpf.File(fd, name)
		if failed != nil {
			err = failed
			continue
		}
		files = append(files, f)
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, err
	}
	return files, nil
}

// SetSocket makes the kernel pass the clients of all frontends with a slot to a listening TCP socket
// or an unconnected UDP socket. The kernel removes the socket from the table when it is closed; then
// it looks for other sockets.
func (t *Table) SetSocket(s Slot, socket syscall.Conn) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = t.sockets.Put(uint32(s), uint64(fd)) }); err != nil {
		return err
	}
	return failed
}

// Cookie returns the kernel's number (SO_COOKIE) of the socket of a slot; 0: none.
func (t *Table) Cookie(s Slot) uint64 {
	var cookie uint64
	if t.sockets.Lookup(uint32(s), &cookie) != nil {
		return 0
	}
	return cookie
}

// ErrFull is the error of Put for more than MaxFrontends entries.
var ErrFull = fmt.Errorf("the map of frontends is full: it has room for %d", MaxFrontends)

// Put adds a frontend, or changes its slot.
func (t *Table) Put(k Key, s Slot) error {
	err := t.frontends.Put(k[:], uint32(s))
	if errors.Is(err, unix.E2BIG) {
		return ErrFull
	}
	return err
}

// Delete removes a frontend. It succeeds if there is none.
func (t *Table) Delete(k Key) error {
	if err := t.frontends.Delete(k[:]); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// readAtOnce is how many entries one system call reads: more than a bucket of the kernel's hash table has.
const readAtOnce = 4096

// All reads the whole table.
func (t *Table) All() (map[Key]Slot, error) {
	out := make(map[Key]Slot)
	keys, slots := make([]Key, readAtOnce), make([]uint32, readAtOnce)
	for cursor := new(ebpf.MapBatchCursor); ; {
		n, err := t.frontends.BatchLookup(cursor, keys, slots, nil)
		for i := range n {
			out[keys[i]] = Slot(slots[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) { // that was the last part
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// Attached returns an error if the program is no longer attached to the network namespace.
func (t *Table) Attached() error {
	here, err := namespace()
	if err != nil {
		return err
	}
	info, err := t.link.Info()
	if err != nil {
		return err
	}
	netns := info.NetNs()
	switch {
	case netns == nil || netns.NetnsInode == 0:
		return errors.New("the sk_lookup program was detached")
	case netns.NetnsInode != here:
		return errors.New("the sk_lookup program is attached to another network namespace")
	}
	return nil
}

// namespace returns the inode of this thread's network namespace.
func namespace() (uint32, error) {
	var s unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &s); err != nil {
		return 0, err
	}
	return uint32(s.Ino), nil
}

// Close closes this process's descriptors. The kernel detaches the program, unless another process has copies.
func (t *Table) Close() {
	if t.link != nil {
		_ = t.link.Close()
	}
	_, _, _ = t.program.Close(), t.frontends.Close(), t.sockets.Close() // nil is allowed
}
