package filter

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/vip"
)

// The parts of rules. The exported ones are for dataplanes that add rules of their own.

// join returns a new list, because several rules share what they match.
func join(a []expr.Any, b ...expr.Any) []expr.Any { return slices.Concat(a, b) }

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// openConnection matches packets of known connections.
func openConnection() []expr.Any {
	return inState(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
}

// invalidState matches packets that connection tracking can't assign to their connection.
func invalidState() []expr.Any { return inState(expr.CtStateBitINVALID) }

// inState matches packets in one of the states.
func inState(states uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: regAddr},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4, Mask: native(states), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regAddr, Data: native(0)},
	}
}

// AddBit, clearBit and withoutBit concern MasqueradeBit of the packet mark, and keep the others.
func AddBit() []expr.Any { return changeBit(MasqueradeBit) }

func clearBit() []expr.Any { return changeBit(0) }

func changeBit(to uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4, Mask: native(^uint32(MasqueradeBit)), Xor: native(to)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: regAddr},
	}
}

func withoutBit() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4, Mask: native(MasqueradeBit), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regAddr, Data: native(MasqueradeBit)},
	}
}

// probeMark matches packets with a mark of probes.
func probeMark() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: regAddr},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 4, Mask: native(probeBit | ^uint32(markMask)), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regAddr, Data: native(probeBit)},
	}
}

// setMark sets the whole packet mark.
func setMark(mark uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: regAddr, Data: native(mark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: regAddr},
	}
}

// FromHere matches packets whose source is an address of this host, and FromElsewhere the others.
func FromHere() []expr.Any      { return sourceType(expr.CmpOpEq) }
func FromElsewhere() []expr.Any { return sourceType(expr.CmpOpNeq) }

func sourceType(op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: regAddr, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: op, Register: regAddr, Data: native(unix.RTN_LOCAL)},
	}
}

func Verdict(kind expr.VerdictKind, chain string) expr.Any {
	return &expr.Verdict{Kind: kind, Chain: chain}
}

func protocol(n byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: regAddr},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regAddr, Data: []byte{n}},
	}
}

// OpensNothing matches TCP packets that don't open a connection. Connection tracking calls
// them new if the answers take another path, or if the connection is older than the
// entry.
func OpensNothing() []expr.Any { return flags(synFlag|ackFlag|rstFlag|finFlag, expr.CmpOpNeq, synFlag) }

// resets matches TCP packets that end a connection at once.
func resets() []expr.Any { return flags(rstFlag, expr.CmpOpEq, rstFlag) }

// Flags of TCP.
const (
	finFlag byte = 1 << iota
	synFlag
	rstFlag
	_ // PSH
	ackFlag
)

// flags compares some flags of TCP packets.
func flags(some byte, op expr.CmpOp, with byte) []expr.Any {
	return append(protocol(unix.IPPROTO_TCP),
		&expr.Payload{DestRegister: regAddr, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: regAddr, DestRegister: regAddr, Len: 1, Mask: []byte{some}, Xor: []byte{0}},
		&expr.Cmp{Op: op, Register: regAddr, Data: []byte{with}})
}

// ofProcess matches packets that the socket of a process sends, not the kernel for nobody: those have no user.
func ofProcess() []expr.Any { return []expr.Any{&expr.Meta{Key: expr.MetaKeySKUID, Register: regAddr}} }

func Family(f vip.Family) []expr.Any {
	n := byte(unix.NFPROTO_IPV4)
	if f == vip.IPv6 {
		n = unix.NFPROTO_IPV6
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: regAddr},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regAddr, Data: []byte{n}},
	}
}

// Address loads a packet's source or destination address.
func Address(f vip.Family, source bool, register uint32) expr.Any {
	p := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}
	if f == vip.IPv6 {
		p.Offset, p.Len = 24, 16
	}
	if source {
		p.Offset -= p.Len
	}
	return p
}

// ListenerKey loads a packet's destination address, protocol and port.
func ListenerKey(f vip.Family) []expr.Any {
	proto, port := uint32(regProto4), uint32(regPort4)
	if f == vip.IPv6 {
		proto, port = regProto6, regPort6
	}
	return []expr.Any{
		Address(f, false, regAddr),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: proto},
		&expr.Payload{DestRegister: port, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}
