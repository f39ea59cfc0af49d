package ipvs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/ironvip/ironvip/vip"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// sent is what a transaction's message says.
type sent struct {
	typ, flags uint16
	data       []byte
}

// messagesOf splits a transaction, and checks its frame: how it begins and ends,
// and that only the last message within is asked to be answered.
func messagesOf(t *testing.T, x *transaction) (all []sent) {
	t.Helper()
	for b := x.end(7, 8, 9); len(b) > 0; {
		h, data, rest, err := nextMessage(b)
		if err != nil {
			t.Fatal(err)
		}
		if port := binary.NativeEndian.Uint32(b[12:]); port != 9 || h.seq != 7 && h.flags&unix.NLM_F_ACK == 0 {
			t.Errorf("message %d has number %d and is from %d", len(all), h.seq, port)
		}
		b = rest
		all = append(all, sent{h.typ, h.flags, data})
	}
	last := len(all) - 1
	if last != x.messages+1 || all[0].typ != unix.NFNL_MSG_BATCH_BEGIN || all[last].typ != unix.NFNL_MSG_BATCH_END {
		t.Fatalf("%d messages are framed as %d", x.messages, len(all))
	}
	for i, m := range all {
		if (m.flags&unix.NLM_F_ACK != 0) != (i == last-1) {
			t.Errorf("message %d of %d has flags %#x", i, last, m.flags)
		}
	}
	return all[1:last]
}

// library returns what a library of its own sends for a transaction.
func library(t *testing.T, do func(c *nftables.Conn) error) (all []sent) {
	t.Helper()
	c, err := nftables.New(nftables.WithTestDial(func(req []netlink.Message) ([]netlink.Message, error) {
		for _, m := range req {
			all = append(all, sent{uint16(m.Header.Type), uint16(m.Header.Flags), slices.Clone(m.Data)})
		}
		return nil, io.EOF
	}))
	if err != nil {
		t.Fatal(err)
	}
	if err := do(c); err != nil {
		t.Fatal(err)
	}
	_ = c.Flush() // nothing answers
	return all[1 : len(all)-1]
}

// What we write of the table is, to the byte, what an independent library
// writes. It asks for more answers.
func TestLayoutIsWrittenAsByALibrary(t *testing.T) {
	l := newLayout("ironvip", DefaultMark)
	var x transaction
	x.begin()
	if err := x.addLayout(l); err != nil {
		t.Fatal(err)
	}
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
			c.AddRule(&nftables.Rule{Table: l.table, Chain: &nftables.Chain{Name: r.chain}, Exprs: r.exprs, UserData: r.userData()})
		}
		return nil
	})
	if len(got) != len(want) {
		t.Fatalf("%d messages, the library has %d", len(got), len(want))
	}
	const answers = unix.NLM_F_ACK | unix.NLM_F_ECHO
	for i, w := range want {
		if g := got[i]; g.typ != w.typ || g.flags&^answers != w.flags&^answers || !bytes.Equal(g.data, w.data) {
			t.Errorf("message %d, of type %#x, flags %#x:\n%x, the library's %#x, %#x:\n%x", i, g.typ, g.flags, g.data, w.typ, w.flags, w.data)
		}
	}
}

