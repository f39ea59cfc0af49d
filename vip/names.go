package vip

import (
	"iter"
	"slices"
	"strings"
)

// Names is a set of names without spaces. It is a string so that it can be compared with ==. The
// zero Names is the empty set.
type Names string

// NamesOf returns the set of names, which may be in any order and repeat.
func NamesOf(names ...string) Names {
	switch len(names) {
	case 0:
		return ""
	case 1:
		return Names(names[0])
	}
	return Names(strings.Join(slices.Compact(slices.Sorted(slices.Values(names))), " "))
}

// Has reports whether name is in the set. It allocates nothing, and compares O(log names).
func (n Names) Has(name string) bool {
	for rest := string(n); rest != ""; {
		start := strings.LastIndexByte(rest[:len(rest)/2], ' ') + 1
		one, after, _ := strings.Cut(rest[start:], " ")
		switch {
		case name == one:
			return true
		case name > one:
			rest = after
		default:
			rest = rest[:max(0, start-1)]
		}
	}
	return false
}

// List returns the names in order, or nil if there are none.
func (n Names) List() []string { return slices.Collect(n.All()) }

// All yields the names in order.
func (n Names) All() iter.Seq[string] { return strings.FieldsSeq(string(n)) }
