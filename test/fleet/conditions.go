package fleet

import (
	"slices"
	"time"
)

// conditions checks the acknowledged conditional requests.
func (c *checker) conditions() {
	for _, ops := range c.ops {
		for i, o := range ops {
			if o.Outcome != Acknowledged {
				continue
			}
			for j, p := range ops {
				if i == j || p.Outcome != Acknowledged && p.Outcome != happened {
					continue
				}
				switch {
				case o.If.Absent && p.Kind == Put && (p.To <= o.From || p.If.Absent && j < i) && !c.deleted(o.Service, min(o.From, p.From), max(o.To, p.To)):
					c.bad("service %s was created though it was there: %s, in spite of: %s", o.Service, o, p)
				case o.If.Value == 0:
				case p.If.Value == o.If.Value && j < i:
					c.bad("service %s was changed twice on the same terms: %s, and: %s", o.Service, p, o)
				case p.Value != o.If.Value && p.From >= c.done(o.If) && p.To <= o.From:
					c.bad("service %s was changed though it was something else: %s, in spite of: %s", o.Service, o, p)
				}
			}
		}
	}
}

// missing checks requests that were refused for a missing service although it existed all the time.
func (c *checker) missing() {
	for _, o := range c.Ops {
		if !o.Missing {
			continue
		}
		for _, p := range c.ops[o.Service] {
			if p.Kind == Put && p.Outcome == Acknowledged && p.To <= o.From && !c.deleted(o.Service, p.From, o.To) {
				c.bad("service %s was there, and an agent was asked in vain: %s, in spite of: %s", o.Service, o, p)
				break
			}
		}
	}
}

// done returns the time by which the registration that a condition names was done.
func (c *checker) done(on Condition) time.Duration {
	if o, is := c.of[on.Value]; is && o.Outcome != Unknown {
		return min(o.To, on.Seen)
	}
	return on.Seen
}

// deleted reports whether a service may have been deleted between two times.
func (c *checker) deleted(service string, after, before time.Duration) bool {
	return slices.ContainsFunc(c.ops[service], func(o Op) bool { return o.Kind == Delete && end(o) > after && o.From < before })
}
