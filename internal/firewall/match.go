package firewall

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// packet is what is known of the packet, which is of TCP.
type packet struct {
	pool  netip.Prefix
	path  Path
	later bool // not the first one of a client
	dnat  bool // connection tracking has changed its destination
}

// The bits of ct state, and of ct status.
const (
	stateEstablished = 1 << 1
	stateNew         = 1 << 3
	statusDNAT       = 1 << 5
)

func (p *packet) state() uint32 {
	if p.later || p.path == Answers {
		return stateEstablished
	}
	return stateNew
}

// status returns ct status. Only one bit of it is known.
func (p *packet) status() value {
	if p.dnat {
		return value{known: true, mask: statusDNAT, data: binary.NativeEndian.AppendUint32(nil, statusDNAT)}
	}
	return value{}
}

// network returns bytes of the network header. Only the protocol is known, and the destination of a packet to a VIP.
func (p *packet) network(offset, size uint32) value {
	at, protocol := uint32(16), uint32(9)
	addr := p.pool.Addr()
	if addr.Is6() {
		at, protocol = 24, 6
	}
	if offset == protocol && size == 1 {
		return value{known: true, data: []byte{unix.IPPROTO_TCP}}
	}
	raw := addr.AsSlice()
	if p.path != ToVIP || offset < at || offset+size > at+uint32(len(raw)) {
		return value{}
	}
	return value{known: true, address: true, data: raw[offset-at : offset-at+size]}
}

// result is whether a rule matches the packet.
type result int

const (
	yes result = iota
	no
	maybe
)

// value is the content of a register. An unknown one has no data.
type value struct {
	known   bool
	address bool   // the destination
	device  bool   // the name of an interface; the packet didn't come through lo
	mask    uint32 // the bits that are known, if not all are
	data    []byte
}

// match follows the packet through one rule.
type match struct {
	*walk
	regs      map[uint32]value
	result    result
	addressed bool // a condition names the destination
}

// rule returns the verdict of a rule and the chain of a jump. Result says whether it applies.
func (m *match) rule(exprs []expr.Any) (verdict expr.VerdictKind, to string, err error) {
	verdict = expr.VerdictContinue
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Verdict:
			verdict, to = e.Kind, e.Chain
		case *expr.Reject:
			verdict = expr.VerdictDrop
		case *expr.Target:
			if e.Name == "REJECT" {
				verdict = expr.VerdictDrop
			}
		case *expr.Counter, *expr.Log:
		case *expr.Payload:
			m.regs[e.DestRegister] = value{}
			if e.Base == expr.PayloadBaseNetworkHeader {
				m.regs[e.DestRegister] = m.packet.network(e.Offset, e.Len)
			}
		case *expr.Meta:
			m.regs[e.Register] = m.meta(e.Key)
		case *expr.Ct:
			m.regs[e.Register] = value{}
			switch e.Key {
			case expr.CtKeySTATE:
				m.regs[e.Register] = value{known: true, data: binary.NativeEndian.AppendUint32(nil, m.packet.state())}
			case expr.CtKeySTATUS:
				m.regs[e.Register] = m.packet.status()
			}
		case *expr.Bitwise:
			m.regs[e.DestRegister] = bitwise(m.regs[e.SourceRegister], e)
		case *expr.Cmp:
			m.compare(m.regs[e.Register], e.Op, e.Data)
		case *expr.Range:
			v := m.regs[e.Register]
			inside := bytes.Compare(v.data, e.FromData) >= 0 && bytes.Compare(v.data, e.ToData) <= 0
			m.and(v, inside == (e.Op == expr.CmpOpEq))
		case *expr.Lookup:
			found, err := m.lookup(e)
			if err != nil {
				return verdict, "", err
			}
			if found != nil && e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT {
				if verdict, to, err = verdictOf(found); err != nil {
					return verdict, "", err
				}
			}
		case *expr.Match:
			m.xtables(e)
		default:
			m.undecided()
		}
		if m.result == no {
			break
		}
	}
	return verdict, to, nil
}

func (m *match) meta(key expr.MetaKey) value {
	switch key {
	case expr.MetaKeyNFPROTO:
		if m.packet.pool.Addr().Is6() {
			return value{known: true, data: []byte{unix.NFPROTO_IPV6}}
		}
		return value{known: true, data: []byte{unix.NFPROTO_IPV4}}
	case expr.MetaKeyL4PROTO:
		return value{known: true, data: []byte{unix.IPPROTO_TCP}}
	case expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME:
		return value{device: true}
	}
	return value{}
}

