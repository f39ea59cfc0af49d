package filter

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// LayoutVersion is part of every rule's comment. Raise it whenever the rules or sets
// change: at its start, the agent replaces a table of another version in one transaction.
const LayoutVersion = "ironvip 3: "

// Priorities of the base chains. IPVS handles packets at 99 in input and at -98 in output,
// conntrack at -200. Packets to a virtual address after that have no service.
const (
	priorityInput    = -10
	priorityOutput   = -150
	priorityUnserved = 110
)

const (
	chainInput       = "input"
	chainOutput      = "output"
	chainGuard       = "guard"
	chainMarkedIn    = "marked_input"
	chainMarked      = "marked"
	chainSent        = "sent"
	chainUnserved    = "unserved"
	chainRefuse      = "refuse"
	chainRefuseNew   = "refuse_new"
	chainPostrouting = "postrouting"
)

// Registers. A listener's key takes three in a row, and a source address may follow. An
// IPv6 address takes four 32-bit registers.
const (
	regAddr   = unix.NFT_REG_1
	regProto4 = unix.NFT_REG32_00 + 1
	regPort4  = unix.NFT_REG32_00 + 2
	regProto6 = unix.NFT_REG32_00 + 4
	regPort6  = unix.NFT_REG32_00 + 5
	regPeer   = unix.NFT_REG32_00 + 1 // after a mark or an IPv4 address
	regPeer6  = unix.NFT_REG32_00 + 4
	regFrom4  = unix.NFT_REG32_00 + 3
	regFrom6  = unix.NFT_REG32_00 + 6
)

// rule is one rule of the table.
type rule struct {
	chain   string
	comment string
	exprs   []expr.Any
}

func (r rule) userData() []byte {
	return userdata.AppendString(nil, userdata.TypeComment, LayoutVersion+r.comment)
}

// Layout describes the table without its elements.
type Layout struct {
	table  *nftables.Table
	chains []*nftables.Chain
	sets   map[string]*nftables.Set
	order  []*nftables.Set // in the order of nft list
	rules  []rule
}

// newLayout returns the layout of a table. Bit is the bit of the packet mark that marks
// packets for masquerading.
func newLayout(name string, bit uint32) *Layout {
	l := newSets(name, false)
	for _, name := range []string{chainRefuse, chainRefuseNew, chainGuard, chainMarked, chainMarkedIn, chainSent} {
		l.chains = append(l.chains, &nftables.Chain{Name: name, Table: l.table})
	}
	l.base(chainInput, nftables.ChainTypeFilter, nftables.ChainHookInput, priorityInput)
	l.base(chainOutput, nftables.ChainTypeFilter, nftables.ChainHookOutput, priorityOutput)
	l.base(chainUnserved, nftables.ChainTypeFilter, nftables.ChainHookInput, priorityUnserved)
	l.base(chainPostrouting, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource)
	l.rules = l.describe(bit)
	return l
}

// newSets returns the layout of a table with its sets only: those of the table of probes, or all
// others.
func newSets(name string, probes bool) *Layout {
	l := &Layout{
		table: &nftables.Table{Name: name, Family: nftables.TableFamilyINet},
		sets:  map[string]*nftables.Set{},
	}
	for s := range setCount {
		if sets[s].probes != probes {
			continue
		}
		for _, f := range families {
			set := &nftables.Set{
				Table:        l.table,
				Name:         s.Name(f),
				KeyType:      keyType(s, f),
				Interval:     s.interval(),
				KeyByteOrder: binaryutil.BigEndian,
				IsMap:        s.IsMap() || s.Kind() == KindProbe,
			}
			set.Concatenation = set.Interval && s.Kind() != kindRange
			switch {
			case s.IsMap():
				set.DataType = nftables.TypeMark
			case s.Kind() == KindProbe:
				set.DataType = addressType(f)
			}
			if s.Passing() {
				set.HasTimeout, set.Timeout = true, LongestPause
			}
			if s.Kind() == KindMark || s.Kind() == KindProbe {
				set.KeyByteOrder = binaryutil.NativeEndian
			}
			l.sets[set.Name] = set
			l.order = append(l.order, set)
		}
	}
	return l
}

