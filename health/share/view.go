package share

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/vip"
)

// maxSeen and maxSeenReason bound them to about 8 KB.
const (
	maxSeen       = 50
	maxSeenReason = 64
)

// View returns what this host's own probes find now, for comparisons of hosts. It returns the same value
// until something changes, and nobody may change it. After a change it costs O(targets).
func (s *Share) View() *membership.Checks {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.view; v != nil && v.All == s.mode.all && v.Alone == s.mode.alone {
		return v
	}
	out := &membership.Checks{All: s.mode.all, Alone: s.mode.alone}
	var bad []*item
	for _, it := range s.items {
		if it.probing == 0 {
			continue
		}
		out.Probes++
		if it.own.Health != vip.Healthy {
			bad = append(bad, it)
		}
	}
	slices.SortFunc(bad, func(a, b *item) int { return cmp.Compare(a.key, b.key) })
	out.More = max(len(bad)-maxSeen, 0)
	for _, it := range bad[:len(bad)-out.More] {
		out.Bad = append(out.Bad, membership.Seen{Key: it.key, Health: it.own.Health, Since: it.own.Since.Time().UnixMilli(), Reason: cut(it.own.Reason, maxSeenReason)})
	}
	s.view = out
	return out
}

// Sharing is how the fleet checks a target, as this host knows it.
type Sharing struct {
	All     bool     // each host probes it for itself
	Probers []string // otherwise: those that probe it for the fleet, by name
	Verdict *Verdict // nil: none; immutable
}

// Sharing returns how the fleet checks the target with that key.
func (s *Share) Sharing(key string) Sharing {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mode.shares() {
		return Sharing{All: true}
	}
	out := Sharing{Probers: s.members.probers(groupOf(key))}
	if row, ok := s.Verdicts.Get(key); ok {
		out.Verdict = &row.Value
		out.Probers = slices.DeleteFunc(out.Probers, func(node string) bool { return slices.Contains(row.Value.Without, node) })
	}
	slices.Sort(out.Probers)
	return out
}

// cut returns at most the first n bytes of a text.
func cut(text string, n int) string { return strings.ToValidUTF8(text[:min(len(text), n)], "") }
