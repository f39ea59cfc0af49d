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
		name := exprName(e)
		if name == "" {
			return fmt.Errorf("nftables rule of chain %s: no encoding of %T", chain, e)
		}
		var one, data int
		b, one = netlink.BeginNest(b, unix.NFTA_LIST_ELEM|nftNested)
		b = netlink.AppendAttrString(b, unix.NFTA_EXPR_NAME, name)
		b, data = netlink.BeginNest(b, unix.NFTA_EXPR_DATA|nftNested)
		b = netlink.EndNest(netlink.EndNest(appendExpr(b, e), data), one)
	}
	x.b = netlink.AppendAttr(netlink.EndNest(b, list), unix.NFTA_RULE_USERDATA, userData...)
	x.done()
	return nil
}

// exprName returns the kernel's name of an expression's type, or "" if appendExpr
// doesn't encode it.
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

// appendExpr appends an expression's attributes, as far as the dataplanes use them.
func appendExpr(b []byte, e expr.Any) []byte {
	switch e := e.(type) {
	case *expr.Ct:
		b = netlink.AppendAttr32BE(b, unix.NFTA_CT_KEY, uint32(e.Key))
		return netlink.AppendAttr32BE(b, unix.NFTA_CT_DREG, e.Register)
	case *expr.Meta:
		register := uint16(unix.NFTA_META_DREG)
		if e.SourceRegister {
			register = unix.NFTA_META_SREG
		}
		b = netlink.AppendAttr32BE(b, unix.NFTA_META_KEY, uint32(e.Key))
		return netlink.AppendAttr32BE(b, register, e.Register)
	case *expr.Cmp:
		b = netlink.AppendAttr32BE(b, unix.NFTA_CMP_SREG, e.Register)
		b = netlink.AppendAttr32BE(b, unix.NFTA_CMP_OP, uint32(e.Op))
		return appendData(b, unix.NFTA_CMP_DATA, e.Data)
	case *expr.Bitwise:
		b = netlink.AppendAttr32BE(b, unix.NFTA_BITWISE_SREG, e.SourceRegister)
		b = netlink.AppendAttr32BE(b, unix.NFTA_BITWISE_DREG, e.DestRegister)
		b = netlink.AppendAttr32BE(b, unix.NFTA_BITWISE_LEN, e.Len)
		return appendData(appendData(b, unix.NFTA_BITWISE_MASK, e.Mask), unix.NFTA_BITWISE_XOR, e.Xor)
	case *expr.Byteorder:
		b = netlink.AppendAttr32BE(b, unix.NFTA_BYTEORDER_SREG, e.SourceRegister)
		b = netlink.AppendAttr32BE(b, unix.NFTA_BYTEORDER_DREG, e.DestRegister)
		b = netlink.AppendAttr32BE(b, unix.NFTA_BYTEORDER_OP, uint32(e.Op))
		b = netlink.AppendAttr32BE(b, unix.NFTA_BYTEORDER_LEN, e.Len)
		return netlink.AppendAttr32BE(b, unix.NFTA_BYTEORDER_SIZE, e.Size)
	case *expr.Payload:
		b = netlink.AppendAttr32BE(b, unix.NFTA_PAYLOAD_DREG, e.DestRegister)
		b = netlink.AppendAttr32BE(b, unix.NFTA_PAYLOAD_BASE, uint32(e.Base))
		b = netlink.AppendAttr32BE(b, unix.NFTA_PAYLOAD_OFFSET, e.Offset)
		return netlink.AppendAttr32BE(b, unix.NFTA_PAYLOAD_LEN, e.Len)
	case *expr.Lookup:
		b = netlink.AppendAttr32BE(b, unix.NFTA_LOOKUP_SREG, e.SourceRegister)
		if e.IsDestRegSet {
			b = netlink.AppendAttr32BE(b, unix.NFTA_LOOKUP_DREG, e.DestRegister)
		}
		if e.Invert {
			b = netlink.AppendAttr32BE(b, unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
		}
		b = netlink.AppendAttrString(b, unix.NFTA_LOOKUP_SET, e.SetName)
		return netlink.AppendAttr32BE(b, unix.NFTA_LOOKUP_SET_ID, e.SetID)
	case *expr.Immediate:
		b = netlink.AppendAttr32BE(b, unix.NFTA_IMMEDIATE_DREG, e.Register)
		return appendData(b, unix.NFTA_IMMEDIATE_DATA, e.Data)
	case *expr.Verdict:
		var data, verdict int
		b = netlink.AppendAttr32BE(b, unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		b, data = netlink.BeginNest(b, unix.NFTA_IMMEDIATE_DATA|nftNested)
		b, verdict = netlink.BeginNest(b, unix.NFTA_DATA_VERDICT|nftNested)
		b = netlink.AppendAttr32BE(b, unix.NFTA_VERDICT_CODE, uint32(e.Kind))
		if e.Chain != "" {
			b = netlink.AppendAttrString(b, unix.NFTA_VERDICT_CHAIN, e.Chain)
		}
		return netlink.EndNest(netlink.EndNest(b, verdict), data)
	case *expr.Fib:
		b = netlink.AppendAttr32BE(b, unix.NFTA_FIB_DREG, e.Register)
		b = netlink.AppendAttr32BE(b, unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_SADDR)
		return netlink.AppendAttr32BE(b, unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE)
	case *expr.Reject:
		b = netlink.AppendAttr32BE(b, unix.NFTA_REJECT_TYPE, e.Type)
		return netlink.AppendAttr(b, unix.NFTA_REJECT_ICMP_CODE, e.Code)
	}
	return b
}
