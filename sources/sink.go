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
			n.claim(s.src, c, service)
		}
		for key := range c.rows {
			if _, still := named[key]; !still {
				n.release(s.src, c, key)
			}
		}
		c.problems = problems
		n.untold[c] = struct{}{}
		c.status.Synced = true
		if !c.waited {
			c.waited = true
			n.unlock(s.src)
		}
		s.src.synced()
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
			revs = append(revs, n.claim(s.src, c, service))
		}
	})
	return revs
}

// Delete implements Sink. Keys that the source has not said are passed over.
func (s *sink) Delete(keys ...vip.ServiceKey) {
	s.heard(func(n *names, c *claims) {
		for _, key := range keys {
			n.release(s.src, c, key)
		}
	})
}

// Stale implements Sink.
func (s *sink) Stale(err error) {
	s.locked(func(n *names, c *claims) {
		if c.status.Stale != err.Error() {
			c.status.Stale = err.Error()
			n.options.Log.Warn("source is stale", "source", s.src.name, "why", err)
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
