package zone

import (
	"slices"
	"strings"

	"github.com/ironvip/ironvip/vip"
)

// Change is a changed service. Gone states that the service of the key doesn't exist.
type Change struct {
	Service
	Gone bool
}

// Apply changes services, all at once for readers, and sets the serial of the zone. It returns the
// claims that changed: see Conflict. The cost of a change depends on the service's names and on the
// services that share its VIPs, not on the zone.
func (z *Zone) Apply(serial uint32, changes []Change) []ConflictChange {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.serial = serial
	for i := range changes {
		z.apply(&changes[i])
	}
	return z.changedConflicts()
}

func (z *Zone) apply(c *Change) {
	s := z.find(c.Key)
	var old []claim
	if s != nil {
		old = z.claims(s)
	}
	if c.Gone {
		for _, o := range old {
			z.release(o.name, s)
		}
		return
	}
	if s == nil {
		s = &Service{}
		z.add(z.canonicalName(c.Key), Canonical).owner = s
		z.count++
	}
	moved := s.Since != c.Since
	*s = c.Service
	now := z.claims(s)
	for _, n := range now[1:] { // no other service can claim the canonical name
		z.claim(n, s, moved)
	}
	for _, o := range old {
		if !slices.ContainsFunc(now, func(n claim) bool { return n.name == o.name }) {
			z.release(o.name, s)
		}
	}
}

// find returns a service, or nil.
func (z *Zone) find(k vip.ServiceKey) *Service {
	if n := z.names[z.canonicalName(k)]; n != nil {
		return n.owner
	}
	return nil
}

// add returns the node of a name. It creates missing ones, also for the names above it. The names above those
// of addresses exist without a node.
func (z *Zone) add(name string, k Kind) *node {
	n := z.names[name]
	if n == nil {
		n = &node{name: name}
		z.names[name] = n
		if _, above, ok := strings.Cut(name, "."); ok && k != Address {
			z.add(above, Between).below++
		}
	}
	if n.kind == Between { // else settle knows
		n.kind = k
	}
	return n
}

// drop removes a name that has neither a service nor names below it, and those above it that then
// have neither.
func (z *Zone) drop(n *node) {
	for n.owner == nil && n.kind != Reserved {
		n.kind = Between
		if n.below > 0 {
			return
		}
		delete(z.names, n.name)
		_, name, _ := strings.Cut(n.name, ".")
		above := z.names[name]
		if above == nil {
			return // a name of one label, or of an address
		}
		above.below--
		n = above
	}
}
