package ipvs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/ironvip/ironvip/vip"
	"github.com/mdlayher/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

const (
	elementsPerMessage = 1024    // a netlink attribute holds 64 KiB, an element takes 44 bytes at most
	nftSendBuffer      = 8 << 20 // one transaction is one send
	nftReceiveBuffer   = 4 << 20 // and one answer a message
)

// errNoTable says that the table, or a part of it, isn't there.
var errNoTable = errors.New("our nftables table is missing or not as it should be")

// firewall is our nftables table in the kernel. Each call opens a socket in the
// calling thread's network namespace.
type firewall struct {
	layout *layout
	stats  *counters
}

// ruleset is what the table holds.
type ruleset struct {
	intact   bool // the rules are ours, of this version
	elements map[element]struct{}
	pods     *netipx.IPSet
}

func (f *firewall) dial(ctx context.Context) (*nftables.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		// As root these go beyond the system's limit; else they go as far as they may.
		_ = c.SetWriteBuffer(nftSendBuffer)
		_ = c.SetReadBuffer(nftReceiveBuffer)
		return c.SetReadDeadline(time.Now().Add(replyTimeout))
	}))
}

// apply makes a change in one transaction. A missing table is errNoTable.
func (f *firewall) apply(ctx context.Context, c change) error {
	if len(c) == 0 {
		return nil
	}
	conn, err := f.dial(ctx)
	if err != nil {
		return err
	}
	n, err := f.put(conn, c)
	if err != nil {
		return err
	}
	return f.commit(conn, n)
}

// rebuild replaces the whole table in one transaction, so that no packet meets
// half of it.
func (f *firewall) rebuild(ctx context.Context, pods *netipx.IPSet, c change) error {
	conn, err := f.dial(ctx)
	if err != nil {
		return err
	}
	// Adding first makes the deletion valid where there is no table.
	conn.AddTable(f.layout.table)
	conn.DelTable(f.layout.table)
	conn.AddTable(f.layout.table)
	n := 3
	for _, s := range f.layout.order {
		if err := conn.AddSet(s, nil); err != nil {
			return fmt.Errorf("nftables set %s: %w", s.Name, err)
		}
		n++
	}
	for _, ch := range f.layout.chains {
		conn.AddChain(ch)
		n++
	}
	for _, r := range f.layout.rules {
		conn.AddRule(&nftables.Rule{
			Table: f.layout.table, Chain: &nftables.Chain{Name: r.chain}, Exprs: r.exprs, UserData: r.userData(),
		})
		n++
	}
	m, err := f.putPods(conn, pods)
	if err != nil {
		return err
	}
	k, err := f.put(conn, c)
	if err != nil {
		return err
	}
	return f.commit(conn, n+m+k)
}

// setPods replaces the pod ranges in one transaction, together with a change.
func (f *firewall) setPods(ctx context.Context, pods *netipx.IPSet, c change) error {
	conn, err := f.dial(ctx)
	if err != nil {
		return err
	}
	for _, fam := range []vip.Family{vip.IPv4, vip.IPv6} {
		conn.FlushSet(f.layout.sets[setPods.name(fam)])
	}
	n, err := f.putPods(conn, pods)
	if err != nil {
		return err
	}
	m, err := f.put(conn, c)
	if err != nil {
		return err
	}
	return f.commit(conn, 2+n+m)
}

func (f *firewall) putPods(conn *nftables.Conn, pods *netipx.IPSet) (int, error) {
	n := 0
	for _, fam := range []vip.Family{vip.IPv4, vip.IPv6} {
		all := rangeElements(pods, fam)
		if len(all) == 0 {
			continue
		}
		n++
		if err := conn.SetAddElements(f.layout.sets[setPods.name(fam)], all); err != nil {
			return 0, fmt.Errorf("nftables pod ranges: %w", err)
		}
	}
	return n, nil
}

