package ipvs

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// The messages of nftables as nfnetlink has them, see linux/netfilter/nf_tables.h.
// Numbers in them are in the network's byte order.

const nftNested = unix.NLA_F_NESTED

// transaction is a batch of nftables messages, which the kernel carries out as a
// whole or not at all. Begin it with begin; it may be used again afterwards.
type transaction struct {
	b        []byte
	last     int // where the last message begins; 0: there is none
	messages int // without the two around them
}

func (x *transaction) begin() {
	x.b, x.last, x.messages = appendBatch(x.b[:0], unix.NFNL_MSG_BATCH_BEGIN), 0, 0
	binary.NativeEndian.PutUint32(x.b, uint32(len(x.b)))
}

func appendBatch(b []byte, typ uint16) []byte {
	b = append(beginMessage(b, typ, 0), unix.AF_UNSPEC, unix.NFNETLINK_V0)
	return binary.BigEndian.AppendUint16(b, unix.NFNL_SUBSYS_NFTABLES)
}

// end completes the messages: all have the first sequence number but the last
// before the end of the batch, which has the second and asks for an answer.
func (x *transaction) end(first, last, port uint32) []byte {
	x.b = appendBatch(x.b, unix.NFNL_MSG_BATCH_END)
	for at := 0; at < len(x.b); {
		seq, size := first, int(binary.NativeEndian.Uint32(x.b[at:]))
		switch {
		case size == 0: // the end of the batch, just written
			size = len(x.b) - at
		case at == x.last:
			seq = last
			flags := binary.NativeEndian.Uint16(x.b[at+6:])
			binary.NativeEndian.PutUint16(x.b[at+6:], flags|unix.NLM_F_ACK)
		}
		endMessage(x.b[at:at+size], seq, port)
		at += size
	}
	return x.b
}

// message begins one message about an inet table; done ends it.
func (x *transaction) message(typ, flags uint16) {
	x.last = len(x.b)
	x.messages++
	x.b = appendTableMessage(x.b, typ, flags)
}

func (x *transaction) done() {
	binary.NativeEndian.PutUint32(x.b[x.last:], uint32(len(x.b)-x.last))
}

func appendTableMessage(b []byte, typ, flags uint16) []byte {
	b = beginMessage(b, unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags)
	return append(b, unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0)
}

func appendAttr32BE(b []byte, typ uint16, v uint32) []byte {
	b = binary.NativeEndian.AppendUint16(b, 8)
	b = binary.NativeEndian.AppendUint16(b, typ)
	return binary.BigEndian.AppendUint32(b, v)
}

func appendAttr64BE(b []byte, typ uint16, v uint64) []byte {
	b = binary.NativeEndian.AppendUint16(b, 12)
	b = binary.NativeEndian.AppendUint16(b, typ)
	return binary.BigEndian.AppendUint64(b, v)
}

// appendData appends a nested attribute that holds a value.
func appendData(b []byte, typ uint16, value []byte) []byte {
	b, start := beginNest(b, typ|nftNested)
	return endNest(appendAttr(b, unix.NFTA_DATA_VALUE, value...), start)
}

func (x *transaction) addTable(t *nftables.Table) {
	x.table(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t)
}

func (x *transaction) deleteTable(t *nftables.Table) { x.table(unix.NFT_MSG_DELTABLE, 0, t) }

func (x *transaction) table(typ, flags uint16, t *nftables.Table) {
	x.message(typ, flags)
	x.b = appendAttrString(x.b, unix.NFTA_TABLE_NAME, t.Name)
	x.b = appendAttr32BE(x.b, unix.NFTA_TABLE_FLAGS, 0)
	x.done()
}

