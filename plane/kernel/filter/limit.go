package filter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Limits by source. Packets write all of it: a set has an element for each client of a listener, with the expression that
// counts its connections or limits its rate. The expression contains the limit, so the limit is part of the key: a
// client with an element meets a changed limit at once. Another set counts refused clients by listener.

// limitedClients bounds the clients of a family that have an element, for each of the limits. Further clients are not
// limited: a flood from many addresses must not keep real clients out.
const limitedClients = 1 << 18

// countedListeners bounds the listeners whose refused clients are counted. It is more than there can be services, because a
// rule ends without a verdict if its set is full.
const countedListeners = 1 << 20

// rateMemory is how long the rate of a client is remembered. The burst of a second is complete again before.
const rateMemory = 2 * time.Second

// sourceLimit is one of the limits.
type sourceLimit struct {
	set, refused string // the names of its sets, without the family
	field        string // of services
	module       string // of the kernel, which has counts
	of           func(vip.SourceLimits) uint16
	counts       func(most uint16) expr.Any // matches what is beyond the limit
	memory       time.Duration              // 0: until the last connection ends
}

// sourceLimits are in the order of their rules: a client beyond its rate has no new element of connections, which the kernel
// cleans slowly.
var sourceLimits = []sourceLimit{
	{set: "rates", refused: "over_rates", field: vip.MaxRatePerSource, module: "nft_limit", of: func(l vip.SourceLimits) uint16 { return l.MaxRatePerSource }, memory: rateMemory,
		counts: func(most uint16) expr.Any {
			return &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(most), Unit: expr.LimitTimeSecond, Burst: uint32(most), Over: true}
		}},
	{set: "connections", refused: "over_connections", field: vip.MaxConnectionsPerSource, module: "nft_connlimit", of: func(l vip.SourceLimits) uint16 { return l.MaxConnectionsPerSource },
		counts: func(most uint16) expr.Any {
			return &expr.Connlimit{Count: uint32(most), Flags: expr.NFT_CONNLIMIT_F_INV}
		}},
}

// counted are the sets of counters by listener, and what they count.
var counted = map[string]func(*reconcile.Refused, uint64){
	"over_connections": func(r *reconcile.Refused, n uint64) { r.Connections += n },
	"over_rates":       func(r *reconcile.Refused, n uint64) { r.Rate += n },
	setAnswered:        func(r *reconcile.Refused, n uint64) { r.SYNs += n },
}

func nameOf(set string, f vip.Family) string { return fmt.Sprintf("%s%d", set, f) }

// LimitTrials returns the trials of the modules that the limits and SynProxy of a frontend need.
func LimitTrials(f *vip.Frontend) (all []Trial) {
	for _, s := range sourceLimits {
		if s.of(f.SourceLimits) > 0 {
			all = append(all, Trial{Module: s.module, Detail: fmt.Sprintf("nf_tables has no expression %q", s.module[len("nft_"):]), Rule: []expr.Any{s.counts(1)}, Field: s.field})
		}
	}
	if f.SynProxy {
		all = append(all, synProxyTrial)
	}
	return all
}

// AddLimits adds the sets of the rules of SourceLimits and SynProxy.
func (l *Layout) AddLimits() {
	l.addSynProxySets()
	for _, s := range sourceLimits {
		for _, f := range families {
			addr, listener := addressType(f), []nftables.SetDatatype{addressType(f), nftables.TypeInetProto, nftables.TypeInetService}
			l.AddWritten(&nftables.Set{Name: nameOf(s.set, f), KeyType: nftables.MustConcatSetType(append(listener, nftables.TypeMark, addr)...),
				KeyByteOrder: binaryutil.BigEndian, Dynamic: true, HasTimeout: s.memory > 0, Size: limitedClients})
			l.AddWritten(&nftables.Set{Name: nameOf(s.refused, f), KeyType: nftables.MustConcatSetType(listener...),
				KeyByteOrder: binaryutil.BigEndian, Dynamic: true, Size: countedListeners})
		}
	}
}