// base adds a base chain.
func (l *Layout) base(name string, typ nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority) {
	policy := nftables.ChainPolicyAccept
	l.chains = append(l.chains, &nftables.Chain{Name: name, Table: l.table, Type: typ, Hooknum: hook, Priority: &priority, Policy: &policy})
}

func addressType(f vip.Family) nftables.SetDatatype {
	if f == vip.IPv6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

func keyType(s Set, f vip.Family) nftables.SetDatatype {
	addr := addressType(f)
	switch s.Kind() {
	case kindListener, KindPorts:
		return nftables.MustConcatSetType(addr, nftables.TypeInetProto, nftables.TypeInetService)
	case KindSource:
		return nftables.MustConcatSetType(addr, nftables.TypeInetProto, nftables.TypeInetService, addr)
	case KindMark:
		return nftables.TypeMark
	case KindMarkSource, KindProbe:
		return nftables.MustConcatSetType(nftables.TypeMark, addr)
	case KindPair:
		return nftables.MustConcatSetType(addr, addr)
	}
	return addr
}

// describe returns the rules. A packet passes these chains in order:
//
// Input (before IPVS, new connections only): frontends by mark, first those for internal
// clients, then those for everyone. Rules for its address and port don't apply to a packet
// of these. Then source ranges, then the guard: pauses, refusals, masquerading.
//
// Output (before IPVS): this host's own connections, and again each packet that IPVS sends
// to a backend. For the latter, the mark of the frontend is replaced by the bit if it is to
// be masqueraded. For the former, the rules of input apply except source ranges. Probes pass
// without any of it, twice, too.
//
// Unserved (after IPVS): what remains for a virtual address. On a real server, that is what
// its own sockets serve.
//
// Postrouting: masquerades packets with the bit.
func (l *Layout) describe(bit uint32) []rule {
	ret, drop := verdict(expr.VerdictReturn, ""), verdict(expr.VerdictDrop, "")
	rules := []rule{
		{chainRefuse, "icmp and neighbour discovery pass", join(protocol(unix.IPPROTO_ICMP), ret)},
		{chainRefuse, "icmp and neighbour discovery pass", join(protocol(unix.IPPROTO_ICMPV6), ret)},
		{chainRefuse, "tcp is reset", join(protocol(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})},
		{chainRefuse, "all else gets port unreachable", []expr.Any{
			&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}},
		{chainRefuseNew, "no connection is opened", join(opensNothing(), ret)},
		{chainRefuseNew, "refuse", []expr.Any{verdict(expr.VerdictGoto, chainRefuse)}},
		{chainInput, "open connections go on", join(openConnection(), ret)},
		{chainOutput, "probes have a path of their own", join(probeMark(), ret)},
		{chainOutput, "open connections go on", join(openConnection(), ret)},
		{chainUnserved, "open connections go on", join(openConnection(), ret)},
	}
	add := func(chain, comment string, match []expr.Any, then ...expr.Any) {
		rules = append(rules, rule{chain, comment, join(match, then...)})
	}
	for _, f := range families {
		internal := join(family(f), l.source(f, setPods, false)...)
		add(chainInput, "internal clients have their own", join(internal, l.mark(f, SetInternal)...), verdict(expr.VerdictGoto, chainMarkedIn))
		add(chainInput, "internal clients have their own", join(internal, l.mark(f, SetInternalRanges)...), verdict(expr.VerdictGoto, chainMarkedIn))
		add(chainInput, "ranges of ports", join(family(f), l.mark(f, SetRanges)...), verdict(expr.VerdictGoto, chainMarkedIn))
		add(chainInput, "only these clients", l.from(f), verdict(expr.VerdictGoto, chainRefuseNew))

		add(chainOutput, "ipvs has sent it", l.marked(f, SetMarks), verdict(expr.VerdictGoto, chainSent))
		for _, s := range []Set{SetInternal, SetInternalRanges, SetRanges} {
			add(chainOutput, "this host has its own, and ranges of ports", join(family(f), l.mark(f, s)...), verdict(expr.VerdictGoto, chainMarked))
		}
		add(chainOutput, "masquerade own connections", l.listener(f, SetMasqOwn), addBit(bit)...)

		add(chainMarkedIn, "only these clients", l.markedFrom(f), verdict(expr.VerdictGoto, chainRefuseNew))
		add(chainMarked, "new connections wait", l.marked(f, setMarkedPaused), drop)
		add(chainMarked, "no usable backend", l.marked(f, SetMarkedRefused), verdict(expr.VerdictGoto, chainRefuseNew))

		add(chainSent, "masquerade every client", l.marked(f, SetMarkedMasqAlways), join(setMark(bit), ret)...)
		add(chainSent, "masquerade clients that are no pods", join(l.marked(f, SetMarkedMasqAuto), l.source(f, setPods, true)...), join(setMark(bit), ret)...)
		add(chainSent, "masquerade own connections", join(l.marked(f, SetMarkedMasqOwn), fromHere()...), join(setMark(bit), ret)...)

		add(chainGuard, "new connections wait", l.listener(f, SetPaused), drop)
		add(chainGuard, "no usable backend", l.listener(f, SetRefused), verdict(expr.VerdictGoto, chainRefuseNew))
		add(chainGuard, "masquerade every client", l.listener(f, SetMasqAlways), addBit(bit)...)
		add(chainGuard, "masquerade clients that are no pods", join(l.listener(f, SetMasqAuto), l.source(f, setPods, true)...), addBit(bit)...)

		add(chainUnserved, "the mark has served", l.marked(f, SetMarks), setMark(0)...)
		add(chainUnserved, "what a real server serves", l.listener(f, SetServed), ret)
		add(chainUnserved, "what a real server serves", l.listener(f, SetServedRanges), ret)
		add(chainUnserved, "nothing else on a virtual address", l.destination(f, SetVIPs), verdict(expr.VerdictGoto, chainRefuse))

		add(chainPostrouting, "a backend that reaches itself", l.pair(f, SetHairpin), &expr.Masq{})
	}
	add(chainInput, "guard", nil, verdict(expr.VerdictJump, chainGuard))
	add(chainOutput, "guard", nil, verdict(expr.VerdictJump, chainGuard))
	add(chainMarkedIn, "as from this host", nil, verdict(expr.VerdictGoto, chainMarked))
	add(chainSent, "the mark has served", setMark(0))
	add(chainPostrouting, "not marked", withoutBit(bit), ret)
	add(chainPostrouting, "the mark has served", clearBit(bit))
	add(chainPostrouting, "masquerade", nil, &expr.Masq{})
	return rules
}

// join returns a new list, because several rules share what they match.
func join(a []expr.Any, b ...expr.Any) []expr.Any { return slices.Concat(a, b) }

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// openConnection matches packets of known connections.
func openConnection() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: regAddr},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4,
			Mask: native(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regAddr, Data: native(0)},
	}
}

