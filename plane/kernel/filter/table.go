package filter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/google/nftables"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/vip"
)

// elementsPerMessage bounds a message: a netlink attribute holds 64 KiB, an
// element takes 108 bytes at most.
const elementsPerMessage = 512

// ErrNoTable means that the table or a part of it is missing or has been changed.
var ErrNoTable = errors.New("our nftables table is missing or not as it should be")

// Table is our nftables table in the kernel. Each call opens a socket in the
// calling thread's network namespace, except for transactions after Open. It is not safe for concurrent use.
type Table struct {
	layout *Layout
	stats  *atomic.Uint64 // messages of transactions
	conn   *nftwire.Conn  // open during a call only
	writer *nftwire.Conn  // for transactions after Open; nil: conn
	held   *nftwire.Conn  // that owns the table of Hold; nil: none

	// Muted, if set, sends a large transaction after Open: see watch.Watcher.
	Muted func(generation func() (uint32, error), send func() error) error

	// Room for a transaction, and for its elements by set: those to delete, those to add.
	x          nftwire.Transaction
	dels, adds [setCount][vip.IPv6 + 1][]Element
	one        nftwire.Element
	size       int // how many keys the table had when it was read last
}

// New returns the table of that name. Stats counts the messages of transactions.
func New(name string, stats *atomic.Uint64) *Table {
	return Of(newLayout(name), stats)
}

// Of returns the table with a layout.
func Of(l *Layout, stats *atomic.Uint64) *Table {
	return &Table{layout: l, stats: stats, conn: nftwire.NewConn()}
}

// Open opens a socket that sends all transactions from now on. Its port shows which events are the table's own, see
// package watch. A later call opens it again if an error has closed it, and returns its present port.
func (f *Table) Open(ctx context.Context) (port uint32, err error) {
	if f.writer == nil {
		f.writer = nftwire.NewConn()
	}
	err = f.writer.Ensure(ctx)
	return f.writer.Port(), err
}

// Close closes the sockets of Open and Hold.
func (f *Table) Close() {
	for _, c := range []*nftwire.Conn{f.writer, f.held} {
		if c != nil {
			c.Close()
		}
	}
}

// Apply makes a change in one transaction. A missing table is ErrNoTable.
func (f *Table) Apply(ctx context.Context, c Change) error { return f.ApplyWith(ctx, c, nil) }

// ApplyWith does the same, and own appends a dataplane's own messages to the transaction.
func (f *Table) ApplyWith(ctx context.Context, c Change, own func(*nftwire.Transaction) error) error {
	f.EncodeChange(c)
	if own != nil {
		if err := own(&f.x); err != nil {
			return err
		}
	}
	if f.x.Messages == 0 {
		return nil
	}
	return f.commit(ctx, &f.x)
}

// EncodeChange returns the transaction of a change. It is valid until the next
// transaction.
func (f *Table) EncodeChange(c Change) *nftwire.Transaction {
	f.x.Begin()
	f.put(c)
	return &f.x
}

// Rebuild replaces the whole table in one transaction, so that no packet meets
// half of it.
func (f *Table) Rebuild(ctx context.Context, pods *netipx.IPSet, c Change) error {
	return f.RebuildWith(ctx, pods, c, nil)
}

// RebuildWith does the same, and own appends a dataplane's own messages to the transaction.
func (f *Table) RebuildWith(ctx context.Context, pods *netipx.IPSet, c Change, own func(*nftwire.Transaction) error) error {
	x, err := f.EncodeRebuild(pods, c)
	if err == nil && own != nil {
		err = own(x)
	}
	if err != nil {
		return err
	}
	return f.commit(ctx, x)
}

// EncodeRebuild returns the transaction of rebuild. It is valid until the next
// transaction.
func (f *Table) EncodeRebuild(pods *netipx.IPSet, c Change) (*nftwire.Transaction, error) {
	f.x.Begin()
	if err := addLayout(&f.x, f.layout); err != nil {
		return nil, err
	}
	f.putPods(pods)
	f.put(c)
	return &f.x, nil
}

// addLayout replaces a table, which need not be there, by one without elements.
func addLayout(x *nftwire.Transaction, l *Layout) error {
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
		if err := x.AddRule(l.table.Name, r.chain, r.exprs, l.userData(r)); err != nil {
			return err
		}
	}
	return nil
}

// Missing returns an error that names the kernel modules that the table needs and
// the kernel lacks, or nil.
func (f *Table) Missing(ctx context.Context) error {
	return host.Err(TryNFTables(ctx, f.layout.Trials...))
}

// SetPods replaces the pod ranges in one transaction, together with a change.
func (f *Table) SetPods(ctx context.Context, pods *netipx.IPSet, c Change) error {
	f.x.Begin()
	for _, fam := range families {
		f.x.Flush(f.layout.table.Name, setPods.Name(fam))
	}
	f.putPods(pods)
	f.put(c)
	return f.commit(ctx, &f.x)
}

var families = []vip.Family{vip.IPv4, vip.IPv6}

