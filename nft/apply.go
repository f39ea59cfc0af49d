package nft

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

type (
	observed = reconcile.Observed[vip.Frontend]
	updateOf = reconcile.Update[vip.FrontendKey, vip.Frontend]
)

// item is one accepted update.
type item struct {
	*updateOf
	had     *vip.Frontend // the recorded frontend
	old     *service      // what the table has
	service *service      // what it shall have
}

// orphan reports whether the key stands for leftovers at an address instead of a frontend.
func (it *item) orphan() bool { return it.Key.Whole() }

// onVIP reports whether the update concerns a virtual address, before or after.
func (it *item) onVIP() bool {
	for _, f := range []*vip.Frontend{it.had, it.Old, it.New} {
		if f != nil && usage.OnDevice(f) {
			return true
		}
	}
	return it.orphan()
}

// Apply implements reconcile.Target. A batch is one transaction. It costs as many elements as
// change, and at most two messages for each set with changes. After an error, and for a repair after another program has
// touched the table, it reads the table.
func (t *Target) Apply(ctx context.Context, batch []updateOf) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	repair := slices.ContainsFunc(batch, func(u updateOf) bool { return u.Repair })
	if !t.adopted || repair && t.drift.Touched() {
		if _, err := t.readState(ctx); err != nil {
			return err
		}
	}
	err := t.apply(ctx, batch, repair)
	t.adopted = err == nil
	return err
}

func (t *Target) apply(ctx context.Context, batch []updateOf, repair bool) error {
	items := t.accept(batch)
	if t.unused.n >= maxUnusedShares || t.unused.returns(items) {
		t.forget(ctx)
	}
	if err := t.updatePods(ctx); err != nil {
		return err
	}
	if err := t.commit(ctx, items, t.record(items, repair)); err != nil {
		return err
	}
	if repair {
		t.setSysctls()
	}
	return nil
}

// accept turns a batch into items. It rejects the updates that this dataplane can't carry out.
func (t *Target) accept(batch []updateOf) []*item {
	items := make([]*item, 0, len(batch))
	needs := t.needs
	for i := range batch {
		u := &batch[i]
		it := &item{updateOf: u, had: t.records.Frontends[u.Key], old: t.content.services[u.Key]}
		if u.Err = t.admit(it, batch[:i], batch[i+1:]); u.Err != nil {
			continue
		}
		if u.New != nil {
			if it.old == nil && len(t.content.services)+i >= maxServices {
				u.Err = noNumber(u.Key, "services", maxServices)
				continue
			}
			it.service = desired(u.New, it.old, &t.content.highest)
			if u.Err = t.number(it.service, items); u.Err != nil {
				continue
			}
			needs = needs.with(u.New)
		}
		items = append(items, it)
	}
	if needs != t.needs || len(t.records.Frontends) == 0 { // without a frontend, drift of the sysctls isn't repaired
		t.needs = needs
		t.setSysctls()
	}
	return items
}

// admit checks whether an update can be carried out.
func (t *Target) admit(it *item, before, after []updateOf) error {
	f := it.New
	if f == nil {
		return nil
	}
	if err := Unsupported(f); err != nil {
		return err
	}
	for _, trial := range filter.LimitTrials(f) {
		if t.has[trial.Module] {
			continue
		}
		if tried := trial.Try(context.Background()); !tried.OK {
			p := vip.Unsupported("this host's kernel", trial.Field, fmt.Sprintf("%s: %s", trial.Field, tried.Detail))
			p.Hint = tried.Remedy
			return p
		}
		t.has[trial.Module] = true
	}
	if f.Kind == vip.OnHost && it.old == nil {
		if err := t.free(it.Key); err != nil {
			return err
		}
	}
	for _, u := range before {
		if u.New != nil && u.Err == nil && usage.Clash(f, u.New) {
			return usage.PortsStillUsed(f.Key, u.Key)
		}
	}
	return t.records.Overlaps(f, func(k vip.FrontendKey) bool {
		goes := func(u updateOf) bool { return u.Key == k && u.New == nil }
		return slices.ContainsFunc(before, goes) || slices.ContainsFunc(after, goes)
	})
}