// addSet adds the set with that number within the transaction.
func (x *transaction) addSet(s *nftables.Set, number uint32) {
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
	if s.Concatenation {
		flags |= nftables.NFT_SET_CONCAT
	}
	x.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	b := appendAttrString(x.b, unix.NFTA_SET_TABLE, s.Table.Name)
	b = appendAttrString(b, unix.NFTA_SET_NAME, s.Name)
	b = appendAttr32BE(b, unix.NFTA_SET_FLAGS, flags)
	b = appendAttr32BE(b, unix.NFTA_SET_KEY_TYPE, s.KeyType.GetNFTMagic())
	b = appendAttr32BE(b, unix.NFTA_SET_KEY_LEN, s.KeyType.Bytes)
	b = appendAttr32BE(b, unix.NFTA_SET_ID, number)
	if s.IsMap {
		b = appendAttr32BE(b, unix.NFTA_SET_DATA_TYPE, s.DataType.GetNFTMagic())
		b = appendAttr32BE(b, unix.NFTA_SET_DATA_LEN, s.DataType.Bytes)
	}
	if s.HasTimeout {
		b = appendAttr64BE(b, unix.NFTA_SET_TIMEOUT, uint64(s.Timeout.Milliseconds()))
	}
	if s.Concatenation {
		var desc, concat, field int
		b, desc = beginNest(b, unix.NFTA_SET_DESC|nftNested)
		b, concat = beginNest(b, nftables.NFTA_SET_DESC_CONCAT|nftNested)
		for _, part := range nftables.ConcatSetTypeElements(s.KeyType) {
			b, field = beginNest(b, unix.NFTA_LIST_ELEM)
			b = endNest(appendAttr32BE(b, nftSetFieldLen, part.Bytes), field)
		}
		b = endNest(endNest(b, concat), desc)
	}
	// How nft is to show the keys; nothing to the kernel.
	order := uint32(1)
	if s.Interval || s.KeyByteOrder == binaryutil.BigEndian {
		order = 2
	}
	x.b = appendAttr(b, unix.NFTA_SET_USERDATA, userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, order)...)
	x.done()
}

const nftSetFieldLen = 1

func (x *transaction) addChain(c *nftables.Chain) {
	x.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE)
	b := appendAttrString(x.b, unix.NFTA_CHAIN_TABLE, c.Table.Name)
	b = appendAttrString(b, unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hooknum != nil {
		var hook int
		b, hook = beginNest(b, unix.NFTA_CHAIN_HOOK|nftNested)
		b = appendAttr32BE(b, unix.NFTA_HOOK_HOOKNUM, uint32(*c.Hooknum))
		b = endNest(appendAttr32BE(b, unix.NFTA_HOOK_PRIORITY, uint32(*c.Priority)), hook)
		b = appendAttr32BE(b, unix.NFTA_CHAIN_POLICY, uint32(*c.Policy))
		b = appendAttrString(b, unix.NFTA_CHAIN_TYPE, string(c.Type))
	}
	x.b = b
	x.done()
}

func (x *transaction) addRule(t *nftables.Table, r *rule) error {
	x.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
	b := appendAttrString(x.b, unix.NFTA_RULE_TABLE, t.Name)
	b = appendAttrString(b, unix.NFTA_RULE_CHAIN, r.chain)
	b, list := beginNest(b, unix.NFTA_RULE_EXPRESSIONS|nftNested)
	for _, e := range r.exprs {
		var one, data int
		b, one = beginNest(b, unix.NFTA_LIST_ELEM|nftNested)
		var name string
		if name = exprName(e); name == "" {
			return fmt.Errorf("nftables rule %q: no encoding of %T", r.comment, e)
		}
		b = appendAttrString(b, unix.NFTA_EXPR_NAME, name)
		b, data = beginNest(b, unix.NFTA_EXPR_DATA|nftNested)
		b = endNest(endNest(appendExpr(b, e), data), one)
	}
	b = endNest(b, list)
	x.b = appendAttr(b, unix.NFTA_RULE_USERDATA, r.userData()...)
	x.done()
	return nil
}