func (f *Table) putPods(pods *netipx.IPSet) {
	for _, fam := range families {
		for chunk := range slices.Chunk(nftwire.RangeElements(pods, fam), elementsPerMessage) {
			list := f.x.BeginElements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, f.layout.table.Name, setPods.Name(fam))
			for i := range chunk {
				f.x.AddElement(&chunk[i])
			}
			f.x.EndElements(list)
		}
	}
}

// put appends a change.
func (f *Table) put(c Change) {
	for e, present := range c {
		fam := vip.FamilyOf(e.Key.Addr)
		if present {
			f.adds[e.Set][fam] = append(f.adds[e.Set][fam], e)
		} else {
			f.dels[e.Set][fam] = append(f.dels[e.Set][fam], e)
		}
	}
	for s := range setCount {
		for _, fam := range families {
			// Deleting what is gone fails the transaction; adding it first makes it
			// valid, and adding what is there is no change.
			f.putElements(unix.NFT_MSG_NEWSETELEM, s.Name(fam), f.dels[s][fam])
			f.putElements(unix.NFT_MSG_DELSETELEM, s.Name(fam), f.dels[s][fam])
			f.dels[s][fam] = f.dels[s][fam][:0]
		}
	}
	for s := range setCount {
		for _, fam := range families {
			f.putElements(unix.NFT_MSG_NEWSETELEM, s.Name(fam), f.adds[s][fam])
			f.adds[s][fam] = f.adds[s][fam][:0]
		}
	}
}

func (f *Table) putElements(typ uint16, set string, all []Element) {
	for chunk := range slices.Chunk(all, elementsPerMessage) {
		list := f.x.BeginElements(typ, unix.NLM_F_CREATE, f.layout.table.Name, set)
		for i := range chunk {
			EncodeElement(&f.one, &chunk[i])
			f.x.AddElement(&f.one)
		}
		f.x.EndElements(list)
	}
}

// largeTransaction is the size from which on the events of a transaction take longer than doing without them.
const largeTransaction = 16 << 10

func (f *Table) send(ctx context.Context, x *nftwire.Transaction) error {
	switch {
	case f.writer == nil:
		return f.conn.Commit(ctx, x)
	case f.Muted == nil || x.Size() < largeTransaction || f.writer.Ensure(ctx) != nil:
		return f.writer.Send(ctx, x)
	}
	generation := func() (uint32, error) { return f.writer.Generation(ctx) }
	return f.Muted(generation, func() error { return f.writer.Send(ctx, x) })
}

// commit sends a transaction.
func (f *Table) commit(ctx context.Context, x *nftwire.Transaction) error {
	f.stats.Add(uint64(x.Messages))
	err := f.send(ctx, x)
	// ENOENT: a set or the table is missing. The others concern elements that another program
	// has added.
	for _, drift := range []error{unix.ENOENT, unix.EEXIST, unix.ENOTEMPTY, unix.EBUSY} {
		if errors.Is(err, drift) {
			return fmt.Errorf("%w: %w", ErrNoTable, err)
		}
	}
	if err != nil {
		return fmt.Errorf("change nftables table inet %s: %w", f.layout.table.Name, err)
	}
	return nil
}

// Retire deletes the rules of the base chains in one transaction. From then on, the table does nothing to packets, but its
// sets still record what belongs to it. The chains stay: as long as there is one of type nat, the kernel translates the
// packets of open connections. A missing table is no error.
func (f *Table) Retire(ctx context.Context) error {
	if there, err := f.Exists(ctx); !there || err != nil {
		return err
	}
	if err := f.conn.Open(ctx); err != nil {
		return err
	}
	f.x.Begin()
	err := f.conn.Chains(ctx, f.layout.table.Name, func(c nftables.Chain) {
		if c.Hooknum != nil {
			f.x.FlushChain(f.layout.table.Name, c.Name)
		}
	})
	f.conn.Close()
	if err != nil {
		return fmt.Errorf("list nftables chains: %w", err)
	}
	if f.x.Messages == 0 {
		return nil
	}
	return f.commit(ctx, &f.x)
}

// ErrNoNFTables means that this kernel has no nf_tables.
var ErrNoNFTables = errors.New("this kernel has no nf_tables")

// Exists reports whether our table is there.
func (f *Table) Exists(ctx context.Context) (bool, error) {
	there, err := false, f.conn.Open(ctx)
	if err == nil {
		defer f.conn.Close()
		if there, _, err = f.table(ctx); err == nil {
			return there, nil
		}
	}
	for _, lack := range []error{unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EINVAL} {
		if errors.Is(err, lack) { // no netlink family, or one that doesn't know the question
			return false, ErrNoNFTables
		}
	}
	return false, err
}

// Remove deletes the table, if there is one.
func (f *Table) Remove(ctx context.Context) error {
	f.x.Begin()
	f.x.AddTable(f.layout.table) // the deletion needs a table
	f.x.DeleteTable(f.layout.table)
	return f.commit(ctx, &f.x)
}
