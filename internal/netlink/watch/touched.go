package watch

import (
	"encoding/binary"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// Touched is what transactions of other programs have touched of the table.
type Touched struct {
	By Author // of the last one
	// Elements were added, deleted, or both.
	Elements map[Element]struct{}
	// Structure is set if the table, a chain, a rule or a set was touched.
	Structure bool
	// Unknown is set if anything may have been touched: more than MaxElements, or events are missing.
	Unknown bool
}

// Element is an element of a set of the table. Key and End are in the kernel's layout.
type Element struct{ Set, Key, End string }

// MaxElements bounds the elements that are remembered one by one. It costs less to list the sets than to ask for more.
const MaxElements = 512

func (t *Touched) add(e Element) {
	if len(t.Elements) == MaxElements {
		t.Unknown = true
		return
	}
	if t.Elements == nil {
		t.Elements = map[Element]struct{}{}
	}
	t.Elements[e] = struct{}{}
}

func (t *Touched) clone() *Touched {
	if t == nil {
		return nil
	}
	c := *t
	c.Elements = maps.Clone(t.Elements)
	return &c
}

// touch adds what a transaction has touched.
func (s *Seen) touch(t *Touched) {
	if s.Table == nil {
		s.Table = t
		return
	}
	if t.By != (Author{}) {
		s.Table.By = t.By
	}
	s.Table.Structure = s.Table.Structure || t.Structure
	s.Table.Unknown = s.Table.Unknown || t.Unknown
	for e := range t.Elements {
		s.Table.add(e)
	}
}

// readTable reads an event of nftables. The kernel sends the events of a transaction together, and then one that names
// the program.
func (w *Watcher) readTable(e netlink.Event) {
	if e.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(e.Data) < 4 {
		return
	}
	message := e.Type & 0xff
	if message == unix.NFT_MSG_NEWGEN {
		if w.touched != nil {
			w.touched.By = committer(e)
			w.seen.touch(w.touched)
			w.touched = nil
		}
		return
	}
	if e.Data[0] != unix.NFPROTO_INET {
		return
	}
	// The name of the table has the same number in messages about tables, chains, rules, sets and elements.
	name, err := netlink.Find(e.Data[4:], unix.NFTA_TABLE_NAME)
	if err != nil {
		w.seen.Lost = true
		return
	}
	if netlink.String(name) != w.o.Table {
		return
	}
	if w.touched == nil {
		w.touched = &Touched{}
	}
	if message != unix.NFT_MSG_NEWSETELEM && message != unix.NFT_MSG_DELSETELEM {
		w.touched.Structure = true
	} else if readElements(e.Data[4:], w.touched) != nil {
		w.touched.Unknown = true
	}
}

// readElements reads the elements of a message.
func readElements(attrs []byte, into *Touched) error {
	set, err := netlink.Find(attrs, unix.NFTA_SET_ELEM_LIST_SET)
	if err != nil {
		return err
	}
	list, err := netlink.Find(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	if err != nil {
		return err
	}
	all := netlink.Attrs{B: list}
	for _, one, ok := all.Next(); ok && !into.Unknown; _, one, ok = all.Next() {
		e := Element{Set: netlink.String(set)}
		parts := netlink.Attrs{B: one}
		for typ, v, ok := parts.Next(); ok; typ, v, ok = parts.Next() {
			var value []byte
			switch typ {
			case unix.NFTA_SET_ELEM_KEY:
				value, err = netlink.Find(v, unix.NFTA_DATA_VALUE)
				e.Key = string(value)
			case nftaSetElemKeyEnd:
				value, err = netlink.Find(v, unix.NFTA_DATA_VALUE)
				e.End = string(value)
			}
			if err != nil {
				return err
			}
		}
		if parts.Err != nil {
			return parts.Err
		}
		into.add(e)
	}
	return all.Err
}

const nftaSetElemKeyEnd = 10 // NFTA_SET_ELEM_KEY_END

// committer returns the author of a transaction.
func committer(e netlink.Event) (a Author) {
	attrs := netlink.Attrs{B: e.Data[4:]}
	for typ, v, ok := attrs.Next(); ok; typ, v, ok = attrs.Next() {
		switch {
		case typ == nftaGenProcPID && len(v) >= 4:
			a.PID = int(binary.BigEndian.Uint32(v))
		case typ == nftaGenProcName:
			a.Name = netlink.String(v)
		}
	}
	return a
}

// From linux/netfilter/nf_tables.h.
const (
	nftaGenProcPID  = 2
	nftaGenProcName = 3
)
