package rest

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/state"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Record is one service as the Store keeps it.
type Record struct {
	Spec spec.Service `json:"spec"` // with every default stated
	// Registered are the backends of Spec that registered themselves, by ID,
	// with their ttl; 0 has none.
	Registered map[string]spec.Duration `json:"registered,omitempty"`
}

// backendID names a backend within its service.
type backendID struct {
	addr netip.Addr
	port uint16
}

func idOf(b vip.Backend) backendID { return backendID{b.Address, b.Port} }

// entry is one service in memory. An entry is replaced, never changed, but for
// its lives, which mu guards.
type entry struct {
	row        vip.Service                 // as asked for, whatever the ttls say
	registered map[backendID]time.Duration // those that registered themselves, and their ttl
	lives      map[backendID]*life         // those of them with a ttl
}

// published is the row with every backend drained whose ttl has passed. The
// caller holds mu.
func (e *entry) published() vip.Service {
	row, cloned := e.row, false
	for id, l := range e.lives {
		if !l.drained {
			continue
		}
		if !cloned {
			row.Backends, cloned = slices.Clone(row.Backends), true
		}
		if i := indexOf(row.Backends, id); row.Backends[i].State == vip.Ready {
			row.Backends[i].State = vip.Drain
		}
	}
	return row
}

func (e *entry) record() Record {
	r := Record{Spec: spec.FromService(e.row)}
	for i := range e.row.Backends {
		b := &e.row.Backends[i]
		if ttl, ok := e.registered[idOf(*b)]; ok {
			if r.Registered == nil {
				r.Registered = map[string]spec.Duration{}
			}
			r.Registered[b.ID()] = spec.Duration(ttl)
		}
	}
	return r
}

// same reports whether two entries ask for the same.
func (e *entry) same(o *entry) bool {
	return maps.Equal(e.registered, o.registered) && sameRow(&e.row, &o.row)
}

// indexOf returns where a backend is, or -1. Backends are sorted by address,
// then port.
func indexOf(list []vip.Backend, id backendID) int {
	i, ok := slices.BinarySearchFunc(list, id, func(b vip.Backend, id backendID) int {
		if c := b.Address.Compare(id.addr); c != 0 {
			return c
		}
		return int(b.Port) - int(id.port)
	})
	if !ok {
		return -1
	}
	return i
}

func storeKey(k vip.ServiceKey) string { return k.Namespace + "/" + k.Name }

// restore reads the store into entries.
func (s *Source) restore() error {
	all, err := s.Store.All()
	if err != nil {
		if !errors.Is(err, state.ErrDamaged) {
			return err
		}
		s.damaged(vip.Problem{Code: vip.CodeStore, Message: err.Error()})
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		record := all[name]
		row, problems := record.Spec.Build(s.Name, "")
		if len(problems) > 0 {
			for _, p := range problems {
				p.Hint = "register the service again; it was stored by another version"
				s.damaged(p)
			}
			continue
		}
		row.Origin = origin
		e := &entry{row: row, registered: map[backendID]time.Duration{}}
		for id, ttl := range record.Registered {
			addr, port, err := vip.ParseBackendID(id)
			if err != nil || indexOf(row.Backends, backendID{addr, port}) < 0 {
				s.damaged(vip.Problem{Code: vip.CodeStore, Service: row.Key.String(),
					Message: fmt.Sprintf("the stored registration of backend %q belongs to no backend", id)})
				continue
			}
			e.registered[backendID{addr, port}] = time.Duration(ttl)
		}
		s.adopt(nil, e)
	}
	return nil
}

func (s *Source) damaged(p vip.Problem) {
	s.Log.Error("registration not restored", "service", p.Service, "field", p.Field, "err", p.Message)
	s.damage = append(s.damage, p)
}

// origin is what rows of this source name as the place they come from.
const origin = "api"
