package filter

import (
	"fmt"
	"net/netip"

	"github.com/ironvip/ironvip/vip"
)

// Element is one element of one set. In sets of addresses and pairs, Key contains only the
// address. In sets of marks, Key is the mark's frontend. In those of probes, Key contains the
// virtual address, and Source only the backend.
type Element struct {
	Set    Set
	Key    vip.FrontendKey
	Source netip.Prefix // of clients, in a set of sources
	Mark   uint32       // in maps, sets of marks and those of probes
}

func (e Element) String() string {
	what := e.Key.String()
	if !e.Set.OfFrontends() {
		what = e.Key.Addr.String()
	}
	if e.Source.IsValid() {
		what += " from " + e.Source.String()
	}
	if e.Mark != 0 {
		what = fmt.Sprintf("%s with mark %#x", what, e.Mark)
	}
	return fmt.Sprintf("%s in set %s", what, e.Set.Name(vip.FamilyOf(e.Key.Addr)))
}

// ElementOf returns the frontend's element of s, or of its counterpart for marks.
func ElementOf(s Set, k vip.FrontendKey, mark uint32) Element {
	if ByMark(k) {
		s = s.marked()
	}
	e := Element{Set: s, Key: k}
	if s.HasMark() {
		e.Mark = mark
	}
	return e
}

// ProbeElements returns the elements of a path of probes.
func ProbeElements(virtual, backend netip.Addr, mark uint32) [2]Element {
	source := netip.PrefixFrom(backend, backend.BitLen())
	return [...]Element{
		{Set: SetAnswers, Key: vip.FrontendKey{Addr: virtual}, Source: source, Mark: mark},
		{Set: SetRestored, Key: vip.FrontendKey{Addr: virtual}, Source: source, Mark: mark},
	}
}

// Change is the content of one transaction.
type Change map[Element]bool // true: add, false: delete

// Put adds or deletes the elements of addresses in a set.
func (c Change) Put(s Set, addrs map[netip.Addr]int, add bool) {
	for a := range addrs {
		c[AddrElement(s, a)] = add
	}
}

func AddrElement(s Set, a netip.Addr) Element {
	return Element{Set: s, Key: vip.FrontendKey{Addr: a}}
}