// So is one element of each set, but for how its set is named.
func TestElementsAreWrittenAsByALibrary(t *testing.T) {
	l := newLayout("ironvip", DefaultMark)
	list := func(m sent) []byte {
		found, err := elementList(m.data)
		if err != nil {
			t.Fatal(err)
		}
		return found.b
	}
	for s := range setCount {
		for _, addr := range []string{"10.96.0.1", "fd96::1"} {
			e := element{set: s, key: vip.FrontendKey{Addr: netip.MustParseAddr(addr), Port: 80, Protocol: vip.TCP}}
			switch s.kind() {
			case kindPorts:
				e.key.LastPort = 90
			case kindSource, kindMarkSource:
				e.source = netip.PrefixFrom(e.key.Addr, 24)
			case kindRange:
				continue
			}
			if s.hasMark() {
				e.mark = markAt(5)
			}
			fam := vip.FamilyOf(e.key.Addr)
			f := newFirewall(l, &counters{})
			for _, present := range []bool{true, false} {
				f.x.begin()
				f.put(change{e: present})
				var bytesOf elementBytes
				bytesOf.encode(&e)
				want := library(t, func(c *nftables.Conn) error {
					set := l.sets[s.name(fam)]
					elem := []nftables.SetElement{{Key: bytesOf.key, KeyEnd: bytesOf.end, Val: bytesOf.value}}
					if present {
						return c.SetAddElements(set, elem)
					}
					if err := c.SetAddElements(set, elem); err != nil {
						return err
					}
					return c.SetDeleteElements(set, elem)
				})
				got := messagesOf(t, &f.x)
				if len(got) != len(want) {
					t.Fatalf("%s: %d messages, the library has %d", e, len(got), len(want))
				}
				for i := range want {
					if got[i].typ != want[i].typ || !bytes.Equal(list(got[i]), list(want[i])) {
						t.Errorf("%s: message %d of type %#x:\n%x, the library's %#x:\n%x", e, i, got[i].typ, list(got[i]), want[i].typ, list(want[i]))
					}
					table, set := stringsOf(got[i].data, unix.NFTA_SET_ELEM_LIST_TABLE, unix.NFTA_SET_ELEM_LIST_SET)
					if table != "ironvip" || set != s.name(fam) {
						t.Errorf("%s goes to set %s of table %s", e, set, table)
					}
				}
			}
		}
	}
}

// A transaction succeeds when its last message is answered, and fails with all
// that was said of any message, also of the batch itself, which nothing follows.
func TestTransact(t *testing.T) {
	answer := func(seq uint32, errno unix.Errno) []byte {
		b := beginMessage(nil, unix.NLMSG_ERROR, 0)
		b = binary.NativeEndian.AppendUint32(b, -uint32(errno))
		b = append(b, make([]byte, unix.SizeofNlMsghdr)...)
		endMessage(b, seq, 0)
		return b
	}
	for name, c := range map[string]struct {
		answers [][]byte
		want    []error
	}{
		"done":               {[][]byte{answer(6, 0)}, nil},
		"an old answer":      {[][]byte{answer(4, unix.EPERM), answer(6, 0)}, nil},
		"a message":          {[][]byte{answer(5, unix.ENOENT), answer(6, 0)}, []error{unix.ENOENT}},
		"two messages":       {[][]byte{answer(5, unix.EEXIST), answer(5, unix.ENOENT), answer(6, 0)}, []error{unix.EEXIST, unix.ENOENT}},
		"the last":           {[][]byte{answer(6, unix.EBUSY)}, []error{unix.EBUSY}},
		"the batch":          {[][]byte{answer(5, unix.EPERM)}, []error{unix.EPERM}},
		"no answer":          {nil, []error{errUnknown}},
		"a malformed answer": {[][]byte{{1, 2, 3}}, []error{errMalformed}},
	} {
		t.Run(name, func(t *testing.T) {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fds[1])
			conn := &conn{fd: fds[0], in: make([]byte, recvBytes), stats: &counters{}, seq: 4}
			defer conn.close()
			for _, a := range c.answers {
				if _, err := unix.Write(fds[1], a); err != nil {
					t.Fatal(err)
				}
			}
			if c.answers == nil {
				timeout := unix.NsecToTimeval((10 * time.Millisecond).Nanoseconds())
				if err := unix.SetsockoptTimeval(fds[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
					t.Fatal(err)
				}
			}
			var x transaction
			x.begin()
			x.addTable(newLayout("ironvip", DefaultMark).table)
			err = conn.transact(&x)
			if (err == nil) != (c.want == nil) {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
			}
		})
	}
}
