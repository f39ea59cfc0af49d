package ipvs

import (
	"fmt"
	"sync"

	"github.com/ironvip/ironvip/ipvs/internal/filter"
	"github.com/ironvip/ironvip/vip"
)

// A frontend for a range of ports, or for an audience of its own, is an IPVS
// service by firewall mark: a map of the table gives its packets their mark, and
// IPVS goes by that. The element of the map is the record: a service by mark is
// ours exactly if our maps have its mark.

func hasMark(f *vip.Frontend) bool { return filter.ByMark(f.Key) && f.Kind != vip.OnRealServer }

// marks says which frontend has which mark. The zero value has none. It may be
// used from several goroutines.
type marks struct {
	mu      sync.RWMutex
	of      map[vip.FrontendKey]uint32
	owner   map[uint32]vip.FrontendKey
	foreign map[uint32]struct{} // in use by services that aren't ours
	next    uint32              // where the search for a free one goes on: one that was given back rests a while
}

// get returns a frontend's mark, 0 for none.
func (m *marks) get(k vip.FrontendKey) uint32 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.of[k]
}

// frontend returns whose mark it is in a family.
func (m *marks) frontend(mark uint32, f vip.Family) (vip.FrontendKey, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	k, ok := m.owner[mark]
	return k, ok && vip.FamilyOf(k.Addr) == f
}

// learn takes over what a record says. It is false where that can't be, as the
// frontend has another mark or the mark another frontend.
func (m *marks) learn(k vip.FrontendKey, mark uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	had, known := m.of[k]
	if owner, taken := m.owner[mark]; known && had != mark || taken && owner != k {
		return false
	}
	m.take(k, mark)
	return true
}

func (m *marks) take(k vip.FrontendKey, mark uint32) {
	if m.of == nil {
		m.of, m.owner = map[vip.FrontendKey]uint32{}, map[uint32]vip.FrontendKey{}
	}
	m.of[k], m.owner[mark] = mark, k
	m.next = max(m.next, filter.IndexOfMark(mark)+1)
}

// draw gives a frontend a mark that nobody has, as far as known.
func (m *marks) draw(k vip.FrontendKey) (uint32, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for range uint32(filter.MarkCount) {
		if m.next >= filter.MarkCount {
			m.next = 0
		}
		mark := filter.MarkAt(m.next)
		m.next++
		_, taken := m.owner[mark]
		if _, foreign := m.foreign[mark]; taken || foreign {
			continue
		}
		next := m.next
		m.take(k, mark)
		m.next = next
		return mark, nil
	}
	return 0, vip.Problem{
		Code:    vip.CodeDataplane,
		Message: fmt.Sprintf("no firewall mark is left for %s: all %d are in use", k, filter.MarkCount),
		Hint:    "use fewer ranges of ports, and fewer services whose internal and external traffic policies differ",
	}
}

// release gives a frontend's mark back.
func (m *marks) release(k vip.FrontendKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mark, ok := m.of[k]; ok {
		delete(m.of, k)
		delete(m.owner, mark)
	}
}

// avoid records that somebody else uses a mark, and takes it from whoever had
// it.
func (m *marks) avoid(mark uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.foreign == nil {
		m.foreign = map[uint32]struct{}{}
	}
	m.foreign[mark] = struct{}{}
	if k, ok := m.owner[mark]; ok {
		delete(m.of, k)
		delete(m.owner, mark)
	}
}

// forgetForeign forgets who else uses marks, before they are read anew.
func (m *marks) forgetForeign() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.foreign)
}
