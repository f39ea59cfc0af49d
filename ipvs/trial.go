package ipvs

import (
	"cmp"
	"context"
	"errors"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/nftwire"
)

// Trials ask the kernel for what a module provides, because a list of modules
// doesn't show what is built in, what the kernel can load, and what a container
// hides. None of them leaves anything behind.

// missingModule is the finding for a module that a trial found missing.
func missingModule(name, detail string, required bool) Finding {
	return Finding{Name: "kernel module " + name, Required: required, Detail: detail, Remedy: "modprobe " + name}
}

// trialOf is the finding for a trial of a module with the outcome err. Missing is
// the kernel's error if it can't load the module.
func trialOf(module, detail string, required bool, err, missing error) Finding {
	f := missingModule(module, detail, required)
	switch {
	case err == nil:
		f.OK, f.Detail, f.Remedy = true, "usable", ""
	case errors.Is(err, unix.EPERM):
		f.Unknown, f.Detail, f.Remedy = true, "not checked: "+err.Error(), ""
	case !errors.Is(err, missing):
		f.Detail = err.Error()
	}
	return f
}

// scratchTable is the name of the table of trial transactions. A table of that
// name that exists stays as it is: the transaction fails.
const scratchTable = "ironvip_trial"

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

// tryNFTables tries each module in a transaction of its own. The transaction also
// deletes the table that it creates, so no packet and no other program sees it.
func tryNFTables(ctx context.Context) []Finding {
	conn := nftwire.NewConn()
	table := &nftables.Table{Name: scratchTable, Family: nftables.TableFamilyINet}
	base := Finding{Name: "nf_tables", OK: true, Required: true, Detail: "usable"}
	if err := conn.Open(ctx); err != nil {
		base.OK, base.Detail, base.Remedy = false, err.Error(), "modprobe nf_tables"
		return []Finding{base}
	}
	_, err := conn.TableExists(ctx, scratchTable)
	conn.Close()
	if err != nil {
		base.OK, base.Unknown, base.Detail, base.Remedy = false, errors.Is(err, unix.EPERM), err.Error(), "modprobe nf_tables"
		return []Finding{base}
	}
	out := []Finding{base}
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
		out = append(out, trialOf(m.module, m.detail, true, err, unix.ENOENT))
	}
	return out
}

// unusableName is a name that no network device can have.
const unusableName = "/"

// tryDummy asks the kernel for a dummy device with a name that it rejects. The
// kernel looks for the type of the device first, and loads the module if it can.
func tryDummy(ctx context.Context) Finding {
	err := tryMessage(ctx, unix.NETLINK_ROUTE, appendUnusableDummy)
	if err == unix.EINVAL {
		err = nil // the kernel rejected only the name
	}
	return trialOf(deviceKind, noDummy.Detail, true, err, unix.EOPNOTSUPP)
}

// tryMessage sends one message and returns its outcome.
func tryMessage(ctx context.Context, protocol int, put func(b []byte) []byte) (outcome error) {
	c, err := netlink.Dial(protocol, &netlink.Counters{})
	if err != nil {
		return err
	}
	defer c.Close()
	err = c.Write(ctx, 1, func(b []byte, _ int) []byte { return put(b) }, func(_ int, err error) { outcome = err })
	return cmp.Or(err, outcome)
}

var noDummy = missingModule(deviceKind, "the kernel can't create dummy devices", true)

func appendUnusableDummy(b []byte) []byte {
	b = netlink.BeginMessage(b, unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	b = append(b, make([]byte, unix.SizeofIfInfomsg)...)
	b = netlink.AppendAttrString(b, unix.IFLA_IFNAME, unusableName)
	b, info := netlink.BeginNest(b, unix.IFLA_LINKINFO)
	return netlink.EndNest(netlink.AppendAttrString(b, unix.IFLA_INFO_KIND, deviceKind), info)
}

// tryConntrackNetlink asks for the statistics of connection tracking.
func tryConntrackNetlink(ctx context.Context) Finding {
	err := tryMessage(ctx, unix.NETLINK_NETFILTER, func(b []byte) []byte {
		return append(netlink.BeginMessage(b, ctGetStats, 0), unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0)
	})
	if isConntrackNetlinkMissing(err) {
		return noConntrackNetlink
	}
	return trialOf("nf_conntrack_netlink", noConntrackNetlink.Detail, false, err, nil)
}

var noConntrackNetlink = missingModule("nf_conntrack_netlink",
	"the kernel can't delete connection tracking entries: udp clients stay with a removed backend while they keep sending", false)

// isConntrackNetlinkMissing reports whether err is the kernel's answer without
// ctnetlink.
func isConntrackNetlinkMissing(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT)
}
