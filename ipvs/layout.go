package ipvs

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/ironvip/ironvip/vip"
	"golang.org/x/sys/unix"
)

// layoutVersion is part of every rule's comment. Raise it whenever the rules
// or the sets change: a table of another version is replaced, in one
// transaction, when the agent starts.
const layoutVersion = "ironvip 1: "

// Priorities of the base chains. IPVS takes packets for its services at 99 in
// input and at -98 in output; conntrack has seen them at -200. What still goes
// to a virtual address after that was not for a service.
const (
	priorityInput    = -10
	priorityOutput   = -150
	priorityUnserved = 110
)

const (
	chainInput       = "input"
	chainOutput      = "output"
	chainGuard       = "guard"
	chainUnserved    = "unserved"
	chainRefuse      = "refuse"
	chainPostrouting = "postrouting"
)

// Registers. A listener's key takes three in a row; an IPv6 address is four
// 32-bit registers wide.
const (
	regAddr   = unix.NFT_REG_1
	regProto4 = unix.NFT_REG32_00 + 1
	regPort4  = unix.NFT_REG32_00 + 2
	regProto6 = unix.NFT_REG32_00 + 4
	regPort6  = unix.NFT_REG32_00 + 5
	regPeer4  = unix.NFT_REG32_00 + 1
	regPeer6  = unix.NFT_REG32_00 + 4
)

// rule is one rule of the table: where, what for, and its expressions.
type rule struct {
	chain   string
	comment string
	exprs   []expr.Any
}

func (r rule) userData() []byte {
	return userdata.AppendString(nil, userdata.TypeComment, layoutVersion+r.comment)
}

// layout is the table without its elements.
type layout struct {
	table  *nftables.Table
	chains []*nftables.Chain
	sets   map[string]*nftables.Set
	order  []*nftables.Set // the same, as nft list shows them
	rules  []rule
}

// newLayout describes the table. Mark is the one bit of the packet mark that is
// used, between seeing a packet that needs masquerading and its leaving.
func newLayout(name string, mark uint32) *layout {
	l := &layout{
		table: &nftables.Table{Name: name, Family: nftables.TableFamilyINet},
		sets:  map[string]*nftables.Set{},
	}
	for s := range setCount {
		for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
			set := &nftables.Set{
				Table:        l.table,
				Name:         s.name(f),
				KeyType:      keyType(s, f),
				Interval:     s.kind() == kindRange,
				KeyByteOrder: binaryutil.BigEndian,
			}
			l.sets[set.Name] = set
			l.order = append(l.order, set)
		}
	}
	base := func(name string, typ nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority) {
		policy := nftables.ChainPolicyAccept
		l.chains = append(l.chains, &nftables.Chain{Name: name, Table: l.table, Type: typ, Hooknum: hook, Priority: &priority, Policy: &policy})
	}
	l.chains = append(l.chains,
		&nftables.Chain{Name: chainRefuse, Table: l.table},
		&nftables.Chain{Name: chainGuard, Table: l.table})
	base(chainInput, nftables.ChainTypeFilter, nftables.ChainHookInput, priorityInput)
	base(chainOutput, nftables.ChainTypeFilter, nftables.ChainHookOutput, priorityOutput)
	base(chainUnserved, nftables.ChainTypeFilter, nftables.ChainHookInput, priorityUnserved)
	base(chainPostrouting, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource)
	l.rules = l.describe(mark)
	return l
}

func keyType(s setID, f vip.Family) nftables.SetDatatype {
	addr := nftables.TypeIPAddr
	if f == vip.IPv6 {
		addr = nftables.TypeIP6Addr
	}
	switch s.kind() {
	case kindListener:
		return nftables.MustConcatSetType(addr, nftables.TypeInetProto, nftables.TypeInetService)
	case kindPair:
		return nftables.MustConcatSetType(addr, addr)
	}
	return addr
}

