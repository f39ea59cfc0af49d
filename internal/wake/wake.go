// Package wake wakes goroutines that wait for a change: the one that reads a Signal, or all that wait for a Broadcast.
//
// Both say that something has changed, and not what: the goroutine that wakes looks. The package
// starts nothing.
package wake

import (
	"context"
	"sync"
)

// Signal wakes its reader. Signals that the reader has not received yet are one. Make one with New; a nil Signal has no
// reader.
type Signal chan struct{}

// New returns a Signal.
func New() Signal { return make(Signal, 1) }

// Set wakes the reader, or lets its next receive return at once. It may be called by any goroutine, and never blocks.
func (s Signal) Set() {
	select {
	case s <- struct{}{}:
	default: // the last one was not received yet
	}
}

// Broadcast wakes all that wait for the next change. The zero value is ready. Its methods may be called by any goroutine,
// with any lock held.
type Broadcast struct {
	mu   sync.Mutex
	next chan struct{} // nil while nobody waits
}

// Next returns the channel that the next Send closes. A reader calls Next before it looks at what can change.
func (b *Broadcast) Next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

// Send wakes those that wait. It costs nothing if there are none.
func (b *Broadcast) Send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}

// Wait returns when each of the channels was closed, or with the error of a context that ends earlier.
func Wait(ctx context.Context, closed ...<-chan struct{}) error {
	for _, c := range closed {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c:
		}
	}
	return ctx.Err()
}
