package control

import "github.com/ironvip/ironvip/internal/table"

// mirror writes the rows of a remote table to a table of this process.
type mirror[K comparable, V any] struct {
	table *table.Table[K, V]
	seen  map[K]struct{} // since the connection began; nil once it is synced
}

// begin is called for a new connection: rows that it does not name are removed when it is synced.
func (m *mirror[K, V]) begin() { m.seen = map[K]struct{}{} }

func (m *mirror[K, V]) receive(c Changes[V, K]) {
	for i := range c.Set {
		if m.seen != nil {
			m.seen[m.table.KeyOf(&c.Set[i])] = struct{}{}
		}
	}
	if len(c.Set) > 0 {
		m.table.SetAll(c.Set)
	}
	for _, k := range c.Removed {
		m.table.Delete(k)
	}
}

func (m *mirror[K, V]) synced() {
	var stale []K
	for k := range m.table.All() {
		if _, named := m.seen[k]; !named {
			stale = append(stale, k)
		}
	}
	for _, k := range stale {
		m.table.Delete(k)
	}
	m.seen = nil
}
