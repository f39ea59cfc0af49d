package nftwire

import (
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
		name, data := appendExpr(x.expr[:0], e)
		if name == "" {
			return fmt.Errorf("nftables rule of chain %s: no encoding of %T", chain, e)
		}
		var one int
		b, one = netlink.BeginNest(b, unix.NFTA_LIST_ELEM|nftNested)
		b = netlink.AppendAttrString(b, unix.NFTA_EXPR_NAME, name)
		b = netlink.EndNest(netlink.AppendAttr(b, unix.NFTA_EXPR_DATA|nftNested, data...), one)
		x.expr = data
	}
	x.b = netlink.AppendAttr(netlink.EndNest(b, list), unix.NFTA_RULE_USERDATA, userData...)
	x.done()
	return nil
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
		return "ct", appendNumbers(b, number{unix.NFTA_CT_KEY, uint32(e.Key)}, number{register, e.Register})
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
		var data, verdict int
		b = appendNumbers(b, number{unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT})
		b, data = netlink.BeginNest(b, unix.NFTA_IMMEDIATE_DATA|nftNested)
		b, verdict = netlink.BeginNest(b, unix.NFTA_DATA_VERDICT|nftNested)
		b = appendNumbers(b, number{unix.NFTA_VERDICT_CODE, uint32(e.Kind)})
		if e.Chain != "" {
			b = netlink.AppendAttrString(b, unix.NFTA_VERDICT_CHAIN, e.Chain)
		}
		return "immediate", netlink.EndNest(netlink.EndNest(b, verdict), data)
	case *expr.Fib:
		return "fib", appendNumbers(b,
			number{unix.NFTA_FIB_DREG, e.Register},
			number{unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_SADDR},
			number{unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE})
	case *expr.Reject:
		b = appendNumbers(b, number{unix.NFTA_REJECT_TYPE, e.Type})
		return "reject", netlink.AppendAttr(b, unix.NFTA_REJECT_ICMP_CODE, e.Code)
	case *expr.Masq:
		return "masq", b
	}
	return "", b
}
