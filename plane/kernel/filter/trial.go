package filter

import (
	"cmp"
	"context"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/plane/kernel/host"
)

// ScratchTable is the name of the table of trial transactions. If a table of that name
// exists, the trials use a longer one, see freeName.
const ScratchTable = "ironvip_trial"

// Trial is a module that rules need besides nf_tables, and a rule that needs it.
type Trial struct {
	Module string
	Detail string // without the module
	Rule   []expr.Any
	Field  string // of the services that need it; "": all frontends do
	nat    bool   // a chain of type nat instead
}

// baseTrials are those of the table of every dataplane.
var baseTrials = []Trial{
	{Module: "nft_ct", Detail: `nf_tables has no expression "ct"`, Rule: []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: regAddr}}},
	{Module: "nft_fib_inet", Detail: `nf_tables has no expression "fib"`, Rule: FromHere()[:1]},
	{Module: "nft_reject_inet", Detail: `nf_tables has no expression "reject"`, Rule: []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}},
	{Module: "nft_masq", Detail: `nf_tables has no expression "masq"`, Rule: []expr.Any{masquerade}},
	{Module: "nft_chain_nat", Detail: `nf_tables has no chains of type "nat"`, nat: true},
}

// TryNFTables tries each module, and those that a dataplane needs besides, in a transaction of its own. The
// transaction also deletes the table that it creates, so no packet and no other program sees it.
func TryNFTables(ctx context.Context, more ...Trial) []host.Finding {
	conn := nftwire.NewConn()
	name, err := freeName(ctx, conn)
	base := host.TrialOf("nf_tables", "the kernel has none, or it isn't loaded", true, err, unix.EINVAL, unix.EPROTONOSUPPORT)
	base.Name = "nf_tables"
	if !base.OK {
		return []host.Finding{base}
	}
	out := []host.Finding{base}
	for _, m := range slices.Concat(baseTrials, more) {
		out = append(out, m.try(ctx, conn, name))
	}
	return out
}

// Try tries a module as TryNFTables does.
func (m Trial) Try(ctx context.Context) host.Finding {
	conn := nftwire.NewConn()
	name, err := freeName(ctx, conn)
	if err != nil {
		return host.TrialOf(m.Module, m.Detail, true, err, unix.ENOENT)
	}
	return m.try(ctx, conn, name)
}

func (m Trial) try(ctx context.Context, conn *nftwire.Conn, name string) host.Finding {
	table := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	var x nftwire.Transaction
	x.Begin()
	x.AddScratchTable(table)
	chain := &nftables.Chain{Name: "trial", Table: table}
	if m.nat {
		chain.Type, chain.Hooknum, chain.Priority = nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource
		policy := nftables.ChainPolicyAccept
		chain.Policy = &policy
	}
	x.AddChain(chain)
	var err error
	if !m.nat {
		err = x.AddRule(table.Name, chain.Name, m.Rule, nil)
	}
	x.DeleteTable(table)
	err = cmp.Or(err, conn.Commit(ctx, &x))
	return host.TrialOf(m.Module, m.Detail, true, err, unix.ENOENT)
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
