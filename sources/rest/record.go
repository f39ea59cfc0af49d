package rest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Record is one service as the registry keeps it. One of an agent without a
// fleet has the first two fields alone.
type Record struct {
	Spec spec.Service `json:"spec"` // with every default stated
	// Registered are the backends of Spec that registered themselves, by ID,
	// with their ttl; 0 has none.
	Registered map[string]spec.Duration `json:"registered,omitempty"`
	// Node is the one that the service was last stated through, and Stated when:
	// together they tell one statement from another. Registrations of backends
	// don't change them.
	Node   string     `json:"node,omitempty"`
	Stated *time.Time `json:"stated,omitempty"`
	// Keepers are the nodes that count the heartbeats of registered backends with
	// a ttl, by ID; Lapsed are those that no heartbeat came from in time.
	Keepers map[string]string `json:"keepers,omitempty"`
	Lapsed  []string          `json:"lapsed,omitempty"`
}

// backendID names a backend within its service.
type backendID struct {
	addr netip.Addr
	port uint16
}

func idOf(b vip.Backend) backendID { return backendID{b.Address, b.Port} }

func (id backendID) String() string { return vip.Backend{Address: id.addr, Port: id.port}.ID() }

// entry is one service in memory. An entry is replaced, never changed, but for
// what mu guards: lives, rev and echo.
type entry struct {
	row        vip.Service                // as asked for, whatever the ttls say
	registered map[backendID]registration // those that registered themselves
	stated     statement
	version    uint64 // in the registry

	lives map[backendID]*life // those registered with a ttl
	rev   uint64              // of the row that was published; 0: none, or held aside
	echo  bool                // written here, and the registry has not told it yet
}

// registration is what is known of a backend that registered itself.
type registration struct {
	ttl    time.Duration // 0: none
	keeper string        // the node that counts its heartbeats; "" without a ttl, or without a fleet
	lapsed bool          // no heartbeat came in time, as its keeper has found
}

// statement tells one statement of a service from another.
type statement struct {
	node string
	at   int64 // Unix nanoseconds
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
		// One that terminates could still be chosen, in want of ready ones.
		if b := &row.Backends[indexOf(row.Backends, id)]; b.State == vip.Ready || b.State == vip.Terminating {
			b.State, b.Reason = vip.Drain, vip.NoHeartbeat(vip.InstantOf(l.due.Add(-l.lapse-l.ttl)), l.ttl)
		}
	}
	return row
}

func (e *entry) record() *Record {
	r := &Record{Spec: spec.FromService(e.row), Node: e.stated.node}
	if e.stated.at != 0 {
		at := time.Unix(0, e.stated.at).UTC()
		r.Stated = &at
	}
	for i := range e.row.Backends {
		b := &e.row.Backends[i]
		reg, ok := e.registered[idOf(*b)]
		if !ok {
			continue
		}
		if r.Registered == nil {
			r.Registered = map[string]spec.Duration{}
		}
		r.Registered[b.ID()] = spec.Duration(reg.ttl)
		if reg.keeper != "" {
			if r.Keepers == nil {
				r.Keepers = map[string]string{}
			}
			r.Keepers[b.ID()] = reg.keeper
		}
		if reg.lapsed {
			r.Lapsed = append(r.Lapsed, b.ID())
		}
	}
	return r
}

// same reports whether two entries ask for the same.
func (e *entry) same(o *entry) bool {
	return maps.Equal(e.registered, o.registered) && sameRow(&e.row, &o.row)
}

// edited is a copy of the entry whose registrations and backends may be
// changed.
func (e *entry) edited() *entry {
	out := &entry{row: e.row, registered: maps.Clone(e.registered), stated: e.stated}
	out.row.Backends = slices.Clone(e.row.Backends)
	return out
}

// without takes one backend out of an edited entry.
func (e *entry) without(id backendID) {
	delete(e.registered, id)
	e.row.Backends = slices.DeleteFunc(e.row.Backends, func(b vip.Backend) bool { return idOf(b) == id })
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

// read makes an entry of what the registry has at key. A record that makes no
// valid service has problems, and no entry; one whose registrations are partly
// odd has both.
func (s *Source) read(key string, r *Record) (*entry, []vip.Problem) {
	row, problems := r.Spec.Build(s.Name, "")
	for i := range problems {
		problems[i].Hint = "register the service again; it was stored by another version"
	}
	if len(problems) == 0 && storeKey(row.Key) != key {
		problems = []vip.Problem{{Code: vip.CodeStore, Place: key, Service: row.Key.String(), Message: "is stored under the key of another service",
			Hint: "remove what is stored there; register the service again"}}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	row.Origin = origin
	e := &entry{row: row, registered: map[backendID]registration{}, stated: statement{node: r.Node}}
	if r.Stated != nil {
		e.stated.at = r.Stated.UnixNano()
	}
	for id, ttl := range r.Registered {
		addr, port, err := vip.ParseBackendID(id)
		if err != nil || indexOf(row.Backends, backendID{addr, port}) < 0 {
			problems = append(problems, vip.Problem{Code: vip.CodeStore, Service: row.Key.String(),
				Message: fmt.Sprintf("the stored registration of backend %q belongs to no backend", id)})
			continue
		}
		reg := registration{ttl: time.Duration(ttl)}
		if s.Fleet != nil && ttl != 0 {
			reg.keeper, reg.lapsed = r.Keepers[id], slices.Contains(r.Lapsed, id)
		}
		e.registered[backendID{addr, port}] = reg
	}
	return e, problems
}

// origin is what rows of this source name as the place they come from.
const origin = "api"
