package rest

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

// Record is the stored registration of one service. On a host without a fleet only the first two
// fields are set.
type Record struct {
	Spec spec.Service `json:"spec"` // with all defaults filled in
	// Registered lists the backends of Spec that registered themselves, by ID, with their ttl; 0:
	// no ttl.
	Registered map[string]spec.Duration `json:"registered,omitempty"`
	// Node is the host that received the last put of the service, and Stated is its time. Together
	// they identify this put. Registrations of backends don't change them.
	Node   string     `json:"node,omitempty"`
	Stated *time.Time `json:"stated,omitempty"`
	// HeartbeatOwners are the nodes that count the heartbeats of backends with a ttl, by backend
	// ID. Lapsed lists the backends without a heartbeat in time.
	HeartbeatOwners map[string]string `json:"keepers,omitempty"`
	Lapsed          []string          `json:"lapsed,omitempty"`
}

// origin is the Origin of this source's rows.
const origin = "api"

// backendID identifies a backend of a service.
type backendID struct {
	addr netip.Addr
	port uint16
}

func idOf(b vip.Backend) backendID { return backendID{b.Address, b.Port} }

func (id backendID) String() string { return vip.Backend{Address: id.addr, Port: id.port}.ID() }

// entry is one service in memory. It is replaced, not changed. The exceptions are heartbeats and
// rev, which mu protects.
type entry struct {
	row        vip.Service                // as registered, regardless of heartbeats
	registered map[backendID]registration // the backends that registered themselves
	put        putID
	version    uint64 // in the registry

	heartbeats map[backendID]*heartbeat // of the backends with a ttl
	rev        uint64                   // of the published row; 0: not published, or not in effect
}

// registration is the stored state of a backend that registered itself.
type registration struct {
	ttl    time.Duration // 0: none
	owner  string        // the node that counts its heartbeats; "" without a ttl or a fleet
	lapsed bool          // the owner has received no heartbeat in time
}

// putID identifies the put that defined a service.
type putID struct {
	node string
	at   int64 // Unix nanoseconds
}

// published returns the row with the health of the backends that send heartbeats. The caller holds
// mu.
func (e *entry) published() vip.Service {
	row := e.row
	if len(e.heartbeats) == 0 {
		return row
	}
	row.Backends = slices.Clone(row.Backends)
	for id, h := range e.heartbeats {
		b := &row.Backends[indexOf(row.Backends, id)]
		b.Health = vip.Healthy
		if h.missed {
			b.Health, b.Reason = vip.Unhealthy, vip.NoHeartbeat(vip.InstantOf(h.due.Add(-h.grace-h.ttl)), h.ttl)
		}
	}
	return row
}

func (e *entry) record() *Record {
	r := &Record{Spec: spec.FromService(e.row), Node: e.put.node}
	if e.put.at != 0 {
		at := time.Unix(0, e.put.at).UTC()
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
		if reg.owner != "" {
			if r.HeartbeatOwners == nil {
				r.HeartbeatOwners = map[string]string{}
			}
			r.HeartbeatOwners[b.ID()] = reg.owner
		}
		if reg.lapsed {
			r.Lapsed = append(r.Lapsed, b.ID())
		}
	}
	return r
}

// endpoints returns the ports x backends of the service; 0 for no entry.
func (e *entry) endpoints() int {
	if e == nil {
		return 0
	}
	return len(e.row.Ports) * len(e.row.Backends)
}

// same reports whether two entries have the same registration.
func (e *entry) same(o *entry) bool {
	return maps.Equal(e.registered, o.registered) && sameRow(&e.row, &o.row)
}

// edited returns a copy of the entry. Its registrations and backends may be changed.
func (e *entry) edited() *entry {
	out := &entry{row: e.row, registered: maps.Clone(e.registered), put: e.put}
	out.row.Backends = slices.Clone(e.row.Backends)
	return out
}

// remove removes a backend from an edited entry.
func (e *entry) remove(id backendID) {
	delete(e.registered, id)
	e.row.Backends = slices.DeleteFunc(e.row.Backends, func(b vip.Backend) bool { return idOf(b) == id })
}

// indexOf returns the index of a backend, or -1. Backends are sorted by address, then port.
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

func sameRow(a, b *vip.Service) bool { return reflect.DeepEqual(a, b) }

// decode returns the entry of a record. If the service is invalid, it returns problems and no
// entry. If registrations of backends are invalid, it returns both.
func (s *Source) decode(key string, r *Record) (*entry, []vip.Problem) {
	row, problems := r.Spec.Build(s.Name, "")
	for i := range problems {
		problems[i].Hint = "register the service again; it was stored by another version"
	}
	if len(problems) == 0 && registry.Key(row.Key) != key {
		problems = []vip.Problem{{Code: vip.CodeStore, Place: key, Service: row.Key.String(), Message: "is stored under the key of another service",
			Hint: "remove what is stored there; register the service again"}}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	row.Origin = origin
	e := &entry{row: row, registered: map[backendID]registration{}, put: putID{node: r.Node}}
	if r.Stated != nil {
		e.put.at = r.Stated.UnixNano()
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
			reg.owner, reg.lapsed = r.HeartbeatOwners[id], slices.Contains(r.Lapsed, id)
		}
		e.registered[backendID{addr, port}] = reg
	}
	return e, problems
}
