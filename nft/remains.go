package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/vip"
)

// Remains is what this dataplane left in the kernel, except a dummy device: ipvs.Find finds that, which is the same for
// both. Find changes nothing. No agent may use the same table meanwhile.
type Remains struct {
	Table     string       // our table, or ""
	Services  []Remnant    // in the table, by key
	Bridge    string       // the bridge in the place of the dummy device, or ""
	Addresses []netip.Addr // on the bridge, sorted

	target *Target
}

// Remnant is one service in the table.
type Remnant struct {
	Key vip.FrontendKey
	// Scheduler and Backends are known if the table is not damaged; otherwise they are zero.
	Scheduler vip.Scheduler
	Backends  int
}

// Find looks for what a dataplane with these options left in the kernel. It needs the rights to read nftables, and reads
// the table and the device once. A bridge is ours if it is as this dataplane makes it: without ports and without ARP.
func Find(ctx context.Context, o Options) (*Remains, error) {
	o.Bridge = true
	t, err := open(o.withDefaults())
	if err != nil {
		return nil, err
	}
	r := &Remains{target: t}
	if err := errors.Join(r.findBridge(ctx), r.findServices(ctx)); err != nil {
		t.Close()
		return nil, err
	}
	return r, nil
}

func (r *Remains) findBridge(ctx context.Context) error {
	ours, err := r.target.addresses.Plain()
	if err != nil || !ours {
		return err
	}
	state, err := r.target.addresses.Read(ctx)
	if err != nil || state.Kind != host.BridgeKind {
		return err
	}
	r.Bridge = r.target.opt.Device
	r.Addresses = slices.SortedFunc(maps.Keys(state.Addrs), netip.Addr.Compare)
	return nil
}

func (r *Remains) findServices(ctx context.Context) error {
	there, err := r.target.fw.Exists(ctx)
	if errors.Is(err, filter.ErrNoNFTables) || err == nil && !there {
		return nil
	}
	if err != nil {
		return err
	}
	r.Table = r.target.opt.Table
	rules, found, err := r.target.readTable(ctx)
	if err != nil {
		return fmt.Errorf("read nftables table inet %s: %w", r.target.opt.Table, err)
	}
	for k, s := range found.services {
		x := Remnant{Key: k}
		if rules.Intact {
			f := s.frontend()
			x.Scheduler, x.Backends = f.Scheduler, len(f.Backends)
		}
		r.Services = append(r.Services, x)
	}
	slices.SortFunc(r.Services, func(a, b Remnant) int { return vip.CompareFrontendKeys(a.Key, b.Key) })
	return nil
}

// Remove removes the bridge with its addresses, and the table. Sysctls stay. Only Close may follow.
func (r *Remains) Remove(ctx context.Context) error {
	var errs []error
	if r.Bridge != "" {
		errs = append(errs, r.target.addresses.RemoveAll())
	}
	if r.Table != "" {
		errs = append(errs, r.target.fw.Remove(ctx))
	}
	return errors.Join(errs...)
}

// Close closes the sockets.
func (r *Remains) Close() error { return r.target.Close() }