// rangeElements writes one family's ranges as an interval set has them: a start
// and the first address after the end, if there is one.
func rangeElements(ranges *netipx.IPSet, f vip.Family) []nftables.SetElement {
	var all []nftables.SetElement
	for _, r := range ranges.Ranges() {
		if vip.FamilyOf(r.From()) != f {
			continue
		}
		all = append(all, nftables.SetElement{Key: r.From().AsSlice()})
		if end := r.To().Next(); end.IsValid() {
			all = append(all, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return all
}

// put queues a change and returns how many messages that takes.
func (f *firewall) put(conn *nftables.Conn, c change) (int, error) {
	adds, dels := map[string][]nftables.SetElement{}, map[string][]nftables.SetElement{}
	for e, present := range c {
		name := e.set.name(vip.FamilyOf(e.key.Addr))
		if present {
			adds[name] = append(adds[name], nftables.SetElement{Key: elementKey(e)})
		} else {
			dels[name] = append(dels[name], nftables.SetElement{Key: elementKey(e)})
		}
	}
	n := 0
	send := func(all map[string][]nftables.SetElement, to func(*nftables.Set, []nftables.SetElement) error) error {
		for name, elems := range all {
			for chunk := range slices.Chunk(elems, elementsPerMessage) {
				if err := to(f.layout.sets[name], chunk); err != nil {
					return fmt.Errorf("nftables set %s: %w", name, err)
				}
				n++
			}
		}
		return nil
	}
	// Deleting what is gone fails the transaction; adding it first makes it
	// valid, and adding what is there is no change.
	err := errors.Join(send(dels, conn.SetAddElements), send(dels, conn.SetDeleteElements), send(adds, conn.SetAddElements))
	return n, err
}

func (f *firewall) commit(conn *nftables.Conn, messages int) error {
	f.stats.nftMessages.Add(uint64(messages))
	err := conn.Flush()
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %w", errNoTable, err)
	}
	if err != nil {
		return fmt.Errorf("change nftables table inet %s: %w", f.layout.table.Name, err)
	}
	return nil
}

// read returns what the table holds. A missing table is an empty ruleset.
func (f *firewall) read(ctx context.Context) (*ruleset, error) {
	r := &ruleset{elements: map[element]struct{}{}, pods: &netipx.IPSet{}}
	conn, err := f.dial(ctx)
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == f.layout.table.Name }) {
		return r, nil
	}
	if r.intact, err = f.rulesIntact(conn); err != nil {
		return nil, err
	}
	sets, err := conn.GetSets(f.layout.table)
	if err != nil {
		return nil, fmt.Errorf("list nftables sets: %w", err)
	}
	found := map[string]bool{}
	for _, s := range sets {
		found[s.Name] = s.KeyType.Bytes == 0 || f.layout.sets[s.Name] == nil || s.KeyType.Bytes == f.layout.sets[s.Name].KeyType.Bytes
	}
	var pods netipx.IPSetBuilder
	for s := range setCount {
		for _, fam := range []vip.Family{vip.IPv4, vip.IPv6} {
			if !found[s.name(fam)] {
				r.intact = false
				continue
			}
			elems, err := conn.GetSetElements(f.layout.sets[s.name(fam)])
			if err != nil {
				return nil, fmt.Errorf("list nftables set %s: %w", s.name(fam), err)
			}
			if s.kind() == kindRange {
				addRanges(&pods, elems)
				continue
			}
			for _, e := range elems {
				if key, ok := decodeElement(s, fam, e.Key); ok {
					r.elements[key] = struct{}{}
				} else {
					r.intact = false
				}
			}
		}
	}
	r.pods, err = pods.IPSet()
	return r, err
}

// rulesIntact compares the rules by their comments, which carry the version,
// chain by chain and in order.
func (f *firewall) rulesIntact(conn *nftables.Conn) (bool, error) {
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list nftables chains: %w", err)
	}
	for _, want := range f.layout.chains {
		there := slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
			return c.Table.Name == f.layout.table.Name && c.Name == want.Name && (c.Hooknum == nil) == (want.Hooknum == nil) &&
				(c.Priority == nil || *c.Priority == *want.Priority)
		})
		if !there {
			return false, nil
		}
		rules, err := conn.GetRules(f.layout.table, want)
		if err != nil {
			return false, fmt.Errorf("list nftables rules of %s: %w", want.Name, err)
		}
		var comments [][]byte
		for _, r := range f.layout.rules {
			if r.chain == want.Name {
				comments = append(comments, r.userData())
			}
		}
		same := slices.EqualFunc(rules, comments, func(r *nftables.Rule, c []byte) bool { return bytes.Equal(r.UserData, c) })
		if !same {
			return false, nil
		}
	}
	return true, nil
}

// addRanges reads what rangeElements writes, in any order.
func addRanges(b *netipx.IPSetBuilder, elems []nftables.SetElement) {
	type edge struct {
		at  netip.Addr
		end bool
	}
	var edges []edge
	for _, e := range elems {
		if a, ok := netip.AddrFromSlice(e.Key); ok {
			edges = append(edges, edge{a, e.IntervalEnd})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return a.at.Compare(b.at) })
	for i, e := range edges {
		if e.end {
			continue
		}
		last := lastAddr(e.at)
		if i+1 < len(edges) {
			last = edges[i+1].at.Prev()
		}
		b.AddRange(netipx.IPRangeFrom(e.at, last))
	}
}

func lastAddr(a netip.Addr) netip.Addr {
	return netipx.RangeOfPrefix(netip.PrefixFrom(a, 0).Masked()).To()
}

// elementKey writes an element's key as the kernel lays it out: each part
// padded to 4 bytes.
func elementKey(e element) []byte {
	b, _ := e.key.Addr.AppendBinary(make([]byte, 0, 2*16)) // of addresses without a zone
	switch e.set.kind() {
	case kindListener:
		b = append(b, byte(e.key.Protocol), 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, e.key.Port)
		b = append(b, 0, 0)
	case kindPair:
		b = append(b, b...)
	}
	return b
}

// decodeElement reads what elementKey writes.
func decodeElement(s setID, f vip.Family, b []byte) (element, bool) {
	size := 4
	if f == vip.IPv6 {
		size = 16
	}
	if len(b) < size {
		return element{}, false
	}
	addr, _ := netip.AddrFromSlice(b[:size])
	e, rest := addrElement(s, addr), b[size:]
	switch s.kind() {
	case kindListener:
		if len(rest) != 8 {
			return element{}, false
		}
		e.key.Protocol = vip.Protocol(rest[0])
		e.key.Port = binary.BigEndian.Uint16(rest[4:])
		return e, e.key.Protocol != 0 // which would stand for no frontend
	case kindPair:
		if !bytes.Equal(rest, b[:size]) {
			return element{}, false
		}
	default:
		if len(rest) != 0 {
			return element{}, false
		}
	}
	return e, true
}
