package rest

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/ironvip/ironvip/vip"
)

// nameLocks serialises writers by service name, so that a slow disk delays
// writers of one service only and those of others share its fsync.
type nameLocks struct {
	mu   sync.Mutex
	held map[vip.ServiceKey]*nameLock
}

type nameLock struct {
	free  chan struct{} // holds a token while nobody has the lock
	users int           // holders and waiters
}

// lock waits until the caller has every one of keys, or the context ends. Keys
// are sorted in place, the order that keeps two callers from waiting for each
// other; none may come twice.
func (l *nameLocks) lock(ctx context.Context, keys []vip.ServiceKey) (unlock func(), err error) {
	slices.SortFunc(keys, compareKeys)
	for i, k := range keys {
		n := l.join(k)
		select {
		case <-n.free:
		case <-ctx.Done():
			l.leave(k, n)
			l.release(keys[:i])
			return nil, ctx.Err()
		}
	}
	return func() { l.release(keys) }, nil
}

func (l *nameLocks) join(k vip.ServiceKey) *nameLock {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.held[k]
	if n == nil {
		n = &nameLock{free: make(chan struct{}, 1)}
		n.free <- struct{}{}
		if l.held == nil {
			l.held = map[vip.ServiceKey]*nameLock{}
		}
		l.held[k] = n
	}
	n.users++
	return n
}

func (l *nameLocks) leave(k vip.ServiceKey, n *nameLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.users--; n.users == 0 {
		delete(l.held, k)
	}
}

func (l *nameLocks) release(keys []vip.ServiceKey) {
	for _, k := range keys {
		l.mu.Lock()
		n := l.held[k]
		l.mu.Unlock()
		n.free <- struct{}{}
		l.leave(k, n)
	}
}

func compareKeys(a, b vip.ServiceKey) int {
	if c := cmp.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return cmp.Compare(a.Name, b.Name)
}
