package link

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// Follower follows the host's interfaces. Its methods may be called concurrently.
type Follower struct {
	publish func(State)
	events  *netlink.Events

	mu     sync.Mutex // guards all below; publish is called with it
	conn   *netlink.Conn
	filter Filter
	record *record
	host   *host
	last   State
}

// Follow opens sockets in the network namespace of the calling thread, reads the present state and
// publishes it. Publish is called in order for each state that differs from the one before, and must
// not block or call methods of the Follower. Record is the file that remembers former settings of
// interfaces; "": only this Follower does.
func Follow(ctx context.Context, filter Filter, record string, publish func(State)) (*Follower, error) {
	events, err := netlink.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, fmt.Errorf("follow interfaces: %w", err)
	}
	f := &Follower{publish: publish, events: events, filter: filter, record: openRecord(record)}
	if f.conn, err = netlink.Dial(unix.NETLINK_ROUTE, &netlink.Counters{}); err == nil {
		err = f.read(ctx)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read interfaces: %w", err)
	}
	f.restoreOthers()
	f.last = f.host.state(filter)
	publish(f.last)
	return f, nil
}

// Close closes the sockets and thereby ends Run.
func (f *Follower) Close() {
	f.events.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil {
		f.conn.Close()
	}
}

// Run follows changes until Close or an error. An error means that the follower knows no later
// changes.
func (f *Follower) Run(ctx context.Context) error {
	for {
		e, err := f.events.Next()
		switch {
		case errors.Is(err, netlink.ErrLost):
			f.mu.Lock()
			err = f.read(ctx)
			f.update()
			f.mu.Unlock()
		case err == nil:
			f.mu.Lock()
			if f.host.apply(f.filter.Device, e.Type, e.Data) {
				f.update()
			}
			f.mu.Unlock()
		}
		if err != nil {
			return fmt.Errorf("follow interfaces: %w", err)
		}
	}
}

// SetFilter changes what the follower looks for. A change of the device takes effect for addresses
// that are added later.
func (f *Follower) SetFilter(filter Filter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.filter = filter
	f.update()
}

// update publishes the state if it changed. The caller holds mu.
func (f *Follower) update() {
	f.restoreOthers()
	if s := f.host.state(f.filter); !s.equal(f.last) {
		f.last = s
		f.publish(s)
	}
}

// read reads everything. The caller holds mu or has the only reference.
func (f *Follower) read(ctx context.Context) error {
	for try := 0; ; try++ {
		h := newHost()
		err := f.dump(ctx, h, unix.RTM_GETLINK, ifinfoSize)
		if err == nil {
			err = f.dump(ctx, h, unix.RTM_GETADDR, ifaddrSize)
		}
		if errors.Is(err, netlink.ErrInterrupted) && try < 10 {
			continue
		}
		if err == nil {
			f.host = h
		}
		return err
	}
}

func (f *Follower) dump(ctx context.Context, h *host, typ uint16, header int) error {
	return f.conn.Query(ctx, func(b []byte) []byte {
		return append(netlink.BeginMessage(b, typ, unix.NLM_F_DUMP), make([]byte, header)...)
	}, func(typ uint16, data []byte) error {
		h.apply(f.filter.Device, typ, data)
		return nil
	})
}
