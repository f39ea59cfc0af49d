package filter

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	mdlayher "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// sent is one message of a transaction.
type sent struct {
	typ, flags uint16
	data       []byte
}

// messagesOf splits a transaction. It checks the batch's begin and end, and that only the last
// message in between requests an acknowledgement.
func messagesOf(t *testing.T, x *nftwire.Transaction) (all []sent) {
	t.Helper()
	for b := x.End(7, 8, 9); len(b) > 0; {
		h, data, rest, err := netlink.NextMessage(b)
		must.Succeed(t, err)
		if port := binary.NativeEndian.Uint32(b[12:]); port != 9 || h.Seq != 7 && h.Flags&unix.NLM_F_ACK == 0 {
			t.Errorf("message %d has number %d and is from %d", len(all), h.Seq, port)
		}
		b = rest
		all = append(all, sent{h.Type, h.Flags, data})
	}
	last := len(all) - 1
	if last != x.Messages+1 || all[0].typ != unix.NFNL_MSG_BATCH_BEGIN || all[last].typ != unix.NFNL_MSG_BATCH_END {
		t.Fatalf("%d messages are framed as %d", x.Messages, len(all))
	}
	for i, m := range all {
		if (m.flags&unix.NLM_F_ACK != 0) != (i == last-1) {
			t.Errorf("message %d of %d has flags %#x", i, last, m.flags)
		}
	}
	return all[1:last]
}

// attribute returns the attribute of a type in the body of an nftables message.
func attribute(t *testing.T, m sent, want uint16) []byte {
	t.Helper()
	a := netlink.Attrs{B: m.data[4:]}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		if typ == want {
			return v
		}
	}
	t.Fatalf("message %#x has no attribute %d: %v", m.typ, want, a.Err)
	return nil
}

// library returns the messages that google/nftables sends for a transaction.
func library(t *testing.T, do func(c *nftables.Conn) error) (all []sent) {
	t.Helper()
	c, err := nftables.New(nftables.WithTestDial(func(req []mdlayher.Message) ([]mdlayher.Message, error) {
		for _, m := range req {
			all = append(all, sent{uint16(m.Header.Type), uint16(m.Header.Flags), slices.Clone(m.Data)})
		}
		return nil, io.EOF
	}))
	must.Succeed(t, err)
	must.Succeed(t, do(c))
	_ = c.Flush() // it gets no answer
	return all[1 : len(all)-1]
}

// layouts are those of both tables.
func layouts() map[string]*Layout {
	return map[string]*Layout{"frontends": newLayout("ironvip"), "probes": newProbeLayout("ironvip_probes")}
}

// Our messages of the tables equal those of an independent library byte for byte, except that the
// library requests more answers.
func TestLayoutIsWrittenAsByALibrary(t *testing.T) {
	for name, l := range layouts() {
		t.Run(name, func(t *testing.T) { isWrittenAsByALibrary(t, l) })
	}
}

func isWrittenAsByALibrary(t *testing.T, l *Layout) {
	for _, r := range l.rules {
		for _, e := range r.exprs {
			// The library leaves out the flags where the network header has no checksum.
			if p, ok := e.(*expr.Payload); ok && p.CsumType == 0 {
				p.CsumFlags = 0
			}
		}
	}
	var x nftwire.Transaction
	x.Begin()
	must.Succeed(t, addLayout(&x, l))
	got := messagesOf(t, &x)
	want := library(t, func(c *nftables.Conn) error {
		c.AddTable(l.table)
		c.DelTable(l.table)
		c.AddTable(l.table)
		for i, s := range l.order {
			s := *s
			s.ID = uint32(i + 1)
			if err := c.AddSet(&s, nil); err != nil {
				return err
			}
		}
		for _, ch := range l.chains {
			c.AddChain(ch)
		}
		for _, r := range l.rules {
			c.AddRule(&nftables.Rule{Table: l.table, Chain: &nftables.Chain{Name: r.chain}, Exprs: r.exprs, UserData: l.userData(r)})
		}
		return nil
	})
	must.Equal(t, len(got), len(want), "messages")
	const answers = unix.NLM_F_ACK | unix.NLM_F_ECHO
	for i, w := range want {
		if g := got[i]; g.typ != w.typ || g.flags&^answers != w.flags&^answers || !bytes.Equal(g.data, w.data) {
			t.Errorf("message %d, of type %#x, flags %#x:\n%x, the library's %#x, %#x:\n%x", i, g.typ, g.flags, g.data, w.typ, w.flags, w.data)
		}
	}
}

// Messages about one element of each set equal the library's, too, except for how they identify
// the set.
func TestElementsAreWrittenAsByALibrary(t *testing.T) {
	tables := map[bool]func() *Table{
		false: func() *Table { return New("ironvip", &atomic.Uint64{}) },
		true:  func() *Table { return NewProbes("ironvip", &atomic.Uint64{}) },
	}
	list := func(m sent) []byte {
		return attribute(t, m, unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	}
	for s := range setCount {
		for _, addr := range []string{"10.96.0.1", "fd96::1"} {
			e := Element{Set: s, Key: vip.FrontendKey{Addr: netip.MustParseAddr(addr), Port: 80, Protocol: vip.TCP}}
			switch s.Kind() {
			case KindPorts:
				e.Key.LastPort = 90
			case KindSource, KindMarkSource:
				e.Source = netip.PrefixFrom(e.Key.Addr, 24)
			case KindProbe:
				e = ProbeElements(e.Key.Addr, e.Key.Addr.Next(), ProbeMarkAt(200))[s-SetAnswers]
			case kindRange:
				continue
			}
			if s.HasMark() {
				e.Mark = MarkAt(5)
			}
			fam := vip.FamilyOf(e.Key.Addr)
			f := tables[sets[s].probes]()
			for _, present := range []bool{true, false} {
				f.x.Begin()
				f.put(Change{e: present})
				var bytesOf nftwire.Element
				EncodeElement(&bytesOf, &e)
				want := library(t, func(c *nftables.Conn) error {
					set := f.layout.sets[s.Name(fam)]
					elem := []nftables.SetElement{{Key: bytesOf.Key, KeyEnd: bytesOf.End, Val: bytesOf.Value}}
					if present {
						return c.SetAddElements(set, elem)
					}
					if err := c.SetAddElements(set, elem); err != nil {
						return err
					}
					return c.SetDeleteElements(set, elem)
				})
				got := messagesOf(t, &f.x)
				must.Equal(t, len(got), len(want), "%s: messages", e)
				for i := range want {
					if got[i].typ != want[i].typ || !bytes.Equal(list(got[i]), list(want[i])) {
						t.Errorf("%s: message %d of type %#x:\n%x, the library's %#x:\n%x", e, i, got[i].typ, list(got[i]), want[i].typ, list(want[i]))
					}
					table := netlink.String(attribute(t, got[i], unix.NFTA_SET_ELEM_LIST_TABLE))
					set := netlink.String(attribute(t, got[i], unix.NFTA_SET_ELEM_LIST_SET))
					if table != "ironvip" || set != s.Name(fam) {
						t.Errorf("%s goes to set %s of table %s", e, set, table)
					}
				}
			}
		}
	}
}
