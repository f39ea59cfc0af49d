// Package memstore keeps leases in memory, for tests and previews. Apart from durability it does what
// ipam.Store promises, and it refuses what a real store would refuse.
package memstore

import (
	"sync"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/leasetable"
)

// Store is an ipam.Store. Make one with New.
type Store struct {
	*leasetable.Store

	mu      sync.Mutex
	fault   error
	commits int
}

// New returns an empty store.
func New() *Store {
	s := &Store{}
	s.Store = leasetable.New(nil, s.persist)
	return s
}

// Fail makes every later commit fail for that reason, as a full disk would; nil ends this.
func (s *Store) Fail(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = reason
}

// Commits returns the number of commits that changed something. Each would have been an fsync.
func (s *Store) Commits() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

func (s *Store) persist(map[ipam.Resource]*ipam.Lease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		s.commits++
	}
	return s.fault
}
