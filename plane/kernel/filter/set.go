package filter

import (
	"cmp"

	"github.com/ironvip/ironvip/vip"
)

// Set is one of the table's sets. Each exists once per address family.
type Set uint8

// The sets. Their elements are the table's only state.
const (
	SetFrontends        Set = iota // Address . protocol . port of frontends on virtual addresses
	SetNodePorts                   // the same of node ports; a restarted agent recognizes its own by it
	SetRefused                     // frontends without a usable backend
	SetMasqAlways                  // frontends whose clients' addresses are always replaced
	SetMasqAuto                    // frontends where that depends on the client
	SetMasqOwn                     // frontends where only this host's own connections are masqueraded
	SetRestricted                  // frontends that not every client may reach
	SetSources                     // allowed clients: address . protocol . port . range of clients; an interval set
	SetServed                      // what goes to this host's own listeners, on a real server
	SetServedRanges                // the same for ranges of ports; an interval set
	SetInternal                    // map: frontends for internal clients to their marks
	SetInternalRanges              // the same for ranges of ports
	SetRanges                      // map: frontends for ranges of ports to their marks
	SetMarks                       // all these marks; the following sets have the properties of each
	SetMarkedRefused               // like refused
	SetMarkedMasqAlways            // as masq_always
	SetMarkedMasqAuto              // as masq_auto
	SetMarkedMasqOwn               // as masq_own
	SetMarkedRestricted            // as restricted
	SetMarkedSources               // as sources: mark . range of clients
	SetAnswers                     // map: mark of a probe . virtual address to the backend that answers
	SetRestored                    // map: mark of a probe . that backend to the virtual address
	SetVIPs                        // virtual addresses
	SetHairpin                     // backends that may be their own client: address . the same address
	setPods                        // pod ranges; an interval set
	setCount
)

// sets describes each Set.
var sets = [setCount]struct {
	name   string
	kind   elemKind
	isMap  bool // to marks
	marked Set  // the set that has the same part for frontends with a mark; 0: none
	probes bool // of the table of probes
}{
	SetFrontends:        {name: "frontends"},
	SetNodePorts:        {name: "nodeports"},
	SetRefused:          {name: "refused", marked: SetMarkedRefused},
	SetMasqAlways:       {name: "masq_always", marked: SetMarkedMasqAlways},
	SetMasqAuto:         {name: "masq_auto", marked: SetMarkedMasqAuto},
	SetMasqOwn:          {name: "masq_own", marked: SetMarkedMasqOwn},
	SetRestricted:       {name: "restricted", marked: SetMarkedRestricted},
	SetSources:          {name: "sources", kind: KindSource, marked: SetMarkedSources},
	SetServed:           {name: "served"},
	SetServedRanges:     {name: "served_ranges", kind: KindPorts},
	SetInternal:         {name: "internal", isMap: true},
	SetInternalRanges:   {name: "internal_ranges", kind: KindPorts, isMap: true},
	SetRanges:           {name: "ranges", kind: KindPorts, isMap: true},
	SetMarks:            {name: "marks", kind: KindMark},
	SetMarkedRefused:    {name: "marked_refused", kind: KindMark},
	SetMarkedMasqAlways: {name: "marked_masq_always", kind: KindMark},
	SetMarkedMasqAuto:   {name: "marked_masq_auto", kind: KindMark},
	SetMarkedMasqOwn:    {name: "marked_masq_own", kind: KindMark},
	SetMarkedRestricted: {name: "marked_restricted", kind: KindMark},
	SetMarkedSources:    {name: "marked_sources", kind: KindMarkSource},
	SetAnswers:          {name: "answers", kind: KindProbe, probes: true},
	SetRestored:         {name: "restored", kind: KindProbe, probes: true},
	SetVIPs:             {name: "vips", kind: KindAddr},
	SetHairpin:          {name: "hairpin", kind: KindPair},
	setPods:             {name: "pods", kind: kindRange},
}

// elemKind is the format of a set's elements.
type elemKind uint8

const (
	kindListener   elemKind = iota // Address . protocol . port
	KindSource                     // Address . protocol . port . interval of addresses
	KindPorts                      // Address . protocol . interval of ports
	KindMark                       // mark
	KindMarkSource                 // mark . interval of addresses
	KindAddr
	KindPair  // Address . address
	kindRange // interval of addresses
	KindProbe // mark . address, with an address for data
)

func (s Set) Kind() elemKind { return sets[s].kind }

// IsMap reports whether the elements have a mark for data.
func (s Set) IsMap() bool { return sets[s].isMap }

// HasMark reports whether a mark is part of the elements.
func (s Set) HasMark() bool { return s.IsMap() || s.Kind() == KindMark || s.Kind() == KindMarkSource }

// OfFrontends reports whether the elements are single frontends'.
func (s Set) OfFrontends() bool {
	return s != SetVIPs && s != SetHairpin && s != setPods && !sets[s].probes
}

// interval reports whether elements are intervals.
func (s Set) interval() bool {
	k := s.Kind()
	return k == kindRange || k == KindSource || k == KindPorts || k == KindMarkSource
}

// Refuses reports whether elements say that a frontend has no usable backend.
func (s Set) Refuses() bool { return s == SetRefused || s == SetMarkedRefused }

// marked returns the set that has the same part for frontends with a mark, or s.
func (s Set) marked() Set { return cmp.Or(sets[s].marked, s) }

func (s Set) Name(f vip.Family) string { return fullNames[s][f] }

// fullNames are the sets' names with their families.
var fullNames = func() (all [setCount][vip.IPv6 + 1]string) {
	for i, s := range sets {
		all[i][vip.IPv4], all[i][vip.IPv6] = s.name+"4", s.name+"6"
	}
	return all
}()
