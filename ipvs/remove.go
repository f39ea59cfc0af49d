package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

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
	fw      *firewall
	device  *device
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
	r := &Remains{fw: newFirewall(newLayout(o.Table, cmp.Or(o.Mark, DefaultMark)), stats)}
	var err error
	if r.device, err = openDevice(o.Device, stats); err != nil {
		return nil, err
	}
	if err = r.find(ctx, o, stats); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func (r *Remains) find(ctx context.Context, o Options, stats *counters) error {
	kind, err := r.device.kind()
	if err != nil {
		return err
	}
	held := map[netip.Addr]struct{}{}
	switch kind {
	case "":
	case deviceKind:
		r.Device = o.Device
		state, err := r.device.read()
		if err != nil {
			return err
		}
		held = state.addrs
		r.Addresses = slices.SortedFunc(maps.Keys(held), netip.Addr.Compare)
	default:
		r.Foreign = kind
	}
	r.tunnels = newTunnels(o.Device, sysctls{procSysNet})
	ends, err := r.tunnels.read()
	if err != nil {
		return err
	}
	r.Tunnels = slices.SortedFunc(maps.Keys(ends), netip.Addr.Compare)
	there, err := r.fw.exists(ctx)
	switch {
	case errors.Is(err, errNoNFTables):
		r.Blind = append(r.Blind, err.Error())
		return nil
	case err != nil:
		return err
	case there:
		r.Table = o.Table
	}
	h, err := openHost(ctx, o, stats)
	if errors.Is(err, errNoIPVS) {
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
	r.target.opt.PodCIDRs = found.table.pods.Prefixes
	for k, s := range found.states {
		r.Services = append(r.Services, Remnant{Key: k, Scheduler: s.sched, Backends: len(s.dests)})
	}
	slices.SortFunc(r.Services, func(a, b Remnant) int { return vip.CompareFrontendKeys(a.Key, b.Key) })
	all, err := r.target.kernel.services(ctx)
	if err != nil {
		return err
	}
	for _, s := range all {
		if found.states[s.key] == nil && s.fwmark == 0 {
			r.Others = append(r.Others, s.key)
		}
	}
	slices.SortFunc(r.Others, vip.CompareFrontendKeys)
	return nil
}

// Sysctls returns the names of those that a dataplane sets on this kernel.
func Sysctls() []string {
	var names []string
	for _, s := range append(settings(parseVersion(kernelRelease())), needs{forward6: true, agree: true, realServer: true}.settings()...) {
		names = append(names, sysctlName(s.key))
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
		errs = append(errs, r.fw.remove(ctx))
	}
	return errors.Join(append(errs, r.tunnels.removeAll(), r.device.removeAll())...)
}

// Close gives back the sockets.
func (r *Remains) Close() error {
	r.device.close()
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
	return errors.Join(t.withdraw(ctx), t.fw.remove(ctx), t.tunnels.removeAll(), t.device.removeAll())
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

var errNoNFTables = errors.New("this kernel has no nf_tables")

// exists reports whether our table is there.
func (f *firewall) exists(ctx context.Context) (bool, error) {
	there, err := false, f.open(ctx)
	if err == nil {
		defer f.conn.Close()
		if there, err = f.tableExists(ctx); err == nil {
			return there, nil
		}
	}
	for _, lack := range []error{unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EINVAL} {
		if errors.Is(err, lack) { // no netlink family, or one that doesn't know the question
			return false, errNoNFTables
		}
	}
	return false, err
}

// remove deletes the table, if there is one.
func (f *firewall) remove(ctx context.Context) error {
	f.x.Begin()
	f.x.AddTable(f.layout.table) // makes the deletion valid where there is none
	f.x.DeleteTable(f.layout.table)
	return f.commit(ctx)
}

// deviceKind is what a device of ours is; another one of its name isn't ours.
const deviceKind = "dummy"

// kind returns what the device is, "" where there is none.
func (d *device) kind() (string, error) {
	h, link, err := d.open()
	if err != nil {
		return "", err
	}
	defer h.Close()
	if link == nil {
		return "", nil
	}
	return link.Type(), nil
}

// removeAll deletes the device with every address on it, if it is ours.
func (d *device) removeAll() error {
	h, link, err := d.open()
	if err != nil {
		return err
	}
	defer h.Close()
	if link == nil || link.Type() != deviceKind {
		return nil
	}
	if err := h.LinkDel(link); err != nil && !errors.As(err, &rtnl.LinkNotFoundError{}) {
		return fmt.Errorf("delete device %s: %w", d.name, err)
	}
	return nil
}
