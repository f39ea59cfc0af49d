package nft

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"time"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/plane/kernel/slots"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// service is a frontend as the table has it.
type service struct {
	key     vip.FrontendKey
	number  uint32
	class   class
	classNo uint32                    // the class's number; 0: none yet
	slots   []netip.AddrPort          // the backend of each slot
	members map[netip.AddrPort]uint32 // of usable backends, for affinity
	weights map[netip.AddrPort]uint16 // those that the slots don't show
	sources []netip.Prefix            // allowed clients, if the class is restricted

	read *vip.Frontend // its frontend, from whole to taken
}

// weigh sets a weight that the slots don't show.
func (s *service) weigh(a netip.AddrPort, weight uint16) {
	if s.weights == nil {
		s.weights = map[netip.AddrPort]uint16{}
	}
	s.weights[a] = weight
}

// limited reports whether s, which may be nil, has counters of refused clients or of SYNs.
func (s *service) limited() bool {
	return s != nil && (s.class.limits != vip.SourceLimits{} || s.class.synProxy)
}

// guarded reports whether cookies may answer the SYNs of s. A service without a usable backend refuses clients at once.
func (s *service) guarded() bool {
	return s.class.synProxy && s.class.choice != chooseNone && s.key.Audience == vip.Everyone
}

// numbers assigns the numbers of services and members. They aren't used again before the table is
// rebuilt, because a client's element may still have one. After a restart, those above the ones in use
// are: a client then stays with another backend of its service.
type numbers struct{ service, member uint32 }

// raise makes the next numbers higher than those of other, too.
func (n *numbers) raise(other numbers) {
	n.service, n.member = max(n.service, other.service), max(n.member, other.member)
}

// exhausted reports whether a number doesn't fit in its place any more.
func (n *numbers) exhausted() bool { return n.service > maskNumber || n.member > maskMember }

// renumber gives s numbers of its own, for a table without clients.
func (s *service) renumber(n *numbers) {
	s.number = n.nextService()
	for a := range s.members {
		s.members[a] = n.nextMember()
	}
}

func (n *numbers) nextService() uint32 {
	n.service++
	return n.service
}

func (n *numbers) nextMember() uint32 {
	n.member++
	return n.member
}

func choiceOf(f *vip.Frontend) choice {
	switch f.Scheduler {
	case vip.SourceHash, vip.MaglevHash:
		if f.SchedulerPort {
			return chooseByClient
		}
		return chooseBySource
	case vip.DestinationHash:
		return chooseByDestination
	}
	return chooseAny
}

// seconds returns f's affinity in whole seconds.
func seconds(f *vip.Frontend) uint32 { return uint32((f.Affinity + time.Second - 1) / time.Second) }

// desired returns the service of f. It keeps the numbers and slots of old, which may be nil.
func desired(f *vip.Frontend, old *service, n *numbers) *service {
	s := &service{key: f.Key}
	var oldSlots []netip.AddrPort
	if old != nil {
		s.number, oldSlots = old.number, old.slots
	} else {
		s.number = n.nextService()
	}
	s.class = class{scheduler: f.Scheduler, onHost: f.Kind == vip.OnHost, synProxy: f.SynProxy, choice: choiceOf(f), masquerade: usage.Masquerade(f), affinity: seconds(f), limits: f.SourceLimits,
		keepPort: f.Key.Ranged() && len(f.Backends) > 0 && f.Backends[0].Addr.Port() == 0}
	s.sources, s.class.restricted = usage.Sources(f)
	all := false // weights has all backends
	switch {
	case !f.Usable():
		all = true
	case s.class.choice.hashes():
		s.slots, all = slots.ByHash(f), true
	case f.Scheduler == vip.WeightedFailover:
		s.slots, all = slots.Preferred(f), true
	default:
		var few [32]slots.Share
		shares, exact := slots.SharesOf(few[:0], f)
		s.slots, all = slots.ByShare(oldSlots, shares), !exact
		s.class.rounded = all
	}
	s.class.slots = uint16(len(s.slots))
	if s.class.slots == 0 {
		s.class.without, s.class.choice = s.class.choice, chooseNone
	}
	for _, b := range f.Backends {
		if all || b.Weight == 0 {
			s.weigh(b.Addr, b.Weight)
		}
	}
	if s.class.affinity > 0 {
		s.members = map[netip.AddrPort]uint32{}
		for _, a := range s.slots {
			if s.members[a] != 0 {
				continue
			}
			if old != nil && old.members[a] != 0 {
				s.members[a] = old.members[a]
			} else {
				s.members[a] = n.nextMember()
			}
		}
	}
	return s
}

