package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/vip"
)

// Remains is what a dataplane left in the kernel. Find finds it without an agent and
// changes nothing. No agent may use the same device and table meanwhile.
type Remains struct {
	Services  []Remnant         // our IPVS services, by key
	Addresses []netip.Addr      // on our device, sorted
	Device    string            // our device, or ""
	Foreign   string            // the type of a foreign device with our device's name, for example "bridge", or ""
	Tunnels   []netip.Addr      // of our tunnel devices
	Table     string            // our nftables table, or ""
	Others    []vip.FrontendKey // other IPVS services by key, except those by firewall mark
	// Blind describes parts that this kernel lacks, so that nothing of ours can be in them.
	Blind []string

	access
	states map[vip.FrontendKey]*kernel.State // of Services
	keys   map[vip.FrontendKey]struct{}      // of Services, and others that the table records
	target *Target                           // nil if the kernel lacks a part
}

// Remnant is one IPVS service.
type Remnant struct {
	Key       vip.FrontendKey
	Scheduler string
	Backends  int
}

// Find looks for what a dataplane with these options left in the kernel. These services
// are ours: those recorded in the table, those on an address of our device, and those
// on an address that Owns accepts; Owns may be nil. It needs the rights to read IPVS
// and nftables, and reads each once.
func Find(ctx context.Context, o Options) (*Remains, error) { return find(ctx, o, false) }

// FindRecorded does the same for what the table records, while another dataplane has the device and the addresses. Without
// the table and without Owns, it finds nothing, and doesn't look at IPVS.
func FindRecorded(ctx context.Context, o Options) (*Remains, error) { return find(ctx, o, true) }

func find(ctx context.Context, o Options, recorded bool) (*Remains, error) {
	o = o.withDefaults()
	stats := &counters{}
	h, err := openHost(o, filter.New(o.Table, o.Mark, &stats.nftMessages), stats)
	r := &Remains{access: h}
	if err == nil {
		err = r.find(ctx, o, stats, recorded)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *Remains) find(ctx context.Context, o Options, stats *counters, recorded bool) error {
	state, err := r.device.Read(ctx)
	if err != nil {
		return err
	}
	switch state.Kind {
	case "":
	case host.DeviceKind:
		r.Device = o.Device
		r.Addresses = slices.SortedFunc(maps.Keys(state.Addrs), netip.Addr.Compare)
	default:
		r.Foreign = state.Kind
	}
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
	case recorded && o.Owns == nil:
		return nil
	}
	err = r.openIPVS(ctx, stats)
	if errors.Is(err, kernel.ErrNoIPVS) {
		r.Blind = append(r.Blind, err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	leased := o.Owns
	o.Owns = func(a netip.Addr) bool {
		_, here := state.Addrs[a]
		return !recorded && here || leased != nil && leased(a)
	}
	r.target = unopenedTarget(o, r.access, stats)
	return r.findServices(ctx)
}

func (r *Remains) findServices(ctx context.Context) error {
	found, err := r.target.readKernel(ctx)
	if err != nil {
		return err
	}
	r.states, r.keys = found.states, map[vip.FrontendKey]struct{}{}
	found.eachRecorded(func(k vip.FrontendKey) { r.keys[k] = struct{}{} })
	// Keep the ranges that the table has.
	r.target.opt.PodCIDRs = found.table.Pods.Prefixes
	for k, s := range found.states {
		r.keys[k] = struct{}{}
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

// Sysctls returns the names of the sysctls that a dataplane sets on this kernel.
func Sysctls() []string {
	var names []string
	for _, s := range append(settings(linux.ParseVersion(linux.Release())), optionalSettings{forward6: true, agree: true, realServer: true, bind6: true}.settings()...) {
		names = append(names, host.SysctlName(s.Key))
	}
	return names
}

// Empty reports whether nothing of ours was found.
func (r *Remains) Empty() bool {
	return len(r.Services) == 0 && r.Device == "" && r.Table == "" && len(r.Tunnels) == 0
}

// Remove removes what was found: addresses, services, the table and the device. Sysctls
// stay. An error doesn't stop it. Only Close may follow.
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

// Close closes the sockets.
func (r *Remains) Close() error {
	r.close()
	return nil
}

// Remove removes everything that is ours: services, addresses, the table and the
// device. Sysctls stay. An agent that stops leaves all of it in place; Remove is for a
// demo. Only Close may follow.
func (t *Target) Remove(ctx context.Context) error {
	return errors.Join(t.withdraw(ctx), t.fw.Remove(ctx), t.tunnels.RemoveAll(), t.device.RemoveAll())
}

// withdraw removes every frontend.
func (t *Target) withdraw(ctx context.Context) error {
	var batch []updateOf
	for o, err := range t.Actual(ctx) {
		if err != nil {
			return fmt.Errorf("read what is to be removed: %w", err)
		}
		if !o.Value.Key.Leftover() {
			batch = append(batch, updateOf{Key: o.Value.Key, Old: &o.Value})
		}
	}
	errs := []error{t.Apply(ctx, batch)}
	for i := range batch {
		errs = append(errs, batch[i].Err)
	}
	return errors.Join(errs...)
}
