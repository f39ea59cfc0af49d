// Package fleetstore keeps leases in the store, for all hosts of a fleet.
//
// Its inputs are commits. Each op becomes conditional writes to the fleet's tree: the lease, under
// its resource, in the folder "leases", and the holdings of each service that gains or loses it, in
// the folder "holdings". The holdings are a fence: if two hosts give one service something at the
// same time, both write that key and one of them loses. Its output is the changes of all hosts. A
// lease that can't be read is a blocked resource: nobody gets it, it is never overwritten, and it
// stays with the services whose holdings name it. The package owns those two folders and nothing
// else.
//
//   - fleetstore.go: Store, its view of the tree, which services' holdings name a resource, Watch
//   - plan.go: from ops to batches of the tree
//   - chunk.go: how much is written at once
//   - commit.go: Commit
//   - register.go: Registrar, a registration and its leases in one transaction
package fleetstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/leasetable"
	"github.com/ironvip/ironvip/vip"
)

// The folders of the tree.
const (
	leasesFolder   = "leases"   // by the text of their resources
	holdingsFolder = "holdings" // by "namespace/name"
)

// Folders returns the names of the folders that a Store's tree must have.
func Folders() []string { return []string{leasesFolder, holdingsFolder} }

// version is the version of the stored values.
const version = 1

// holdings is what one service holds.
type holdings struct {
	Holds []ipam.Resource `json:"holds"`
}

// Store is an ipam.Store. Make one with New.
type Store struct {
	tree     *fleet.Tree
	entries  table.Reader[string, fleet.Entry] // the folder of leases, readable or not
	leases   *fleet.Collection[ipam.Lease]
	fences   table.Reader[string, fleet.Entry] // the folder of holdings, readable or not
	holdings *fleet.Collection[holdings]

	changes wake.Broadcast // of entries and fences

	mu        sync.Mutex
	feed      *table.Feed[string, fleet.Entry]
	fenceFeed *table.Feed[string, fleet.Entry]
	view      *leasetable.Table        // the leases that the feed has reported
	index     map[ipam.Resource]uint64 // the version of each lease in the view, for compare-and-set
	named     holderIndex
	mismatch  map[vip.ServiceKey]mismatch
	chunk     int // operations that the store manages in time
}

// New returns the store of the leases in a tree that has its Folders. The tree need not run yet.
func New(tree *fleet.Tree) *Store {
	s := &Store{
		tree:     tree,
		entries:  tree.Folder(leasesFolder),
		leases:   fleet.NewCollection(tree, leasesFolder, version, checkLease),
		fences:   tree.Folder(holdingsFolder),
		holdings: fleet.NewCollection(tree, holdingsFolder, version, checkHoldings),
		view:     leasetable.NewTable(),
		index:    make(map[ipam.Resource]uint64),
		named:    newHolderIndex(),
		mismatch: make(map[vip.ServiceKey]mismatch),
		chunk:    maxChunk,
	}
	ring := func(_, _ *fleet.Entry) { s.changes.Send() }
	s.entries.Track(ring)
	s.fences.Track(ring)
	return s
}

func checkLease(key string, l ipam.Lease) error {
	if want := keyOf(l.Resource); want != key {
		return fmt.Errorf("the value is the lease of %s", want)
	}
	return nil
}

func checkHoldings(key string, h holdings) error {
	if namespace, name, ok := strings.Cut(key, "/"); !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("%q is not a namespace and a service name", key)
	}
	if len(h.Holds) == 0 {
		return errors.New("no resources")
	}
	return nil
}

// keyOf returns the key of a resource's lease.
func keyOf(r ipam.Resource) string {
	text, _ := r.MarshalText() // fails on no resource
	return string(text)
}

func serviceKeyOf(k vip.ServiceKey) string { return k.Namespace + "/" + k.Name }

