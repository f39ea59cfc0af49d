package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/ipvs/internal/filter"
	"github.com/ironvip/ironvip/ipvs/internal/host"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/vip"
)

// Remains is what a dataplane left in the kernel, found without an agent and
// without changing anything. Make one with Find; nobody may program the same
// device and table meanwhile.
type Remains struct {
	Services  []Remnant         // our IPVS services, by key
	Addresses []netip.Addr      // on our device, sorted
	Device    string            // our device; "" where there is none
	Foreign   string            // of which kind another's device of our device's name is, such as "bridge"; "" where there is none
	Tunnels   []netip.Addr      // of this host, for which a device of ours takes packets out of tunnels
	Table     string            // our nftables table; "" where there is none
	Others    []vip.FrontendKey // IPVS services that nothing says are ours, by key; those by firewall mark are left out
	// Blind says of parts of the dataplane that this kernel lacks, so that
	// nothing of ours can be in them.
	Blind []string

	target  *Target // nil where the kernel lacks a part
	fw      *filter.Table
	device  *host.Device
	tunnels unwrappers
}

// Remnant is one IPVS service.
type Remnant struct {
	Key       vip.FrontendKey
	Scheduler string
	Backends  int
}

// Find looks for what a dataplane of these options left in the kernel. Ours is
// what the table has on record, every service on an address of our device, and
// every service on an address that Owns claims; Owns may be nil. It needs the
// rights that reading IPVS and nftables takes, and reads each once.
func Find(ctx context.Context, o Options) (*Remains, error) {
	o.Device = cmp.Or(o.Device, DefaultDevice)
	o.Table = cmp.Or(o.Table, tableFor(o.Device))
	stats := &counters{}
	r := &Remains{fw: filter.New(o.Table, cmp.Or(o.Mark, DefaultMark), &stats.nftMessages)}
	var err error
	if r.device, err = host.OpenDevice(o.Device, &stats.addresses); err != nil {
		return nil, err
	}
	if err = r.find(ctx, o, stats); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Remains) find(ctx context.Context, o Options, stats *counters) error {
	kind, err := r.device.Kind()
	if err != nil {
		return err
	}
	held := map[netip.Addr]struct{}{}
	switch kind {
	case "":
	case host.DeviceKind:
		r.Device = o.Device
		state, err := r.device.Read()
		if err != nil {
			return err
		}
		held = state.Addrs
		r.Addresses = slices.SortedFunc(maps.Keys(held), netip.Addr.Compare)
	default:
		r.Foreign = kind
	}
	r.tunnels = host.NewTunnels(o.Device, host.Sysctls{Root: host.ProcSysNet})
	ends, err := r.tunnels.Read()
	if err != nil {
		return err
	}
	r.Tunnels = slices.SortedFunc(maps.Keys(ends), netip.Addr.Compare)
	there, err := r.fw.Exists(ctx)
	switch {
	case errors.Is(err, filter.ErrNoNFTables):
		r.Blind = append(r.Blind, err.Error())
		return nil
	case err != nil:
		return err
	case there:
		r.Table = o.Table
	}
	h, err := openAccess(ctx, o, stats)
	if errors.Is(err, kernel.ErrNoIPVS) {
		r.Blind = append(r.Blind, err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	leased := o.Owns
	o.Owns = func(a netip.Addr) bool {
		_, here := held[a]
		return here || leased != nil && leased(a)
	}
	r.target = idleTarget(o, h, stats)
	return r.findServices(ctx)
}

func (r *Remains) findServices(ctx context.Context) error {
	found, err := r.target.read(ctx)
	if err != nil {
		return err
	}
	// With the ranges that the table has, going on from it changes none.
	r.target.opt.PodCIDRs = found.table.Pods.Prefixes
	for k, s := range found.states {
		r.Services = append(r.Services, Remnant{Key: k, Scheduler: s.Scheduler, Backends: len(s.Dests)})
	}
	slices.SortFunc(r.Services, func(a, b Remnant) int { return vip.CompareFrontendKeys(a.Key, b.Key) })
	all, err := r.target.kernel.Services(ctx)
	if err != nil {
		return err
	}
	for _, s := range all {
		if found.states[s.Key] == nil && s.Mark == 0 {
			r.Others = append(r.Others, s.Key)
		}
	}
	slices.SortFunc(r.Others, vip.CompareFrontendKeys)
	return nil
}

// Sysctls returns the names of those that a dataplane sets on this kernel.
func Sysctls() []string {
	var names []string
	for _, s := range append(settings(host.ParseVersion(host.KernelRelease())), needs{forward6: true, agree: true, realServer: true}.settings()...) {
		names = append(names, host.SysctlName(s.Key))
	}
	return names
}

// Empty reports whether nothing of ours was found.
func (r *Remains) Empty() bool {
	return len(r.Services) == 0 && r.Device == "" && r.Table == "" && len(r.Tunnels) == 0
}

// Remove takes what was found out of the kernel: addresses, services, the
// table, the device. Sysctls stay. It goes on past what can't be removed. Only
// Close may follow.
func (r *Remains) Remove(ctx context.Context) error {
	var errs []error
	if r.target != nil {
		errs = append(errs, r.target.withdraw(ctx))
	}
	if r.Table != "" {
		errs = append(errs, r.fw.Remove(ctx))
	}
	return errors.Join(append(errs, r.tunnels.RemoveAll(), r.device.RemoveAll())...)
}

// Close gives back the sockets.
func (r *Remains) Close() error {
	r.device.Close()
	if r.target != nil {
		return r.target.Close()
	}
	return nil
}

// Remove takes everything that is ours out of the kernel: services, addresses,
// the table and the device; sysctls stay. An agent that stops leaves all of it
// in place; this is for one that was never meant to stay, such as a demo. Nobody
// else may use the Target meanwhile, and all that may follow is Close.
func (t *Target) Remove(ctx context.Context) error {
	return errors.Join(t.withdraw(ctx), t.fw.Remove(ctx), t.tunnels.RemoveAll(), t.device.RemoveAll())
}

// withdraw removes every frontend. What belongs to none goes with the table
// and the device.
func (t *Target) withdraw(ctx context.Context) error {
	var batch []updateOf
	for o, err := range t.Actual(ctx) {
		if err != nil {
			return fmt.Errorf("read what is to be removed: %w", err)
		}
		if !stray(o.Value.Key) {
			batch = append(batch, updateOf{Key: o.Value.Key, Old: &o.Value})
		}
	}
	errs := []error{t.Apply(ctx, batch)}
	for i := range batch {
		errs = append(errs, batch[i].Err)
	}
	return errors.Join(errs...)
}
