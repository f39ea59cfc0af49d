package nftwire

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// AddRule appends a rule to a chain. The kernel stores userData with the rule.
func (x *Transaction) AddRule(table, chain string, exprs []expr.Any, userData []byte) error {
	x.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
	b := netlink.AppendAttrString(x.b, unix.NFTA_RULE_TABLE, table)
	b = netlink.AppendAttrString(b, unix.NFTA_RULE_CHAIN, chain)
	b, list := netlink.BeginNest(b, unix.NFTA_RULE_EXPRESSIONS|nftNested)
	for _, e := range exprs {
		if b = x.appendNamed(b, unix.NFTA_LIST_ELEM, e); b == nil {
			return fmt.Errorf("nftables rule of chain %s: no encoding of %T", chain, e)
		}
	}
	x.b = netlink.AppendAttr(netlink.EndNest(b, list), unix.NFTA_RULE_USERDATA, userData...)
	x.done()
	return nil
}

// appendNamed appends an expression with its name, or returns nil if it has no encoding.
func (x *Transaction) appendNamed(b []byte, typ uint16, e expr.Any) []byte {
	name, data := appendExpr(x.expr[:0], e)
	if name == "" {
		return nil
	}
	x.expr = data
	b, one := netlink.BeginNest(b, typ|nftNested)
	b = netlink.AppendAttrString(b, unix.NFTA_EXPR_NAME, name)
	return netlink.EndNest(netlink.AppendAttr(b, unix.NFTA_EXPR_DATA|nftNested, data...), one)
}

// number is an attribute with a number for its value.
type number struct {
	typ   uint16
	value uint32
}

func appendNumbers(b []byte, all ...number) []byte {
	for _, n := range all {
		b = netlink.AppendAttr32BE(b, n.typ, n.value)
	}
	return b
}

