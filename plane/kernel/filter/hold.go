package filter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/plane/kernel/linux"
)

// TryHold calls Hold. An error is only logged: a dataplane works without it.
func (f *Table) TryHold(ctx context.Context, log *slog.Logger) {
	if err := f.PinConntrack(ctx); err != nil {
		log.Info("open connections don't outlive a flush of the nftables ruleset", "err", err)
	}
}

// PinConntrack keeps translating the packets of open connections when another program flushes the ruleset. Without it, such a packet
// passes untranslated until the table is back, and its receiver resets it. PinConntrack creates a second table, which a socket owns:
// a flush leaves such a table alone, and the kernel deletes it when Close or the end of the process closes the socket. As
// long as a chain of type nat and a rule with an expression of connection tracking exist, the kernel has both at work. The
// table does nothing to a packet. A kernel before 5.12 has no such tables.
func (f *Table) PinConntrack(ctx context.Context) error {
	c := nftwire.NewConn()
	if err := c.Open(ctx); err != nil {
		return err
	}
	var x nftwire.Transaction
	x.Begin()
	// The port makes the name unique: another process may hold, too.
	t := &nftables.Table{Name: fmt.Sprintf("%s_%d", f.layout.table.Name, c.Port()), Family: nftables.TableFamilyINet}
	x.AddOwnedTable(t)
	policy := nftables.ChainPolicyAccept
	x.AddChain(&nftables.Chain{Name: "translation", Table: t, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource, Policy: &policy})
	x.AddChain(&nftables.Chain{Name: "tracking", Table: t})
	err := x.AddRule(t.Name, "tracking", []expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: regAddr}}, f.layout.userData(rule{comment: "open connections outlive a flush"}))
	if err == nil {
		err = c.Send(ctx, &x)
	}
	if err != nil {
		c.Close()
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
			// The refusals of the chains and the rule only follow from that of the table.
			err = fmt.Errorf("this kernel has no %s, which Linux %s and later have", linux.OwnedTables.Name, linux.OwnedTables.First())
		}
		return err
	}
	f.held = c
	return nil
}
