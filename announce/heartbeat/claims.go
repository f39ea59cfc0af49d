package heartbeat

import (
	"hash/fnv"
	"net/netip"

	"github.com/ironvip/ironvip/announce"
)

// claims is this host's log: each VIP once, in the order of the newest change. A removed VIP stays
// as an empty claim, until all peers have it or there are too many.
type claims struct {
	at     map[netip.Addr]*change
	newest *change // the list runs back in time
	oldest *change
	number uint64 // of the newest change
	digest uint64
	empty  int // removed VIPs in the list
}

type change struct {
	announce.Claim
	number       uint64
	older, newer *change
}

func isEmpty(c announce.Claim) bool { return c.Services == 0 && !c.Owned }

// set changes a claim, and reports whether it differs. It costs O(1).
func (l *claims) set(c announce.Claim) bool {
	c.Services = min(c.Services, maxServices)
	n := l.at[c.Addr]
	switch {
	case n == nil && isEmpty(c), n != nil && n.Claim == c:
		return false
	case n == nil:
		n = &change{Claim: c}
		l.at[c.Addr] = n
	default:
		l.unlink(n)
		l.digest ^= digestOf(n.Claim)
		if isEmpty(n.Claim) {
			l.empty--
		}
	}
	l.number++
	n.Claim, n.number = c, l.number
	l.digest ^= digestOf(c)
	if isEmpty(c) {
		l.empty++
	}
	if n.older = l.newest; n.older != nil {
		n.older.newer = n
	} else {
		l.oldest = n
	}
	l.newest = n
	return true
}

func (l *claims) unlink(n *change) {
	if n.newer != nil {
		n.newer.older = n.older
	} else {
		l.newest = n.older
	}
	if n.older != nil {
		n.older.newer = n.newer
	} else {
		l.oldest = n.newer
	}
	n.older, n.newer = nil, nil
}

// after returns the first change after the number; nil: none. It costs O(changes after it).
func (l *claims) after(number uint64) *change {
	var first *change
	for n := l.newest; n != nil && n.number > number; n = n.older {
		first = n
	}
	if number == 0 {
		first = l.oldest
	}
	return first
}

// tidy removes empty claims up to a number that all peers have, when they are more than the others.
func (l *claims) tidy(acked uint64) {
	if l.empty < 1024 || l.empty < len(l.at)/2 {
		return
	}
	for n := l.oldest; n != nil && n.number <= acked; {
		next := n.newer
		if isEmpty(n.Claim) {
			l.unlink(n)
			delete(l.at, n.Addr)
			l.empty--
		}
		n = next
	}
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
	if isEmpty(c) {
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
	if isEmpty(c) {
		return 0
	}
	h := fnv.New64a()
	var room [18]byte
	h.Write(appendClaim(room[:0], c))
	return h.Sum64()
}
