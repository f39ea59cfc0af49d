package nft

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/ironvip/ironvip/plane/kernel/cleanup"
	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// Find returns a Target for what an earlier process may have left: to end it beside another dataplane, or to clean a host.
// It changes nothing. Without our table, it returns nil.
func Find(ctx context.Context, o Options) (*Target, error) {
	o.Owns = func(netip.Addr) bool { return false } // the table is the record
	t := open(o.withDefaults())
	if there, err := t.fw.Exists(ctx); err != nil || !there {
		t.Close()
		return nil, err
	}
	return t, nil
}

// Left reads what is there. Afterwards, Open and Leave know it.
func (t *Target) Left(ctx context.Context) (l usage.Left, err error) {
	l, err = t.readLeft(ctx)
	t.left = l.Keys()
	return l, err
}

func (t *Target) readLeft(ctx context.Context) (l usage.Left, err error) {
	if there, err := t.fw.Exists(ctx); err != nil || !there {
		return l, err
	}
	rules, found, err := t.readTable(ctx)
	if err != nil {
		return l, fmt.Errorf("read nftables table inet %s: %w", t.opt.table(), err)
	}
	l.Table, l.Damaged = t.opt.table(), !rules.Intact
	for k, s := range found.services {
		f := vip.Frontend{Key: k}
		if rules.Intact {
			f = s.frontend()
		}
		l.Frontends = append(l.Frontends, f)
	}
	l.Sort()
	return l, nil
}

// Leave makes the table take no new connections. Open ones go on; clients of UDP move to the other dataplane with their next
// datagram. It costs two transactions and one dump of connection tracking.
func (t *Target) Leave(ctx context.Context) error {
	if err := t.fw.Retire(ctx); err != nil {
		return err
	}
	return cleanup.Sweep(ctx, t.flows, t.left, func(at vip.FrontendKey, e *conntrack.Entry) (end bool) {
		return e.Translated && at.Protocol == vip.UDP
	})
}

// Open returns the open connections; a frontend for internal clients counts with the one for everyone. It costs one dump of
// connection tracking. It may be called concurrently with all other methods but Left and Close.
func (t *Target) Open(ctx context.Context) (map[vip.FrontendKey]int, error) {
	open := map[vip.FrontendKey]int{}
	err := cleanup.Sweep(ctx, t.flows, t.left, func(at vip.FrontendKey, e *conntrack.Entry) (end bool) {
		if e.Translated && e.Open() {
			open[at]++
		}
		return false
	})
	return open, err
}

// Remove ends the connections that are still open, and removes the table, which is the record of what is left: it stays
// after an error. Sysctls stay.
func (t *Target) Remove(ctx context.Context) error {
	l, err := t.readLeft(ctx)
	if err != nil || l.Table == "" {
		return err
	}
	if err := cleanup.Sweep(ctx, t.flows, l.Keys(), func(_ vip.FrontendKey, e *conntrack.Entry) bool { return e.Translated }); err != nil {
		return err
	}
	return t.fw.Remove(ctx)
}
