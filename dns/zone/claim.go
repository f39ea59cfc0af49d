package zone

import (
	"cmp"
	"slices"

	"github.com/miekg/dns"

	"github.com/ironvip/ironvip/vip"
)

// ConflictKey identifies a claim of a name that the service doesn't have.
type ConflictKey struct {
	Name    string // without a dot at the end
	Service vip.ServiceKey
}

// Conflict is a claim of a name that the service doesn't have.
type Conflict struct {
	ConflictKey
	// Winner is the service that has the name, because its lease is older. It is zero if no service
	// can have it, because ironvip uses it itself.
	Winner vip.ServiceKey
	// Undecided states that no service has the name yet, and queries get SERVFAIL: Winner had it in the
	// last run (zero: nobody knows who), and not every source has listed its services. See Hold.
	Undecided bool
}

// KeyOfConflict returns the key of a conflict.
func KeyOfConflict(c *Conflict) ConflictKey { return c.ConflictKey }

// ConflictChange is a new, changed or, if Gone is set, former conflict.
type ConflictChange struct {
	Conflict
	Gone bool
}

// Hold states which service had each contested name in the last run, by name without a dot at the end; a
// zero key if nobody knows. Before SetSynced, no other service is answered for it: its source may not
// have listed it yet. It returns the claims that changed, and must not be called concurrently with Apply.
func (z *Zone) Hold(winners map[string]vip.ServiceKey) []ConflictChange {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.synced {
		return nil
	}
	z.held = winners
	z.changeHeld()
	return z.changedConflicts()
}

// heldFor returns the service that had a name in the last run, and whether it is held for that: another
// service claims it, or none. The caller holds mu.
func (z *Zone) heldFor(n *node) (winner vip.ServiceKey, held bool) {
	if n == nil || n.kind == Reserved || len(z.held) == 0 {
		return winner, false
	}
	winner, held = z.held[n.name]
	return winner, held && (n.owner == nil || n.owner.Key != winner)
}

// changeHeld notes the claims of held names for changedConflicts.
func (z *Zone) changeHeld() {
	for name := range z.held {
		if n := z.names[name]; n != nil {
			z.decided[n] = true
		}
	}
}

// changeClaims notes every claim of a name for changedConflicts.
func (z *Zone) changeClaims(n *node) {
	if n.owner == nil {
		return
	}
	z.changed[ConflictKey{n.name, n.owner.Key}] = true
	for _, s := range z.rivals[n] {
		z.changed[ConflictKey{n.name, s.Key}] = true
	}
	z.noted += 1 + len(z.rivals[n])
}

// Contested returns the service that has a name, if several services want it. The name has no dot at
// its end.
func (z *Zone) Contested(name string) (winner vip.ServiceKey, ok bool) {
	z.mu.RLock()
	defer z.mu.RUnlock()
	n := z.names[name]
	if n == nil || len(z.rivals[n]) == 0 {
		return winner, false
	}
	return n.owner.Key, true
}

