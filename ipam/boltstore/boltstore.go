// Package boltstore keeps leases in the agent's state file, for one host.
//
// A commit is one transaction and one fsync of the file, however many leases it changes. New reads and
// checks every lease. One that can't be read is an error, because its address could otherwise be
// allocated twice. The package owns the bucket "leases" of the state file and nothing else.
package boltstore

import (
	"fmt"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/leasetable"
)

// bucketName is the bucket of the leases. Keys are the text of their resources.
const bucketName = "leases"

// Store is an ipam.Store. Make one with New.
type Store struct{ *leasetable.Store }

// bucket is the part of store.Bucket that a Store uses.
type bucket interface {
	All() (map[string]ipam.Lease, error)
	Batch(fill func(*store.Tx[ipam.Lease])) error
}

// New returns the store of the leases in db.
func New(db *store.DB) (*Store, error) { return open(store.NewBucket[ipam.Lease](db, bucketName)) }

func open(b bucket) (*Store, error) {
	all, err := b.All()
	if err != nil {
		return nil, fmt.Errorf("read leases: %w", err)
	}
	leases := make(map[ipam.Resource]ipam.Lease, len(all))
	for key, lease := range all {
		if name, _ := lease.Resource.MarshalText(); string(name) != key {
			return nil, fmt.Errorf("read leases: key %q has the lease of %s", key, name)
		}
		leases[lease.Resource] = lease
	}
	return &Store{leasetable.New(leases, func(changes map[ipam.Resource]*ipam.Lease) error { return persist(b, changes) })}, nil
}

func persist(b bucket, changes map[ipam.Resource]*ipam.Lease) error {
	return b.Batch(func(tx *store.Tx[ipam.Lease]) {
		for r, lease := range changes {
			key, _ := r.MarshalText() // fails on no resource
			if lease == nil {
				tx.Delete(string(key))
			} else {
				tx.Put(string(key), *lease)
			}
		}
	})
}
