package filter

import (
	"slices"
	"sync/atomic"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// The table of probes lets answers to health probes in. It is a table of its own, because another
// goroutine writes it, and because hosts without such probes don't need its chains.
//
// A probe is a connection to the virtual address with a packet mark. IPVS has a service for the mark
// and forwards the probe to its one backend as it does clients' packets. The answer comes from the
// virtual address, which is this host's own, too: the host would drop it as forged. So the backend's
// Address replaces the virtual one before the host looks at the source, and afterwards the virtual
// one comes back, for the socket. Connection tracking stores the mark, by which the rules find the
// addresses of an answer.
//
// The rules don't use NAT of connection tracking: it changes the source of an answer only after the
// host has looked at it.

// priorityProbes is the priority of the base chains. Connection tracking is at -200, IPVS at -98 of output. The rules for
// frontends are at -150.
const priorityProbes = -160

const (
	chainProbes   = "probes"
	chainAnswers  = "answers"
	chainRestored = "restored"
)

// NewProbes returns the table of probes of that name, see New.
func NewProbes(name string, stats *atomic.Uint64) *Table {
	return Of(newProbeLayout(name), stats)
}

func newProbeLayout(name string) *Layout {
	l := newSets(name, func(s Set) bool { return sets[s].probes })
	l.base(chainProbes, nftables.ChainTypeFilter, nftables.ChainHookOutput, priorityProbes)
	l.base(chainAnswers, nftables.ChainTypeFilter, nftables.ChainHookPrerouting, priorityProbes)
	l.base(chainRestored, nftables.ChainTypeFilter, nftables.ChainHookInput, priorityProbes)
	add := func(chain, comment string, exprs ...[]expr.Any) {
		l.rules = append(l.rules, rule{chain, comment, slices.Concat(exprs...)})
	}
	for _, f := range families {
		// The answers map only has probes to the virtual address: not what IPVS encapsulates, which has
		// the mark, too. An open connection with the same addresses and ports is another program's.
		add(chainProbes, "the connection has the mark", probeMark(), Family(f),
			[]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr}, Address(f, false, regPeer)}, l.replacement(f, SetAnswers),
			newConnection(), connectionMark())
		add(chainAnswers, "from the backend", l.answer(f, SetAnswers)...)
		add(chainRestored, "from the virtual address again", l.answer(f, SetRestored)...)
	}
	return l
}

// answer replaces the source of answers by the address of a map.
func (l *Layout) answer(f vip.Family, s Set) [][]expr.Any {
	to := Address(f, true, 0).(*expr.Payload)
	to.OperationType, to.SourceRegister, to.CsumFlags = expr.PayloadWrite, regAddr, unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR
	if f == vip.IPv4 {
		to.CsumType, to.CsumOffset = expr.CsumTypeInet, 10
	}
	return [][]expr.Any{isReply(), Family(f),
		{&expr.Ct{Key: expr.CtKeyMARK, Register: regAddr}, Address(f, true, regPeer)}, l.replacement(f, s), {to}}
}

// replacement loads the address of a map. The rule ends for keys that it doesn't have. (Kernel 6.1
// looks up a key in a map only together with its data.)
func (l *Layout) replacement(f vip.Family, s Set) []expr.Any {
	set := l.sets[s.Name(f)]
	return []expr.Any{&expr.Lookup{SourceRegister: regAddr, DestRegister: regAddr, IsDestRegSet: true, SetName: set.Name, SetID: set.ID}}
}

// connectionMark gives a connection the mark of its packet.
func connectionMark() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr},
		&expr.Ct{Key: expr.CtKeyMARK, Register: regAddr, SourceRegister: true},
	}
}

// isReply matches answers. Most packets are none, so it comes first.
func isReply() []expr.Any {
	const reply = 1
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: regAddr},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regAddr, Data: []byte{reply}},
	}
}

// newConnection matches packets of connections that nothing has answered yet.
func newConnection() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: regAddr},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4, Mask: native(expr.CtStateBitNEW), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regAddr, Data: native(0)},
	}
}
