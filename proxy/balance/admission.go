package balance

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// The descriptors of a client: its socket and the one to its backend; a session has only the
// second.
const (
	ClientFiles     = 1
	BackendFiles    = 1
	ConnectionFiles = ClientFiles + BackendFiles
	SessionFiles    = BackendFiles
)

// Capacity counts the descriptors of this host's connections and sessions against a bound. Taking
// and giving cost O(1) without a lock.
type Capacity struct {
	files     int64 // for all
	listeners atomic.Int64
	used      atomic.Int64 // by clients
	tenants   atomic.Int64 // services with frontends

	Connections, Sessions atomic.Int64 // open
}

// Take takes descriptors for a client of s, or returns the reason to refuse the client.
//
// A service may hold at most three times as many descriptors as are then left (dynamic thresholds,
// as in the shared buffers of switches). This never refuses while a quarter is left, so any service
// can use three quarters. In the last quarter, it refuses those that hold the most and admits the
// others: a single service leaves a quarter, two that take all they get leave a seventh, ten leave
// 1/31. A service is alone if no other one has a frontend; it may use everything.
func (c *Capacity) Take(s *Service, files int64) Reason {
	left := c.most() - c.used.Add(files)
	held := s.files.Add(files)
	switch {
	case left < 0:
		c.Give(s, files)
		return overCapacity
	case held > 3*left && held > files && c.tenants.Load() > 1:
		c.Give(s, files)
		return overReserve
	}
	return Admitted
}

// Give gives back what Take has taken.
func (c *Capacity) Give(s *Service, files int64) {
	s.files.Add(-files)
	c.used.Add(-files)
}

// most returns how many descriptors clients may use.
func (c *Capacity) most() int64 { return c.files - c.listeners.Load() }

// AddListener reserves the descriptor of a listening socket. It fails like an exhausted process if listeners have used
// three quarters of the descriptors.
func (c *Capacity) AddListener() error {
	if c.listeners.Add(1) > max(c.files/4*3, 1) {
		c.listeners.Add(-1)
		return unix.EMFILE
	}
	return nil
}

// RemoveListener reverts AddListener.
func (c *Capacity) RemoveListener() { c.listeners.Add(-1) }

// Admit takes the descriptors for a client's new connection or session. The caller gives them back
// to the capacity. If the client is refused, Admit counts that and returns nil. The source ranges
// are checked later if the client is announced: its address is in a PROXY header.
func (f *Frontend) Admit(client netip.Addr, announced bool, files int64) *Service {
	b := f.backends.Load()
	why := Admitted
	switch {
	case !announced && !f.Accepts(client):
		why = OutsideRanges
	case b.count == 0:
		why = noBackend
	default:
		why = f.balancer.Capacity.Take(b.service, files)
	}
	if why != Admitted {
		f.balancer.Refuse(b.service, why)
		return nil
	}
	return b.service
}

// Accepts reports whether the source ranges allow a client. Without ranges, all clients are accepted. Clients
// on this host always are. It costs O(ranges).
func (f *Frontend) Accepts(client netip.Addr) bool {
	ranges := f.backends.Load().spec.SourceRanges
	client = client.Unmap().WithZone("")
	return len(ranges) == 0 || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(client) }) || f.isOwn(client)
}

// isOwn reports whether a client is on this host: the kernel gives it the VIP itself as its source address unless it requests
// another.
func (f *Frontend) isOwn(client netip.Addr) bool {
	return client == f.Key.Addr || f.balancer.own(client)
}

// Usage returns the state of the descriptors for traffic. It costs O(1) if capacity isn't short,
// else O(services).
func (b *Balancer) Usage() Usage {
	c := &b.Capacity
	out := Usage{Files: c.most(), Used: c.used.Load(), Connections: c.Connections.Load(), Sessions: c.Sessions.Load()}
	start := b.Now() - int64(recent)
	switch {
	case b.refused.since(start, overCapacity, NoDescriptor):
		out.Exhausted = true
	case b.refused.since(start, overReserve):
		out.Reserved = true
	case out.Used < out.Files/4*3:
		return out
	}
	out.Refused = b.refused.count(overCapacity, overReserve, NoDescriptor)
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, s := range b.services {
		if n := s.files.Load(); n > out.LargestFiles {
			out.Largest, out.LargestFiles = key, n
		}
	}
	return out
}

// Usage is how much of the descriptors for traffic is used. A TCP connection uses two, a UDP
// session one.
type Usage struct {
	Files, Used           int64
	Connections, Sessions int64
	Exhausted             bool // in the last minute, clients were refused that any service may serve
	Reserved              bool // the same, but only clients of the largest services

	// The following are set if capacity is short.
	Refused      uint64         // clients refused for lack of capacity since the start
	Largest      vip.ServiceKey // the service that holds the most
	LargestFiles int64
}

// Short reports whether less than a quarter is left, or clients were refused in the last minute.
func (u Usage) Short() bool { return u.Largest != vip.ServiceKey{} }

// String returns "12 connections and 3 sessions use 27 of 1888 descriptors".
func (u Usage) String() string {
	return fmt.Sprintf("%d connections and %d sessions use %d of %d descriptors", u.Connections, u.Sessions, u.Used, u.Files)
}
