package filter

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// The parts that the tables of all dataplanes have: the refusal of what nothing serves at a virtual
// address, hairpin, and masquerading by a bit of the packet mark.

// NewBase returns a layout with these parts only, for a dataplane that adds its own. Version is
// part of every rule's comment. Its sets are vips, hairpin and pods.
func NewBase(name, version string) *Layout {
	l := newSets(name, func(s Set) bool { return !s.OfFrontends() && !sets[s].probes })
	l.version = version
	l.AddChain(chainRefuse)
	l.AddChain(chainResets)
	l.base(chainUnserved, nftables.ChainTypeFilter, nftables.ChainHookInput, priorityUnserved)
	l.base(chainReplies, nftables.ChainTypeFilter, nftables.ChainHookOutput, priorityUnserved)
	l.base(chainPostrouting, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, *nftables.ChainPriorityNATSource)
	l.rules = append(refusal(), openUnserved()...)
	l.rules = append(l.rules,
		rule{chainReplies, "resets", join(resets(), Verdict(expr.VerdictGoto, chainResets))},
		rule{chainResets, "of a process's own connection", join(ofProcess(), Verdict(expr.VerdictReturn, ""))})
	for _, f := range families {
		l.rules = append(l.rules, l.invalid(f), l.unknown(f), l.unserved(f), l.hairpin(f))
	}
	l.rules = append(l.rules, masqueradeBit()...)
	return l
}

// Table returns the table that the layout describes.
func (l *Layout) Table() *nftables.Table { return l.table }

// AddSet adds a set of the dataplane's own.
func (l *Layout) AddSet(s *nftables.Set) {
	l.addSet(s)
	l.own = append(l.own, s)
}

func (l *Layout) addSet(s *nftables.Set) {
	s.Table = l.table
	l.sets[s.Name] = s
	l.order = append(l.order, s)
}

// AddWritten adds a set of the dataplane's own that packets write to. Its elements are not read back.
func (l *Layout) AddWritten(s *nftables.Set) {
	l.addSet(s)
	l.written = append(l.written, s)
}

// AddChain adds a chain without a hook.
func (l *Layout) AddChain(name string) {
	l.chains = append(l.chains, &nftables.Chain{Name: name, Table: l.table})
}

// AddHook adds a base chain that accepts by default.
func (l *Layout) AddHook(name string, typ nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority) {
	l.base(name, typ, hook, priority)
}

// AddRule adds a rule to a chain.
func (l *Layout) AddRule(chain, comment string, exprs []expr.Any) {
	l.rules = append(l.rules, rule{chain, comment, exprs})
}

// FromPod matches packets of a family whose source is in the pod ranges, or isn't.
func (l *Layout) FromPod(f vip.Family, is bool) []expr.Any {
	return join(Family(f), l.source(f, setPods, !is)...)
}

// refusal are the rules of the chain that refuses a packet.
func refusal() []rule {
	ret := Verdict(expr.VerdictReturn, "")
	return []rule{
		{chainRefuse, "icmp and neighbour discovery pass", join(protocol(unix.IPPROTO_ICMP), ret)},
		{chainRefuse, "icmp and neighbour discovery pass", join(protocol(unix.IPPROTO_ICMPV6), ret)},
		{chainRefuse, "tcp is reset", join(protocol(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})},
		{chainRefuse, "all else gets port unreachable", []expr.Any{
			&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}},
	}
}

// openUnserved leaves open connections to this host. Connections that are older than connection tracking's entries look
// new: only packets that open a connection are refused. The host resets what it doesn't know.
func openUnserved() []rule {
	ret := Verdict(expr.VerdictReturn, "")
	return []rule{
		{chainUnserved, "open connections go on", join(openConnection(), ret)},
		{chainUnserved, "no connection is opened", join(OpensNothing(), ret)},
	}
}

// invalid drops packets that connection tracking can't assign, except those of TCP that open nothing: the host may have the
// connection, of a process that accepted it before there was connection tracking. It may begin with the client's end.
func (l *Layout) invalid(f vip.Family) rule {
	return rule{chainUnserved, "no answer to invalid packets", join(join(invalidState(), l.destination(f, SetVIPs)...), Verdict(expr.VerdictDrop, ""))}
}

// unknown drops this host's answer to a packet of TCP that neither connection tracking nor a socket can assign, such as a late
// duplicate. It is a reset, which would end a connection that the dataplane forwards. Connection tracking knows the answers
// to all others.
func (l *Layout) unknown(f vip.Family) rule {
	return rule{chainResets, "no answer to invalid packets", join(join(invalidState(), join(Family(f), l.source(f, SetVIPs, false)...)...), Verdict(expr.VerdictDrop, ""))}
}

func (l *Layout) unserved(f vip.Family) rule {
	return rule{chainUnserved, "nothing else on a virtual address", join(l.destination(f, SetVIPs), Verdict(expr.VerdictGoto, chainRefuse))}
}

func (l *Layout) hairpin(f vip.Family) rule {
	return rule{chainPostrouting, "a backend that reaches itself", join(l.pair(f, SetHairpin), masquerade)}
}

// masquerade draws the port. Kept ports of clients would fill the range from which clients take theirs, and the kernel searches
// long for a free port beside it.
var masquerade = &expr.Masq{FullyRandom: true}

func masqueradeBit() []rule {
	return []rule{
		{chainPostrouting, "not marked", join(withoutBit(), Verdict(expr.VerdictReturn, ""))},
		{chainPostrouting, "the mark has served", clearBit()},
		{chainPostrouting, "masquerade", []expr.Any{masquerade}},
	}
}