// updatePods brings the pod ranges up to date.
func (t *Target) updatePods(ctx context.Context) error {
	if pods := t.opt.PodCIDRs(); !slices.Equal(pods, t.pods) || !usage.PodSet(pods).Equal(t.records.Pods) {
		return t.setPods(ctx, pods)
	}
	return nil
}

// record records the items, and returns what that changes in the sets of every dataplane.
func (t *Target) record(items []*item, repair bool) filter.Change {
	shared := filter.Change{}
	var hairpins []netip.Addr
	for _, it := range items {
		for _, f := range []*vip.Frontend{it.had, it.Old, it.New} {
			if f != nil {
				hairpins = append(hairpins, t.records.HairpinsOf(f)...)
			}
		}
		if it.orphan() {
			hairpins = append(hairpins, it.Key.Addr)
		}
	}
	slices.SortFunc(hairpins, netip.Addr.Compare)
	hairpins = slices.Compact(hairpins)
	repair = repair || slices.ContainsFunc(items, (*item).orphan)
	count := func(set filter.Set, a netip.Addr, before, now int) {
		if repair || (before > 0) != (now > 0) {
			shared[filter.AddrElement(set, a)] = now > 0
		}
	}
	before := make([]int, len(hairpins))
	for i, a := range hairpins {
		before[i] = t.records.Hairpins[a]
	}
	vips := map[netip.Addr]int{}
	for _, it := range items {
		if _, seen := vips[it.Key.Addr]; !seen && it.onVIP() {
			vips[it.Key.Addr] = t.records.VIPs[it.Key.Addr]
		}
	}
	for _, it := range items {
		if !it.orphan() {
			t.reading.Lock()
			t.records.Set(it.Key, it.New)
			t.reading.Unlock()
		}
	}
	for i, a := range hairpins {
		count(filter.SetHairpin, a, before[i], t.records.Hairpins[a])
	}
	for a, had := range vips {
		count(filter.SetVIPs, a, had, t.records.VIPs[a])
	}
	return shared
}

// commit sends the transaction.
func (t *Target) commit(ctx context.Context, items []*item, shared filter.Change) error {
	d := newDiff()
	for _, it := range items {
		if it.orphan() {
			continue
		}
		if it.service != nil {
			t.content.put(it.service)
		} else {
			t.content.drop(it.Key)
		}
		d.change(it.old, it.service)
		if it.Repair && it.old != nil && it.service != nil {
			totals(it.Key, func(e element) { d.adds[e.set] = append(d.adds[e.set], valued{e, ""}) })
		}
		t.unused.leave(it)
		t.leave(it)
	}
	t.broken = t.broken || t.content.highest.exhausted()
	var err error = filter.ErrNoTable
	if !t.broken {
		err = t.fw.ApplyWith(ctx, shared, func(x *nftwire.Transaction) error {
			if err := t.addClasses(x, items); err != nil {
				return err
			}
			d.put(x, t.opt.table())
			for _, it := range items {
				if it.old.limited() && !it.service.limited() && it.Key.Audience == vip.Everyone {
					t.fw.ForgetRefusals(x, it.Key, it.old.class.limits, it.old.class.synProxy)
				}
			}
			return nil
		})
	} else if len(t.records.Frontends) == 0 {
		return nil // the table isn't needed yet
	}
	if errors.Is(err, filter.ErrNoTable) {
		err = t.rebuild(ctx)
	}
	return err
}

// addClasses adds the classes that the items' services are the first to have.
func (t *Target) addClasses(x *nftwire.Transaction, items []*item) error {
	for _, it := range items {
		if it.service == nil {
			continue
		}
		if err := t.addClass(x, it.service); err != nil {
			return err
		}
	}
	return nil
}

