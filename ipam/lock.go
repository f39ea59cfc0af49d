package ipam

import "time"

// ioLock is a lock that is held while a store is written. It is a channel and
// not a sync.Mutex because testing/synctest knows who waits for a channel, and
// lets the time of a slow store pass meanwhile.
type ioLock chan struct{}

func newIOLock() ioLock { return make(ioLock, 1) }

func (l ioLock) Lock() { l <- struct{}{} }

// LockWithin takes the lock, if it is to be had within that time.
func (l ioLock) LockWithin(d time.Duration) bool {
	patience := time.NewTimer(d)
	defer patience.Stop()
	select {
	case l <- struct{}{}:
		return true
	case <-patience.C:
		return false
	}
}

func (l ioLock) Unlock() { <-l }