// SourceLimits calls add for the rules that give new connections beyond the limits of their clients a verdict. All ports of a
// range are one, so packets of ranged listeners count at port 0. This host's own clients have no limit: their source is an
// address of this host.
func SourceLimits(f vip.Family, ranged bool, limits vip.SourceLimits, then expr.Any, add func(comment string, exprs []expr.Any)) {
	port, limit, mask := uint32(regPort4), uint32(regFrom4), []byte(nil)
	if f == vip.IPv6 {
		port, limit, mask = regPort6, regFrom6, append(native(^uint32(0)), append(native(^uint32(0)), make([]byte, 8)...)...)
	}
	for _, s := range sourceLimits {
		most := s.of(limits)
		if most == 0 {
			continue
		}
		exprs := join(FromElsewhere(), join(Family(f), ListenerKey(f)...)...)
		if ranged {
			exprs = append(exprs, &expr.Immediate{Register: port, Data: make([]byte, 4)})
		}
		exprs = append(exprs, &expr.Immediate{Register: limit, Data: binaryutil.BigEndian.PutUint32(uint32(most))}, Address(f, true, limit+1))
		if mask != nil { // a client of IPv6 has a whole /64
			exprs = append(exprs, &expr.Bitwise{SourceRegister: limit + 1, DestRegister: limit + 1, Len: 16, Mask: mask, Xor: make([]byte, 16)})
		}
		op := uint32(unix.NFT_DYNSET_OP_ADD)
		if s.memory > 0 {
			op = unix.NFT_DYNSET_OP_UPDATE
		}
		add("a limit of each client", append(exprs,
			&expr.Dynset{SrcRegKey: regAddr, SetName: nameOf(s.set, f), Operation: op, Timeout: s.memory, Exprs: []expr.Any{s.counts(most)}},
			&expr.Dynset{SrcRegKey: regAddr, SetName: nameOf(s.refused, f), Operation: unix.NFT_DYNSET_OP_ADD, Exprs: []expr.Any{&expr.Counter{}}},
			then))
	}
}

// refusedAs returns the key at which the refused clients of a frontend count: without an audience, and at port 0 for a range.
func refusedAs(k vip.FrontendKey) vip.FrontendKey {
	k.Audience = vip.Everyone
	if k.Ranged() {
		k.Port, k.LastPort = 0, 0
	}
	return k
}

// Refusals are the counters of refused clients. Use ReadRefusals.
type Refusals map[vip.FrontendKey]reconcile.Refused

// Take returns the refused clients of a frontend, once. The ranges of ports of one address and protocol have one count.
func (r Refusals) Take(k vip.FrontendKey) reconcile.Refused {
	at := refusedAs(k)
	n := r[at]
	if k.Audience == vip.Everyone { // which counts for both audiences
		delete(r, at)
	}
	return n
}

// ReadRefusals reads the counters of a table on an open socket. It costs O(listeners that have refused clients).
func ReadRefusals(ctx context.Context, conn *nftwire.Conn, table string) (Refusals, error) {
	all := Refusals{}
	for set, add := range counted {
		for _, f := range families {
			seen := map[vip.FrontendKey]bool{} // a list may repeat an element
			err := conn.Counters(ctx, table, nameOf(set, f), func(x *nftwire.Element) {
				key := reader{x.Key}
				if k := key.listener(f); !seen[k] {
					seen[k] = true
					n := all[k]
					add(&n, x.Packets)
					all[k] = n
				}
			})
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return nil, fmt.Errorf("list nftables set %s: %w", nameOf(set, f), err)
			}
		}
	}
	return all, nil
}

// ForgetRefusals deletes the counters of a frontend that had limits or SynProxy.
func (f *Table) ForgetRefusals(x *nftwire.Transaction, k vip.FrontendKey, limits vip.SourceLimits, synProxy bool) {
	var sets []string
	for _, s := range sourceLimits {
		if s.of(limits) > 0 {
			sets = append(sets, s.refused)
		}
	}
	if synProxy {
		sets = append(sets, setAnswered)
	}
	k = refusedAs(k)
	one := nftwire.Element{Key: appendListener(nil, k.Addr, k.Protocol, k.Port)}
	for _, set := range sets {
		for _, typ := range []uint16{unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM} { // see put
			list := x.BeginElements(typ, unix.NLM_F_CREATE, f.layout.table.Name, nameOf(set, vip.FamilyOf(k.Addr)))
			x.AddElement(&one)
			x.EndElements(list)
		}
	}
}
