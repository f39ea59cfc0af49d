package nft

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/vip"
)

// layoutVersion is part of every rule's comment. Raise it whenever the rules, sets or the encoding of
// elements change: at its start, the agent replaces a table of another version in one transaction.
const layoutVersion = "ironvip nft 8: "

var families = []vip.Family{vip.IPv4, vip.IPv6}

// kind is a kind of set. There is one of each kind per family, and, if the kind is sharded, per origin.
type kind uint8

const (
	kindServices kind = iota // map: address . protocol . port to the numbers of class and service
	kindSlots                // map: service . slot to address . port
	kindChoices              // map: service . slot to a member, of services with affinity
	kindClasses              // map: class to its chain
	kindMembers              // map: member . service to address . port
	kindWeights              // map: service . address . port to the weight, where the slots don't show it
	kindSources              // service . range of allowed clients
	kindGuarded              // address . protocol . port of services that SYN cookies may protect
	kindClients              // map: service . client to the member that it stays with; packets write it
	kindTotals               // counters of frontends, see counters.go
	kindShares               // counters of backends of frontends; packets write it
	kinds
)

var kindNames = [kinds]string{"services", "slots", "choices", "classes", "members", "weights", "allowed", "guarded", "clients", "totals", "shares"}

// setID is one set.
type setID struct {
	kind   kind
	family vip.Family // 0: classes
	origin origin     // 0 if the kind has one set for all; totals, shares: 0 or fromRanges
	way    way        // totals, shares
}

func (s setID) String() string { return setNames[s] }

// setNames are the names of all sets, and setsByName the reverse.
var setNames, setsByName = func() (map[setID]string, map[string]setID) {
	names, ids := map[setID]string{}, map[string]setID{}
	put := func(s setID, format string, args ...any) {
		names[s] = fmt.Sprintf(format, args...)
		ids[names[s]] = s
	}
	for o := range origins {
		for _, f := range families {
			put(setID{kindServices, f, o, 0}, "services%d_%s", f, o)
			put(setID{kindSlots, f, o, 0}, "slots%d_%s", f, o)
			put(setID{kindChoices, f, o, 0}, "choices%d_%s", f, o)
		}
		put(setID{kindClasses, 0, o, 0}, "classes_%s", o)
	}
	for _, k := range []kind{kindMembers, kindWeights, kindSources, kindGuarded, kindClients} {
		for _, f := range families {
			put(setID{k, f, 0, 0}, "%s%d", kindNames[k], f)
		}
	}
	for s := range counterSets {
		if s.origin.ranged() {
			put(s, "%s%d_%s_%s", kindNames[s.kind], s.family, s.way, s.origin)
		} else {
			put(s, "%s%d_%s", kindNames[s.kind], s.family, s.way)
		}
	}
	return names, ids
}()

// word is a 32-bit value whose meaning only this package knows.
var word = nftables.TypeMark

