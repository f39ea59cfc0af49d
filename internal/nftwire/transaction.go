package nftwire

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// The formats are those of linux/netfilter/nf_tables.h. Numbers are in network
// byte order.

const nftNested = unix.NLA_F_NESTED

// Transaction is a batch of nftables messages that the kernel applies atomically.
// Begin starts it, and makes it usable again after a commit.
type Transaction struct {
	b, expr  []byte // expr is room for one expression
	last     int    // position of the last message, 0 if there is none
	family   byte   // of the following messages
	Messages int    // number of messages, without the batch's begin and end
}

// Begin starts an empty transaction of the inet family. It reuses the memory of the last one.
func (x *Transaction) Begin() {
	x.b, x.last, x.Messages = appendBatch(x.b[:0], unix.NFNL_MSG_BATCH_BEGIN), 0, 0
	x.family = unix.NFPROTO_INET
	binary.NativeEndian.PutUint32(x.b, uint32(len(x.b)))
}

func appendBatch(b []byte, typ uint16) []byte {
	b = append(netlink.BeginMessage(b, typ, 0), unix.AF_UNSPEC, unix.NFNETLINK_V0)
	return binary.BigEndian.AppendUint16(b, unix.NFNL_SUBSYS_NFTABLES)
}

// End implements netlink.Batch. The last message before the batch's end requests
// the acknowledgement.
func (x *Transaction) End(first, last, port uint32) []byte {
	x.b = appendBatch(x.b, unix.NFNL_MSG_BATCH_END)
	for at := 0; at < len(x.b); {
		seq, size := first, int(binary.NativeEndian.Uint32(x.b[at:]))
		switch {
		case size == 0: // the batch's end, which has no length yet
			size = len(x.b) - at
		case at == x.last:
			seq = last
			flags := binary.NativeEndian.Uint16(x.b[at+6:])
			binary.NativeEndian.PutUint16(x.b[at+6:], flags|unix.NLM_F_ACK)
		}
		netlink.EndMessage(x.b[at:at+size], seq, port)
		at += size
	}
	return x.b
}

// Size returns the bytes so far.
func (x *Transaction) Size() int { return len(x.b) }

// SetFamily sets the family of the messages that follow, for tables that are not inet tables.
func (x *Transaction) SetFamily(f nftables.TableFamily) { x.family = byte(f) }

// message begins a message of the current family. done ends it.
func (x *Transaction) message(typ, flags uint16) {
	x.last = len(x.b)
	x.Messages++
	x.b = appendTableMessage(x.b, x.family, typ, flags)
}

func (x *Transaction) done() {
	binary.NativeEndian.PutUint32(x.b[x.last:], uint32(len(x.b)-x.last))
}

func appendTableMessage(b []byte, family byte, typ, flags uint16) []byte {
	b = netlink.BeginMessage(b, unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags)
	return append(b, family, unix.NFNETLINK_V0, 0, 0)
}

// appendData appends a value in a nested attribute.
func appendData(b []byte, typ uint16, value []byte) []byte {
	b, start := netlink.BeginNest(b, typ|nftNested)
	return netlink.EndNest(netlink.AppendAttr(b, unix.NFTA_DATA_VALUE, value...), start)
}

// AddTable creates a table. It is no error if the table exists.
func (x *Transaction) AddTable(t *nftables.Table) {
	x.table(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t, 0)
}

// AddScratchTable creates a table for a trial. The transaction fails if the table
// exists. Its chains see no packets.
func (x *Transaction) AddScratchTable(t *nftables.Table) {
	x.table(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, t, unix.NFT_TABLE_F_DORMANT)
}

// AddOwnedTable creates a table that only the sending socket can change, and that the kernel deletes when the socket is
// closed. The transaction fails if the table exists.
func (x *Transaction) AddOwnedTable(t *nftables.Table) {
	x.table(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, t, nftTableOwner)
}

const nftTableOwner = 2 // NFT_TABLE_F_OWNER

// DeleteTable deletes a table with all its contents.
func (x *Transaction) DeleteTable(t *nftables.Table) { x.table(unix.NFT_MSG_DELTABLE, 0, t, 0) }

