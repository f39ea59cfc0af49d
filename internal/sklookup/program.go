package sklookup

import (
	"encoding/binary"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Offsets in struct bpf_sk_lookup of linux/bpf.h. The kernel checks each access when it loads the
// program.
const (
	ctxFamily    = 8
	ctxProtocol  = 12
	ctxLocalIP4  = 40
	ctxLocalIP6  = 44
	ctxLocalPort = 60
)

// Values of the kernel.
const (
	familyIPv4     = 2
	familyIPv6     = 10
	replaceEarlier = 1 // BPF_SK_LOOKUP_F_REPLACE
	drop, pass     = 0, 1
)

// The stack of the program: the key of the map of frontends, and the key of the map of sockets.
const (
	keyOnStack  = -24
	slotOnStack = -32
)

// program returns the instructions:
//
//	key = {the local address, IPv4 as IPv4-mapped; the local port; the protocol}
//	slot = frontends[key], else pass
//	if slot is Refused: drop
//	socket = sockets[slot], else pass
//	assign(socket), pass
//
// Each eight bytes of the stack are written at once: without CAP_PERFMON, kernels before 6.9 refuse to write a part of what
// they take for a saved register.
//
// "Pass" without an assigned socket is the kernel's own lookup. Our choice replaces that of a program
// that was attached earlier, so no other program gets the clients of a frontend by accident.
func program(frontends, sockets *ebpf.Map) asm.Instructions {
	load := func(to asm.Register, from int16) asm.Instruction { return asm.LoadMem(to, asm.R6, from, asm.Word) }
	var p asm.Instructions
	p = append(p,
		asm.Mov.Reg(asm.R6, asm.R1),
		load(asm.R2, ctxFamily),
		asm.JEq.Imm(asm.R2, familyIPv4, "ipv4"),
		asm.JNE.Imm(asm.R2, familyIPv6, "pass"),
	)
	for i := range int16(2) {
		p = append(p, load(asm.R2, ctxLocalIP6+8*i), load(asm.R3, ctxLocalIP6+8*i+4))
		p = append(p, join(32)...)
		p = append(p, asm.StoreMem(asm.RFP, keyOnStack+8*i, asm.R2, asm.DWord))
	}
	p = append(p,
		asm.Ja.Label("port"),
		asm.Mov.Imm(asm.R2, 0).WithSymbol("ipv4"),
		asm.StoreMem(asm.RFP, keyOnStack, asm.R2, asm.DWord),
		asm.LoadImm(asm.R2, int64(binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff})), asm.DWord),
		load(asm.R3, ctxLocalIP4),
	)
	p = append(p, join(32)...)
	p = append(p,
		asm.StoreMem(asm.RFP, keyOnStack+8, asm.R2, asm.DWord),
		load(asm.R2, ctxLocalPort).WithSymbol("port"),
		load(asm.R3, ctxProtocol),
	)
	p = append(p, join(16)...)
	p = append(p,
		asm.StoreMem(asm.RFP, keyOnStack+16, asm.R2, asm.Word),
		asm.LoadMapPtr(asm.R1, frontends.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, keyOnStack),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R2, asm.R0, 0, asm.Word),
		asm.JEq.Imm(asm.R2, int32(Refused), "drop"),
		asm.StoreMem(asm.RFP, slotOnStack, asm.R2, asm.Word),
		asm.LoadMapPtr(asm.R1, sockets.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotOnStack),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Mov.Imm(asm.R3, replaceEarlier),
		asm.FnSkAssign.Call(),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.FnSkRelease.Call(),
		asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"),
		asm.Return(),
		asm.Mov.Imm(asm.R0, drop).WithSymbol("drop"),
		asm.Return(),
	)
	return p
}

// join returns the instructions that put a value of that many bits in R2, and the one in R3 behind it in memory, into R2.
func join(bits int32) asm.Instructions {
	upper := asm.R3
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 { // big endian
		upper = asm.R2
	}
	return asm.Instructions{asm.LSh.Imm(upper, bits), asm.Or.Reg(asm.R2, asm.R3)}
}
