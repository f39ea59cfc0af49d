package gate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/vip"
)

// elementsPerMessage keeps messages below the 64 KiB of a netlink attribute.
const elementsPerMessage = 1000

// Interface is an announcing interface.
type Interface struct {
	Index int
	Name  string
}

// Counters count what the gate sent to the kernel.
type Counters struct {
	Sends    uint64 // transactions, each one system call
	Messages uint64 // messages in them
}

// Gate is the state of both tables, and the socket that writes them. Use New. It is not safe for
// concurrent use.
//
// A method that returns an error may have changed the kernel or not. Rebuild then makes the kernel
// equal to the state again.
type Gate struct {
	// Egress reports whether the kernel has the egress hook. Without it, nothing in the kernel stops
	// this process from speaking for an address, and Own, Release and Refresh do nothing.
	Egress bool
	Stats  Counters

	conn  *nftwire.Conn
	x     nftwire.Transaction
	mine  map[netip.Addr]struct{}
	alive []int // indexes of interfaces
	until time.Time
}

// New returns a gate on a socket in the network namespace of the calling thread, and replaces what an
// earlier process left by a closed gate. An error means that the host isn't silent.
func New(ctx context.Context, guarded *netipx.IPSet, interfaces []Interface) (*Gate, error) {
	g := &Gate{conn: nftwire.NewConn(), mine: map[netip.Addr]struct{}{}}
	var err error
	if g.Egress, err = g.tryEgress(ctx); err == nil {
		err = g.Rebuild(ctx, guarded, interfaces)
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// Close closes the socket. The tables remain, and alive expires.
func (g *Gate) Close() { g.conn.Close() }

// Port is the netlink port of the gate's own changes.
func (g *Gate) Port() uint32 { return g.conn.Port() }

// Find returns which of the tables exist, as nft(8) writes them, in the network namespace of the calling
// thread. A kernel without nftables has none.
func Find(ctx context.Context) (found []string, err error) {
	conn := nftwire.NewConn()
	if err = conn.Open(ctx); err == nil {
		defer conn.Close()
		for _, t := range tables {
			there, e := conn.TableExists(ctx, t)
			if err = errors.Join(err, e); there {
				found = append(found, familyNames[t.Family]+" "+t.Name)
			}
		}
	}
	for _, lack := range []error{unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EINVAL} {
		if errors.Is(err, lack) { // no netlink family, or one that doesn't know the question
			return found, nil
		}
	}
	if err != nil {
		err = fmt.Errorf("look for the gate: %w", err)
	}
	return found, err
}

var familyNames = map[nftables.TableFamily]string{nftables.TableFamilyARP: "arp", nftables.TableFamilyNetdev: "netdev"}

// Remove deletes both tables. From then on, the kernel answers ARP for its virtual addresses again.
func Remove(ctx context.Context) error {
	g := Gate{conn: nftwire.NewConn()}
	defer g.Close()
	g.x.Begin()
	for _, t := range tables {
		g.x.SetFamily(t.Family)
		g.x.AddTable(t) // the deletion needs a table
		g.x.DeleteTable(t)
	}
	return g.send(ctx, "remove the gate")
}

// tryEgress asks the kernel for a chain with the egress hook, in a table that a transaction creates
// and deletes.
func (g *Gate) tryEgress(ctx context.Context) (bool, error) {
	trial := *tableNetdev
	trial.Name += "_trial"
	g.x.Begin()
	g.x.SetFamily(trial.Family)
	g.x.AddScratchTable(&trial)
	putBase(&g.x, &trial, "egress", "lo", egressHook)
	g.x.DeleteTable(&trial)
	err := g.send(ctx, "try the egress hook")
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	return err == nil, err
}

// HasEgress reports whether the kernel has the egress hook, see Gate.Egress, in the network namespace of the calling thread.
func HasEgress(ctx context.Context) (bool, error) {
	g := Gate{conn: nftwire.NewConn()}
	defer g.Close()
	return g.tryEgress(ctx)
}

// Owns reports whether addr is open.
func (g *Gate) Owns(addr netip.Addr) bool {
	_, ok := g.mine[addr]
	return ok
}

// Rebuild replaces both tables in one transaction by the gate's state, for these addresses and announcing
// interfaces: no packet meets half of it. The dead-man switch keeps its remaining time.
func (g *Gate) Rebuild(ctx context.Context, guarded *netipx.IPSet, interfaces []Interface) error {
	g.x.Begin()
	putTable(&g.x, tableARP, kernelSets)
	putBase(&g.x, tableARP, chainKernel, "", arpHookOut)
	g.putGuarded(guarded, setGuarded4, vip.IPv4)
	err := putRules(&g.x, kernelRules)
	if g.Egress {
		putTable(&g.x, tableNetdev, speakerSets, chainClaims4, chainClaims6)
		g.putGuarded(guarded, setGuarded4, vip.IPv4)
		g.putGuarded(guarded, setGuarded6, vip.IPv6)
		g.putMine(unix.NFT_MSG_NEWSETELEM, slices.Collect(maps.Keys(g.mine)))
		g.putAlive(unix.NFT_MSG_NEWSETELEM, time.Until(g.until))
		err = errors.Join(err, putRules(&g.x, speakerRules))
		for _, link := range interfaces {
			putBase(&g.x, tableNetdev, egressChain(link.Index), link.Name, egressHook)
			err = errors.Join(err, putRules(&g.x, egressRules(egressChain(link.Index))))
		}
	}
	if err != nil {
		return err
	}
	return g.send(ctx, "rebuild the gate")
}

// Change opens and closes addresses, in one send, with a message for each 1,000 of a family in each
// direction. An address that is already in the wanted state costs nothing.
func (g *Gate) Change(ctx context.Context, open, shut []netip.Addr) error {
	shut = slices.DeleteFunc(slices.Clone(shut), func(a netip.Addr) bool { return !g.Owns(a) })
	for _, a := range shut {
		delete(g.mine, a)
	}
	open = slices.DeleteFunc(slices.Clone(open), g.Owns)
	for _, a := range open {
		g.mine[a] = struct{}{}
	}
	if !g.Egress || len(open)+len(shut) == 0 {
		return nil
	}
	g.begin()
	g.putMine(unix.NFT_MSG_DELSETELEM, shut)
	g.putMine(unix.NFT_MSG_NEWSETELEM, open)
	return g.send(ctx, "open and close addresses")
}

// Refresh keeps the gate of interfaces open until a time. All others are closed at once.
//
// Adding an element again refreshes its timeout only since Linux 6.12. Deleting it in between works
// on all kernels, and packets don't see the transaction's middle. The first addition is for an
// element that has expired.
func (g *Gate) Refresh(ctx context.Context, until time.Time, interfaces ...int) error {
	gone := slices.ContainsFunc(g.alive, func(i int) bool { return !slices.Contains(interfaces, i) })
	g.alive, g.until = slices.Clone(interfaces), until
	if !g.Egress || len(interfaces) == 0 && !gone {
		return nil
	}
	left := time.Until(until)
	g.begin()
	if gone || left < leastTime { // a deletion fails if the element has expired, and none is added before it
		g.x.Flush(TableName, setAlive)
	} else {
		g.putAlive(unix.NFT_MSG_NEWSETELEM, left)
		g.putAlive(unix.NFT_MSG_DELSETELEM, 0)
	}
	g.putAlive(unix.NFT_MSG_NEWSETELEM, left)
	return g.send(ctx, "refresh the gate")
}

// Shut closes the gate at once and forgets all addresses, in one send.
func (g *Gate) Shut(ctx context.Context) error {
	clear(g.mine)
	g.alive, g.until = nil, time.Time{}
	if !g.Egress {
		return nil
	}
	g.begin()
	for _, s := range []string{setAlive, setMine4, setMine6} {
		g.x.Flush(TableName, s)
	}
	return g.send(ctx, "close the gate")
}

// begin starts a transaction on the second table.
func (g *Gate) begin() {
	g.x.Begin()
	g.x.SetFamily(tableNetdev.Family)
}

func (g *Gate) send(ctx context.Context, what string) error {
	if g.x.Messages == 0 {
		return nil
	}
	g.Stats.Sends++
	g.Stats.Messages += uint64(g.x.Messages)
	if err := g.conn.Send(ctx, &g.x); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (g *Gate) putGuarded(guarded *netipx.IPSet, set string, f vip.Family) {
	for chunk := range slices.Chunk(nftwire.RangeElements(guarded, f), elementsPerMessage) {
		list := g.x.BeginElements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, TableName, set)
		for i := range chunk {
			g.x.AddElement(&chunk[i])
		}
		g.x.EndElements(list)
	}
}

// putMine adds or deletes addresses.
func (g *Gate) putMine(typ uint16, all []netip.Addr) {
	for _, v6 := range []bool{false, true} {
		set := setMine4
		if v6 {
			set = setMine6
		}
		n, list := 0, 0
		for _, a := range all {
			if a.Is6() != v6 {
				continue
			}
			if n == 0 {
				list = g.x.BeginElements(typ, unix.NLM_F_CREATE, TableName, set)
			}
			g.x.AddElement(&nftwire.Element{Key: a.AsSlice()})
			if n++; n == elementsPerMessage {
				g.x.EndElements(list)
				n = 0
			}
		}
		if n > 0 {
			g.x.EndElements(list)
		}
	}
}

// leastTime is the unit of the kernel's timeouts. Less is no time: it would be rounded up.
const leastTime = time.Millisecond

// putAlive adds the interfaces for the time that is left, or deletes them.
func (g *Gate) putAlive(typ uint16, left time.Duration) {
	adding := typ == unix.NFT_MSG_NEWSETELEM
	if len(g.alive) == 0 || adding && left < leastTime {
		return
	}
	list := g.x.BeginElements(typ, unix.NLM_F_CREATE, TableName, setAlive)
	for _, index := range g.alive {
		e := nftwire.Element{Key: binary.NativeEndian.AppendUint32(nil, uint32(index))}
		if adding {
			e.Timeout = left
		}
		g.x.AddElement(&e)
	}
	g.x.EndElements(list)
}
