package ipam

// Gain returns the ops that put a lease where there is none, each within
// MaxHolders. They claim nothing.
func Gain(l Lease) []Op {
	var ops []Op
	var old *Lease
	for n := min(MaxHolders, len(l.Holders)); ; n = min(n+MaxHolders, len(l.Holders)) {
		next := l
		next.Holders = l.Holders[:n:n]
		ops = append(ops, Op{Old: old, New: &next})
		if old = &next; n == len(l.Holders) {
			return ops
		}
	}
}

// Loss returns the ops that remove a lease, each within MaxHolders.
func Loss(l Lease) []Op {
	var ops []Op
	for len(l.Holders) > MaxHolders {
		next := l
		next.Holders = l.Holders[MaxHolders:]
		ops = append(ops, Op{Old: new(l), New: &next})
		l = next
	}
	return append(ops, Op{Old: new(l)})
}
