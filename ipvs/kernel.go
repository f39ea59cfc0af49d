package ipvs

import (
	"context"
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/vip"
	"golang.org/x/sys/unix"
)

// kernel speaks IPVS over one socket. It is not safe for concurrent use.
type kernel struct {
	conn   *conn
	family uint16
}

// openKernel connects to IPVS in the calling thread's network namespace.
func openKernel(ctx context.Context, stats *counters) (*kernel, error) {
	c, err := dial(unix.NETLINK_GENERIC, stats)
	if err != nil {
		return nil, err
	}
	family, err := lookupFamily(ctx, c)
	if err != nil {
		c.close()
		return nil, err
	}
	return &kernel{conn: c, family: family}, nil
}

func (k *kernel) close() { k.conn.close() }

// run carries out ops in order and tells done the outcome of each.
func (k *kernel) run(ctx context.Context, ops []op, done func(i int, err error)) error {
	return k.conn.write(ctx, len(ops), func(b []byte, i int) []byte {
		return ops[i].append(b, k.family)
	}, done)
}

// query asks one question. Where the family's number is gone it is looked up
// anew: the module may have been taken out and put back.
func (k *kernel) query(ctx context.Context, put func(b []byte) []byte, each func(typ uint16, data []byte) error) error {
	err := k.conn.query(ctx, put, each)
	if err != unix.ENOENT {
		return err
	}
	if k.family, err = lookupFamily(ctx, k.conn); err != nil {
		return err
	}
	return k.conn.query(ctx, put, each)
}

// services lists every service in the kernel, ours or not.
func (k *kernel) services(ctx context.Context) ([]service, error) {
	var all []service
	err := k.query(ctx, func(b []byte) []byte {
		return appendCommand(b, k.family, cmdGetService, unix.NLM_F_DUMP)
	}, func(_ uint16, data []byte) error {
		s, err := decodeService(data)
		all = append(all, s)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the ipvs services: %w", err)
	}
	return all, nil
}

// service reads one service; nil when there is none.
func (k *kernel) service(ctx context.Context, key vip.FrontendKey) (*service, error) {
	var found *service
	err := k.query(ctx, func(b []byte) []byte {
		return appendService(appendCommand(b, k.family, cmdGetService, 0), &service{key: key}, false)
	}, func(_ uint16, data []byte) error {
		s, err := decodeService(data)
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

// destinations reads one service's destinations, in no order; none when there
// is no such service.
func (k *kernel) destinations(ctx context.Context, key vip.FrontendKey, each func(destStatus)) error {
	err := k.query(ctx, func(b []byte) []byte {
		return appendService(appendCommand(b, k.family, cmdGetDest, unix.NLM_F_DUMP), &service{key: key}, false)
	}, func(_ uint16, data []byte) error {
		d, err := decodeDest(data, key.Addr)
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

// dests reads one service's destinations in the order of plans.
func (k *kernel) dests(ctx context.Context, key vip.FrontendKey) ([]dest, error) {
	var all []dest
	err := k.destinations(ctx, key, func(d destStatus) { all = append(all, d.dest) })
	slices.SortFunc(all, compareDests)
	return all, err
}

// state reads one service with its destinations; nil when there is none.
func (k *kernel) state(ctx context.Context, key vip.FrontendKey) (*state, error) {
	s, err := k.service(ctx, key)
	if s == nil || err != nil {
		return nil, err
	}
	d, err := k.dests(ctx, key)
	if err != nil {
		return nil, err
	}
	return &state{service: *s, dests: d}, nil
}
