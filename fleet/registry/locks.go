package registry

import (
	"context"
	"slices"
	"sync"
)

// Locks serializes writers by key. On a slow disk, only writers of the same key wait for each
// other. Writers of different keys share an fsync. The zero value has no locks.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	free  chan struct{} // holds a token while the lock is free
	users int           // holders and waiters
}

// Lock waits until the caller has the locks of all keys, or the context ends. It sorts keys in
// place, which prevents deadlocks. Keys must be unique.
func (l *Locks) Lock(ctx context.Context, keys ...string) (unlock func(), err error) {
	slices.Sort(keys)
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

// Users returns the number of callers that hold the lock of a key or wait for it.
func (l *Locks) Users(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.held[key]; n != nil {
		return n.users
	}
	return 0
}

// Len returns the number of locked keys.
func (l *Locks) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.held)
}

func (l *Locks) join(k string) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.held[k]
	if n == nil {
		n = &lock{free: make(chan struct{}, 1)}
		n.free <- struct{}{}
		if l.held == nil {
			l.held = map[string]*lock{}
		}
		l.held[k] = n
	}
	n.users++
	return n
}

func (l *Locks) leave(k string, n *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.users--; n.users == 0 {
		delete(l.held, k)
	}
}

func (l *Locks) release(keys []string) {
	for _, k := range keys {
		l.mu.Lock()
		n := l.held[k]
		l.mu.Unlock()
		n.free <- struct{}{}
		l.leave(k, n)
	}
}
