package nft

import (
	"context"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/vip"
)

// Finding is one thing that the dataplane needs of the host, and its state.
type Finding = host.Finding

// trials are the modules of rules that not every dataplane has.
var trials = []filter.Trial{
	{Module: "nft_nat", Detail: `nf_tables has no expression "nat"`, Rule: []expr.Any{
		&expr.Immediate{Register: regKey, Data: big(0)}, &expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: regKey}}},
	{Module: "nft_numgen", Detail: `nf_tables has no expression "numgen"`, Rule: []expr.Any{
		&expr.Numgen{Register: regSlot, Modulus: 2, Type: unix.NFT_NG_RANDOM}}},
	{Module: "nft_hash", Detail: `nf_tables has no expression "hash"`, Rule: []expr.Any{
		filter.Address(vip.IPv4, true, regKey),
		&expr.Hash{SourceRegister: regKey, DestRegister: regSlot, Length: 4, Modulus: 2, Seed: shardSeed, Type: expr.HashTypeJenkins}}},
}

// Check checks what the dataplane needs of this host, with trials where only the kernel knows. It
// starts no program and leaves nothing behind, but its requests make the kernel load the modules that
// it can load by itself. The nft dataplane can run if Err returns nil for the findings.
func Check() []Finding {
	ctx := context.Background()
	out := []Finding{host.CheckCapability()}
	out = append(out, filter.TryNFTables(ctx, trials...)...)
	out = append(out, conntrack.Try(ctx))
	if host.Err(out[1:]) == nil { // otherwise no agent sets them, and some come with the modules
		out = append(out, host.Sysctls{Root: host.ProcSysNet}.CheckAll((&Target{}).settings())...)
	}
	return out
}
