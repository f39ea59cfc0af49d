package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"net/netip"
	"slices"
	"sync"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/reconcile"
	"golang.org/x/sys/unix"
)

// Defaults of Options.
const (
	DefaultDevice = "ironvip0"
	DefaultTable  = "ironvip"
	// DefaultMark is a bit that neither kube-proxy (0x4000, 0x8000), CNI's
	// port mapping (0x2000), AWS' CNI (0x80), Cilium (0xf00 and the upper half)
	// nor Tailscale (0xff0000) uses.
	DefaultMark = 0x1000
)

// Options are what a Target needs. Owns must be given.
type Options struct {
	Device string // the dummy device for virtual addresses
	Table  string // our nftables table, of family inet
	// Mark is the one bit of the packet mark that the table uses, from a
	// packet's arrival to its departure.
	Mark uint32
	// Owns reports whether an address is ours: in a pool, or leased. Every IPVS
	// service on one is ours to change and remove.
	Owns func(netip.Addr) bool
	// PodCIDRs returns the ranges whose clients keep their address under
	// masquerade "auto"; may be nil. It is asked at every Apply and must not block.
	PodCIDRs func() []netip.Prefix
	Log      *slog.Logger
}

// Stats count what a Target sent to the kernel since it was made.
type Stats struct {
	WritesSent     uint64 // IPVS messages that change something
	SendsDone      uint64 // system calls that carried them and queries
	DumpsSent      uint64 // IPVS queries
	AnswersLost    uint64 // IPVS messages whose outcome had to be read back
	NFTMessages    uint64 // nftables messages
	AddressWrites  uint64 // addresses added or deleted
	ConntrackFlows uint64 // connection tracking entries deleted
}

// Writes is the number of changes asked of the kernel, of all kinds.
func (s Stats) Writes() uint64 { return s.WritesSent + s.NFTMessages + s.AddressWrites }

// Target is the IPVS dataplane: a reconcile.Plane and reconcile.Connections.
// It works in the network namespace of the thread that calls it; a caller that
// changes namespaces must keep to one. Make it with New.
type Target struct {
	opt    Options
	stats  counters
	kernel *kernel
	fw     firewall
	device *device
	sysctl sysctls

	// What the kernel is believed to hold, apart from the details of services,
	// which Apply's caller knows.
	held      *holdings
	pods      []netip.Prefix // held.pods, as PodCIDRs gave it
	stalePods bool           // the table's pod ranges are not PodCIDRs
	loaded    bool           // held has been read from the kernel
	broken    bool           // the table must be built anew
	suspect   map[vip.FrontendKey]struct{}

	v6 bool // IPv6 forwarding is needed

	idle *idleWatch

	mu     sync.Mutex
	faults []Finding // the sysctls, as they were when last set
}

var (
	_ reconcile.Plane       = (*Target)(nil)
	_ reconcile.Connections = (*Target)(nil)
)

