package connect

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/ironvip/ironvip/vip"
)

// The keys and values of the maps, as in bpf/connect.c.
type (
	place struct {
		Addr [2]uint64 // 16 bytes in the order of the network
		Port uint64
	}
	frontend struct {
		Addr [2]uint64
		Rest uint64
	}
	service struct {
		Table, Slots uint32
		Affinity     uint64
		NodePort     uint32
		Scheduler    uint32 // 0: left to the dataplane
	}
	group   struct{ Table, Index uint32 } // the slots of a table from Index*len(places{}) on
	places  [16]place
	backend struct {
		Addr [2]uint64
		Rest uint64
	}
	counter struct {
		Frontend frontend
		Backend  place
	}
	note struct {
		Balanced counter
		Asked    place
	}
	session struct {
		Cookie uint64
		To     frontend
	}
	partner struct {
		At       place
		Frontend frontend
	}
)

// Positions in frontend.Rest and backend.Rest.
const (
	lastPortAt = 16
	protocolAt = 32
	audienceAt = 40
	tableAt    = 32

	reverse = 1 << 63 // of sessions
)

func words(a netip.Addr) [2]uint64 {
	b := a.As16()
	return [2]uint64{binary.NativeEndian.Uint64(b[:8]), binary.NativeEndian.Uint64(b[8:])}
}

func addrOf(w [2]uint64) netip.Addr {
	var b [16]byte
	binary.NativeEndian.PutUint64(b[:8], w[0])
	binary.NativeEndian.PutUint64(b[8:], w[1])
	return netip.AddrFrom16(b).Unmap()
}

func placeOf(a netip.AddrPort) place { return place{words(a.Addr()), uint64(a.Port())} }

func (p place) at() netip.AddrPort { return netip.AddrPortFrom(addrOf(p.Addr), uint16(p.Port)) }

func frontendOf(k vip.FrontendKey) frontend {
	return frontend{words(k.Addr), uint64(k.Port) | uint64(k.LastPort)<<lastPortAt | uint64(k.Protocol)<<protocolAt | uint64(k.Audience)<<audienceAt}
}

func (f frontend) key() vip.FrontendKey {
	return vip.FrontendKey{Addr: addrOf(f.Addr), Port: uint16(f.Rest), LastPort: uint16(f.Rest >> lastPortAt),
		Protocol: vip.Protocol(f.Rest >> protocolAt), Audience: vip.Audience(f.Rest >> audienceAt)}
}

func backendOf(table uint32, a netip.AddrPort) backend {
	return backend{words(a.Addr()), uint64(a.Port()) | uint64(table)<<tableAt}
}

func (b backend) table() uint32 { return uint32(b.Rest >> tableAt) }

func (b backend) at() netip.AddrPort { return netip.AddrPortFrom(addrOf(b.Addr), uint16(b.Rest)) }

// readAtOnce is the number of entries that one system call reads, and more than a bucket of the kernel has.
const readAtOnce = 1024

// read calls each for every entry of a map. Entries that are added or deleted meanwhile may be missing.
func read[K, V any](m *ebpf.Map, each func(K, V)) error {
	keys, values := make([]K, readAtOnce), make([]V, readAtOnce)
	for cursor := new(ebpf.MapBatchCursor); ; {
		n, err := m.BatchLookup(cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		for i := range n {
			each(keys[i], values[i])
		}
		if err != nil { // that was all
			return nil
		}
	}
}

// lookup returns an entry of a map, and whether there is one.
func lookup[K, V any](m *ebpf.Map, k K) (v V, found bool, err error) {
	err = m.Lookup(&k, &v)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return v, false, nil
	}
	return v, err == nil, err
}

// remove deletes an entry of a map, if there is one.
func remove[K any](m *ebpf.Map, k K) error {
	if err := m.Delete(&k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// removeAll deletes entries of a map.
func removeAll[K any](m *ebpf.Map, keys []K) error {
	if len(keys) == 0 {
		return nil
	}
	_, err := m.BatchDelete(keys, nil)
	if !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	err = nil
	for _, k := range keys { // the batch has ended at one that was gone
		err = errors.Join(err, remove(m, k))
	}
	return err
}