// compare orders the claims of a name: first the service with the older lease, then the one with a
// lease, then by key. Leases are the same on every host, so the result is, too.
func compare(a, b *Service) int {
	if a.Since.IsZero() != b.Since.IsZero() {
		if a.Since.IsZero() {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(a.Since, b.Since), a.Key.Compare(b.Key))
}

// claim adds a service's claim of a name, or moves it to its place by age, if that moved.
func (z *Zone) claim(c claim, s *Service, moved bool) {
	if (c.kind == Short || c.kind == Hostname) && z.reserved(c.name) {
		z.changed[ConflictKey{c.name, s.Key}] = true
		return
	}
	n := z.add(c.name, c.kind)
	former := n.owner
	switch {
	case former == nil:
		n.owner = s
		z.count++
	case former == s && !moved:
	default:
		z.withdraw(n, s)
		z.insert(n, s)
	}
	z.settle(n, former, s)
}

// reserved reports whether no service can have a name: it is used by ironvip, or is in a namespace
// that only ironvip names things in.
func (z *Zone) reserved(name string) bool {
	if n := z.names[name]; n != nil && n.kind == Reserved {
		return true
	}
	for _, above := range [...]string{z.services, reverse4, reverse6} {
		if dns.IsSubDomain(above, name) {
			return true
		}
	}
	return false
}

// release removes a service's claim of a name.
func (z *Zone) release(name string, s *Service) {
	n := z.names[name]
	if n == nil || n.kind == Reserved {
		z.changed[ConflictKey{name, s.Key}] = true
		return
	}
	former := n.owner
	_, held := z.heldFor(n)
	z.withdraw(n, s)
	if former != nil && n.owner == nil {
		z.count--
	}
	if former != nil && n.kind != Address && (former != s || held) {
		z.changed[ConflictKey{name, s.Key}] = true
	}
	z.settle(n, former, s)
	z.drop(n)
}

// withdraw removes a claim, if there is one.
func (z *Zone) withdraw(n *node, s *Service) {
	rivals := z.rivals[n]
	switch {
	case n.owner == s && len(rivals) == 0:
		n.owner = nil
		return
	case n.owner == s:
		n.owner = rivals[0]
		rivals = slices.Delete(rivals, 0, 1)
	default:
		i := slices.Index(rivals, s)
		if i < 0 {
			return
		}
		rivals = slices.Delete(rivals, i, i+1)
	}
	if len(rivals) == 0 {
		delete(z.rivals, n)
	} else {
		z.rivals[n] = rivals
	}
}

// insert adds a claim of a service that has none of this name.
func (z *Zone) insert(n *node, s *Service) {
	switch {
	case n.owner == nil:
		n.owner = s
		return
	case compare(s, n.owner) < 0:
		s, n.owner = n.owner, s
	}
	rivals := z.rivals[n]
	i, _ := slices.BinarySearchFunc(rivals, s, compare)
	z.rivals[n] = slices.Insert(rivals, i, s)
}

// settle notes what Apply reports of a name of which s changed its claim. Former is the service that had it
// before.
func (z *Zone) settle(n *node, former, s *Service) {
	if n.owner == nil || n.kind != Short && n.kind != Hostname {
		return
	}
	if n.kind = Hostname; n.name == z.shortName(n.owner.Key) {
		n.kind = Short
	}
	_, held := z.heldFor(n)
	if len(z.rivals[n]) > 0 || held || former != nil && former != n.owner {
		if former != n.owner { // of all claims, once for the batch
			z.decided[n], s = true, n.owner
		}
		z.changed[ConflictKey{n.name, s.Key}] = true
	}
}

// changedConflicts returns what has become of the claims in z.changed.
func (z *Zone) changedConflicts() []ConflictChange {
	for n := range z.decided {
		z.changeClaims(n)
	}
	if len(z.decided) > 0 {
		z.decided = make(map[*node]bool)
	}
	if len(z.changed) == 0 {
		return nil
	}
	out := make([]ConflictChange, 0, len(z.changed))
	for k := range z.changed {
		out = append(out, z.conflict(k))
	}
	z.changed = make(map[ConflictKey]bool) // to clear it would cost as much as the largest batch
	return out
}

// conflict returns what is true of a claim.
func (z *Zone) conflict(k ConflictKey) ConflictChange {
	gone := ConflictChange{Conflict: Conflict{ConflictKey: k}, Gone: true}
	s := z.find(k.Service)
	claimed := s != nil && z.isAlias(s, k.Name)
	if z.reserved(k.Name) {
		gone.Gone = !claimed
		return gone
	}
	n := z.names[k.Name]
	if n == nil || n.owner == nil {
		return gone
	}
	winner, held := z.heldFor(n)
	if !held {
		winner = n.owner.Key
	}
	if !claimed || !held && s == n.owner {
		return gone
	}
	return ConflictChange{Conflict: Conflict{ConflictKey: k, Winner: winner, Undecided: held}}
}