// appendExpr appends an expression's attributes, as far as the dataplanes use them, and returns
// the kernel's name of its type. The name is "" for other types.
func appendExpr(b []byte, e expr.Any) (name string, _ []byte) {
	switch e := e.(type) {
	case *expr.Ct:
		register := uint16(unix.NFTA_CT_DREG)
		if e.SourceRegister {
			register = unix.NFTA_CT_SREG
		}
		b = appendNumbers(b, number{unix.NFTA_CT_KEY, uint32(e.Key)}, number{register, e.Register})
		if ofDirection(e.Key) {
			b = netlink.AppendAttr(b, unix.NFTA_CT_DIRECTION, byte(e.Direction))
		}
		return "ct", b
	case *expr.Meta:
		register := uint16(unix.NFTA_META_DREG)
		if e.SourceRegister {
			register = unix.NFTA_META_SREG
		}
		return "meta", appendNumbers(b, number{unix.NFTA_META_KEY, uint32(e.Key)}, number{register, e.Register})
	case *expr.Cmp:
		b = appendNumbers(b, number{unix.NFTA_CMP_SREG, e.Register}, number{unix.NFTA_CMP_OP, uint32(e.Op)})
		return "cmp", appendData(b, unix.NFTA_CMP_DATA, e.Data)
	case *expr.Bitwise:
		b = appendNumbers(b,
			number{unix.NFTA_BITWISE_SREG, e.SourceRegister},
			number{unix.NFTA_BITWISE_DREG, e.DestRegister},
			number{unix.NFTA_BITWISE_LEN, e.Len})
		return "bitwise", appendData(appendData(b, unix.NFTA_BITWISE_MASK, e.Mask), unix.NFTA_BITWISE_XOR, e.Xor)
	case *expr.Byteorder:
		return "byteorder", appendNumbers(b,
			number{unix.NFTA_BYTEORDER_SREG, e.SourceRegister},
			number{unix.NFTA_BYTEORDER_DREG, e.DestRegister},
			number{unix.NFTA_BYTEORDER_OP, uint32(e.Op)},
			number{unix.NFTA_BYTEORDER_LEN, e.Len},
			number{unix.NFTA_BYTEORDER_SIZE, e.Size})
	case *expr.Payload:
		register := number{unix.NFTA_PAYLOAD_DREG, e.DestRegister}
		if e.OperationType == expr.PayloadWrite {
			register = number{unix.NFTA_PAYLOAD_SREG, e.SourceRegister}
		}
		b = appendNumbers(b, register,
			number{unix.NFTA_PAYLOAD_BASE, uint32(e.Base)},
			number{unix.NFTA_PAYLOAD_OFFSET, e.Offset},
			number{unix.NFTA_PAYLOAD_LEN, e.Len})
		if e.CsumType != 0 {
			b = appendNumbers(b, number{unix.NFTA_PAYLOAD_CSUM_TYPE, uint32(e.CsumType)}, number{unix.NFTA_PAYLOAD_CSUM_OFFSET, e.CsumOffset})
		}
		if e.CsumFlags != 0 {
			b = appendNumbers(b, number{unix.NFTA_PAYLOAD_CSUM_FLAGS, e.CsumFlags})
		}
		return "payload", b
	case *expr.Lookup:
		b = appendNumbers(b, number{unix.NFTA_LOOKUP_SREG, e.SourceRegister})
		if e.IsDestRegSet {
			b = appendNumbers(b, number{unix.NFTA_LOOKUP_DREG, e.DestRegister})
		}
		if e.Invert {
			b = appendNumbers(b, number{unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV})
		}
		b = netlink.AppendAttrString(b, unix.NFTA_LOOKUP_SET, e.SetName)
		return "lookup", appendNumbers(b, number{unix.NFTA_LOOKUP_SET_ID, e.SetID})
	case *expr.Immediate:
		b = appendNumbers(b, number{unix.NFTA_IMMEDIATE_DREG, e.Register})
		return "immediate", appendData(b, unix.NFTA_IMMEDIATE_DATA, e.Data)
	case *expr.Verdict:
		b = appendNumbers(b, number{unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT})
		return "immediate", appendVerdict(b, unix.NFTA_IMMEDIATE_DATA, e)
	case *expr.Fib:
		return "fib", appendNumbers(b,
			number{unix.NFTA_FIB_DREG, e.Register},
			number{unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_SADDR},
			number{unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE})
	case *expr.Reject:
		b = appendNumbers(b, number{unix.NFTA_REJECT_TYPE, e.Type})
		return "reject", netlink.AppendAttr(b, unix.NFTA_REJECT_ICMP_CODE, e.Code)
	case *expr.Connlimit:
		return "connlimit", appendNumbers(b, number{expr.NFTA_CONNLIMIT_COUNT, e.Count}, number{expr.NFTA_CONNLIMIT_FLAGS, e.Flags})
	case *expr.Limit:
		flags := uint32(0)
		if e.Over {
			flags = unix.NFT_LIMIT_F_INV
		}
		b = netlink.AppendAttr64BE(b, unix.NFTA_LIMIT_RATE, e.Rate)
		b = netlink.AppendAttr64BE(b, unix.NFTA_LIMIT_UNIT, uint64(e.Unit))
		return "limit", appendNumbers(b, number{unix.NFTA_LIMIT_BURST, e.Burst}, number{unix.NFTA_LIMIT_TYPE, uint32(e.Type)}, number{unix.NFTA_LIMIT_FLAGS, flags})
	case *expr.Notrack:
		return "notrack", b
	case *expr.SynProxy:
		flags := uint32(expr.NF_SYNPROXY_OPT_MSS | expr.NF_SYNPROXY_OPT_WSCALE)
		if e.SackPerm {
			flags |= expr.NF_SYNPROXY_OPT_SACK_PERM
		}
		if e.Timestamp {
			flags |= expr.NF_SYNPROXY_OPT_TIMESTAMP
		}
		b = netlink.AppendAttr(b, expr.NFTA_SYNPROXY_MSS, binary.BigEndian.AppendUint16(nil, e.Mss)...)
		b = netlink.AppendAttr(b, expr.NFTA_SYNPROXY_WSCALE, e.Wscale)
		return "synproxy", appendNumbers(b, number{expr.NFTA_SYNPROXY_FLAGS, flags})
	case *expr.Masq:
		if e.FullyRandom {
			b = appendNumbers(b, number{unix.NFTA_MASQ_FLAGS, expr.NF_NAT_RANGE_PROTO_RANDOM_FULLY})
		}
		return "masq", b
	case *expr.Counter:
		b = netlink.AppendAttr64BE(b, unix.NFTA_COUNTER_BYTES, e.Bytes)
		return "counter", netlink.AppendAttr64BE(b, unix.NFTA_COUNTER_PACKETS, e.Packets)
	case *expr.Numgen:
		return "numgen", appendNumbers(b,
			number{unix.NFTA_NG_DREG, e.Register},
			number{unix.NFTA_NG_MODULUS, e.Modulus},
			number{unix.NFTA_NG_TYPE, e.Type},
			number{unix.NFTA_NG_OFFSET, e.Offset})
	case *expr.Hash:
		return "hash", appendNumbers(b,
			number{unix.NFTA_HASH_SREG, e.SourceRegister},
			number{unix.NFTA_HASH_DREG, e.DestRegister},
			number{unix.NFTA_HASH_LEN, e.Length},
			number{unix.NFTA_HASH_MODULUS, e.Modulus},
			number{unix.NFTA_HASH_SEED, e.Seed}, // without one, the kernel draws it
			number{unix.NFTA_HASH_OFFSET, e.Offset},
			number{unix.NFTA_HASH_TYPE, uint32(e.Type)})
	case *expr.NAT:
		b = appendNumbers(b, number{unix.NFTA_NAT_TYPE, uint32(e.Type)}, number{unix.NFTA_NAT_FAMILY, e.Family},
			number{unix.NFTA_NAT_REG_ADDR_MIN, e.RegAddrMin})
		if e.RegProtoMin != 0 {
			b = appendNumbers(b, number{unix.NFTA_NAT_REG_PROTO_MIN, e.RegProtoMin})
		}
		return "nat", b
	case *expr.Dynset:
		return "dynset", appendDynset(b, e)
	}
	return "", b
}

