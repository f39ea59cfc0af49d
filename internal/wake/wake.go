// Package wake wakes the one goroutine that reads a channel.
//
// A Signal says that something has changed, and not what: its reader looks. Signals that the reader has not received
// yet are one. The package starts nothing and never waits.
package wake

// Signal wakes its reader. Make one with New; a nil Signal has no reader.
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