// New connects to the kernel, makes the device and sets the sysctls. A sysctl
// that can't be set is no error: see Findings.
func New(o Options) (*Target, error) {
	if o.Device == "" {
		o.Device = DefaultDevice
	}
	if o.Table == "" {
		o.Table = DefaultTable
	}
	if o.Mark == 0 {
		o.Mark = DefaultMark
	}
	if bits.OnesCount32(o.Mark) != 1 {
		return nil, fmt.Errorf("mark %#x for masquerading: it must be one bit", o.Mark)
	}
	if o.PodCIDRs == nil {
		o.PodCIDRs = func() []netip.Prefix { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t := &Target{opt: o, sysctl: sysctls{procSysNet}, suspect: map[vip.FrontendKey]struct{}{}}
	t.fw = firewall{layout: newLayout(o.Table, o.Mark), stats: &t.stats}
	t.held = newHoldings(podSet(nil))
	ctx := context.Background()
	var err error
	if t.kernel, err = openKernel(ctx, &t.stats); err != nil {
		return nil, err
	}
	if t.idle, err = newIdleWatch(ctx, &t.stats); err == nil {
		if t.device, err = openDevice(o.Device, &t.stats); err == nil {
			err = t.device.ensure()
		}
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	t.tune()
	return t, nil
}

// Close gives back the sockets. The kernel goes on forwarding as it is.
func (t *Target) Close() error {
	t.kernel.close()
	if t.idle != nil {
		t.idle.close()
	}
	if t.device != nil {
		t.device.close()
	}
	return nil
}

// Stats returns the present counts. It may be called at any time.
func (t *Target) Stats() Stats {
	c := &t.stats
	return Stats{
		WritesSent: c.writes.Load(), SendsDone: c.sends.Load(), DumpsSent: c.dumps.Load(), AnswersLost: c.lost.Load(),
		NFTMessages: c.nftMessages.Load(), AddressWrites: c.addresses.Load(), ConntrackFlows: c.conntrack.Load(),
	}
}

// Findings returns how the sysctls fared that the Target set. It may be called
// at any time.
func (t *Target) Findings() []Finding {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.faults)
}

func (t *Target) wantedSettings() []setting {
	want := settings(parseVersion(kernelRelease()))
	if t.v6 {
		want = append(want, forwarding6)
	}
	return want
}

// tune sets the sysctls, and warns of those that newly can't be.
func (t *Target) tune() {
	want := t.wantedSettings()
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []Finding
	for _, w := range want {
		f := t.sysctl.set(w)
		if !f.OK && !slices.Contains(t.faults, f) {
			t.opt.Log.Warn("a sysctl that ipvs needs is not set", "sysctl", f.Name, "detail", f.Detail, "remedy", f.Remedy)
		}
		found = append(found, f)
	}
	t.faults = found
}

// item is one update on its way through Apply.
type item struct {
	update *updateOf
	key    vip.FrontendKey
	old    *vip.Frontend // what was held; nil: nothing
	repair bool          // nothing is taken for granted

	want    *state  // nil: to be removed
	have    *state  // what the kernel has
	unread  bool    // have is not known
	owned   bool    // a service at this key is ours
	more    bool    // another round is needed though nothing went wrong
	blocked bool    // the service itself can't be made as wanted
	clashes bool    // it is somebody else's
	refused []error // by the kernel, in the last round
	errs    []error // all else
}

func (it *item) err() error {
	errs := append(it.errs, it.refused...)
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return fmt.Errorf("%w (and %d more)", errs[0], len(errs)-1)
}

// Apply implements reconcile.Target. It costs as many messages as parts that
// change, in a few sends for the whole batch.
func (t *Target) Apply(ctx context.Context, batch []updateOf) error {
	err := t.apply(ctx, batch)
	for i := range batch {
		u := &batch[i]
		if err != nil || u.Err != nil {
			t.suspect[u.Key] = struct{}{}
		} else {
			delete(t.suspect, u.Key)
		}
	}
	return err
}

func (t *Target) apply(ctx context.Context, batch []updateOf) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !t.loaded {
		if _, err := t.load(ctx); err != nil {
			return err
		}
	}
	items := t.accept(batch)
	if err := t.claim(ctx, items); err != nil {
		return err
	}
	if slices.ContainsFunc(items, func(it *item) bool { return it.repair }) {
		if err := t.device.ensure(); err != nil {
			return err
		}
		t.tune()
	}

	up, down := change{}, change{}
	for _, it := range items {
		t.raise(up, it)
	}
	for _, it := range items { // after all were looked at: they may share addresses
		if !it.clashes {
			t.held.set(it.key, it.update.New)
		}
	}
	if err := t.filter(ctx, up); err != nil {
		return err
	}
	if err := t.dropAddresses(ctx, items); err != nil {
		return err
	}
	if err := t.program(ctx, items); err != nil {
		return err
	}
	if err := t.addAddresses(ctx, items); err != nil {
		return err
	}
	for _, it := range items {
		t.lower(down, it)
	}
	if err := t.fw.apply(ctx, down); errors.Is(err, errNoTable) {
		t.broken = true // gone meanwhile: so is what was to go; the next Apply builds it
	} else if err != nil {
		return err
	}
	for _, it := range items {
		it.update.Err = it.err()
	}
	return nil
}

// accept turns a batch into items, and answers those updates that this
// dataplane can't carry out.
func (t *Target) accept(batch []updateOf) []*item {
	items := make([]*item, 0, len(batch))
	v6 := false
	for i := range batch {
		u := &batch[i]
		u.Err = nil
		it := &item{update: u, key: u.Key, old: t.held.frontends[u.Key]}
		_, it.repair = t.suspect[u.Key]
		it.repair = it.repair || u.Repair || (u.Old == nil) != (it.old == nil)
		it.owned = it.old != nil || t.opt.Owns(u.Key.Addr)
		it.unread = it.repair
		if u.New != nil {
			if u.Err = unsupported(u.New); u.Err != nil {
				continue
			}
			want := desired(u.New)
			it.want = &want
			v6 = v6 || u.Key.Addr.Is6()
		}
		if !it.repair && u.Old != nil {
			have := desired(u.Old)
			it.have = &have
		}
		items = append(items, it)
	}
	if v6 && !t.v6 {
		t.v6 = true
		t.tune()
	}
	return items
}

// claim makes sure that what is about to be recorded as ours is not a service
// of somebody else's: afterwards the record would say otherwise.
func (t *Target) claim(ctx context.Context, items []*item) error {
	for _, it := range items {
		if it.owned || it.want == nil {
			continue
		}
		s, err := t.kernel.service(ctx, it.key)
		if err != nil {
			return err
		}
		if s != nil {
			it.clash(s)
		}
		it.unread = false
	}
	return nil
}

func (it *item) clash(s *service) {
	it.clashes = true
	it.errs = append(it.errs, vip.Problem{
		Code:    vip.CodePortTaken,
		Message: fmt.Sprintf("clash with a foreign ipvs service on %s (scheduler %s), which is left alone", it.key, s.sched),
		Hint:    fmt.Sprintf("see ipvsadm -Ln; remove it with ipvsadm -D, or use another port than %d", it.key.Port),
	})
}

// raise adds what must be in the table before an item is programmed.
func (t *Target) raise(up change, it *item) {
	f := it.update.New
	if f == nil || it.clashes {
		return
	}
	elementChanges(up, change{}, it.key, it.old, f, it.repair)
	if f.Kind == vip.OnVIP && (it.old == nil || it.repair) {
		up[addrElement(setVIPs, it.key.Addr)] = true
	}
	var had []netip.Addr
	if it.old != nil && !it.repair {
		had = t.held.hairpinsOf(it.old)
	}
	for _, a := range t.held.hairpinsOf(f) {
		if !slices.Contains(had, a) {
			up[addrElement(setHairpin, a)] = true
		}
	}
}

// lower adds what may leave the table now that an item is programmed, and
// takes back what was recorded of one that failed.
func (t *Target) lower(down change, it *item) {
	f, withdrawn := it.update.New, false
	switch {
	case it.clashes, it.blocked && it.have == nil && f != nil:
		// Not ours, or not there: nothing may be on record of it.
		t.held.set(it.key, nil)
		f, withdrawn = nil, true
	case f == nil && it.err() != nil:
		t.held.set(it.key, it.old) // still there, still ours
		return
	}
	if !stray(it.key) {
		elementChanges(change{}, down, it.key, it.old, f, it.repair || withdrawn)
	}
	gone := []netip.Addr{}
	for _, old := range []*vip.Frontend{it.old, it.update.Old, it.update.New} {
		if old != nil {
			gone = append(gone, t.held.hairpinsOf(old)...)
		}
	}
	if stray(it.key) { // something left over at this address
		gone = append(gone, it.key.Addr)
	}
	for _, a := range gone {
		if t.held.hairpins[a] == 0 {
			down[addrElement(setHairpin, a)] = false
		}
	}
	if t.held.vips[it.key.Addr] == 0 && !it.onHost() {
		down[addrElement(setVIPs, it.key.Addr)] = false
	}
}

// onHost reports whether the item never had to do with a virtual address.
func (it *item) onHost() bool {
	for _, f := range []*vip.Frontend{it.old, it.update.Old, it.update.New} {
		if f != nil && f.Kind == vip.OnVIP {
			return false
		}
	}
	return true
}

// filter brings the table up to date before anything is programmed: what is in
// up, or all of it where it has to be built.
func (t *Target) filter(ctx context.Context, up change) error {
	if pods := t.opt.PodCIDRs(); t.stalePods || !slices.Equal(pods, t.pods) {
		t.pods, t.stalePods = slices.Clone(pods), true
		before := t.held.hairpins
		held := newHoldings(podSet(pods))
		for k, f := range t.held.frontends {
			held.set(k, f)
		}
		same := held.pods.Equal(t.held.pods)
		t.held = held
		if !same && !t.broken {
			for a := range before {
				if held.hairpins[a] == 0 {
					up[addrElement(setHairpin, a)] = false
				}
			}
			for a := range held.hairpins {
				up[addrElement(setHairpin, a)] = true
			}
			err := t.orRebuild(ctx, t.fw.setPods(ctx, held.pods, up))
			t.stalePods = err != nil
			return err
		}
		t.stalePods = false // or built anew below
	}
	if t.broken {
		if len(t.held.frontends) == 0 && len(up) == 0 {
			return nil // nothing to filter for yet
		}
		return t.orRebuild(ctx, errNoTable)
	}
	return t.orRebuild(ctx, t.fw.apply(ctx, up))
}

// orRebuild builds the table where err says that it is missing.
func (t *Target) orRebuild(ctx context.Context, err error) error {
	if !errors.Is(err, errNoTable) {
		t.broken = t.broken && err != nil
		return err
	}
	t.broken = true
	if err := t.fw.rebuild(ctx, t.held.pods, t.held.all()); err != nil {
		return err
	}
	t.broken = false
	return nil
}

// dropAddresses takes the addresses off the device that nobody needs any more.
func (t *Target) dropAddresses(ctx context.Context, items []*item) error {
	var gone []netip.Addr
	by := map[netip.Addr]*item{}
	for _, it := range items {
		a := it.key.Addr
		if it.update.New == nil && !it.onHost() && t.held.vips[a] == 0 && by[a] == nil {
			gone, by[a] = append(gone, a), it
		}
	}
	return t.device.remove(ctx, gone, func(a netip.Addr, err error) { by[a].errs = append(by[a].errs, err) })
}

// addAddresses puts the addresses of new services on the device.
func (t *Target) addAddresses(ctx context.Context, items []*item) error {
	var fresh []netip.Addr
	by := map[netip.Addr]*item{}
	for _, it := range items {
		f, a := it.update.New, it.key.Addr
		if f != nil && f.Kind == vip.OnVIP && !it.clashes && !it.blocked && (it.old == nil || it.repair) && by[a] == nil {
			fresh, by[a] = append(fresh, a), it
		}
	}
	failed := func(a netip.Addr, err error) {
		if it := by[a]; it != nil {
			it.errs = append(it.errs, err)
		}
	}
	err := t.device.add(ctx, fresh, failed)
	if !errors.Is(err, unix.ENODEV) {
		return err
	}
	// Somebody deleted the device, and with it every address.
	if err := t.device.ensure(); err != nil {
		return err
	}
	fresh = fresh[:0]
	for a := range t.held.vips {
		fresh = append(fresh, a)
	}
	return t.device.add(ctx, fresh, failed)
}

// rounds bounds how often an item is read back and tried again in one Apply.
const rounds = 4

// program carries out the items' changes of services and destinations.
func (t *Target) program(ctx context.Context, items []*item) error {
	var stale flows
	todo := make([]*item, 0, len(items))
	for _, it := range items {
		if !it.clashes && !stray(it.key) {
			todo = append(todo, it)
		}
	}
	for round := 0; len(todo) > 0; round++ {
		if round == rounds {
			for _, it := range todo {
				it.errs = append(it.errs, fmt.Errorf("program %s: somebody else keeps changing it", it.key))
			}
			break
		}
		var ops []op
		for i, it := range todo {
			if it.unread {
				have, err := t.kernel.state(ctx, it.key)
				if err != nil {
					return err
				}
				if have != nil && !it.owned {
					if it.unread = false; it.want != nil {
						it.clash(&have.service)
					}
					continue
				}
				it.have = have
			}
			it.refused, it.unread, it.more = nil, false, false
			ops = it.plan(ops, i)
		}
		err := t.kernel.run(ctx, ops, func(i int, err error) { todo[ops[i].item].outcome(&ops[i], err, &stale) })
		if err != nil {
			return err
		}
		todo = slices.DeleteFunc(todo, func(it *item) bool { return it.clashes || it.blocked || !it.unread && !it.more })
	}
	if err := deleteFlows(&stale, &t.stats); err != nil {
		// Clients may be answered by a backend that left until their entries
		// expire; the services themselves are right.
		t.opt.Log.Warn("stale udp clients remain", "err", err)
	}
	return nil
}

// plan appends the item's next changes.
func (it *item) plan(ops []op, i int) []op {
	if it.want != nil && it.have == nil && !it.owned {
		// Destinations may follow once the service is known to be ours.
		it.more = true
		return append(ops, op{cmd: cmdNewService, service: &it.want.service, item: i})
	}
	return plan(ops, i, it.have, it.want)
}

// outcome books what became of one change.
func (it *item) outcome(o *op, err error, stale *flows) {
	if it.blocked || it.clashes {
		return // what follows a service that isn't there fails by itself
	}
	switch err {
	case nil:
		switch o.cmd {
		case cmdNewService:
			it.owned = true
			it.have = &state{service: *o.service}
			stale.frontend(it.key)
		case cmdDelService:
			stale.frontend(it.key)
		case cmdDelDest:
			stale.backend(it.key, o.dest.addr)
		}
		return
	case errUnknown:
		it.unread = true
		return
	}
	switch {
	case err == unix.ESRCH && o.cmd == cmdDelService:
	case err == unix.ENOENT && o.cmd == cmdDelDest:
	case err == unix.EEXIST, err == unix.ESRCH, err == unix.ENOENT && o.cmd == cmdSetDest:
		it.unread = true // not as it was believed to be
	case o.cmd == cmdNewService || o.cmd == cmdSetService || o.cmd == cmdDelService:
		it.blocked, it.unread, it.more = true, false, false
		it.refused = append(it.refused, explain(o, err))
	default:
		it.refused = append(it.refused, explain(o, err))
	}
}

// explain says what an error of the kernel means.
func explain(o *op, err error) error {
	p := vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("%s: %v", o, err)}
	service := o.cmd == cmdNewService || o.cmd == cmdSetService
	switch {
	case err == unix.ENOENT && service:
		p.Message = fmt.Sprintf("%s: the kernel has no scheduler %q", o, o.service.sched)
		p.Hint = "modprobe ip_vs_" + o.service.sched
	case err == unix.EINVAL && !service:
		p.Hint = "the kernel refuses multicast, broadcast and link-local addresses as backends, and any while no interface is up"
	case err == unix.EPERM || err == unix.EACCES:
		p.Hint = "the agent needs CAP_NET_ADMIN"
	case err == unix.EAFNOSUPPORT:
		p.Hint = "this kernel's ipvs has no IPv6"
	}
	return p
}

// Same implements reconcile.Target.
func (t *Target) Same(a, b *vip.Frontend) bool {
	x, y := desired(a), desired(b)
	return a.Kind == b.Kind && masquerade(a) == masquerade(b) && x.service == y.service && slices.Equal(x.dests, y.dests)
}

// damage collects what is wrong with one frontend in the kernel.
type damage []string

func (d *damage) addf(format string, args ...any) { *d = append(*d, fmt.Sprintf(format, args...)) }
