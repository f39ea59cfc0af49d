package request

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Recent is what the last read returned, for callers that read the same at the same time. The zero value
// is ready. Its methods may be called concurrently.
type Recent[T any] struct {
	mu    sync.Mutex
	at    time.Time // of the last read; zero: there is none
	value T
	err   error
}

// get returns what was read at most age ago, and when. Callers share the value, so nobody may change it.
func (r *Recent[T]) Get(ctx context.Context, age time.Duration, read func(context.Context) (T, error)) (value T, at time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) >= age {
		now := time.Now()
		value, err := read(ctx)
		if errors.Is(ctx.Err(), context.Canceled) { // that says nothing about what is read
			return value, now, err
		}
		r.at, r.value, r.err = now, value, err
	}
	return r.value, r.at, r.err
}
