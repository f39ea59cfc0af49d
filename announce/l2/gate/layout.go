package gate

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/l2/frame"
	"github.com/ironvip/ironvip/internal/nftwire"
)

// TableName is the name of both tables.
const TableName = "ironvip_l2"

// The sets. The numbers after the names are those of the family.
const (
	setGuarded4 = "guarded4" // the addresses that the gate is for; interval sets
	setGuarded6 = "guarded6"
	setMine4    = "mine4" // those that this host owns
	setMine6    = "mine6"
	setAlive    = "alive" // the interfaces with a running announcer; elements expire
)

const (
	chainKernel  = "kernel" // of the arp table
	chainClaims4 = "claims4"
	chainClaims6 = "claims6"
)

// Offsets in the network header.
const (
	arpSender      = 14
	ipv6NextHeader = 6
	ipv6Source     = 8
	icmpv6Type     = 40
	ndTarget       = 48
)

const (
	icmpv6      = 58
	ndSolicit   = 135
	ndAdvert    = 136
	arpHookOut  = 1 // NF_ARP_OUT
	egressHook  = unix.NF_NETDEV_EGRESS
	registerOne = 1 // the first register of 16 bytes
)

var (
	tableARP    = &nftables.Table{Name: TableName, Family: nftables.TableFamilyARP}
	tableNetdev = &nftables.Table{Name: TableName, Family: nftables.TableFamilyNetdev}
)

// kernelSets and speakerSets are the sets of the two tables. Their positions are their numbers in a
// transaction.
var (
	kernelSets  = []*nftables.Set{guarded(tableARP, setGuarded4, nftables.TypeIPAddr)}
	speakerSets = []*nftables.Set{
		guarded(tableNetdev, setGuarded4, nftables.TypeIPAddr),
		guarded(tableNetdev, setGuarded6, nftables.TypeIP6Addr),
		{Table: tableNetdev, Name: setMine4, KeyType: nftables.TypeIPAddr, KeyByteOrder: binaryutil.BigEndian},
		{Table: tableNetdev, Name: setMine6, KeyType: nftables.TypeIP6Addr, KeyByteOrder: binaryutil.BigEndian},
		{Table: tableNetdev, Name: setAlive, KeyType: nftables.TypeIFIndex, HasTimeout: true},
	}
)

func guarded(t *nftables.Table, name string, typ nftables.SetDatatype) *nftables.Set {
	return &nftables.Set{Table: t, Name: name, KeyType: typ, KeyByteOrder: binaryutil.BigEndian, Interval: true}
}

// rule is one rule. Match is a sequence of tests, and the verdict applies if all hold.
type rule struct {
	chain, comment string
	exprs          []expr.Any
}

var kernelRules = []rule{
	{chainKernel, "the kernel doesn't speak for virtual addresses",
		join(load(arpSender, 4), in(setGuarded4), verdict(expr.VerdictDrop, ""))},
}

var speakerRules = []rule{
	{chainClaims4, "own addresses, while the announcer is alive",
		join(load(arpSender, 4), in(setGuarded4), in(setMine4), alive(), verdict(expr.VerdictAccept, ""))},
	{chainClaims4, "other virtual addresses", join(load(arpSender, 4), in(setGuarded4), verdict(expr.VerdictDrop, ""))},
	{chainClaims6, "own addresses, while the announcer is alive",
		join(is(icmpv6Type, ndAdvert), load(ndTarget, 16), in(setGuarded6), in(setMine6), alive(), verdict(expr.VerdictAccept, ""))},
	{chainClaims6, "other virtual addresses", join(is(icmpv6Type, ndAdvert), load(ndTarget, 16), in(setGuarded6), verdict(expr.VerdictDrop, ""))},
	{chainClaims6, "own addresses, while the announcer is alive",
		join(is(icmpv6Type, ndSolicit), load(ipv6Source, 16), in(setGuarded6), in(setMine6), alive(), verdict(expr.VerdictAccept, ""))},
	{chainClaims6, "other virtual addresses", join(is(icmpv6Type, ndSolicit), load(ipv6Source, 16), in(setGuarded6), verdict(expr.VerdictDrop, ""))},
}

// egressRules are the rules of the chain of one interface. Everything else that the interface sends
// passes after three comparisons.
func egressRules(chain string) []rule {
	return []rule{
		{chain, "ARP", join(protocol(frame.TypeARP), verdict(expr.VerdictGoto, chainClaims4))},
		{chain, "neighbor discovery", join(protocol(frame.TypeIPv6), is(ipv6NextHeader, icmpv6), verdict(expr.VerdictGoto, chainClaims6))},
	}
}

func join(parts ...[]expr.Any) (all []expr.Any) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func load(offset, size uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: registerOne, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}}
}

func is(offset uint32, value byte) []expr.Any {
	return append(load(offset, 1), &expr.Cmp{Op: expr.CmpOpEq, Register: registerOne, Data: []byte{value}})
}

func protocol(typ uint16) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: registerOne},
		&expr.Cmp{Op: expr.CmpOpEq, Register: registerOne, Data: binary.BigEndian.AppendUint16(nil, typ)},
	}
}

func in(set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: registerOne, SetName: set}}
}

func alive() []expr.Any {
	return join([]expr.Any{&expr.Meta{Key: expr.MetaKeyOIF, Register: registerOne}}, in(setAlive))
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

// putTable replaces a table, which need not be there, by one without elements and base chains.
func putTable(x *nftwire.Transaction, t *nftables.Table, sets []*nftables.Set, chains ...string) {
	x.SetFamily(t.Family)
	// Adding first makes the deletion valid where there is no table.
	x.AddTable(t)
	x.DeleteTable(t)
	x.AddTable(t)
	for i, s := range sets {
		x.AddSet(s, uint32(i+1))
	}
	for _, c := range chains {
		x.AddChain(&nftables.Chain{Name: c, Table: t})
	}
}

func putBase(x *nftwire.Transaction, t *nftables.Table, name, device string, hook nftables.ChainHook) {
	policy := nftables.ChainPolicyAccept
	x.AddChain(&nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: &hook, Priority: nftables.ChainPriorityFilter, Policy: &policy, Device: device})
}

func putRules(x *nftwire.Transaction, rules []rule) error {
	for _, r := range rules {
		if err := x.AddRule(TableName, r.chain, r.exprs, userdata.AppendString(nil, userdata.TypeComment, r.comment)); err != nil {
			return err
		}
	}
	return nil
}

// egressChain is the name of an interface's chain. Names of interfaces may have characters that names
// of chains may not.
func egressChain(index int) string { return fmt.Sprintf("egress_%d", index) }
