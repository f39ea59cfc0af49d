package nft

import (
	"context"
	"iter"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// way is what a packet is to its connection. Each packet counts in one of them.
type way uint8

const (
	opened way = iota // its first packet
	in                // a later one from the client
	out               // from the backend
	ways
)

func (w way) String() string { return [...]string{"opened", "in", "out"}[w] }

// countedShares bounds the backends of frontends that are counted, for each set. Beyond it, further ones count for
// their frontend only.
const countedShares = 1 << 20

// counterSets yields the sets with counters.
func counterSets(yield func(setID) bool) {
	for w := range ways {
		for _, f := range families {
			for _, o := range []origin{0, fromRanges} {
				for _, k := range []kind{kindTotals, kindShares} {
					if !yield(setID{k, f, o, w}) {
						return
					}
				}
			}
		}
	}
}

const (
	chainLeaving = "count_leaving"
	chainLocal   = "count_local"
	chainCount   = "count"

	// priorityCount is after all translation.
	priorityCount = 120

	// Bits of the status of a connection, see linux/netfilter/nf_conntrack_common.h.
	statusConfirmed, statusTranslated = 1 << 3, 1 << 5

	regListener = regKey // from here on, the address, protocol and port of a frontend, then those of a backend
)

func (w way) chain() string { return chainCount + "_" + w.String() }

// addCounters adds what counts packets. A packet of an open connection passes no other rules of ours. It is counted
// where it leaves this host or reaches a process of it, by the addresses that connection tracking has: what the client
// asked for, and who answers.
//
// The elements of totals belong to frontends and come and go with them. They also tell our connections from those
// that other programs translate. The elements of shares are made by the first packet of a backend. So a change of
// backends changes no counter, and a backend without traffic has none.
func addCounters(l *filter.Layout) {
	for s := range counterSets {
		l.AddWritten(describe(s))
	}
	l.AddChain(chainCount)
	l.AddHook(chainLeaving, nftables.ChainTypeFilter, nftables.ChainHookPostrouting, priorityCount)
	l.AddHook(chainLocal, nftables.ChainTypeFilter, nftables.ChainHookInput, priorityCount)
	counted := filter.Verdict(expr.VerdictGoto, chainCount)
	l.AddRule(chainLeaving, "translated connections", append(status(statusTranslated, true), counted))
	const loopback = 1 // in every network namespace
	l.AddRule(chainLocal, "translated connections, except what has left this host for itself", append(status(statusTranslated, true),
		&expr.Meta{Key: expr.MetaKeyIIF, Register: regKey}, &expr.Cmp{Op: expr.CmpOpNeq, Register: regKey, Data: native(loopback)}, counted))

	l.AddRule(chainCount, "the first packet", append(status(statusConfirmed, false), filter.Verdict(expr.VerdictGoto, opened.chain())))
	l.AddRule(chainCount, "answers", []expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: regKey},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regKey, Data: []byte{reply}}, filter.Verdict(expr.VerdictGoto, out.chain())})
	l.AddRule(chainCount, "other packets", []expr.Any{filter.Verdict(expr.VerdictGoto, in.chain())})
	for w := range ways {
		l.AddChain(w.chain())
		for _, o := range []origin{0, fromRanges} {
			for _, f := range families {
				l.AddRule(w.chain(), "count", count(f, o, w))
			}
		}
	}
}

// Directions of a connection.
const original, reply = 0, 1

// status matches packets of connections with a bit of the status, or without it.
func status(bit uint32, set bool) []expr.Any {
	op := expr.CmpOpEq
	if set {
		op = expr.CmpOpNeq
	}
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: regKey},
		&expr.Bitwise{SourceRegister: regKey, DestRegister: regKey, Len: 4, Mask: native(bit), Xor: native(0)},
		&expr.Cmp{Op: op, Register: regKey, Data: native(0)},
	}
}

// count counts a packet for its frontend and its backend.
func count(f vip.Family, o origin, w way) []expr.Any {
	asked, answers := nftwire.CtKeyDstIP, nftwire.CtKeySrcIP
	if f == vip.IPv6 {
		asked, answers = nftwire.CtKeyDstIP6, nftwire.CtKeySrcIP6
	}
	protocol := regListener + wordsOf(f)
	port := protocol + 1
	from := port + 1
	if o.ranged() { // all ports of a range are one: the backend's address replaces the port
		from = port
	}
	exprs := []expr.Any{
		&expr.Ct{Key: asked, Direction: original, Register: regListener},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: protocol},
		&expr.Ct{Key: expr.CtKeyPROTODST, Direction: original, Register: port},
		&expr.Lookup{SourceRegister: regListener, SetName: setID{kindTotals, f, o, w}.String()},
		&expr.Ct{Key: answers, Direction: reply, Register: from},
	}
	if !o.ranged() {
		exprs = append(exprs, &expr.Ct{Key: expr.CtKeyPROTOSRC, Direction: reply, Register: from + wordsOf(f)})
	}
	return append(exprs,
		&expr.Dynset{SrcRegKey: regListener, SetName: setID{kindShares, f, o, w}.String(), Operation: unix.NFT_DYNSET_OP_ADD, Exprs: []expr.Any{&expr.Counter{}}},
		filter.Verdict(expr.VerdictAccept, ""))
}