// exprName is what the kernel calls the kind of an expression; "" is one that our
// rules don't have.
func exprName(e expr.Any) string {
	switch e.(type) {
	case *expr.Ct:
		return "ct"
	case *expr.Meta:
		return "meta"
	case *expr.Cmp:
		return "cmp"
	case *expr.Bitwise:
		return "bitwise"
	case *expr.Byteorder:
		return "byteorder"
	case *expr.Payload:
		return "payload"
	case *expr.Lookup:
		return "lookup"
	case *expr.Immediate, *expr.Verdict:
		return "immediate"
	case *expr.Fib:
		return "fib"
	case *expr.Reject:
		return "reject"
	case *expr.Masq:
		return "masq"
	}
	return ""
}

// appendExpr appends what is in an expression, as far as our rules use it.
func appendExpr(b []byte, e expr.Any) []byte {
	switch e := e.(type) {
	case *expr.Ct:
		b = appendAttr32BE(b, unix.NFTA_CT_KEY, uint32(e.Key))
		return appendAttr32BE(b, unix.NFTA_CT_DREG, e.Register)
	case *expr.Meta:
		register := uint16(unix.NFTA_META_DREG)
		if e.SourceRegister {
			register = unix.NFTA_META_SREG
		}
		b = appendAttr32BE(b, unix.NFTA_META_KEY, uint32(e.Key))
		return appendAttr32BE(b, register, e.Register)
	case *expr.Cmp:
		b = appendAttr32BE(b, unix.NFTA_CMP_SREG, e.Register)
		b = appendAttr32BE(b, unix.NFTA_CMP_OP, uint32(e.Op))
		return appendData(b, unix.NFTA_CMP_DATA, e.Data)
	case *expr.Bitwise:
		b = appendAttr32BE(b, unix.NFTA_BITWISE_SREG, e.SourceRegister)
		b = appendAttr32BE(b, unix.NFTA_BITWISE_DREG, e.DestRegister)
		b = appendAttr32BE(b, unix.NFTA_BITWISE_LEN, e.Len)
		return appendData(appendData(b, unix.NFTA_BITWISE_MASK, e.Mask), unix.NFTA_BITWISE_XOR, e.Xor)
	case *expr.Byteorder:
		b = appendAttr32BE(b, unix.NFTA_BYTEORDER_SREG, e.SourceRegister)
		b = appendAttr32BE(b, unix.NFTA_BYTEORDER_DREG, e.DestRegister)
		b = appendAttr32BE(b, unix.NFTA_BYTEORDER_OP, uint32(e.Op))
		b = appendAttr32BE(b, unix.NFTA_BYTEORDER_LEN, e.Len)
		return appendAttr32BE(b, unix.NFTA_BYTEORDER_SIZE, e.Size)
	case *expr.Payload:
		b = appendAttr32BE(b, unix.NFTA_PAYLOAD_DREG, e.DestRegister)
		b = appendAttr32BE(b, unix.NFTA_PAYLOAD_BASE, uint32(e.Base))
		b = appendAttr32BE(b, unix.NFTA_PAYLOAD_OFFSET, e.Offset)
		return appendAttr32BE(b, unix.NFTA_PAYLOAD_LEN, e.Len)
	case *expr.Lookup:
		b = appendAttr32BE(b, unix.NFTA_LOOKUP_SREG, e.SourceRegister)
		if e.IsDestRegSet {
			b = appendAttr32BE(b, unix.NFTA_LOOKUP_DREG, e.DestRegister)
		}
		if e.Invert {
			b = appendAttr32BE(b, unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
		}
		b = appendAttrString(b, unix.NFTA_LOOKUP_SET, e.SetName)
		return appendAttr32BE(b, unix.NFTA_LOOKUP_SET_ID, e.SetID)
	case *expr.Immediate:
		b = appendAttr32BE(b, unix.NFTA_IMMEDIATE_DREG, e.Register)
		return appendData(b, unix.NFTA_IMMEDIATE_DATA, e.Data)
	case *expr.Verdict:
		var data, verdict int
		b = appendAttr32BE(b, unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		b, data = beginNest(b, unix.NFTA_IMMEDIATE_DATA|nftNested)
		b, verdict = beginNest(b, unix.NFTA_DATA_VERDICT|nftNested)
		b = appendAttr32BE(b, unix.NFTA_VERDICT_CODE, uint32(e.Kind))
		if e.Chain != "" {
			b = appendAttrString(b, unix.NFTA_VERDICT_CHAIN, e.Chain)
		}
		return endNest(endNest(b, verdict), data)
	case *expr.Fib:
		b = appendAttr32BE(b, unix.NFTA_FIB_DREG, e.Register)
		b = appendAttr32BE(b, unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_SADDR)
		return appendAttr32BE(b, unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
	case *expr.Reject:
		b = appendAttr32BE(b, unix.NFTA_REJECT_TYPE, e.Type)
		return appendAttr(b, unix.NFTA_REJECT_ICMP_CODE, e.Code)
	}
	return b
}

// beginElements begins a message of elements of a set, which addElement appends
// to and endElements ends.
func (x *transaction) beginElements(typ, flags uint16, table, set string) (list int) {
	x.message(typ, flags)
	x.b = appendAttrString(x.b, unix.NFTA_SET_ELEM_LIST_SET, set)
	x.b = appendAttrString(x.b, unix.NFTA_SET_ELEM_LIST_TABLE, table)
	x.b, list = beginNest(x.b, unix.NFTA_SET_ELEM_LIST_ELEMENTS|nftNested)
	return list
}

func (x *transaction) addElement(e *elementBytes) {
	b, start := beginNest(x.b, unix.NFTA_LIST_ELEM|nftNested)
	if e.edge {
		b = appendAttr32BE(b, unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	b = appendData(b, unix.NFTA_SET_ELEM_KEY, e.key)
	if len(e.end) > 0 {
		b = appendData(b, nftables.NFTA_SET_ELEM_KEY_END, e.end)
	}
	if len(e.value) > 0 {
		b = appendData(b, unix.NFTA_SET_ELEM_DATA, e.value)
	}
	x.b = endNest(b, start)
}

func (x *transaction) endElements(list int) {
	x.b = endNest(x.b, list)
	x.done()
}

// flush takes all elements out of a set.
func (x *transaction) flush(table, set string) {
	x.message(unix.NFT_MSG_DELSETELEM, 0)
	x.b = appendAttrString(x.b, unix.NFTA_SET_ELEM_LIST_SET, set)
	x.b = appendAttrString(x.b, unix.NFTA_SET_ELEM_LIST_TABLE, table)
	x.done()
}

// elementBytes is an element as the kernel lays it out. In a set of intervals
// that are no part of a key, edge marks what is the first behind one.
type elementBytes struct {
	key, end, value []byte
	edge            bool
}

// next reads one element off a list that came in a message.
func (e *elementBytes) next(list *attrs) bool {
	_, one, ok := list.next()
	if !ok {
		return false
	}
	*e = elementBytes{}
	parts := attrs{b: one}
	for typ, v, ok := parts.next(); ok; typ, v, ok = parts.next() {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.key = parts.data(v)
		case nftables.NFTA_SET_ELEM_KEY_END:
			e.end = parts.data(v)
		case unix.NFTA_SET_ELEM_DATA:
			e.value = parts.data(v)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.edge = len(v) >= 4 && binary.BigEndian.Uint32(v)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		}
	}
	if parts.err != nil {
		list.err = parts.err
	}
	return list.err == nil
}

// data returns the value that appendData wraps.
func (a *attrs) data(v []byte) []byte {
	in := attrs{b: v}
	for typ, v, ok := in.next(); ok; typ, v, ok = in.next() {
		if typ == unix.NFTA_DATA_VALUE {
			return v
		}
	}
	a.err = errMalformed
	return nil
}

// elementList returns the elements in the body of a message.
func elementList(data []byte) (attrs, error) {
	if len(data) < 4 {
		return attrs{}, errMalformed
	}
	a := attrs{b: data[4:]}
	for typ, v, ok := a.next(); ok; typ, v, ok = a.next() {
		if typ == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return attrs{b: v}, nil
		}
	}
	return attrs{}, a.err // none
}
