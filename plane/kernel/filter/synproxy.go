package filter

import (
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/vip"
)

// SYN proxy. SYNs with invented sources fill connection tracking. Worse, each takes a port of this host if clients are
// masqueraded: 2,200 SYNs a second take all ports for two backends, for as long as the kernel waits for the client. So while a
// listener gets too many, the kernel answers SYNs by a cookie, and remembers nothing. Only a client that returns the cookie has
// a connection, which the kernel opens in the client's name: its SYN passes the chains of this host's own connections.
//
// Packets write when a listener began to have too many. Before that, and for other listeners, no packet is treated in another
// way: a cookie has no room for some options of TCP, and the client is accepted before any backend is.

const (
	// floodRate is the rate of SYNs at one address and port, per second, that is too many.
	floodRate = 1000
	// floodMemory is how long a listener is protected after the last SYN that was too many. The kernel waits as long for
	// the client of a SYN.
	floodMemory = time.Minute
)

const (
	chainSYNs       = "syns"       // before connection tracking
	chainHandshakes = "handshakes" // of packets that stay with this host, as no listener's have been translated
	setSYNRates     = "syn_rates"
	setFlooded      = "flooded"
	setAnswered     = "answered_syns"
)

var synProxyTrial = Trial{Module: "nft_synproxy", Detail: `nf_tables has no expression "synproxy"`, Rule: []expr.Any{cookies(vip.IPv4)}, Field: vip.SynProxy}

// cookies answers a SYN, and opens the connection of a client that returns the cookie. The window scale is the default of
// Linux: it must not exceed the backends' own, because a cookie can't contain what they will choose.
func cookies(f vip.Family) expr.Any {
	mss := uint16(1500 - 20 - 20)
	if f == vip.IPv6 {
		mss -= 20
	}
	return &expr.SynProxy{Mss: mss, Wscale: 7, SackPerm: true, Timestamp: true}
}

// addSynProxySets adds the sets that the packets of listeners with SynProxy write to.
func (l *Layout) addSynProxySets() {
	for _, f := range families {
		for _, name := range []string{setSYNRates, setFlooded, setAnswered} {
			l.AddWritten(&nftables.Set{Name: nameOf(name, f), KeyType: nftables.MustConcatSetType(addressType(f), nftables.TypeInetProto, nftables.TypeInetService),
				KeyByteOrder: binaryutil.BigEndian, Dynamic: true, HasTimeout: name == setFlooded, Size: countedListeners})
		}
	}
}

// synProxy returns the rules of the chains for SynProxy. The set that guarded names has the listeners that may be protected.
func synProxy(guarded func(vip.Family) string) (all []rule) {
	const all4 = synFlag | ackFlag | rstFlag | finFlag
	in := func(set string) expr.Any { return &expr.Lookup{SourceRegister: regAddr, SetName: set} }
	write := func(set string, op uint32, timeout time.Duration, what ...expr.Any) expr.Any {
		return &expr.Dynset{SrcRegKey: regAddr, SetName: set, Operation: op, Timeout: timeout, Exprs: what}
	}
	for _, f := range families {
		syn := slices.Concat(flags(all4, expr.CmpOpEq, synFlag), Family(f), ListenerKey(f))
		toGuarded := join(syn, in(guarded(f)))
		flooded := in(nameOf(setFlooded, f))
		returned := slices.Concat(inState(expr.CtStateBitNEW|expr.CtStateBitINVALID), flags(all4, expr.CmpOpEq, ackFlag), Family(f), ListenerKey(f))
		all = append(all,
			rule{chainSYNs, "too many", join(toGuarded,
				write(nameOf(setSYNRates, f), unix.NFT_DYNSET_OP_ADD, 0, &expr.Limit{Type: expr.LimitTypePkts, Rate: floodRate, Unit: expr.LimitTimeSecond, Burst: floodRate, Over: true}),
				write(nameOf(setFlooded, f), unix.NFT_DYNSET_OP_UPDATE, floodMemory))},
			rule{chainSYNs, "are not remembered", join(toGuarded, flooded,
				write(nameOf(setAnswered, f), unix.NFT_DYNSET_OP_ADD, 0, &expr.Counter{}), &expr.Notrack{})},
			rule{chainHandshakes, "but get a cookie", slices.Concat(inState(expr.CtStateBitUNTRACKED), syn, []expr.Any{flooded, cookies(f)})},
			rule{chainHandshakes, "which clients return", join(returned, flooded, cookies(f))})
	}
	return all
}

// AddSynProxy adds the chains for SynProxy.
func (l *Layout) AddSynProxy(x *nftwire.Transaction, guarded func(vip.Family) string) error {
	x.AddChain(l.hooked(chainSYNs, nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw))
	x.AddChain(l.hooked(chainHandshakes, nftables.ChainTypeFilter, nftables.ChainHookInput, *nftables.ChainPriorityFilter-1))
	for _, r := range synProxy(guarded) {
		if err := x.AddRule(l.table.Name, r.chain, r.exprs, l.userData(r)); err != nil {
			return err
		}
	}
	return nil
}

// DropSynProxy deletes these chains.
func (l *Layout) DropSynProxy(x *nftwire.Transaction) {
	for _, chain := range []string{chainSYNs, chainHandshakes} {
		x.FlushChain(l.table.Name, chain)
		x.DeleteChain(l.table.Name, chain)
	}
}

// HasSynProxy reports whether one of these chains is among others, by their rules' comments, and whether both are whole.
func (l *Layout) HasSynProxy(chains map[string][]string, guarded func(vip.Family) string) (any, whole bool) {
	want := map[string][]string{}
	for _, r := range synProxy(guarded) {
		want[r.chain] = append(want[r.chain], string(l.userData(r)))
	}
	whole = true
	for name, comments := range want {
		got, there := chains[name]
		any, whole = any || there, whole && slices.Equal(got, comments)
	}
	return any, whole
}
