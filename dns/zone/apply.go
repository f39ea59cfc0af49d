package zone

import (
	"slices"

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
	if c.Gone {
		if s != nil {
			old := s.content()
			z.eachName(&old, func(Kind, int) { z.release(s) })
		}
		return
	}
	var old Service
	if s == nil {
		s = z.newService()
	} else {
		old = s.content()
	}
	records := s.node.records
	if !slices.Equal(old.VIPs, c.VIPs) {
		records = z.addressRecords(c.VIPs)
	}
	s.set(&c.Service)
	moved := old.Since != s.since
	z.eachName(&c.Service, func(k Kind, i int) {
		if k == Canonical {
			z.write(s.node, records)
			return
		}
		if n := z.claim(k, s, moved); k == Port {
			z.rewrite(n, z.portRecords(s, &c.Ports[i], len(n.name)-len(s.node.name)))
		}
	})
	z.eachName(&old, func(k Kind, i int) {
		var has bool
		switch k {
		case Canonical, Short:
			has = true
		case Hostname:
			has = z.isAlias(&c.Service, old.Hostnames[i])
		case Port:
			p := &old.Ports[i]
			has = slices.ContainsFunc(c.Ports, func(o vip.Port) bool { return o.Name == p.Name && o.Protocol == p.Protocol && named(&o) })
		case Address:
			has = slices.Contains(c.VIPs, old.VIPs[i])
		}
		if !has {
			z.release(s)
		}
	})
}

// newService adds a service. Its canonical name is in z.buf, and no other service can claim it.
func (z *Zone) newService() *service {
	s := &service{node: z.add(Canonical)}
	s.node.owner = s
	z.count++
	return s
}

// find returns a service, or nil.
func (z *Zone) find(k vip.ServiceKey) *service {
	z.putCanonical(k)
	if n := z.names[string(z.buf)]; n != nil {
		return n.owner
	}
	return nil
}

// write sets the records of a name.
func (z *Zone) write(n *node, records string) {
	if n.records != records {
		n.records = records
		z.written++
	}
}

// rewrite is write for records in work.
func (z *Zone) rewrite(n *node, records []byte) {
	if n.records != string(records) {
		z.write(n, string(records))
	}
}

// add returns the node of the name in z.buf. It creates missing ones, also for the names above it,
// except the root.
func (z *Zone) add(k Kind) *node {
	n := z.names[string(z.buf)]
	if n == nil {
		n = z.newNode(string(z.buf))
	}
	if n.kind == Between { // else settle knows
		n.kind = k
	}
	return n
}

func (z *Zone) newNode(name string) *node {
	n := &node{name: name}
	z.names[name] = n
	var reverse bool
	if n.apex, reverse = z.apexOf(name); reverse {
		return n // names of address blocks exist without a node
	}
	if above := name[1+name[0]:]; above != root {
		parent := z.names[above]
		if parent == nil {
			parent = z.newNode(above)
		}
		parent.below++
	}
	return n
}

// apexOf returns where the name of the zone begins in a name, and whether it is a reverse zone.
func (z *Zone) apexOf(name string) (apex uint8, reverse bool) {
	if at, ok := z.inside([]byte(name)); ok {
		return uint8(at), false
	}
	if at, _, ok := z.reverse([]byte(name)); ok {
		return uint8(at), true
	}
	return 0, false // a hostname is its own zone
}

// drop removes a name that has neither a service nor names below it, and those above it that then
// have neither.
func (z *Zone) drop(n *node) {
	for n.owner == nil && n.kind != Reserved {
		n.kind = Between
		z.write(n, "")
		if n.below > 0 {
			return
		}
		delete(z.names, n.name)
		above := z.names[n.name[1+n.name[0]:]]
		if above == nil {
			return // the root, and names of addresses, have none
		}
		above.below--
		n = above
	}
}
