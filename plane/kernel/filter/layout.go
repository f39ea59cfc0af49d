package filter

import (
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// LayoutVersion is part of every rule's comment. Raise it whenever the rules or sets
// change: at its start, the agent replaces a table of another version in one transaction.
const LayoutVersion = "ironvip 6: "

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
	chainReplies     = "replies"
	chainResets      = "resets"
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

// Comment is the user data of a rule with a comment in a layout of a version.
func Comment(version, text string) []byte {
	return userdata.AppendString(nil, userdata.TypeComment, version+text)
}

func (l *Layout) userData(r rule) []byte { return Comment(l.version, r.comment) }

// Layout describes the table without its elements.
type Layout struct {
	version string // part of every rule's comment
	table   *nftables.Table
	chains  []*nftables.Chain
	sets    map[string]*nftables.Set
	order   []*nftables.Set // in the order of nft list
	rules   []rule
	own     []*nftables.Set // those that AddSet added
	written []*nftables.Set // those that AddWritten added
	// Trials are of the modules that rules of the dataplane need, besides those that the rules of every dataplane do.
	Trials []Trial
}

// newLayout returns the layout of a table.
func newLayout(name string) *Layout {
	l := newSets(name, func(s Set) bool { return !sets[s].probes })
	for _, name := range []string{chainRefuse, chainRefuseNew, chainGuard, chainMarked, chainMarkedIn, chainSent} {
		l.chains = append(l.chains, &nftables.Chain{Name: name, Table: l.table})
	}
	l.base(chainInput, nftables.ChainTypeFilter, nftables.ChainHookInput, priorityInput)
	l.base(chainOutput, nftables.ChainTypeFilter, nftables.ChainHookOutput, priorityOutput)
	l.base(chainUnserved, nftables.ChainTypeFilter, nftables.ChainHookInput, priorityUnserved)
	l.base(chainPostrouting, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource)
	l.rules = l.describe()
	return l
}

// newSets returns the layout of a table with these sets only.
func newSets(name string, has func(Set) bool) *Layout {
	l := &Layout{
		version: LayoutVersion,
		table:   &nftables.Table{Name: name, Family: nftables.TableFamilyINet},
		sets:    map[string]*nftables.Set{},
	}
	for s := range setCount {
		if !has(s) {
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
	l.chains = append(l.chains, l.hooked(name, typ, hook, priority))
}

func (l *Layout) hooked(name string, typ nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority) *nftables.Chain {
	policy := nftables.ChainPolicyAccept
	return &nftables.Chain{Name: name, Table: l.table, Type: typ, Hooknum: hook, Priority: &priority, Policy: &policy}
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
// of these. Then source ranges, then the guard: refusals, masquerading.
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
func (l *Layout) describe() []rule {
	ret := Verdict(expr.VerdictReturn, "")
	rules := append(refusal(),
		rule{chainRefuseNew, "no connection is opened", join(OpensNothing(), ret)},
		rule{chainRefuseNew, "refuse", []expr.Any{Verdict(expr.VerdictGoto, chainRefuse)}},
		rule{chainInput, "open connections go on", join(openConnection(), ret)},
		rule{chainOutput, "probes have a path of their own", join(probeMark(), ret)},
		rule{chainOutput, "open connections go on", join(openConnection(), ret)},
	)
	rules = append(rules, openUnserved()...)
	add := func(chain, comment string, match []expr.Any, then ...expr.Any) {
		rules = append(rules, rule{chain, comment, join(match, then...)})
	}
	for _, f := range families {
		internal := join(Family(f), l.source(f, setPods, false)...)
		add(chainInput, "internal clients have their own", join(internal, l.mark(f, SetInternal)...), Verdict(expr.VerdictGoto, chainMarkedIn))
		add(chainInput, "internal clients have their own", join(internal, l.mark(f, SetInternalRanges)...), Verdict(expr.VerdictGoto, chainMarkedIn))
		add(chainInput, "ranges of ports", join(Family(f), l.mark(f, SetRanges)...), Verdict(expr.VerdictGoto, chainMarkedIn))
		add(chainInput, "only these clients", l.from(f), Verdict(expr.VerdictGoto, chainRefuseNew))

		add(chainOutput, "ipvs has sent it", l.marked(f, SetMarks), Verdict(expr.VerdictGoto, chainSent))
		for _, s := range []Set{SetInternal, SetInternalRanges, SetRanges} {
			add(chainOutput, "this host has its own, and ranges of ports", join(Family(f), l.mark(f, s)...), Verdict(expr.VerdictGoto, chainMarked))
		}
		add(chainOutput, "masquerade own connections", l.listener(f, SetMasqOwn), AddBit()...)

		add(chainMarkedIn, "only these clients", l.markedFrom(f), Verdict(expr.VerdictGoto, chainRefuseNew))
		add(chainMarked, "no usable backend", l.marked(f, SetMarkedRefused), Verdict(expr.VerdictGoto, chainRefuseNew))

		add(chainSent, "masquerade every client", l.marked(f, SetMarkedMasqAlways), join(setMark(MasqueradeBit), ret)...)
		add(chainSent, "masquerade clients that are no pods", join(l.marked(f, SetMarkedMasqAuto), l.source(f, setPods, true)...), join(setMark(MasqueradeBit), ret)...)
		add(chainSent, "masquerade own connections", join(l.marked(f, SetMarkedMasqOwn), FromHere()...), join(setMark(MasqueradeBit), ret)...)

		add(chainGuard, "no usable backend", l.listener(f, SetRefused), Verdict(expr.VerdictGoto, chainRefuseNew))
		add(chainGuard, "masquerade every client", l.listener(f, SetMasqAlways), AddBit()...)
		add(chainGuard, "masquerade clients that are no pods", join(l.listener(f, SetMasqAuto), l.source(f, setPods, true)...), AddBit()...)

		add(chainUnserved, "the mark has served", l.marked(f, SetMarks), setMark(0)...)
		add(chainUnserved, "what a real server serves", l.listener(f, SetServed), ret)
		add(chainUnserved, "what a real server serves", l.listener(f, SetServedRanges), ret)
		rules = append(rules, l.unserved(f), l.hairpin(f))
	}
	add(chainInput, "guard", nil, Verdict(expr.VerdictJump, chainGuard))
	add(chainOutput, "guard", nil, Verdict(expr.VerdictJump, chainGuard))
	add(chainMarkedIn, "as from this host", nil, Verdict(expr.VerdictGoto, chainMarked))
	add(chainSent, "the mark has served", setMark(0))
	return append(rules, masqueradeBit()...)
}

func (l *Layout) lookup(f vip.Family, s Set, invert bool) expr.Any {
	set := l.sets[s.Name(f)]
	return &expr.Lookup{SourceRegister: regAddr, SetName: set.Name, SetID: set.ID, Invert: invert}
}

// listener matches packets to an address . protocol . port in the set.
func (l *Layout) listener(f vip.Family, s Set) []expr.Any {
	return join(Family(f), join(ListenerKey(f), l.lookup(f, s, false))...)
}

// mark sets the mark of packets with address . protocol . port in the map. The rule ends
// for others.
func (l *Layout) mark(f vip.Family, s Set) []expr.Any {
	set := l.sets[s.Name(f)]
	return join(ListenerKey(f),
		&expr.Lookup{SourceRegister: regAddr, DestRegister: regAddr, IsDestRegSet: true, SetName: set.Name, SetID: set.ID},
		&expr.Byteorder{SourceRegister: regAddr, DestRegister: regAddr, Op: expr.ByteorderNtoh, Len: 4, Size: 4},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: regAddr})
}

// marked matches packets whose mark is in the set.
func (l *Layout) marked(f vip.Family, s Set) []expr.Any {
	return join(Family(f), &expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr}, l.lookup(f, s, false))
}

// markedFrom matches packets with a restricted mark whose source isn't allowed.
func (l *Layout) markedFrom(f vip.Family) []expr.Any {
	return join(l.marked(f, SetMarkedRestricted),
		&expr.Byteorder{SourceRegister: regAddr, DestRegister: regAddr, Op: expr.ByteorderHton, Len: 4, Size: 4},
		Address(f, true, regPeer), l.lookup(f, SetMarkedSources, true))
}

// from matches packets to a restricted listener whose source isn't allowed.
func (l *Layout) from(f vip.Family) []expr.Any {
	register := uint32(regFrom4)
	if f == vip.IPv6 {
		register = regFrom6
	}
	return join(l.listener(f, SetRestricted), Address(f, true, register), l.lookup(f, SetSources, true))
}

func (l *Layout) destination(f vip.Family, s Set) []expr.Any {
	return append(Family(f), Address(f, false, regAddr), l.lookup(f, s, false))
}

func (l *Layout) source(f vip.Family, s Set, invert bool) []expr.Any {
	return []expr.Any{Address(f, true, regAddr), l.lookup(f, s, invert)}
}

// pair matches packets with source . destination in the set that leave this host.
func (l *Layout) pair(f vip.Family, s Set) []expr.Any {
	peer := uint32(regPeer)
	if f == vip.IPv6 {
		peer = regPeer6
	}
	return append(Family(f),
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: regAddr},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regAddr, Data: append([]byte("lo"), make([]byte, unix.IFNAMSIZ-2)...)},
		Address(f, true, regAddr),
		Address(f, false, peer),
		l.lookup(f, s, false))
}