// appendDynset appends a change of a set by packets. It may have one expression for new elements.
func appendDynset(b []byte, e *expr.Dynset) []byte {
	b = appendNumbers(b, number{unix.NFTA_DYNSET_SREG_KEY, e.SrcRegKey})
	if e.SrcRegData != 0 {
		b = appendNumbers(b, number{unix.NFTA_DYNSET_SREG_DATA, e.SrcRegData})
	}
	b = appendNumbers(b, number{unix.NFTA_DYNSET_OP, e.Operation})
	if e.Timeout > 0 {
		b = netlink.AppendAttr64BE(b, unix.NFTA_DYNSET_TIMEOUT, uint64(e.Timeout.Milliseconds()))
	}
	b = netlink.AppendAttrString(b, unix.NFTA_DYNSET_SET_NAME, e.SetName)
	b = appendNumbers(b, number{unix.NFTA_DYNSET_SET_ID, e.SetID})
	if len(e.Exprs) > 0 {
		name, data := appendExpr(nil, e.Exprs[0])
		one := netlink.AppendAttrString(nil, unix.NFTA_EXPR_NAME, name)
		one = netlink.AppendAttr(one, unix.NFTA_EXPR_DATA|nftNested, data...)
		b = netlink.AppendAttr(b, unix.NFTA_DYNSET_EXPR|nftNested, one...)
	}
	return appendNumbers(b, number{unix.NFTA_DYNSET_FLAGS, 0})
}

// appendVerdict appends a verdict.
func appendVerdict(b []byte, typ uint16, e *expr.Verdict) []byte {
	b, data := netlink.BeginNest(b, typ|nftNested)
	b, verdict := netlink.BeginNest(b, unix.NFTA_DATA_VERDICT|nftNested)
	b = appendNumbers(b, number{unix.NFTA_VERDICT_CODE, uint32(e.Kind)})
	if e.Chain != "" {
		b = netlink.AppendAttrString(b, unix.NFTA_VERDICT_CHAIN, e.Chain)
	}
	return netlink.EndNest(netlink.EndNest(b, verdict), data)
}

// Parts of a connection's addresses and ports. Unlike expr.CtKeySRC and CtKeyDST, these fail for the other
// family.
const (
	CtKeySrcIP  expr.CtKey = 19
	CtKeyDstIP  expr.CtKey = 20
	CtKeySrcIP6 expr.CtKey = 21
	CtKeyDstIP6 expr.CtKey = 22
)

// ofDirection reports whether both directions of a connection have the key.
func ofDirection(k expr.CtKey) bool {
	return k == expr.CtKeyPROTOSRC || k == expr.CtKeyPROTODST || k >= CtKeySrcIP && k <= CtKeyDstIP6
}