func (x *Transaction) table(typ, flags uint16, t *nftables.Table, tableFlags uint32) {
	x.message(typ, flags)
	x.b = netlink.AppendAttrString(x.b, unix.NFTA_TABLE_NAME, t.Name)
	x.b = netlink.AppendAttr32BE(x.b, unix.NFTA_TABLE_FLAGS, tableFlags)
	x.done()
}

// AddSet creates a set. Number identifies it within the transaction.
func (x *Transaction) AddSet(s *nftables.Set, number uint32) {
	var flags uint32
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if s.IsMap {
		flags |= unix.NFT_SET_MAP
	}
	if s.HasTimeout {
		flags |= unix.NFT_SET_TIMEOUT
	}
	if s.Dynamic {
		flags |= unix.NFT_SET_EVAL
	}
	if s.Concatenation {
		flags |= nftables.NFT_SET_CONCAT
	}
	x.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	b := netlink.AppendAttrString(x.b, unix.NFTA_SET_TABLE, s.Table.Name)
	b = netlink.AppendAttrString(b, unix.NFTA_SET_NAME, s.Name)
	b = netlink.AppendAttr32BE(b, unix.NFTA_SET_FLAGS, flags)
	b = netlink.AppendAttr32BE(b, unix.NFTA_SET_KEY_TYPE, s.KeyType.GetNFTMagic())
	b = netlink.AppendAttr32BE(b, unix.NFTA_SET_KEY_LEN, s.KeyType.Bytes)
	b = netlink.AppendAttr32BE(b, unix.NFTA_SET_ID, number)
	if s.IsMap {
		typ := s.DataType.GetNFTMagic()
		if s.DataType == nftables.TypeVerdict {
			typ = unix.NFT_DATA_VERDICT
		}
		b = netlink.AppendAttr32BE(b, unix.NFTA_SET_DATA_TYPE, typ)
		b = netlink.AppendAttr32BE(b, unix.NFTA_SET_DATA_LEN, s.DataType.Bytes)
	}
	if s.HasTimeout && s.Timeout != 0 {
		b = netlink.AppendAttr64BE(b, unix.NFTA_SET_TIMEOUT, uint64(s.Timeout.Milliseconds()))
	}
	if s.Size > 0 {
		var desc int
		b, desc = netlink.BeginNest(b, unix.NFTA_SET_DESC|nftNested)
		b = netlink.EndNest(netlink.AppendAttr32BE(b, unix.NFTA_SET_DESC_SIZE, s.Size), desc)
	}
	if s.Concatenation {
		var desc, concat, field int
		b, desc = netlink.BeginNest(b, unix.NFTA_SET_DESC|nftNested)
		b, concat = netlink.BeginNest(b, nftables.NFTA_SET_DESC_CONCAT|nftNested)
		for _, part := range nftables.ConcatSetTypeElements(s.KeyType) {
			b, field = netlink.BeginNest(b, unix.NFTA_LIST_ELEM)
			b = netlink.EndNest(netlink.AppendAttr32BE(b, nftSetFieldLen, part.Bytes), field)
		}
		b = netlink.EndNest(netlink.EndNest(b, concat), desc)
	}
	if s.Counter { // of each element
		b = x.appendNamed(b, nftSetExpr, &expr.Counter{})
	}
	// The byte order in which nft prints the keys. The kernel ignores it.
	order := uint32(1)
	if s.Interval || s.KeyByteOrder == binaryutil.BigEndian {
		order = 2
	}
	x.b = netlink.AppendAttr(b, unix.NFTA_SET_USERDATA, userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, order)...)
	x.done()
}

const nftSetFieldLen = 1

// nftSetExpr is NFTA_SET_EXPR: the expression that each element has.
const nftSetExpr = 17