func (t *Target) addClass(x *nftwire.Transaction, s *service) error {
	o := originOf(s.key)
	if s.class.synProxy && !t.content.synProxy {
		t.content.synProxy = true
		if err := t.layout.AddSynProxy(x, guarded); err != nil {
			return err
		}
	}
	if t.content.chains[o][s.class] {
		return nil
	}
	t.content.chains[o][s.class] = true
	return addClass(x, t.layout, s.class, s.classNo, o)
}

// number gives a service that items comes before the number of its class. If all are taken, the table will be
// rebuilt, which frees those that no service has any more.
func (t *Target) number(s *service, items []*item) error {
	err := t.content.number(s)
	if err == nil {
		return nil
	}
	used := map[class]bool{s.class: true}
	for _, one := range t.content.services {
		used[one.class] = true
	}
	for _, it := range items {
		if it.service != nil {
			used[it.service.class] = true
		}
	}
	if len(used) > maxClass {
		return err
	}
	t.broken = true
	return nil
}

// noNumber is the problem of a frontend that the table has no room for.
func noNumber(k vip.FrontendKey, of string, most int) vip.Problem {
	return vip.Problem{Code: vip.CodeDataplane, Message: fmt.Sprintf("%s isn't programmed: the table has room for %d %s", k, most, of)}
}

// number gives a service the number of its class.
func (c *content) number(s *service) error {
	n, known := c.classes[s.class]
	if !known {
		if len(c.classes) >= maxClass {
			p := noNumber(s.key, "different settings", maxClass)
			p.Hint = "use fewer different numbers of backends, weights and affinity timeouts"
			return p
		}
		n = c.nextClass()
		c.classes[s.class] = n
	}
	s.classNo = n
	return nil
}

// rebuild replaces the whole table in one transaction. All numbers begin anew: no client's element has
// one.
func (t *Target) rebuild(ctx context.Context) error {
	t.broken = true
	t.unused.clear()
	shared := make(filter.Change, len(t.records.VIPs)+len(t.records.Hairpins))
	shared.Put(filter.SetVIPs, t.records.VIPs, true)
	shared.Put(filter.SetHairpin, t.records.Hairpins, true)
	fresh := newContent()
	t.content.synProxy = false
	t.content.classes, t.content.chains, t.content.highest, t.content.byNumber, t.content.lastClass = fresh.classes, fresh.chains, fresh.highest, fresh.byNumber, fresh.lastClass
	for _, s := range t.content.services {
		s.renumber(&t.content.highest)
		t.content.byNumber[s.number] = s
		if err := t.content.number(s); err != nil {
			return err
		}
	}
	err := t.fw.RebuildWith(ctx, t.records.Pods, shared, func(x *nftwire.Transaction) error {
		addShards(x, t.opt.table())
		d := newDiff()
		for _, s := range t.content.services {
			if err := t.addClass(x, s); err != nil {
				return err
			}
			d.change(nil, s)
		}
		d.put(x, t.opt.table())
		return nil
	})
	if errors.Is(err, filter.ErrNoTable) {
		// The kernel answers ENOENT for a missing module, too.
		if missing := t.fw.Missing(ctx); missing != nil {
			return missing
		}
	}
	t.broken = err != nil
	if err == nil {
		for k := range t.content.services {
			t.unserved(k)
		}
	}
	return err
}

// setPods replaces the pod ranges, and the hairpin elements that depend on them.
func (t *Target) setPods(ctx context.Context, pods []netip.Prefix) error {
	now, before := t.records.With(usage.PodSet(pods)), t.records
	t.replaceRecords(now)
	t.pods = slices.Clone(pods)
	if t.broken || now.Pods.Equal(before.Pods) {
		return nil
	}
	c := filter.Change{}
	c.Put(filter.SetHairpin, before.Hairpins, false)
	c.Put(filter.SetHairpin, now.Hairpins, true)
	err := t.fw.SetPods(ctx, now.Pods, c)
	if errors.Is(err, filter.ErrNoTable) {
		t.broken, err = true, nil
	}
	return err
}

