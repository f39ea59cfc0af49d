package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Conn is a connection to the kernel's IPVS. It is not safe for concurrent use.
type Conn struct {
	Socket netlink.Socket
	Family uint16

	// Reused by Destinations for each service: destinations, the service, the callbacks.
	// LastCount is the number of services in the last list.
	dests      []DestStatus
	listed     Service
	putRequest func(b []byte) []byte
	onDest     func(typ uint16, data []byte) error
	lastCount  int
}

// Open connects to IPVS in the calling thread's network namespace.
func Open(ctx context.Context, stats *netlink.Counters) (*Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_GENERIC, stats)
	if err != nil {
		return nil, err
	}
	family, err := LookupFamily(ctx, c)
	if err != nil {
		c.Close()
		return nil, err
	}
	return &Conn{Socket: c, Family: family}, nil
}

func (k *Conn) Close() { k.Socket.Close() }

// Run sends n messages. It calls put to append each one, and done with its outcome.
// Outcomes come in order except for ENOENT, which comes last: it may mean that the
// family has another number now (see query). Then the outcome is ErrUnknown, and
// the caller must read the service.
func (k *Conn) Run(ctx context.Context, n int, put func(b []byte, i int, family uint16) []byte, done func(i int, err error)) error {
	var absent []int
	err := k.Socket.Write(ctx, n, func(b []byte, i int) []byte {
		return put(b, i, k.Family)
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
	family, err := LookupFamily(ctx, k.Socket)
	if err != nil {
		return err
	}
	outcome := error(unix.ENOENT)
	if family != k.Family {
		k.Family, outcome = family, netlink.ErrUnknown
	}
	for _, i := range absent {
		done(i, outcome)
	}
	return nil
}

// Query sends one request. If the family's number is unknown to the kernel, it looks up
// the number again, because the module may have been reloaded.
func (k *Conn) Query(ctx context.Context, put func(b []byte) []byte, each func(typ uint16, data []byte) error) error {
	err := k.Socket.Query(ctx, put, each)
	if err != unix.ENOENT {
		return err
	}
	family, err := LookupFamily(ctx, k.Socket)
	if err != nil {
		return err // keep the old number: the kernel answers a wrong one, but not 0
	}
	k.Family = family
	return k.Socket.Query(ctx, put, each)
}

// Services lists every service in the kernel. A service by mark has no key except for
// its family, see Service.
func (k *Conn) Services(ctx context.Context) ([]Service, error) {
	all := make([]Service, 0, k.lastCount)
	err := k.Statistics(ctx, func(s Service, _ reconcile.Traffic) { all = append(all, s) })
	if err != nil {
		return nil, fmt.Errorf("list the ipvs services: %w", err)
	}
	k.lastCount = len(all)
	return all, nil
}

// Statistics calls each for every service in the kernel, with its traffic, which lags by 2 s.
func (k *Conn) Statistics(ctx context.Context, each func(Service, reconcile.Traffic)) error {
	return k.Query(ctx, func(b []byte) []byte {
		return AppendCommand(b, k.Family, CmdGetService, unix.NLM_F_DUMP)
	}, func(_ uint16, data []byte) error {
		s, traffic, err := DecodeService(data)
		if err == nil {
			each(s, traffic)
		}
		return err
	})
}

// Service reads the service at key or, if mark isn't 0, the one with this mark and key's
// family. It returns nil if there is none.
func (k *Conn) Service(ctx context.Context, key vip.FrontendKey, mark uint32) (found *Service, traffic reconcile.Traffic, err error) {
	err = k.Query(ctx, func(b []byte) []byte {
		return AppendService(AppendCommand(b, k.Family, CmdGetService, 0), &Service{Key: key, Mark: mark}, false)
	}, func(_ uint16, data []byte) (err error) {
		found = &Service{}
		*found, traffic, err = DecodeService(data)
		if found.Mark != 0 {
			found.Key = key // the kernel doesn't store it
		}
		return err
	})
	if err == unix.ESRCH {
		return nil, traffic, nil
	}
	if err != nil {
		return nil, traffic, fmt.Errorf("read the ipvs service %s: %w", key, err)
	}
	return found, traffic, nil
}

// Destinations reads the destinations of a service, the newest first. They are valid until the
// next call. There is no error if the service doesn't exist.
func (k *Conn) Destinations(ctx context.Context, key vip.FrontendKey, mark uint32) ([]DestStatus, error) {
	if k.putRequest == nil {
		k.putRequest = func(b []byte) []byte {
			return AppendService(AppendCommand(b, k.Family, CmdGetDest, unix.NLM_F_DUMP), &k.listed, false)
		}
		k.onDest = func(_ uint16, data []byte) error {
			d, err := DecodeDest(data, k.listed.Key.Addr)
			k.dests = append(k.dests, d)
			return err
		}
	}
	k.dests, k.listed = k.dests[:0], Service{Key: key, Mark: mark}
	if err := k.Query(ctx, k.putRequest, k.onDest); err != nil {
		return nil, fmt.Errorf("list the destinations of %s: %w", key, err)
	}
	return k.dests, nil
}

// State reads one service with its destinations. It returns nil if there is none.
func (k *Conn) State(ctx context.Context, key vip.FrontendKey, mark uint32) (*State, error) {
	s, _, err := k.Service(ctx, key, mark)
	if s == nil || err != nil {
		return nil, err
	}
	return k.StateOf(ctx, s)
}

// StateOf reads the destinations of a service.
func (k *Conn) StateOf(ctx context.Context, s *Service) (*State, error) {
	dests, err := k.Destinations(ctx, s.Key, s.Mark)
	if err != nil {
		return nil, err
	}
	all := &State{Service: *s, Dests: make([]Dest, len(dests))}
	for i := range dests {
		all.Dests[len(dests)-1-i] = dests[i].Dest
	}
	if slices.IsSortedFunc(all.Dests, CompareDests) {
		return all, nil // as package ipvs adds them
	}
	all.Ages = make(map[netip.AddrPort]int, len(all.Dests))
	for i, d := range all.Dests {
		all.Ages[d.Addr] = i
	}
	slices.SortFunc(all.Dests, CompareDests)
	return all, nil
}
