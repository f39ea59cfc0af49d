package ipvs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/ipvs/internal/host"
	"github.com/ironvip/ironvip/vip"
)

// elementsPerMessage bounds a message: a netlink attribute holds 64 KiB, an
// element takes 108 bytes at most.
const elementsPerMessage = 512

// errNoTable says that the table, or a part of it, isn't there.
var errNoTable = errors.New("our nftables table is missing or not as it should be")

// firewall is our nftables table in the kernel. Each call opens a socket in the
// calling thread's network namespace. It is not safe for concurrent use.
type firewall struct {
	layout *layout
	stats  *counters
	conn   *nftwire.Conn // open during a call only

	// Room for a transaction, and for its elements by set: those to delete, those to add.
	x          nftwire.Transaction
	dels, adds [setCount][vip.IPv6 + 1][]element
	one        nftwire.Element
	size       int // how many keys the table had when it was read last
}

func newFirewall(l *layout, stats *counters) *firewall {
	return &firewall{layout: l, stats: stats, conn: nftwire.NewConn()}
}

func (f *firewall) open(ctx context.Context) error { return f.conn.Open(ctx) }

// apply makes a change in one transaction. A missing table is errNoTable.
func (f *firewall) apply(ctx context.Context, c change) error {
	if len(c) == 0 {
		return nil
	}
	f.x.Begin()
	f.put(c)
	return f.commit(ctx)
}

// rebuild replaces the whole table in one transaction, so that no packet meets
// half of it.
func (f *firewall) rebuild(ctx context.Context, pods *netipx.IPSet, c change) error {
	f.x.Begin()
	if err := addLayout(&f.x, f.layout); err != nil {
		return err
	}
	f.putPods(pods)
	f.put(c)
	return f.commit(ctx)
}

// addLayout replaces a table, which need not be there, by one without elements.
func addLayout(x *nftwire.Transaction, l *layout) error {
	// Adding first makes the deletion valid where there is no table.
	x.AddTable(l.table)
	x.DeleteTable(l.table)
	x.AddTable(l.table)
	for i, s := range l.order {
		x.AddSet(s, uint32(i+1))
	}
	for _, c := range l.chains {
		x.AddChain(c)
	}
	for _, r := range l.rules {
		if err := x.AddRule(l.table.Name, r.chain, r.exprs, r.userData()); err != nil {
			return err
		}
	}
	return nil
}

// missing returns an error that names the kernel modules that the table needs and
// the kernel lacks, or nil.
func (f *firewall) missing(ctx context.Context) error { return host.Err(tryNFTables(ctx)) }

// setPods replaces the pod ranges in one transaction, together with a change.
func (f *firewall) setPods(ctx context.Context, pods *netipx.IPSet, c change) error {
	f.x.Begin()
	for _, fam := range families {
		f.x.Flush(f.layout.table.Name, setPods.name(fam))
	}
	f.putPods(pods)
	f.put(c)
	return f.commit(ctx)
}

var families = []vip.Family{vip.IPv4, vip.IPv6}

func (f *firewall) putPods(pods *netipx.IPSet) {
	for _, fam := range families {
		for chunk := range slices.Chunk(nftwire.RangeElements(pods, fam), elementsPerMessage) {
			list := f.x.BeginElements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, f.layout.table.Name, setPods.name(fam))
			for i := range chunk {
				f.x.AddElement(&chunk[i])
			}
			f.x.EndElements(list)
		}
	}
}

// put appends a change.
func (f *firewall) put(c change) {
	for e, present := range c {
		fam := vip.FamilyOf(e.key.Addr)
		if present {
			f.adds[e.set][fam] = append(f.adds[e.set][fam], e)
		} else {
			f.dels[e.set][fam] = append(f.dels[e.set][fam], e)
		}
	}
	for s := range setCount {
		for _, fam := range families {
			// Deleting what is gone fails the transaction; adding it first makes it
			// valid, and adding what is there is no change.
			f.putElements(unix.NFT_MSG_NEWSETELEM, s.name(fam), f.dels[s][fam])
			f.putElements(unix.NFT_MSG_DELSETELEM, s.name(fam), f.dels[s][fam])
			f.dels[s][fam] = f.dels[s][fam][:0]
		}
	}
	for s := range setCount {
		for _, fam := range families {
			f.putElements(unix.NFT_MSG_NEWSETELEM, s.name(fam), f.adds[s][fam])
			f.adds[s][fam] = f.adds[s][fam][:0]
		}
	}
}

func (f *firewall) putElements(typ uint16, set string, all []element) {
	for chunk := range slices.Chunk(all, elementsPerMessage) {
		list := f.x.BeginElements(typ, unix.NLM_F_CREATE, f.layout.table.Name, set)
		for i := range chunk {
			encodeElement(&f.one, &chunk[i])
			f.x.AddElement(&f.one)
		}
		f.x.EndElements(list)
	}
}

// commit sends the transaction.
func (f *firewall) commit(ctx context.Context) error {
	f.stats.nftMessages.Add(uint64(f.x.Messages))
	err := f.conn.Commit(ctx, &f.x)
	// ENOENT: a set or the table isn't there. The others are about elements, which
	// a foreign hand has put where ours are to be.
	for _, drift := range []error{unix.ENOENT, unix.EEXIST, unix.ENOTEMPTY, unix.EBUSY} {
		if errors.Is(err, drift) {
			return fmt.Errorf("%w: %w", errNoTable, err)
		}
	}
	if err != nil {
		return fmt.Errorf("change nftables table inet %s: %w", f.layout.table.Name, err)
	}
	return nil
}

var errNoNFTables = errors.New("this kernel has no nf_tables")

// exists reports whether our table is there.
func (f *firewall) exists(ctx context.Context) (bool, error) {
	there, err := false, f.open(ctx)
	if err == nil {
		defer f.conn.Close()
		if there, err = f.tableExists(ctx); err == nil {
			return there, nil
		}
	}
	for _, lack := range []error{unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EINVAL} {
		if errors.Is(err, lack) { // no netlink family, or one that doesn't know the question
			return false, errNoNFTables
		}
	}
	return false, err
}

// remove deletes the table, if there is one.
func (f *firewall) remove(ctx context.Context) error {
	f.x.Begin()
	f.x.AddTable(f.layout.table) // makes the deletion valid where there is none
	f.x.DeleteTable(f.layout.table)
	return f.commit(ctx)
}