// addBit, clearBit and withoutBit concern one bit of the packet mark and keep the others.
func addBit(bit uint32) []expr.Any { return changeMark(bit, bit) }

func clearBit(bit uint32) []expr.Any { return changeMark(bit, 0) }

func changeMark(bit, to uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4, Mask: native(^bit), Xor: native(to)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: regAddr},
	}
}

func withoutBit(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4, Mask: native(bit), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regAddr, Data: native(bit)},
	}
}

// probeMark matches packets with a mark of probes.
func probeMark() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4, Mask: native(probeBit | ^uint32(markMask)), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regAddr, Data: native(probeBit)},
	}
}

// setMark sets the whole packet mark.
func setMark(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: regAddr, Data: native(mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: regAddr},
	}
}

// fromHere matches packets whose source is an address of this host.
func fromHere() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: regAddr, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regAddr, Data: native(unix.RTN_LOCAL)},
	}
}

func verdict(kind expr.VerdictKind, chain string) expr.Any {
	return &expr.Verdict{Kind: kind, Chain: chain}
}

func protocol(n byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: regAddr},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regAddr, Data: []byte{n}},
	}
}

// opensNothing matches TCP packets that don't open a connection. Connection tracking calls
// them new if the answers take another path, or if the connection is older than the
// entry.
func opensNothing() []expr.Any {
	const synAckRstFin, syn = 0x17, 0x02
	return append(protocol(unix.IPPROTO_TCP),
		&expr.Payload{DestRegister: regAddr, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 1, Mask: []byte{synAckRstFin}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regAddr, Data: []byte{syn}})
}

