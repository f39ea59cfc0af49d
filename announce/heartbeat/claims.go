package heartbeat

import (
	"cmp"
	"hash/fnv"
	"iter"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/announce"
)

// claims is this host's log: its changes of claims in order. A change of a VIP that changed again stays,
// as does an empty claim, until tidy.
type claims struct {
	log    []change
	at     map[netip.Addr]int // the place of each VIP's newest change
	number uint64             // of the newest change
	digest uint64
	full   int // VIPs with a claim that isn't empty
}

type change struct {
	announce.Claim
	number uint64
}

// set changes a claim. It costs O(1).
func (l *claims) set(c announce.Claim) {
	c.Services = min(c.Services, announce.MaxServices)
	if c.IsEmpty() {
		c.Policy = announce.Policy{}
	}
	former := announce.Claim{Addr: c.Addr}
	if i, there := l.at[c.Addr]; there {
		former = l.log[i].Claim
	}
	if former == c {
		return
	}
	l.digest ^= digestOf(former) ^ digestOf(c)
	if !former.IsEmpty() {
		l.full--
	}
	if !c.IsEmpty() {
		l.full++
	}
	l.number++
	l.at[c.Addr] = len(l.log)
	l.log = append(l.log, change{c, l.number})
}

// after yields the newest change of each VIP that changed after the number, in order. It costs O(changes
// after it).
func (l *claims) after(number uint64) iter.Seq[change] {
	return func(yield func(change) bool) {
		first, _ := slices.BinarySearchFunc(l.log, number+1, func(n change, want uint64) int { return cmp.Compare(n.number, want) })
		for i := first; i < len(l.log); i++ {
			if n := l.log[i]; l.at[n.Addr] == i && !yield(n) {
				return
			}
		}
	}
}

// tidy removes changes that others have replaced, and empty claims up to a number that all peers have, when
// they are more than the claims.
func (l *claims) tidy(acked uint64) {
	if len(l.log) < 1024 || len(l.log) < 2*l.full {
		return
	}
	kept := l.log[:0]
	for i, n := range l.log {
		switch {
		case l.at[n.Addr] != i:
		case n.Claim.IsEmpty() && n.number <= acked:
			delete(l.at, n.Addr)
		default:
			l.at[n.Addr] = len(kept)
			kept = append(kept, n)
		}
	}
	l.log = kept
}

// copied is what is known of another host's claims, which the sink has.
type copied struct {
	number uint64 // the newest change that the sink has
	digest uint64
	all    int // claims
	owned  int // of them, those that the host announces
}

// count adds a claim, or subtracts it.
func (k *copied) count(c announce.Claim, by int) {
	if c.IsEmpty() {
		return
	}
	k.digest ^= digestOf(c)
	k.all += by
	if c.Owned {
		k.owned += by
	}
}

// digestOf returns the part of a claim in the digest, which is the XOR of all parts. It guards
// against mistakes, not against attackers, who have no key.
func digestOf(c announce.Claim) uint64 {
	if c.IsEmpty() {
		return 0
	}
	h := fnv.New64a()
	var room [23]byte
	h.Write(appendClaim(room[:0], c))
	return h.Sum64()
}
