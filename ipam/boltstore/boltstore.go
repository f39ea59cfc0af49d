// Package boltstore keeps leases in the agent's state file, for one host.
//
// In come commits; each is one transaction and one fsync of the file, whatever
// number of leases it changes. On start every lease is read and checked: one
// that can't be read is an error, for an address must not be given out twice
// because its lease was damaged. The file is the store.DB's; this package owns
// the bucket "leases" in it.
package boltstore

import (
	"fmt"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/leasetable"
)

// bucketName is where the leases are, under the text of their resources.
const bucketName = "leases"

// Store is an ipam.Store. Make one with New.
type Store struct{ *leasetable.Store }

// bucket is what a Store needs of the state file.
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
			return nil, fmt.Errorf("read leases: the lease under %q is that of %s", key, name)
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