// diff collects the changes of the table's own maps.
type diff struct {
	dels map[setID][]element
	adds map[setID][]valued
	had  map[element]string
}

type valued struct {
	element
	value string
}

func newDiff() *diff {
	return &diff{dels: map[setID][]element{}, adds: map[setID][]valued{}, had: map[element]string{}}
}

// change adds the changes from one service to another. Either may be nil.
func (d *diff) change(old, now *service) {
	clear(d.had)
	if old != nil {
		old.elements(func(e element, value string) { d.had[e] = value })
	}
	if now != nil {
		now.elements(func(e element, value string) {
			before, known := d.had[e]
			delete(d.had, e)
			if known && before == value {
				return
			}
			if known { // the kernel doesn't replace values
				d.dels[e.set] = append(d.dels[e.set], e)
			}
			d.adds[e.set] = append(d.adds[e.set], valued{e, value})
		})
	}
	for e := range d.had {
		d.dels[e.set] = append(d.dels[e.set], e)
	}
}

// elementsPerMessage bounds a message: a netlink attribute holds 64 KiB, an element takes 120 bytes at
// most.
const elementsPerMessage = 512

// put appends the changes to a transaction: removals first.
func (d *diff) put(x *nftwire.Transaction, table string) {
	for set, all := range d.dels {
		for chunk := range slices.Chunk(all, elementsPerMessage) {
			list := x.BeginElements(unix.NFT_MSG_DELSETELEM, 0, table, set.String())
			for _, e := range chunk {
				x.AddElement(&nftwire.Element{Key: []byte(e.key), End: []byte(e.end)})
			}
			x.EndElements(list)
		}
	}
	for set, all := range d.adds {
		for chunk := range slices.Chunk(all, elementsPerMessage) {
			flags := uint16(unix.NLM_F_CREATE | unix.NLM_F_EXCL)
			if set.kind == kindTotals { // a repair adds what may be there
				flags = unix.NLM_F_CREATE
			}
			list := x.BeginElements(unix.NFT_MSG_NEWSETELEM, flags, table, set.String())
			for _, e := range chunk {
				x.AddElement(&nftwire.Element{Key: []byte(e.key), End: []byte(e.end), Value: []byte(e.value)})
			}
			x.EndElements(list)
		}
	}
}

// leave adds the connections that an item makes outdated: those with removed backends, and, when a
// frontend gets its first backend, those of clients that came too early.
func (t *Target) leave(it *item) {
	for _, f := range []*vip.Frontend{it.had, it.Old} {
		if f == nil {
			continue
		}
		for _, b := range f.Backends {
			if !usage.HasBackend(it.New, b.Addr) {
				t.outdated.Add(it.Key, b.Addr)
			}
		}
	}
	if it.New != nil && it.New.Usable() && (it.had == nil || !it.had.Usable()) {
		t.unserved(it.Key)
	}
}

// unserved adds the clients that came to a frontend while this host answered them itself. Clients of UDP would stay with it
// as long as they send.
func (t *Target) unserved(k vip.FrontendKey) {
	if k.Protocol == vip.UDP {
		t.outdated.Add(k, netip.AddrPort{})
	}
}

// otherAudience returns the key of the frontend at the same place for the other clients.
func otherAudience(k vip.FrontendKey) vip.FrontendKey {
	k.Audience = vip.InternalClients - k.Audience
	return k
}

// Unclean implements reconcile.Target. Until a change that failed is repaired, the records aren't what the table has.
func (t *Target) Unclean() bool { return t.adopted && t.outdated.Unclean() }

// Clean implements reconcile.Target: it ends connections with backends that left.
func (t *Target) Clean(ctx context.Context) error { return t.outdated.Clean(ctx, t.records) }

// Suspect implements reconcile.Target.
func (t *Target) Suspect() { t.outdated.Suspect() }
