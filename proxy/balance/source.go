package balance

import (
	"net/netip"
	"sync"
)

// sources has the open connections and sessions of each client of a frontend while it has a limit for them.
type sources struct {
	mu   sync.Mutex
	open map[netip.Addr]uint16
}

// enterSource counts the connection for its client, once and until End. It returns false if the client has as many as it may.
func (a *Attempt) enterSource() bool {
	if a.source.IsValid() {
		return true
	}
	most := a.f.backends.Load().spec.MaxConnectionsPerSource
	client := a.Client.Addr().Unmap().WithZone("")
	if most == 0 || a.f.isOwn(client) {
		return true
	}
	if client.Is6() {
		p, _ := client.Prefix(64) // no error: it has 128 bits
		client = p.Addr()
	}
	s := &a.f.sources
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[client] >= most {
		return false
	}
	if s.open == nil {
		s.open = make(map[netip.Addr]uint16)
	}
	s.open[client]++
	a.source = client
	return true
}

// leaveSource ends what enterSource has counted.
func (a *Attempt) leaveSource() {
	if !a.source.IsValid() {
		return
	}
	s := &a.f.sources
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[a.source]--; s.open[a.source] == 0 {
		delete(s.open, a.source)
	}
	a.source = netip.Addr{}
}