func addressType(f vip.Family) nftables.SetDatatype {
	if f == vip.IPv6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

// describe returns a set.
func describe(s setID) *nftables.Set {
	addr, concat := addressType(s.family), nftables.MustConcatSetType
	set := &nftables.Set{Name: s.String(), KeyByteOrder: binaryutil.BigEndian, IsMap: true}
	switch s.kind {
	case kindServices:
		set.KeyType, set.DataType = concat(addr, nftables.TypeInetProto, nftables.TypeInetService), word
		if s.origin.ranged() {
			set.Interval, set.Concatenation = true, true
		}
	case kindSlots:
		set.KeyType, set.DataType = concat(word, word), concat(addr, nftables.TypeInetService)
	case kindChoices:
		set.KeyType, set.DataType = concat(word, word), word
	case kindClasses:
		set.KeyType, set.DataType = word, nftables.TypeVerdict
	case kindMembers:
		set.KeyType, set.DataType = concat(word, word), concat(addr, nftables.TypeInetService)
	case kindWeights:
		set.KeyType, set.DataType = concat(word, addr, nftables.TypeInetService), word
	case kindSources:
		set.KeyType, set.IsMap, set.Interval, set.Concatenation = concat(word, addr), false, true, true
	case kindGuarded:
		set.KeyType, set.IsMap = concat(addr, nftables.TypeInetProto, nftables.TypeInetService), false
	case kindClients:
		set.KeyType, set.DataType = concat(word, addr), word
		set.HasTimeout, set.Dynamic, set.Size = true, true, rememberedClients
	case kindTotals:
		set.KeyType, set.IsMap, set.Counter = concat(addr, nftables.TypeInetProto, nftables.TypeInetService), false, true
		if s.origin.ranged() {
			set.Interval, set.Concatenation = true, true
		}
	case kindShares:
		set.KeyType, set.IsMap = concat(addr, nftables.TypeInetProto, nftables.TypeInetService, addr, nftables.TypeInetService), false
		if s.origin.ranged() {
			set.KeyType = concat(addr, nftables.TypeInetProto, addr)
		}
		set.Dynamic, set.Size = true, countedShares
	}
	return set
}

// rememberedClients bounds the clients of each family that services with affinity remember. When it
// is reached, further clients are served without being remembered.
const rememberedClients = 1 << 20

// Registers of 32 bits. A rule first loads a listener's key from the first one on, which takes six
// for IPv6, and with it looks up the service.
const (
	regKey     = unix.NFT_REG32_00 // of a listener; later a slot's or member's address . port
	regFound   = unix.NFT_REG32_08 // the element of the map services
	regShard   = unix.NFT_REG32_08
	regClass   = unix.NFT_REG32_09
	regMember  = unix.NFT_REG32_10
	regNumber  = unix.NFT_REG32_11 // after the member: the service
	regPeer    = unix.NFT_REG32_12 // after the number: a client's address
	regSlot    = unix.NFT_REG32_12 // after the number: the chosen slot
	regVerdict = unix.NFT_REG_VERDICT
)

// wordsOf returns how many registers an address takes.
func wordsOf(f vip.Family) uint32 {
	if f == vip.IPv6 {
		return 4
	}
	return 1
}

const (
	chainArriving = "arriving" // packets of others
	chainOwn      = "own"      // this host's own
)

// newLayout returns the layout of the table. A new connection passes one of two base chains. They look
// for the service: first, for internal clients, their own, then those of single ports, then those of
// ranges. The service's class is the verdict: its chain chooses the backend. A packet without a
// service stays with this host, which refuses it.
func newLayout(name string) *filter.Layout {
	l := filter.NewBase(name, layoutVersion)
	l.Trials = trials
	for o := range origins { // sets are read in this order
		l.AddSet(describe(setID{kindClasses, 0, o, 0}))
	}
	for o := range origins {
		for _, f := range families {
			l.AddSet(describe(setID{kindServices, f, o, 0}))
			l.AddSet(describe(setID{kindSlots, f, o, 0}))
			l.AddSet(describe(setID{kindChoices, f, o, 0}))
		}
	}
	for _, f := range families {
		for _, k := range []kind{kindMembers, kindWeights, kindSources, kindGuarded} {
			l.AddSet(describe(setID{k, f, 0, 0}))
		}
		l.AddWritten(describe(setID{kindClients, f, 0, 0}))
	}
	addCounters(l)
	l.AddLimits()
	l.AddSet(&nftables.Set{Name: setShards, KeyType: word, IsMap: true, DataType: nftables.TypeVerdict})
	for o := range shards {
		l.AddChain(shardChain(o))
		for _, f := range families {
			l.AddRule(shardChain(o), "services", dispatch(f, o))
		}
	}
	l.AddHook(chainArriving, nftables.ChainTypeNAT, nftables.ChainHookPrerouting, *nftables.ChainPriorityNATDest)
	l.AddHook(chainOwn, nftables.ChainTypeNAT, nftables.ChainHookOutput, *nftables.ChainPriorityNATDest)
	for _, chain := range []string{chainArriving, chainOwn} {
		l.AddRule(chain, "open connections stay where they are", append(filter.OpensNothing(), filter.Verdict(expr.VerdictAccept, "")))
	}
	for _, f := range families {
		for _, chain := range []string{chainArriving, chainOwn} {
			for _, o := range []origin{fromInternal, fromInternalRanges} {
				exprs := dispatch(f, o)
				if chain == chainArriving {
					exprs = append(l.FromPod(f, true), exprs...)
				}
				l.AddRule(chain, "internal clients have their own", exprs)
			}
			l.AddRule(chain, "single ports", toShard(f))
			l.AddRule(chain, "ranges of ports", dispatch(f, fromRanges))
		}
	}
	return l
}

func guarded(f vip.Family) string { return setID{kindGuarded, f, 0, 0}.String() }

const setShards = "shards"

func shardChain(o origin) string { return "shard_" + o.String() }

// toShard continues in the chain of a packet's shard.
func toShard(f vip.Family) []expr.Any {
	return join(filter.Family(f), filter.ListenerKey(f)...)(
		&expr.Hash{SourceRegister: regKey, DestRegister: regShard, Length: 4 * (wordsOf(f) + 2), Modulus: uint32(shards), Seed: shardSeed, Type: expr.HashTypeJenkins},
		lookup(setShards, regShard, regVerdict))
}

// findService puts the element of a packet's service in its priority. The rule ends without one.
//
// A priority is what carries a value from a map to a key, because the nft program aborts when it lists a
// rule that uses the one as the other. The kernel sets the priority of forwarded packets later, so
// unlike the packet mark, it is no other program's at this place.
func findService(f vip.Family, o origin) []expr.Any {
	return join(filter.Family(f), filter.ListenerKey(f)...)(lookup(setID{kindServices, f, o, 0}.String(), regKey, regFound), carry(regFound))
}

// carry puts a register in the packet's priority.
func carry(from uint32) expr.Any {
	return &expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: from}
}

