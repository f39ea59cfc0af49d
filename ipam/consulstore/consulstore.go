// Package consulstore keeps leases in Consul, for all hosts of a fleet.
//
// In come commits; each op becomes conditional writes to the fleet's tree: the
// lease, under its resource, in the folder "leases", and what each service that
// gains or loses it holds then, in the folder "holdings". The second is a fence:
// two hosts that give one service something at the same time meet there, and one of
// them loses, whatever either of them knew. Out come the changes of all hosts.
// What can't be read is a blocked resource: it is given to nobody, never written
// over, and stays with the services whose holdings name it. The package owns those two folders and nothing else.
package consulstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/leasetable"
	"github.com/ironvip/ironvip/vip"
)

// The folders that a tree must have for a Store.
const (
	leasesFolder   = "leases"   // by the text of their resources
	holdingsFolder = "holdings" // by "namespace/name"
)

// Folders returns the names of the folders that the store's tree must have.
func Folders() []string { return []string{leasesFolder, holdingsFolder} }

// version is that of what the store writes.
const version = 1

// holdings is what one service holds.
type holdings struct {
	Holds []ipam.Resource `json:"holds"`
}

// Store is an ipam.Store. Make one with New.
type Store struct {
	tree     *fleet.Tree
	entries  table.Reader[string, fleet.Entry] // all that is in the folder of leases, readable or not
	leases   *fleet.Collection[ipam.Lease]
	fences   table.Reader[string, fleet.Entry] // all that is in the folder of holdings
	holdings *fleet.Collection[holdings]

	mu        sync.Mutex
	feed      *table.Feed[string, fleet.Entry]
	fenceFeed *table.Feed[string, fleet.Entry]
	view      *leasetable.Table        // the leases as the feed has told them
	index     map[ipam.Resource]uint64 // which writing of each lease the view has
	named     naming
	odd       map[vip.ServiceKey]oddity
	chunk     int // operations in one transaction, as many as Consul manages in time
}

// New returns the store of the leases in a tree that has its Folders. It need
// not run yet.
func New(tree *fleet.Tree) *Store {
	return &Store{
		tree:     tree,
		entries:  tree.Folder(leasesFolder),
		leases:   fleet.NewCollection(tree, leasesFolder, version, checkLease),
		fences:   tree.Folder(holdingsFolder),
		holdings: fleet.NewCollection(tree, holdingsFolder, version, checkHoldings),
		view:     leasetable.NewTable(),
		index:    make(map[ipam.Resource]uint64),
		named:    newNaming(),
		odd:      make(map[vip.ServiceKey]oddity),
		chunk:    maxChunk,
	}
}

func checkLease(key string, l ipam.Lease) error {
	if want := keyOf(l.Resource); want != key {
		return fmt.Errorf("it is the lease of %s", want)
	}
	return nil
}

func checkHoldings(key string, h holdings) error {
	if namespace, name, ok := strings.Cut(key, "/"); !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("%q is not a service's namespace and name", key)
	}
	if len(h.Holds) == 0 {
		return fmt.Errorf("it holds nothing")
	}
	return nil
}

// keyOf is where a resource's lease is.
func keyOf(r ipam.Resource) string {
	text, _ := r.MarshalText() // fails on no resource
	return string(text)
}

func serviceKeyOf(k vip.ServiceKey) string { return k.Namespace + "/" + k.Name }

// Ready is closed once the leases have been read.
func (s *Store) Ready() <-chan struct{} { return s.entries.Ready() }

// Changes implements ipam.Store. It waits until the leases have been read.
func (s *Store) Changes(ctx context.Context, since ipam.Version) ([]ipam.LeaseChange, ipam.Version, error) {
	if err := s.await(ctx); err != nil {
		return nil, since, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, since, err
		}
		changed, fence := s.entries.Changed(), s.fences.Changed() // before looking
		changes, next, err := s.after(since)
		if err != nil || len(changes) > 0 || since == 0 {
			return changes, next, err
		}
		select {
		case <-ctx.Done():
			return nil, since, ctx.Err()
		case <-changed:
		case <-fence:
		}
	}
}

func (s *Store) await(ctx context.Context) error {
	for _, ready := range []<-chan struct{}{s.entries.Ready(), s.fences.Ready()} {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ready:
		}
	}
	return nil
}

func (s *Store) after(since ipam.Version) ([]ipam.LeaseChange, ipam.Version, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sync()
	return s.view.After(since)
}

// sync brings the view up to date with the tree. The caller holds mu.
func (s *Store) sync() {
	if s.feed == nil {
		s.feed, s.fenceFeed = s.entries.Watch(), s.fences.Watch()
	}
	follow(s.fenceFeed, s.lookFence) // first: they say whose the leases are that can't be read
	follow(s.feed, s.look)
}

func follow(feed *table.Feed[string, fleet.Entry], look func(key string)) {
	for {
		batch, _ := feed.TryNext()
		if len(batch) == 0 {
			return
		}
		for i := range batch {
			look(batch[i].Value.Key)
		}
	}
}

// lookFence takes over what is in the tree under the key of a service's
// holdings. What can't be read leaves it at what was read last.
func (s *Store) lookFence(key string) {
	if _, bad := s.holdings.Unreadable(key); bad {
		return
	}
	var k vip.ServiceKey
	k.Namespace, k.Name, _ = strings.Cut(key, "/")
	item, _ := s.holdings.Get(key)
	for _, r := range s.named.set(k, item.Value.Holds) {
		if l := s.view.Get(r); l != nil && l.State == ipam.Blocked {
			s.look(keyOf(r))
		}
	}
}

// look takes over what is in the tree under the key of a lease.
func (s *Store) look(key string) {
	var r ipam.Resource
	if r.UnmarshalText([]byte(key)) != nil {
		return // no resource's; the tree's problems have it
	}
	var now *ipam.Lease
	var index uint64
	problem, bad := s.leases.Unreadable(key) // first: from here on the collection has what the feed told
	if item, ok := s.leases.Get(key); ok {
		now, index = &item.Value, item.Index
	} else if bad {
		now = &ipam.Lease{Resource: r, State: ipam.Blocked, Reason: problem.Place + ": " + problem.Message, Holders: s.named.holders(r)}
	}
	switch old := s.view.Get(r); {
	case old == nil && now == nil:
	case old != nil && now != nil && old.Equal(*now):
	default:
		s.view.Set(r, now)
	}
	if now != nil {
		s.index[r] = index
	} else {
		delete(s.index, r)
	}
}

// held returns what the fence says that a service holds, and which writing of
// it that is; 0 for nothing.
func (s *Store) held(k vip.ServiceKey) (list []ipam.Resource, index uint64, err error) {
	key := serviceKeyOf(k)
	if item, ok := s.holdings.Get(key); ok {
		return item.Value.Holds, item.Index, nil
	}
	if p, bad := s.holdings.Unreadable(key); bad {
		return nil, 0, p
	}
	return nil, 0, nil
}

func sorted(list []ipam.Resource) []ipam.Resource {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b ipam.Resource) int { return strings.Compare(keyOf(a), keyOf(b)) })
	return list
}
