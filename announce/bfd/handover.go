package bfd

import (
	"time"
)

// Kept is a session that is up, between two processes.
type Kept struct {
	Key
	Mine, Theirs uint32 // discriminators
	Port         uint16 // the source port of our packets
	Since        time.Time

	// The peer's latest values.
	Multiplier   uint8
	MinTX, MinRX time.Duration
	Demand       bool
}

// HandOver ends the sessions that are up without a word to their peers, which wait for the next process for about the given time.
// Call it before the end of Run, and no method of the Speaker after it.
func (s *Speaker) HandOver(wait time.Duration) (all []Kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.sessions {
		if e.state != Up || e.out == nil {
			continue
		}
		all = append(all, Kept{Key: e.Key, Mine: e.mine, Theirs: e.theirs, Port: e.out.port(), Since: e.since, Multiplier: e.multiplier, MinTX: e.minTX, MinRX: e.minRX, Demand: e.demand})
		// The peer's detection time is the multiplier of the latest packet times the interval (RFC 5880, 6.8.4).
		e.Settings.Multiplier = uint8(min(255, max(int(wait/max(e.sendAt, e.minRX)), int(e.Settings.Multiplier))))
		b := e.packet(false).append(nil)
		for range 2 { // one may be lost
			e.out.send(b)
		}
		e.out.Close()
		e.out = nil // so that remove sends nothing
		s.remove(e)
	}
	return all
}

// keep goes on with the session of an earlier process. The caller holds s.mu.
func (s *Speaker) keep(now time.Time, e *entry, k Kept) {
	e.state, e.remote, e.reason, e.since = Up, Up, "", k.Since
	e.theirs, e.multiplier, e.minTX, e.minRX, e.demand = k.Theirs, k.Multiplier, k.MinTX, k.MinRX, k.Demand
	e.poll = true // the settings may have changed
	s.queue.Set(timerKey{e.mine, timerDetect}, now.Add(e.detect()))
}
