package sources

import (
	"time"

	"github.com/ironvip/ironvip/vip"
)

// sink is the Sink of one run of one source. Once that run is over it is deaf,
// so that a goroutine which a source left behind can't undo what a later run
// says.
type sink struct {
	names *names
	src   *supervised
}

// end makes the sink deaf.
func (s *sink) end() {
	s.names.mu.Lock()
	defer s.names.mu.Unlock()
	if c := s.names.claims[s.src]; c.run == s {
		c.run = nil
	}
}

// locked runs f on the source's claims, and publishes its status, unless the
// run is over.
func (s *sink) locked(f func(n *names, c *claims)) {
	n := s.names
	n.mu.Lock()
	defer n.mu.Unlock()
	c := n.claims[s.src]
	if c.run != s {
		return
	}
	f(n, c)
	n.tell(c)
}

// heard is locked for a word from the source on how things are.
func (s *sink) heard(f func(n *names, c *claims)) {
	s.locked(func(n *names, c *claims) {
		c.status.LastSync = time.Now().UnixMilli()
		f(n, c)
	})
}

// Replace implements Sink. With nothing changed it returns 0.
func (s *sink) Replace(services []vip.Service, problems []vip.Problem) (rev uint64) {
	s.heard(func(n *names, c *claims) {
		n.inTouch(s.src, c)
		before := n.options.Services.Revision()
		named := make(map[vip.ServiceKey]struct{}, len(services))
		for _, service := range services {
			named[service.Key] = struct{}{}
			n.put(s.src, c, service)
		}
		var gone []vip.ServiceKey
		for key := range c.rows {
			if _, still := named[key]; !still {
				gone = append(gone, key)
			}
		}
		n.remove(s.src, c, gone, true)
		c.problems = problems
		n.untold[c] = struct{}{}
		n.first(s.src, c)
		if after := n.options.Services.Revision(); after != before {
			rev = after
		}
	})
	return rev
}

// Put implements Sink. A service that is held aside, because another source
// holds its name, has no row, and 0 for a revision.
func (s *sink) Put(services ...vip.Service) (revs []uint64) {
	s.heard(func(n *names, c *claims) {
		revs = make([]uint64, 0, len(services))
		for _, service := range services {
			revs = append(revs, n.put(s.src, c, service))
		}
		if c.doubted() {
			n.first(s.src, c)
		}
	})
	return revs
}

// Delete implements Sink. Keys that the source has not said are passed over.
func (s *sink) Delete(keys ...vip.ServiceKey) {
	s.heard(func(n *names, c *claims) { n.remove(s.src, c, keys, false) })
}

// Problems implements Sink.
func (s *sink) Problems(problems []vip.Problem) {
	s.heard(func(n *names, c *claims) {
		c.problems = problems
		n.untold[c] = struct{}{}
	})
}

// Stale implements Sink.
func (s *sink) Stale(err error) {
	s.locked(func(n *names, c *claims) {
		if c.status.Stale != err.Error() {
			c.status.Stale = err.Error()
			// A reason may name what is left of many things that come back one by one.
			if now := time.Now(); !c.failing || now.Sub(c.logged) >= relogStale {
				c.logged = now
				n.options.Log.Warn("source is stale", "source", s.src.name, "why", err)
			}
		}
		if !c.failing {
			c.failing = true
			n.event("source_stale", s.src, err.Error()+"; its services stay as they are")
		}
	})
}

// Fresh implements Sink.
func (s *sink) Fresh() {
	s.heard(func(n *names, c *claims) { n.inTouch(s.src, c) })
}
