package firewall

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// packet is what is known of the packet, which is of TCP.
type packet struct {
	pool netip.Prefix
	path Path
	dnat bool // connection tracking has changed its destination
}

// The bits of ct state, and of ct status.
const (
	stateEstablished = 1 << 1
	stateNew         = 1 << 3
	statusDNAT       = 1 << 5
)

func (p *packet) state() uint32 {
	if p.path == Answers {
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

// network returns bytes of the network header. Only the destination of a packet to a VIP is known.
func (p *packet) network(offset, size uint32) value {
	at := uint32(16)
	addr := p.pool.Addr()
	if addr.Is6() {
		at = 24
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
			if found && e.IsDestRegSet && e.DestRegister == unix.NFT_REG_VERDICT {
				verdict = expr.VerdictAccept // the library doesn't read verdicts in maps; most are accept
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

// lookup looks for a known value in a set or map.
func (m *match) lookup(e *expr.Lookup) (found bool, err error) {
	v := m.regs[e.SourceRegister]
	if !v.known || v.mask != 0 {
		m.undecided()
		return false, nil
	}
	set, err := m.conn.GetSetByName(m.table, e.SetName)
	if err != nil {
		return false, err
	}
	elements, err := m.conn.GetSetElements(set)
	if err != nil {
		return false, err
	}
	found = contains(elements, set.Interval, v.data)
	m.and(v, found != e.Invert)
	return found, nil
}

// contains reports whether a key is an element, or in an interval.
func contains(elements []nftables.SetElement, interval bool, key []byte) bool {
	var start *nftables.SetElement // the last edge that is not after the key
	for i := range elements {
		e := &elements[i]
		switch {
		case !interval && bytes.Equal(e.Key, key):
			return true
		case interval && bytes.Compare(e.Key, key) <= 0 && (start == nil || bytes.Compare(e.Key, start.Key) > 0 ||
			bytes.Equal(e.Key, start.Key) && start.IntervalEnd):
			start = e
		}
	}
	return start != nil && !start.IntervalEnd
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
