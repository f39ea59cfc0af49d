package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/vip"
)

// kernel speaks IPVS over one socket. It is not safe for concurrent use.
type kernel struct {
	conn   messenger
	family uint16

	// For listing, one after the other: room for a service's destinations, whose
	// service it is, and what asks and listens; how many services there were the
	// last time.
	dests  []dest
	listed service
	ask    func(b []byte) []byte
	hear   func(typ uint16, data []byte) error
	many   int
}

// openKernel connects to IPVS in the calling thread's network namespace.
func openKernel(ctx context.Context, stats *counters) (*kernel, error) {
	c, err := netlink.Dial(unix.NETLINK_GENERIC, &stats.Counters)
	if err != nil {
		return nil, err
	}
	family, err := lookupFamily(ctx, c)
	if err != nil {
		c.Close()
		return nil, err
	}
	return &kernel{conn: c, family: family}, nil
}

func (k *kernel) close() { k.conn.Close() }

// run carries out ops and tells done the outcome of each, in order but for
// those that are ENOENT: the family's number may be what is gone, see query.
// Where that is so their outcome is unknown, which makes the caller look.
func (k *kernel) run(ctx context.Context, ops []op, done func(i int, err error)) error {
	var absent []int
	err := k.conn.Write(ctx, len(ops), func(b []byte, i int) []byte {
		return ops[i].append(b, k.family)
	}, func(i int, err error) {
		if err == unix.ENOENT {
			absent = append(absent, i)
			return
		}
		done(i, err)
	})
	if err != nil || len(absent) == 0 {
		return err
	}
	family, err := lookupFamily(ctx, k.conn)
	if err != nil {
		return err
	}
	outcome := error(unix.ENOENT)
	if family != k.family {
		k.family, outcome = family, netlink.ErrUnknown
	}
	for _, i := range absent {
		done(i, outcome)
	}
	return nil
}

// Query asks one question. Where the family's number is gone it is looked up
// anew: the module may have been taken out and put back.
func (k *kernel) Query(ctx context.Context, put func(b []byte) []byte, each func(typ uint16, data []byte) error) error {
	err := k.conn.Query(ctx, put, each)
	if err != unix.ENOENT {
		return err
	}
	family, err := lookupFamily(ctx, k.conn)
	if err != nil {
		return err // and the old number stays: the kernel answers a wrong one, but not 0
	}
	k.family = family
	return k.conn.Query(ctx, put, each)
}

// services lists every service in the kernel, ours or not. Those by mark come
// without a key but for its family, see service.
func (k *kernel) services(ctx context.Context) ([]service, error) {
	all := make([]service, 0, k.many)
	err := k.Query(ctx, func(b []byte) []byte {
		return appendCommand(b, k.family, cmdGetService, unix.NLM_F_DUMP)
	}, func(_ uint16, data []byte) error {
		s, err := decodeService(data)
		all = append(all, s)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the ipvs services: %w", err)
	}
	k.many = len(all)
	return all, nil
}

// service reads the service at key, or, where mark isn't 0, the one of that mark
// and of key's family; nil when there is none.
func (k *kernel) service(ctx context.Context, key vip.FrontendKey, mark uint32) (*service, error) {
	var found *service
	err := k.Query(ctx, func(b []byte) []byte {
		return appendService(appendCommand(b, k.family, cmdGetService, 0), &service{key: key, fwmark: mark}, false)
	}, func(_ uint16, data []byte) error {
		s, err := decodeService(data)
		if s.fwmark != 0 {
			s.key = key // which the kernel doesn't know
		}
		found = &s
		return err
	})
	if err == unix.ESRCH {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the ipvs service %s: %w", key, err)
	}
	return found, nil
}

// destinations reads one service's destinations in the kernel's order, the newest
// first, with decodeDest or decodeDestStatus; none when there is no such service.
func destinations[D any](ctx context.Context, k *kernel, key vip.FrontendKey, mark uint32, decode func([]byte, netip.Addr) (D, error), each func(D)) error {
	err := k.Query(ctx, func(b []byte) []byte {
		return appendService(appendCommand(b, k.family, cmdGetDest, unix.NLM_F_DUMP), &service{key: key, fwmark: mark}, false)
	}, func(_ uint16, data []byte) error {
		d, err := decode(data, key.Addr)
		if err == nil {
			each(d)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list the destinations of %s: %w", key, err)
	}
	return nil
}

// state reads one service with its destinations; nil when there is none.
func (k *kernel) state(ctx context.Context, key vip.FrontendKey, mark uint32) (*state, error) {
	s, err := k.service(ctx, key, mark)
	if s == nil || err != nil {
		return nil, err
	}
	var all state
	if err := k.stateOf(ctx, s, &all, &slab[dest]{}); err != nil {
		return nil, err
	}
	return &all, nil
}

// stateOf reads the destinations of a service into a state, which has them in
// the room that it is given.
func (k *kernel) stateOf(ctx context.Context, s *service, all *state, room *slab[dest]) error {
	if k.ask == nil {
		k.ask = func(b []byte) []byte {
			return appendService(appendCommand(b, k.family, cmdGetDest, unix.NLM_F_DUMP), &k.listed, false)
		}
		k.hear = func(_ uint16, data []byte) error {
			d, err := decodeDest(data, k.listed.key.Addr)
			k.dests = append(k.dests, d)
			return err
		}
	}
	k.dests, k.listed = k.dests[:0], *s
	if err := k.Query(ctx, k.ask, k.hear); err != nil {
		return fmt.Errorf("list the destinations of %s: %w", s.key, err)
	}
	*all = state{service: *s, dests: room.cut(len(k.dests))}
	for i, d := range k.dests {
		all.dests[len(k.dests)-1-i] = d // the kernel lists the newest first
	}
	if slices.IsSortedFunc(all.dests, compareDests) {
		return nil // as this package gives them
	}
	all.ages = make(map[netip.AddrPort]int, len(all.dests))
	for i, d := range all.dests {
		all.ages[d.addr] = i
	}
	slices.SortFunc(all.dests, compareDests)
	return nil
}

// slab cuts slices that live and die together off larger ones of a size. Where
// that is 0, each is one of its own.
type slab[T any] struct {
	size int
	free []T
}

// slabSize is the size where thousands are to come.
const slabSize = 1024

func (s *slab[T]) cut(n int) []T {
	if n > len(s.free) {
		s.free = make([]T, max(n, s.size))
	}
	part := s.free[:n:n]
	s.free = s.free[n:]
	return part
}