// frontend returns the frontend that s stands for, in the normal form of this dataplane.
func (s *service) frontend() vip.Frontend {
	f := vip.Frontend{Key: s.key, Kind: vip.OnVIP, Forward: vip.ForwardNAT, Scheduler: s.class.scheduler,
		Masquerade: s.class.masquerade, Affinity: time.Duration(s.class.affinity) * time.Second, SourceRanges: s.sources, SourceLimits: s.class.limits, SynProxy: s.class.synProxy}
	if s.class.onHost {
		f.Kind = vip.OnHost
	}
	if s.class.restricted && len(s.sources) == 0 {
		f.SourceRanges = usage.NoClient
	}
	c := s.class.choice
	if c == chooseNone {
		c = s.class.without
	}
	f.SchedulerPort = c == chooseByClient
	f.Backends = s.backends()
	return f
}

// backends returns the backends with their weights, in order.
func (s *service) backends() []vip.Endpoint {
	var few [32]netip.AddrPort
	slots, n := few[:0], len(s.weights)
	if !s.weighed() { // each slot is a part of its backend's weight
		slots = append(slots, s.slots...)
		slices.SortFunc(slots, netip.AddrPort.Compare)
	}
	another := func(i int) bool { return i == 0 || slots[i] != slots[i-1] }
	for i := range slots {
		if another(i) {
			n++
		}
	}
	all := make([]vip.Endpoint, 0, n)
	for a, w := range s.weights {
		all = append(all, vip.Endpoint{Addr: a, Weight: w})
	}
	for i, a := range slots {
		switch _, known := s.weights[a]; {
		case known:
		case another(i):
			all = append(all, vip.Endpoint{Addr: a, Weight: 1})
		default:
			all[len(all)-1].Weight++
		}
	}
	slices.SortFunc(all, vip.CompareEndpoints)
	return slices.Clip(all)
}

// weighed reports whether weights has all backends.
func (s *service) weighed() bool {
	return s.class.choice != chooseAny || s.class.rounded || s.class.scheduler == vip.WeightedFailover
}

// taken returns the frontend that whole has made.
func (s *service) taken() vip.Frontend {
	if s.read == nil {
		return s.frontend()
	}
	f := *s.read
	s.read = nil
	return f
}

// whole reports whether the slots are those that the service's frontend has.
func (s *service) whole() bool {
	if slices.Contains(s.slots, netip.AddrPort{}) {
		return false
	}
	f := s.frontend()
	s.read = &f
	n := numbers{}
	want := desired(&f, s, &n)
	return n == numbers{} && want.class == s.class && slices.Equal(want.slots, s.slots) &&
		maps.Equal(want.members, s.members) && maps.Equal(want.weights, s.weights) && slices.Equal(want.sources, s.sources)
}

// element is one element of a set. The parts are bytes in the kernel's layout.
type element struct {
	set      setID
	key, end string
}

// elements calls put for each element of s with its value.
func (s *service) elements(put func(e element, value string)) {
	f := vip.FamilyOf(s.key.Addr)
	o := originOf(s.key)
	e := element{set: setID{kindServices, f, o, 0}, key: string(appendListener(nil, s.key, s.key.Port))}
	if o.ranged() {
		e.end = string(appendListener(nil, s.key, s.key.LastPort))
	}
	put(e, word32(s.classNo<<shiftClass|s.number))
	totals(s.key, func(e element) { put(e, "") })
	if s.guarded() {
		put(element{set: setID{kindGuarded, f, 0, 0}, key: e.key}, "")
	}
	number := word32(s.number)
	for i, a := range s.slots {
		key := number + string(native(uint32(i)))
		if s.class.affinity > 0 {
			put(element{set: setID{kindChoices, f, o, 0}, key: key}, word32(s.members[a]))
		} else {
			put(element{set: setID{kindSlots, f, o, 0}, key: key}, backend(a))
		}
	}
	for a, m := range s.members {
		put(element{set: setID{kindMembers, f, 0, 0}, key: word32(m) + number}, backend(a))
	}
	for a, w := range s.weights {
		put(element{set: setID{kindWeights, f, 0, 0}, key: number + backend(a)}, word32(uint32(w)))
	}
	for _, p := range s.sources {
		r := netipx.RangeOfPrefix(p)
		put(element{set: setID{kindSources, f, 0, 0}, key: number + string(r.From().AsSlice()), end: number + string(r.To().AsSlice())}, "")
	}
}

func word32(n uint32) string { return string(big(n)) }

// backend returns address . port.
func backend(a netip.AddrPort) string {
	var b [20]byte
	return string(appendBackend(b[:0], a))
}

// appendBackend appends address . port.
func appendBackend(b []byte, a netip.AddrPort) []byte {
	b, _ = a.Addr().AppendBinary(b) // it returns no error
	return append(binary.BigEndian.AppendUint16(b, a.Port()), 0, 0)
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