// AddChain creates a chain.
func (x *Transaction) AddChain(c *nftables.Chain) {
	x.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE)
	b := netlink.AppendAttrString(x.b, unix.NFTA_CHAIN_TABLE, c.Table.Name)
	b = netlink.AppendAttrString(b, unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hooknum != nil {
		var hook int
		b, hook = netlink.BeginNest(b, unix.NFTA_CHAIN_HOOK|nftNested)
		b = netlink.AppendAttr32BE(b, unix.NFTA_HOOK_HOOKNUM, uint32(*c.Hooknum))
		b = netlink.AppendAttr32BE(b, unix.NFTA_HOOK_PRIORITY, uint32(*c.Priority))
		if c.Device != "" {
			b = netlink.AppendAttrString(b, unix.NFTA_HOOK_DEV, c.Device)
		}
		b = netlink.EndNest(b, hook)
		b = netlink.AppendAttr32BE(b, unix.NFTA_CHAIN_POLICY, uint32(*c.Policy))
		b = netlink.AppendAttrString(b, unix.NFTA_CHAIN_TYPE, string(c.Type))
	}
	x.b = b
	x.done()
}

// DeleteChain deletes a chain with its rules. Nothing may lead to it any more.
func (x *Transaction) DeleteChain(table, chain string) {
	x.message(unix.NFT_MSG_DELCHAIN, 0)
	x.b = netlink.AppendAttrString(x.b, unix.NFTA_CHAIN_TABLE, table)
	x.b = netlink.AppendAttrString(x.b, unix.NFTA_CHAIN_NAME, chain)
	x.done()
}

// FlushChain deletes all rules of a chain.
func (x *Transaction) FlushChain(table, chain string) {
	x.message(unix.NFT_MSG_DELRULE, 0)
	x.b = netlink.AppendAttrString(x.b, unix.NFTA_RULE_TABLE, table)
	x.b = netlink.AppendAttrString(x.b, unix.NFTA_RULE_CHAIN, chain)
	x.done()
}

// BeginElements begins a message that adds elements to a set or deletes them.
// AddElement appends to it, EndElements ends it.
func (x *Transaction) BeginElements(typ, flags uint16, table, set string) (list int) {
	x.set(typ, flags, table, set)
	x.b, list = netlink.BeginNest(x.b, unix.NFTA_SET_ELEM_LIST_ELEMENTS|nftNested)
	return list
}

// AddElement appends an element to the message that BeginElements began.
func (x *Transaction) AddElement(e *Element) {
	b, start := netlink.BeginNest(x.b, unix.NFTA_LIST_ELEM|nftNested)
	if e.edge {
		b = netlink.AppendAttr32BE(b, unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	b = appendKey(b, e.Key, e.End)
	if len(e.Value) > 0 {
		b = appendData(b, unix.NFTA_SET_ELEM_DATA, e.Value)
	}
	if e.Verdict != nil {
		b = appendVerdict(b, unix.NFTA_SET_ELEM_DATA, e.Verdict)
	}
	if e.Timeout > 0 {
		b = netlink.AppendAttr64BE(b, unix.NFTA_SET_ELEM_TIMEOUT, uint64(max(1, e.Timeout.Milliseconds())))
	}
	x.b = netlink.EndNest(b, start)
}

// appendKey appends the key of an element, and its end if it has one.
func appendKey(b, key, end []byte) []byte {
	b = appendData(b, unix.NFTA_SET_ELEM_KEY, key)
	if len(end) > 0 {
		b = appendData(b, nftables.NFTA_SET_ELEM_KEY_END, end)
	}
	return b
}

// EndElements ends a message of elements.
func (x *Transaction) EndElements(list int) {
	x.b = netlink.EndNest(x.b, list)
	x.done()
}

// Flush deletes all elements of a set.
func (x *Transaction) Flush(table, set string) {
	x.set(unix.NFT_MSG_DELSETELEM, 0, table, set)
	x.done()
}

// set begins a message about the elements of a set.
func (x *Transaction) set(typ, flags uint16, table, set string) {
	x.message(typ, flags)
	x.b = netlink.AppendAttrString(x.b, unix.NFTA_SET_ELEM_LIST_SET, set)
	x.b = netlink.AppendAttrString(x.b, unix.NFTA_SET_ELEM_LIST_TABLE, table)
}
