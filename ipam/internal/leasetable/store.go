// Package leasetable has what lease stores share: the leases in memory, the checks of a
// commit, and the feed of changes.
//
//   - store.go: Store, an ipam.Store for a store with one writer; it calls a persist function
//   - table.go: Table, the leases with their holders, and the feeds of their changes
//   - trial.go: Trial, ops tried on a Table without changing it
//
// boltstore and memstore embed a Store. fleetstore, which other processes write too, uses
// Table and Trial. The package does no I/O of its own.
package leasetable

import (
	"context"
	"fmt"
	"sync"

	"github.com/ironvip/ironvip/ipam"
)

// Persist makes changes durable, all or none; a nil lease is a removal. It must not change
// the leases or keep the map.
type Persist func(changes map[ipam.Resource]*ipam.Lease) error

// Store implements ipam.Store for a store with one writer. Make one with New.
type Store struct {
	persist Persist

	mu    sync.Mutex
	table *Table
}

// New returns a store that has the leases and calls persist before each change is visible.
func New(leases map[ipam.Resource]ipam.Lease, persist Persist) *Store {
	s := &Store{persist: persist, table: NewTable()}
	for r, l := range leases {
		s.table.Set(r, &l)
	}
	return s
}

// Commit implements ipam.Store.
func (s *Store) Commit(ctx context.Context, ops []ipam.Op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	trial := NewTrial(s.table, len(ops))
	for i := range ops {
		ops[i].Err = trial.Try(&ops[i])
	}
	if len(trial.Changes) == 0 {
		return nil
	}
	if err := s.persist(trial.Changes); err != nil {
		for i := range ops {
			ops[i].Err = nil
		}
		return fmt.Errorf("%w: %w", ipam.ErrUnavailable, err)
	}
	for r, l := range trial.Changes {
		s.table.Set(r, l)
	}
	return nil
}

// Watch implements ipam.Store.
func (s *Store) Watch(ctx context.Context) (ipam.Feed, error) { return s.table.Watch(), ctx.Err() }
