package ipvs

import (
	"fmt"
	"sync"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/vip"
)

// A frontend for a range of ports, or for internal clients only, is an IPVS service by
// firewall mark: a map of the table marks its packets, and IPVS selects the service by
// mark. The map is the record: a service by mark is ours if one of our maps has its
// mark.

func hasMark(f *vip.Frontend) bool { return filter.ByMark(f.Key) && f.Kind != vip.OnRealServer }

// marks assigns firewall marks to frontends. The zero value is empty. It may be used
// from several goroutines.
type marks struct {
	mu      sync.RWMutex
	of      map[vip.FrontendKey]uint32
	owner   map[uint32]vip.FrontendKey
	foreign map[uint32]struct{} // used by foreign services
	next    uint32              // index to try next; a released mark is reused late
}

// get returns a frontend's mark, or 0.
func (m *marks) get(k vip.FrontendKey) uint32 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.of[k]
}

// frontend returns the frontend of a mark in a family.
func (m *marks) frontend(mark uint32, f vip.Family) (vip.FrontendKey, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	k, ok := m.owner[mark]
	return k, ok && vip.FamilyOf(k.Addr) == f
}

// adopt records a mark that the table has. It returns false if the frontend has
// another mark or the mark another frontend.
func (m *marks) adopt(k vip.FrontendKey, mark uint32) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	had, known := m.of[k]
	if owner, taken := m.owner[mark]; known && had != mark || taken && owner != k {
		return false
	}
	m.set(k, mark)
	m.next = max(m.next, filter.IndexOfMark(mark)+1)
	return true
}

func (m *marks) set(k vip.FrontendKey, mark uint32) {
	if m.of == nil {
		m.of, m.owner = map[vip.FrontendKey]uint32{}, map[uint32]vip.FrontendKey{}
	}
	m.of[k], m.owner[mark] = mark, k
}

// draw assigns a free mark to a frontend.
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
		m.set(k, mark)
		return mark, nil
	}
	return 0, vip.Problem{
		Code:    vip.CodeDataplane,
		Message: fmt.Sprintf("no firewall mark is left for %s: all %d are in use", k, filter.MarkCount),
		Hint:    "use fewer ranges of ports, and fewer services whose internal and external traffic policies differ",
	}
}

// release releases a frontend's mark.
func (m *marks) release(k vip.FrontendKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if mark, ok := m.of[k]; ok {
		delete(m.of, k)
		delete(m.owner, mark)
	}
}

// markForeign records that a foreign service uses a mark, and releases it.
func (m *marks) markForeign(mark uint32) {
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

// clearForeign removes the records about foreign services before they are read again.
func (m *marks) clearForeign() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.foreign)
}