func (m *match) undecided() {
	if m.result == yes {
		m.result = maybe
	}
}

// and adds a condition about a value.
func (m *match) and(v value, holds bool) {
	switch {
	case !v.known || v.mask != 0:
		m.undecided()
	case !holds:
		m.result = no
	default:
		m.addressed = m.addressed || v.address
	}
}

func (m *match) compare(v value, op expr.CmpOp, with []byte) {
	if v.device && netString(with) == "lo" {
		if op == expr.CmpOpEq {
			m.result = no
		}
		return
	}
	c := bytes.Compare(v.data, with)
	m.and(v, op == expr.CmpOpEq && c == 0 || op == expr.CmpOpNeq && c != 0 || op == expr.CmpOpLt && c < 0 ||
		op == expr.CmpOpLte && c <= 0 || op == expr.CmpOpGt && c > 0 || op == expr.CmpOpGte && c >= 0)
}

func netString(b []byte) string { return string(bytes.TrimRight(b, "\x00")) }

func bitwise(v value, e *expr.Bitwise) value {
	if !v.known || len(e.Mask) < len(v.data) || len(e.Xor) < len(v.data) {
		return value{}
	}
	out := v
	if v.mask != 0 {
		out.known, out.mask = len(e.Mask) == 4 && binary.NativeEndian.Uint32(e.Mask)&^v.mask == 0, 0
	}
	out.data = make([]byte, len(v.data))
	for i := range v.data {
		out.data[i] = v.data[i]&e.Mask[i] ^ e.Xor[i]
	}
	return out
}

// lookup looks for a known value in a set or map, and returns the element that has it.
func (m *match) lookup(e *expr.Lookup) (found *nftables.SetElement, err error) {
	v := m.regs[e.SourceRegister]
	if !v.known || v.mask != 0 {
		m.undecided()
		return nil, nil
	}
	set, err := m.conn.GetSetByName(m.table, e.SetName)
	if err != nil {
		return nil, err
	}
	elements, err := m.conn.GetSetElements(set)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(elements, func(e nftables.SetElement) bool { return len(e.Key) != len(v.data) }) { // more than v is looked up
		m.undecided()
		m.addressed = m.addressed || v.address && !e.Invert && slices.ContainsFunc(elements, func(e nftables.SetElement) bool { return bytes.HasPrefix(e.Key, v.data) })
		return nil, nil
	}
	found = find(elements, set.Interval, v.data)
	m.and(v, (found != nil) != e.Invert)
	return found, nil
}

// find returns the element of a key, or the interval with it, or nil.
func find(elements []nftables.SetElement, interval bool, key []byte) *nftables.SetElement {
	var start *nftables.SetElement // the last edge that is not after the key
	for i := range elements {
		e := &elements[i]
		switch {
		case !interval && bytes.Equal(e.Key, key):
			return e
		case interval && bytes.Compare(e.Key, key) <= 0 && (start == nil || bytes.Compare(e.Key, start.Key) > 0 ||
			bytes.Equal(e.Key, start.Key) && start.IntervalEnd):
			start = e
		}
	}
	if start != nil && start.IntervalEnd {
		return nil
	}
	return start
}

// verdictOf returns the verdict of a map's element. The library leaves it encoded.
func verdictOf(e *nftables.SetElement) (expr.VerdictKind, string, error) {
	code, err := netlink.Find(e.Val, unix.NFTA_VERDICT_CODE)
	if err != nil || len(code) != 4 {
		return expr.VerdictContinue, "", cmp.Or(err, netlink.ErrMalformed)
	}
	chain, err := netlink.Find(e.Val, unix.NFTA_VERDICT_CHAIN)
	return expr.VerdictKind(int32(binary.BigEndian.Uint32(code))), netlink.String(chain), err
}

// xtables adds a condition that iptables has written.
func (m *match) xtables(e *expr.Match) {
	if e.Name == "comment" {
		return
	}
	const onlyState, stateDNAT, ofState = 1, 1 << 7, 1 << 13 // -m state sets the last one, too
	if c, is := e.Info.(*xt.ConntrackMtinfo3); is && c.MatchFlags&^ofState == onlyState {
		state := m.packet.state()
		if m.packet.dnat {
			state |= stateDNAT
		}
		m.and(value{known: true}, (uint32(c.StateMask)&state != 0) == (c.InvertFlags&onlyState == 0))
		return
	}
	m.undecided()
}
