package api

import (
	"context"
	"sync"
)

// followed has one value for all callers that follow the same. A value exists, and what updates it runs,
// while somebody follows it. The zero value is ready. Its methods may be called concurrently.
type followed[K comparable, T any] struct {
	mu sync.Mutex
	of map[K]*followedValue[T]
}

type followedValue[T any] struct {
	value     T
	followers int
	end       context.CancelFunc
}

// follow returns the value of a key, which start makes for the first follower. The context of start ends
// when the last follower has called leave.
func (f *followed[K, T]) follow(key K, start func(context.Context) T) (value T, leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.of[key]
	if v == nil {
		ctx, end := context.WithCancel(context.Background())
		v = &followedValue[T]{value: start(ctx), end: end}
		if f.of == nil {
			f.of = make(map[K]*followedValue[T])
		}
		f.of[key] = v
	}
	v.followers++
	return v.value, sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if v.followers--; v.followers > 0 {
			return
		}
		v.end()
		delete(f.of, key)
	})
}

// len returns how many values there are.
func (f *followed[K, T]) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.of)
}

// newest is the newest value of a series. A reader that is late misses the values before it. Make it with
// newNewest. Its methods may be called concurrently.
type newest[T any] struct {
	mu      sync.Mutex
	value   T
	changed chan struct{}
}

func newNewest[T any]() *newest[T] { return &newest[T]{changed: make(chan struct{})} }

// set replaces the value.
func (n *newest[T]) set(value T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.value = value
	close(n.changed)
	n.changed = make(chan struct{})
}

// get returns the value, and a channel that is closed when there is another one.
func (n *newest[T]) get() (value T, changed <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.value, n.changed
}