// countedAs returns the key of the frontend that counts the connections to the address and ports of k: connection
// tracking doesn't show the audience, so the frontend for everyone counts those of internal clients, too.
func countedAs(k vip.FrontendKey) vip.FrontendKey {
	k.Audience = vip.Everyone
	return k
}

// counterOrigin returns the origin of the counters of a key.
func counterOrigin(k vip.FrontendKey) origin {
	if k.Ranged() {
		return fromRanges
	}
	return 0
}

// totals calls put for the counters of a frontend.
func totals(k vip.FrontendKey, put func(e element)) {
	if k.Audience != vip.Everyone {
		return
	}
	e := element{set: setID{kindTotals, vip.FamilyOf(k.Addr), counterOrigin(k), 0}, key: string(appendListener(nil, k, k.Port))}
	if k.Ranged() {
		e.end = string(appendListener(nil, k, k.LastPort))
	}
	for e.set.way = range ways {
		put(e)
	}
}

// shares yields the counters of a backend of a frontend, as far as packets have made them. The counters of ranges are
// by the backend's address.
func shares(k vip.FrontendKey, a netip.AddrPort) iter.Seq[element] {
	e := element{set: setID{kindShares, vip.FamilyOf(k.Addr), counterOrigin(k), 0}}
	b := appendListener(nil, k, k.Port)
	if k.Ranged() {
		e.key = string(append(b[:len(b)-4], a.Addr().AsSlice()...))
	} else {
		e.key = string(appendBackend(b, a))
	}
	return func(yield func(element) bool) {
		for e.set.way = range ways {
			if !yield(e) {
				return
			}
		}
	}
}

// made reports whether the table has translated a connection: its packets have made counters for the backend, which outlive
// the frontend and the agent. They are missing if the table has been rebuilt since its last packet.
func (t *Target) made(ctx context.Context, e *conntrack.Entry) (made bool, err error) {
	ranged := e.Frontend
	ranged.Port, ranged.LastPort = 1, 2 // any range: its counters are by address
	err = t.sweeper.read(ctx, func(get getElement) error {
		for _, k := range []vip.FrontendKey{e.Frontend, ranged} {
			for share := range shares(k, e.Backend) {
				if made {
					return nil
				}
				var err error
				if made, err = get(share, func(*nftwire.Element) {}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return made, err
}

// maxUnusedShares bounds the backends that have left and whose counters are kept. Their removal costs queries and a
// transaction, so it waits for others, and for the next read of the table.
const maxUnusedShares = 256

// unusedShares are backends that have left and may have counters, by the frontends that have counted them.
type unusedShares struct {
	by map[vip.FrontendKey][]netip.AddrPort
	n  int
}

func (x *unusedShares) clear() { clear(x.by); x.n = 0 }

// leave records the backends that an item takes from a frontend.
func (x *unusedShares) leave(it *item) {
	for _, f := range []*vip.Frontend{it.had, it.Old} {
		if f == nil {
			continue
		}
		for _, b := range f.Backends {
			if k := countedAs(it.Key); !usage.HasBackend(it.New, b.Addr) && !slices.Contains(x.by[k], b.Addr) {
				x.by[k] = append(x.by[k], b.Addr)
				x.n++
			}
		}
	}
}

// returns reports whether one of the items is a new frontend at the place of one with unused shares.
func (x *unusedShares) returns(items []*item) bool {
	return x.n > 0 && slices.ContainsFunc(items, func(it *item) bool { return it.old == nil && x.by[countedAs(it.Key)] != nil })
}

// isShare reports whether a frontend uses the counters of a backend.
func (t *Target) isShare(k vip.FrontendKey, a netip.AddrPort) bool {
	if !k.Ranged() {
		return usage.HasBackend(t.records.Frontends[k], a) || usage.HasBackend(t.records.Frontends[otherAudience(k)], a)
	}
	for _, k := range []vip.FrontendKey{k, otherAudience(k)} {
		for _, r := range t.records.Ranges[usage.PortSpaceOf(&vip.Frontend{Key: k})] {
			if slices.ContainsFunc(t.records.Frontends[r].Backends, func(b vip.Endpoint) bool { return b.Addr.Addr() == a.Addr() }) {
				return true
			}
		}
	}
	return false
}

// forget deletes the unused shares. A failure leaves counters that nobody reads.
func (t *Target) forget(ctx context.Context) {
	if t.unused.n == 0 {
		return
	}
	d := newDiff()
	err := t.sweeper.read(ctx, func(get getElement) error {
		for k, all := range t.unused.by {
			for _, a := range all {
				if t.isShare(k, a) {
					continue
				}
				for e := range shares(k, a) {
					found, err := get(e, func(*nftwire.Element) {})
					if err != nil {
						return err
					}
					if found && !slices.Contains(d.dels[e.set], e) { // backends of a range may have one address
						d.dels[e.set] = append(d.dels[e.set], e)
					}
				}
			}
		}
		return nil
	})
	if err == nil {
		err = t.fw.ApplyWith(ctx, nil, func(x *nftwire.Transaction) error {
			d.put(x, t.opt.table())
			return nil
		})
	}
	if err != nil {
		t.opt.Log.Warn("counters of backends that left remain", "err", err)
	}
	t.unused.clear()
}
