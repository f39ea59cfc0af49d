package registry

import (
	"context"
	"slices"
	"sync"
)

// Locks serializes writers by key. A slow disk then delays writers of one key
// only, and writers of other keys share its fsync. The zero value has no locks.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	free  chan struct{} // holds a token while nobody has the lock
	users int           // holders and waiters
}

// Lock waits until the caller has every key, or the context ends. It sorts keys
// in place, so that two callers never wait for each other. No key may occur twice.
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

// Users returns how many callers hold the lock of a key or wait for it.
func (l *Locks) Users(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.held[key]; n != nil {
		return n.users
	}
	return 0
}

// Len returns how many keys are locked.
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
