package ipam

import (
	"sync"
	"time"

	"github.com/ironvip/ironvip/vip"
)

// writeLock is the lock of the one who writes to the store. It is a channel and not a sync.Mutex
// because testing/synctest then lets time pass while others wait for it during a slow commit.
type writeLock chan struct{}

func newWriteLock() writeLock { return make(writeLock, 1) }

func (l writeLock) Lock() { l <- struct{}{} }

// LockWithin takes the lock unless that takes longer than d.
func (l writeLock) LockWithin(d time.Duration) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case l <- struct{}{}:
		return true
	case <-late.C:
		return false
	}
}

func (l writeLock) Unlock() { <-l }

// broadcast is a channel that is closed to wake every reader, and then replaced. It is guarded by
// Allocator.mu.
type broadcast struct{ c chan struct{} }

func newBroadcast() broadcast { return broadcast{make(chan struct{})} }

func (b *broadcast) wait(mu *sync.RWMutex) <-chan struct{} {
	mu.RLock()
	defer mu.RUnlock()
	return b.c
}

func (b *broadcast) send() {
	close(b.c)
	b.c = make(chan struct{})
}

// recalls are services to call Assign for again.
type recalls struct {
	keys []vip.ServiceKey
	set  map[vip.ServiceKey]struct{}
	some chan struct{} // closed while there are keys
}

func newRecalls() recalls {
	return recalls{set: make(map[vip.ServiceKey]struct{}), some: make(chan struct{})}
}

func (r *recalls) add(k vip.ServiceKey) {
	if _, there := r.set[k]; there {
		return
	}
	if len(r.keys) == 0 {
		close(r.some)
	}
	r.set[k] = struct{}{}
	r.keys = append(r.keys, k)
}

func (r *recalls) take() []vip.ServiceKey {
	keys := r.keys
	if len(keys) > 0 {
		*r = newRecalls()
	}
	return keys
}