// carried loads some bits of the packet's priority.
func carried(to, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: to},
		&expr.Bitwise{SourceRegister: to, DestRegister: to, Len: 4, Mask: big(bits), Xor: big(0)},
	}
}

func big(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// number loads the number of a packet's service.
func number(f vip.Family) []expr.Any {
	return append(filter.Family(f), carried(regNumber, maskNumber)...)
}

// dispatch continues in the chain of the class of a packet's service.
func dispatch(f vip.Family, o origin) []expr.Any {
	return append(append(findService(f, o), carried(regClass, maskClass)...), lookup(setID{kindClasses, 0, o, 0}.String(), regClass, regVerdict))
}

// join returns a function that appends to a and b.
func join(a []expr.Any, b ...expr.Any) func(...expr.Any) []expr.Any {
	return func(c ...expr.Any) []expr.Any { return append(append(append([]expr.Any{}, a...), b...), c...) }
}

func lookup(set string, from, to uint32) expr.Any {
	return &expr.Lookup{SourceRegister: from, DestRegister: to, IsDestRegSet: true, SetName: set}
}

// classRule is one rule of a class's chain.
type classRule struct {
	comment string
	exprs   []expr.Any
}

// rules returns the rules of a class's chain at an origin.
func (c class) rules(l *filter.Layout, o origin) (all []classRule) {
	add := func(comment string, exprs []expr.Any) { all = append(all, classRule{comment, exprs}) }
	if c.choice == chooseNone {
		add("no usable backend", []expr.Any{filter.Verdict(expr.VerdictAccept, "")})
		return all
	}
	for _, f := range families {
		if c.restricted {
			add("only these clients", append(append(arriving(), number(f)...), filter.Address(f, true, regPeer),
				&expr.Lookup{SourceRegister: regNumber, SetName: setID{kindSources, f, 0, 0}.String(), Invert: true},
				filter.Verdict(expr.VerdictAccept, "")))
		}
		filter.SourceLimits(f, o.ranged(), c.limits, filter.Verdict(expr.VerdictAccept, ""), add)
	}
	switch c.masquerade {
	case vip.MasqueradeAlways:
		add("masquerade every client", filter.AddBit())
	case vip.MasqueradeAuto:
		for _, f := range families {
			add("masquerade clients that are no pods", append(l.FromPod(f, false), filter.AddBit()...))
		}
	case vip.MasqueradeOwn:
		add("masquerade own connections", append(filter.FromHere(), filter.AddBit()...))
	}
	for _, f := range families {
		if c.affinity > 0 {
			add("a client stays with its backend", c.stay(f, o))
			add("and is remembered", c.remember(f, o))
		}
		if c.affinity == 0 {
			add("choose", append(append(number(f), c.choose(f, o)...), c.translate(f)...))
			continue
		}
		// The rules before may have put a member in the place of the service.
		exprs := append(append(findService(f, o), number(f)...), c.choose(f, o)...)
		add("choose", append(append(exprs, member(f)...), c.translate(f)...))
	}
	return all
}

// arriving matches packets that came over the network: source ranges don't concern this host's own.
func arriving() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIF, Register: regKey}, &expr.Cmp{Op: expr.CmpOpNeq, Register: regKey, Data: native(0)}}
}