func family(f vip.Family) []expr.Any {
	n := byte(unix.NFPROTO_IPV4)
	if f == vip.IPv6 {
		n = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: regAddr},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regAddr, Data: []byte{n}},
	}
}

// address loads a packet's source or destination address.
func address(f vip.Family, source bool, register uint32) expr.Any {
	p := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}
	if f == vip.IPv6 {
		p.Offset, p.Len = 24, 16
	}
	if source {
		p.Offset -= p.Len
	}
	return p
}

func (l *Layout) lookup(f vip.Family, s Set, invert bool) expr.Any {
	set := l.sets[s.Name(f)]
	return &expr.Lookup{SourceRegister: regAddr, SetName: set.Name, SetID: set.ID, Invert: invert}
}

// listener matches packets to an address . protocol . port in the set.
func (l *Layout) listener(f vip.Family, s Set) []expr.Any {
	return join(family(f), join(listenerKey(f), l.lookup(f, s, false))...)
}

// listenerKey loads a packet's destination address, protocol and port.
func listenerKey(f vip.Family) []expr.Any {
	proto, port := uint32(regProto4), uint32(regPort4)
	if f == vip.IPv6 {
		proto, port = regProto6, regPort6
	}
	return []expr.Any{
		address(f, false, regAddr),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: proto},
		&expr.Payload{DestRegister: port, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

// mark sets the mark of packets with address . protocol . port in the map. The rule ends
// for others.
func (l *Layout) mark(f vip.Family, s Set) []expr.Any {
	set := l.sets[s.Name(f)]
	return join(listenerKey(f),
		&expr.Lookup{SourceRegister: regAddr, DestRegister: regAddr, IsDestRegSet: true, SetName: set.Name, SetID: set.ID},
		&expr.Byteorder{SourceRegister: regAddr, DestRegister: regAddr, Op: expr.ByteorderNtoh, Len: 4, Size: 4},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: regAddr})
}

// marked matches packets whose mark is in the set.
func (l *Layout) marked(f vip.Family, s Set) []expr.Any {
	return join(family(f), &expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr}, l.lookup(f, s, false))
}

// markedFrom matches packets with a restricted mark whose source isn't allowed.
func (l *Layout) markedFrom(f vip.Family) []expr.Any {
	return join(l.marked(f, SetMarkedRestricted),
		&expr.Byteorder{SourceRegister: regAddr, DestRegister: regAddr, Op: expr.ByteorderHton, Len: 4, Size: 4},
		address(f, true, regPeer), l.lookup(f, SetMarkedSources, true))
}

// from matches packets to a restricted listener whose source isn't allowed.
func (l *Layout) from(f vip.Family) []expr.Any {
	register := uint32(regFrom4)
	if f == vip.IPv6 {
		register = regFrom6
	}
	return join(l.listener(f, SetRestricted), address(f, true, register), l.lookup(f, SetSources, true))
}

func (l *Layout) destination(f vip.Family, s Set) []expr.Any {
	return append(family(f), address(f, false, regAddr), l.lookup(f, s, false))
}

func (l *Layout) source(f vip.Family, s Set, invert bool) []expr.Any {
	return []expr.Any{address(f, true, regAddr), l.lookup(f, s, invert)}
}

// pair matches packets with source . destination in the set that leave this host.
func (l *Layout) pair(f vip.Family, s Set) []expr.Any {
	peer := uint32(regPeer)
	if f == vip.IPv6 {
		peer = regPeer6
	}
	return append(family(f),
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: regAddr},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regAddr, Data: append([]byte("lo"), make([]byte, unix.IFNAMSIZ-2)...)},
		address(f, true, regAddr),
		address(f, false, peer),
		l.lookup(f, s, false))
}