// Watch implements ipam.Store.
func (s *Store) Watch(ctx context.Context) (ipam.Feed, error) {
	if err := s.await(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return feed{s.view.Watch(), s}, nil
}

// feed is a feed of the view that has the tree's changes so far.
type feed struct {
	ipam.Feed
	store *Store
}

// TryNext implements ipam.Feed.
func (f feed) TryNext() ([]ipam.LeaseChange, <-chan struct{}) {
	s := f.store
	s.mu.Lock()
	defer s.mu.Unlock()
	more := s.changes.Next() // before looking
	s.sync()
	changes, _ := f.Feed.TryNext()
	return changes, more
}

func (s *Store) await(ctx context.Context) error {
	return wake.Wait(ctx, s.entries.Ready(), s.fences.Ready())
}

// sync applies the tree's changes to the view. The caller holds mu.
func (s *Store) sync() {
	if s.feed == nil {
		s.feed, s.fenceFeed = s.entries.Watch(), s.fences.Watch()
	}
	follow(s.fenceFeed, s.readHoldings) // first: they name the holders of leases that can't be read
	follow(s.feed, s.readLease)
}

func follow(feed *table.Feed[string, fleet.Entry], read func(key string)) {
	for {
		batch, _ := feed.TryNext()
		if len(batch) == 0 {
			return
		}
		for i := range batch {
			read(batch[i].Value.Key)
		}
	}
}

// readHoldings updates the view with the holdings under a key of the tree. Holdings that can't be
// read change nothing.
func (s *Store) readHoldings(key string) {
	if _, bad := s.holdings.Unreadable(key); bad {
		return
	}
	var k vip.ServiceKey
	k.Namespace, k.Name, _ = strings.Cut(key, "/")
	item, _ := s.holdings.Get(key)
	for _, r := range s.named.set(k, item.Value.Holds) {
		if l := s.view.Get(r); l != nil && l.State == ipam.Blocked {
			s.readLease(keyOf(r))
		}
	}
}

// readLease updates the view with the lease under a key of the tree.
func (s *Store) readLease(key string) {
	var r ipam.Resource
	if r.UnmarshalText([]byte(key)) != nil {
		return // no lease; it is among the tree's problems
	}
	var now *ipam.Lease
	var index uint64
	problem, bad := s.leases.Unreadable(key) // before Get: from here on the collection has what the feed reported
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

// held returns a service's holdings and their version, which is 0 if there are none.
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

// holderIndex finds the services whose holdings name a resource. A change costs O(what the service
// holds).
type holderIndex struct {
	holds map[vip.ServiceKey][]ipam.Resource
	by    map[ipam.Resource][]vip.ServiceKey
}

func newHolderIndex() holderIndex {
	return holderIndex{make(map[vip.ServiceKey][]ipam.Resource), make(map[ipam.Resource][]vip.ServiceKey)}
}

// set replaces the holdings of a service, and returns the resources that it gained or lost.
func (n *holderIndex) set(k vip.ServiceKey, now []ipam.Resource) (changed []ipam.Resource) {
	was := n.holds[k]
	for _, r := range was {
		if slices.Contains(now, r) {
			continue
		}
		changed = append(changed, r)
		list := slices.DeleteFunc(n.by[r], func(other vip.ServiceKey) bool { return other == k })
		if n.by[r] = list; len(list) == 0 {
			delete(n.by, r)
		}
	}
	for _, r := range now {
		if !slices.Contains(was, r) && !slices.Contains(changed, r) {
			changed = append(changed, r)
			n.by[r] = append(n.by[r], k)
		}
	}
	if n.holds[k] = now; len(now) == 0 {
		delete(n.holds, k)
	}
	return changed
}

// holders returns the services whose holdings name the resource, sorted.
func (n *holderIndex) holders(r ipam.Resource) (out []ipam.Holder) {
	for _, k := range n.by[r] {
		out = append(out, ipam.Holder{Service: k})
	}
	slices.SortFunc(out, func(a, b ipam.Holder) int { return strings.Compare(serviceKeyOf(a.Service), serviceKeyOf(b.Service)) })
	return out
}