// choose loads a chosen slot's address and port, or with affinity its member. Without a hash, it chooses at random: a
// counter belongs to a rule, so the services of the class would share it. Services that are called alternately would then
// each see every second slot only.
func (c class) choose(f vip.Family, o origin) []expr.Any {
	slot := []expr.Any{lookup(setID{kindSlots, f, o, 0}.String(), regNumber, regKey)}
	if c.affinity > 0 {
		slot = []expr.Any{lookup(setID{kindChoices, f, o, 0}.String(), regNumber, regKey), carry(regKey)}
	}
	if !c.choice.hashes() {
		return append([]expr.Any{&expr.Numgen{Register: regSlot, Modulus: uint32(c.slots), Type: unix.NFT_NG_RANDOM}}, slot...)
	}
	size := 4 * wordsOf(f)
	exprs := []expr.Any{filter.Address(f, c.choice != chooseByDestination, regKey)}
	if c.choice == chooseByClient {
		exprs = append(exprs, &expr.Payload{DestRegister: regKey + wordsOf(f), Base: expr.PayloadBaseTransportHeader, Len: 2})
		size += 4
	}
	return append(append(exprs, &expr.Hash{SourceRegister: regKey, DestRegister: regSlot, Length: size, Modulus: uint32(c.slots), Seed: shardSeed, Type: expr.HashTypeJenkins}), slot...)
}

// maskMember has the bits of members' numbers.
const maskMember = 0x7fffffff

// translate sends the connection to the chosen address and port.
func (c class) translate(f vip.Family) []expr.Any {
	n := &expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: regKey}
	if f == vip.IPv6 {
		n.Family = unix.NFPROTO_IPV6
	}
	if !c.keepPort {
		n.RegProtoMin = n.RegAddrMin + wordsOf(f)
	}
	return []expr.Any{&expr.Immediate{Register: regClass, Data: big(0)}, carry(regClass), n}
}

// member loads the address and port of the member that the priority carries, if it is one of the
// service: a client's element may be older than the service with this number.
func member(f vip.Family) []expr.Any {
	return append(carried(regMember, maskMember), lookup(setID{kindMembers, f, 0, 0}.String(), regMember, regKey))
}

// stay sends a client to the member that it has been with, if that is still one.
func (c class) stay(f vip.Family, o origin) []expr.Any {
	exprs := append(number(f), filter.Address(f, true, regPeer), lookup(setID{kindClients, f, 0, 0}.String(), regNumber, regKey), carry(regKey))
	exprs = append(append(exprs, member(f)...), c.write(f, dynsetUpdate))
	return append(exprs, c.translate(f)...)
}

// remember chooses a slot and remembers its member. The old element goes first, because an update
// keeps its value.
func (c class) remember(f vip.Family, o origin) []expr.Any {
	exprs := append(append(findService(f, o), number(f)...), filter.Address(f, true, regPeer), c.write(f, dynsetDelete))
	exprs = append(append(exprs, c.choose(f, o)...), filter.Address(f, true, regPeer))
	exprs = append(append(exprs, member(f)...), c.write(f, dynsetUpdate))
	return append(exprs, c.translate(f)...)
}

const (
	dynsetUpdate = unix.NFT_DYNSET_OP_UPDATE
	dynsetDelete = 2
)

// write changes the element of service . client.
func (c class) write(f vip.Family, op uint32) expr.Any {
	// A deletion from a map needs a register for the value, too, which the kernel ignores.
	d := &expr.Dynset{SrcRegKey: regNumber, SrcRegData: regNumber, SetName: setID{kindClients, f, 0, 0}.String(), Operation: op}
	if op == dynsetUpdate {
		d.SrcRegData, d.Timeout = regMember, time.Duration(c.affinity)*time.Second
	}
	return d
}

// addClass adds the chain of a class with a number at an origin, and makes it the class's verdict there.
func addClass(x *nftwire.Transaction, l *filter.Layout, c class, n uint32, o origin) error {
	x.AddChain(&nftables.Chain{Name: c.chain(o), Table: l.Table()})
	for _, r := range c.rules(l, o) {
		if err := x.AddRule(l.Table().Name, c.chain(o), r.exprs, filter.Comment(layoutVersion, r.comment)); err != nil {
			return err
		}
	}
	list := x.BeginElements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, l.Table().Name, setID{kindClasses, 0, o, 0}.String())
	x.AddElement(&nftwire.Element{Key: big(n << shiftClass), Verdict: &expr.Verdict{Kind: expr.VerdictGoto, Chain: c.chain(o)}})
	x.EndElements(list)
	return nil
}

// addShards fills the map of the shards' chains.
func addShards(x *nftwire.Transaction, table string) {
	list := x.BeginElements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, table, setShards)
	for o := range shards {
		x.AddElement(&nftwire.Element{Key: native(uint32(o)), Verdict: &expr.Verdict{Kind: expr.VerdictJump, Chain: shardChain(o)}})
	}
	x.EndElements(list)
}
