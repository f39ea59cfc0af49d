package api

import (
	"context"
	"errors"
	"sync"
	"time"
)

// recent is what the last read returned, for callers that read the same at the same time. It keeps nothing
// for longer than the age that the reader accepts. The zero value is ready. Its methods may be called
// concurrently.
type recent[T any] struct {
	mu    sync.Mutex
	at    time.Time // of the last read; zero: there is none
	value T
	err   error
	end   *time.Timer // of the value
}

// get returns what was read at most age ago, and when. Callers share the value, so nobody may change it.
func (r *recent[T]) get(ctx context.Context, age time.Duration, read func(context.Context) (T, error)) (value T, at time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.at) >= age {
		now := time.Now()
		value, err := read(ctx)
		if errors.Is(ctx.Err(), context.Canceled) { // that says nothing about what is read
			return value, now, err
		}
		r.at, r.value, r.err = now, value, err
		if r.end != nil {
			r.end.Stop()
		}
		r.end = time.AfterFunc(age, func() { r.forget(now) })
	}
	return r.value, r.at, r.err
}

// forget drops what was read at a time.
func (r *recent[T]) forget(at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.Equal(at) {
		return // by a later read
	}
	var none T
	r.at, r.value, r.err, r.end = time.Time{}, none, nil, nil
}

// isEmpty reports whether nothing is kept.
func (r *recent[T]) isEmpty() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at.IsZero()
}
