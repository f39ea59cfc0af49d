package filter

import (
	"cmp"
	"context"
	"errors"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/ipvs/internal/host"
)

// ScratchTable is the name of the table of trial transactions. If a table of that name
// exists, the trials use a longer one, see freeName.
const ScratchTable = "ironvip_trial"

// nftModules are the modules that the rules of our table need besides nf_tables.
var nftModules = []struct {
	module string
	detail string
	rule   expr.Any // nil: a chain of type nat
}{
	{"nft_ct", `nf_tables has no expression "ct"`, &expr.Ct{Key: expr.CtKeySTATE, Register: regAddr}},
	{"nft_fib_inet", `nf_tables has no expression "fib"`, fromHere()[0]},
	{"nft_reject_inet", `nf_tables has no expression "reject"`, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}},
	{"nft_masq", `nf_tables has no expression "masq"`, &expr.Masq{}},
	{"nft_chain_nat", `nf_tables has no chains of type "nat"`, nil},
}

// TryNFTables tries each module in a transaction of its own. The transaction also
// deletes the table that it creates, so no packet and no other program sees it.
func TryNFTables(ctx context.Context) []host.Finding {
	conn := nftwire.NewConn()
	base := host.Finding{Name: "nf_tables", OK: true, Required: true, Detail: "usable"}
	name, err := freeName(ctx, conn)
	if err != nil {
		base.OK, base.Unknown, base.Detail, base.Remedy = false, errors.Is(err, unix.EPERM), err.Error(), "modprobe nf_tables"
		return []host.Finding{base}
	}
	table := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	out := []host.Finding{base}
	for _, m := range nftModules {
		var x nftwire.Transaction
		x.Begin()
		x.AddScratchTable(table)
		chain := &nftables.Chain{Name: "trial", Table: table}
		if m.rule == nil {
			chain.Type, chain.Hooknum, chain.Priority = nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource
			policy := nftables.ChainPolicyAccept
			chain.Policy = &policy
		}
		x.AddChain(chain)
		var err error
		if m.rule != nil {
			err = x.AddRule(table.Name, chain.Name, []expr.Any{m.rule}, nil)
		}
		x.DeleteTable(table)
		err = cmp.Or(err, conn.Commit(ctx, &x))
		out = append(out, host.TrialOf(m.module, m.detail, true, err, unix.ENOENT))
	}
	return out
}

// freeName returns a name that no table has.
func freeName(ctx context.Context, conn *nftwire.Conn) (string, error) {
	if err := conn.Open(ctx); err != nil {
		return "", err
	}
	defer conn.Close()
	name := ScratchTable
	for {
		taken, err := conn.TableExists(ctx, &nftables.Table{Name: name, Family: nftables.TableFamilyINet})
		if !taken {
			return name, err
		}
		name += "_"
	}
}