func (l *layout) describe(mark uint32) []rule {
	bit := binary.NativeEndian.AppendUint32(nil, mark)
	rest := binary.NativeEndian.AppendUint32(nil, ^mark)
	none := make([]byte, 4)
	setMark := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4, Mask: rest, Xor: bit},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: regAddr},
	}
	clearMark := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4, Mask: rest, Xor: none},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: regAddr},
	}
	open := binary.NativeEndian.AppendUint32(nil, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
	established := func(chain string) rule {
		return rule{chain, "open connections go on", []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: regAddr},
			&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4, Mask: open, Xor: none},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: regAddr, Data: none},
			verdict(expr.VerdictReturn, "")}}
	}
	families := []vip.Family{vip.IPv4, vip.IPv6}

	rules := []rule{
		{chainRefuse, "icmp and neighbour discovery pass", append(protocol(unix.IPPROTO_ICMP), verdict(expr.VerdictReturn, ""))},
		{chainRefuse, "icmp and neighbour discovery pass", append(protocol(unix.IPPROTO_ICMPV6), verdict(expr.VerdictReturn, ""))},
		{chainRefuse, "tcp is reset", append(protocol(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})},
		{chainRefuse, "all else gets port unreachable", []expr.Any{
			&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}},
		established(chainGuard),
		established(chainUnserved),
	}
	for _, f := range families {
		rules = append(rules,
			rule{chainGuard, "no usable backend", join(l.listener(f, setRefused), verdict(expr.VerdictGoto, chainRefuse))},
			rule{chainGuard, "masquerade every client", join(l.listener(f, setMasqAlways), setMark...)},
			rule{chainGuard, "masquerade clients that are no pods", join(l.listener(f, setMasqAuto), join(l.source(f, setPods, true), setMark...)...)},
			rule{chainUnserved, "nothing else on a virtual address", join(l.destination(f, setVIPs), verdict(expr.VerdictGoto, chainRefuse))})
	}
	rules = append(rules,
		rule{chainInput, "guard", []expr.Any{verdict(expr.VerdictJump, chainGuard)}},
		rule{chainOutput, "guard", []expr.Any{verdict(expr.VerdictJump, chainGuard)}})
	for _, f := range families {
		rules = append(rules, rule{chainPostrouting, "a pod that reaches itself", join(l.pair(f, setHairpin), &expr.Masq{})})
	}
	return append(rules,
		rule{chainPostrouting, "not marked", []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr},
			&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4, Mask: bit, Xor: none},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: regAddr, Data: bit},
			verdict(expr.VerdictReturn, "")}},
		rule{chainPostrouting, "the mark has served", clearMark},
		rule{chainPostrouting, "masquerade", []expr.Any{&expr.Masq{}}})
}

func join(a []expr.Any, b ...expr.Any) []expr.Any { return append(a, b...) }

func verdict(kind expr.VerdictKind, chain string) expr.Any {
	return &expr.Verdict{Kind: kind, Chain: chain}
}

func protocol(n byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: regAddr},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regAddr, Data: []byte{n}},
	}
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

func (l *layout) lookup(f vip.Family, s setID, invert bool) expr.Any {
	set := l.sets[s.name(f)]
	return &expr.Lookup{SourceRegister: regAddr, SetName: set.Name, SetID: set.ID, Invert: invert}
}

// listener matches packets to an address . protocol . port in the set.
func (l *layout) listener(f vip.Family, s setID) []expr.Any {
	proto, port := uint32(regProto4), uint32(regPort4)
	if f == vip.IPv6 {
		proto, port = regProto6, regPort6
	}
	return append(family(f),
		address(f, false, regAddr),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: proto},
		&expr.Payload{DestRegister: port, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		l.lookup(f, s, false))
}

func (l *layout) destination(f vip.Family, s setID) []expr.Any {
	return append(family(f), address(f, false, regAddr), l.lookup(f, s, false))
}

func (l *layout) source(f vip.Family, s setID, invert bool) []expr.Any {
	return []expr.Any{address(f, true, regAddr), l.lookup(f, s, invert)}
}

// pair matches packets whose source . destination is in the set, unless they
// stay on this host.
func (l *layout) pair(f vip.Family, s setID) []expr.Any {
	peer := uint32(regPeer4)
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
