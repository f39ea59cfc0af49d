package filter

import (
	"fmt"
	"net/netip"

	"github.com/ironvip/ironvip/vip"
)

// Element is one element of one set. For addresses and pairs, the key has an
// address only. Elements of sets of marks have the key of the mark's frontend.
type Element struct {
	Set    Set
	Key    vip.FrontendKey
	Source netip.Prefix // of clients, in a set of sources
	Mark   uint32       // in maps and sets of marks
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

// ElementOf returns what s, or the set that has its part, has for a frontend.
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

// Change is what one nftables transaction does.
type Change map[Element]bool // true: add, false: delete

func AddrElement(s Set, a netip.Addr) Element {
	return Element{Set: s, Key: vip.FrontendKey{Addr: a}}
}
