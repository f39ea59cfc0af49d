package ipvs

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/ipvs/internal/filter"
	"github.com/ironvip/ironvip/ipvs/internal/host"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/vip"
)

type (
	observed = reconcile.Observed[vip.Frontend]
	updateOf = reconcile.Update[vip.FrontendKey, vip.Frontend]
)

// Actual implements reconcile.Target. It costs one dump of all services and one
// of the destinations of each of ours, one reading of the table and one of the
// device.
//
// What is left over of a frontend whose service is gone comes under its own
// key, as damaged. An address that belongs to no frontend comes under port and
// protocol 0.
func (t *Target) Actual(ctx context.Context) iter.Seq2[observed, error] {
	return func(yield func(observed, error) bool) {
		all, err := t.load(ctx)
		if err != nil {
			yield(observed{}, err)
			return
		}
		for _, o := range all {
			if !yield(o, nil) {
				return
			}
		}
	}
}

// reading is the kernel as it was read.
type reading struct {
	table  *filter.Ruleset
	ranges map[vip.FrontendKey][]netip.Prefix // the table's source ranges
	marks  func(vip.FrontendKey) uint32
	device host.DeviceState
	// tunnels are the addresses that devices for tunnels are for, and whether these are whole.
	tunnels map[netip.Addr]bool
	states  map[vip.FrontendKey]*kernel.State
	// endpoints are those of the frontends that come of it.
	endpoints kernel.Slab[vip.Endpoint]
}

// load reads the kernel and makes what it found what the Target believes.
func (t *Target) load(ctx context.Context) ([]observed, error) {
	if t.unbuildable {
		// Reading works without the modules that writing needs, and says nothing about
		// whether the dataplane works.
		if err := t.fw.Missing(ctx); err != nil {
			return nil, err
		}
		t.unbuildable = false
	}
	r, err := t.read(ctx)
	if err != nil {
		return nil, err
	}
	t.pods = slices.Clone(t.opt.PodCIDRs())
	want := podSet(t.pods)
	held, broken := newHoldings(want), !r.table.Intact
	stale := !broken && !r.table.Pods.Equal(want)
	if stale {
		// What the table has was made for these; the next Apply goes from them to those wanted.
		held.pods = r.table.Pods
	}
	all := t.interpret(r)
	for i := range all {
		held.set(all[i].Value.Key, &all[i].Value)
		if f := &all[i].Value; (f.Kind == vip.OnRealServer) == t.opt.RealServer {
			t.needs = t.needs.with(f) // an agent that adopts all has no other occasion
		}
	}
	for i := range all {
		t.inspect(&all[i], r, held, broken)
	}
	untuned := t.untuned()
	if len(all) > 0 {
		// What concerns all alike is mended by any repair: one is enough.
		first := slices.MinFunc(all, func(a, b observed) int { return vip.CompareFrontendKeys(a.Value.Key, b.Value.Key) }).Value.Key
		i := slices.IndexFunc(all, func(o observed) bool { return o.Value.Key == first })
		if stale {
			all[i].Damage = append(all[i].Damage, "pod ranges in the nftables table are not as configured")
		}
		all[i].Damage = append(all[i].Damage, untuned...)
	}
	all = append(all, strays(r, held)...)
	t.held, t.broken, t.stalePods, t.loaded, t.wide = held, broken, stale, true, r.device.Wide
	return all, nil
}

// untuned names the sysctls that are to be set: those that were as they should be
// and no longer are, and those that were never tried. Of the others it notes which
// somebody has put right.
func (t *Target) untuned() []string {
	var out []string
	if f := t.sysctl.Check(expireConnections); t.keeping && !f.OK {
		out = append(out, f.Name+" "+f.Detail)
	}
	for _, w := range t.wantedSettings() {
		f := t.sysctl.Check(w)
		switch before, known := t.findings.Get(f.Name); {
		case f.OK:
			t.findings.Set(f)
		case !known || before.OK:
			out = append(out, f.Name+" "+f.Detail)
		}
	}
	return out
}

// read reads everything that may be ours.
func (t *Target) read(ctx context.Context) (*reading, error) {
	r := &reading{ranges: map[vip.FrontendKey][]netip.Prefix{}, marks: t.marks.get}
	var err error
	if r.table, err = t.fw.Read(ctx); err != nil {
		return nil, err
	}
	t.learnMarks(r.table)
	for e := range r.table.Others {
		if e.Source.IsValid() {
			r.ranges[e.Key] = append(r.ranges[e.Key], e.Source)
		}
	}
	if r.device, err = t.device.Read(); err != nil {
		return nil, err
	}
	if r.tunnels, err = t.tunnels.Read(); err != nil {
		return nil, err
	}
	services, err := t.kernel.Services(ctx)
	if err != nil {
		return nil, err
	}
	t.marks.forgetForeign()
	r.states = make(map[vip.FrontendKey]*kernel.State, len(services))
	all := make([]kernel.State, len(services))
	room := kernel.Slab[kernel.Dest]{Size: kernel.SlabSize}
	r.endpoints.Size = kernel.SlabSize
	for i := range services {
		s := &services[i]
		if s.Mark != 0 {
			var known bool
			mark := s.Mark
			if s.Key, known = t.marks.frontend(mark, vip.FamilyOf(s.Key.Addr)); !known {
				t.marks.avoid(mark)
				continue
			}
		}
		if r.states[s.Key] != nil || s.Mark == 0 && !t.ours(s.Key, r.table) {
			continue
		}
		if err := t.kernel.StateOf(ctx, s, &all[i], &room); err != nil {
			return nil, err
		}
		r.states[s.Key] = &all[i]
	}
	return r, nil
}

// learnMarks takes over the marks that the table has on record. One that isn't
// what this Target made it is a foreign hand's work: the table is built anew.
func (t *Target) learnMarks(table *filter.Ruleset) {
	for e := range table.Others {
		if e.Set.IsMap() && !t.marks.learn(e.Key, e.Mark) {
			table.Intact = false
		}
	}
}

// ours reports whether a service at key is ours.
func (t *Target) ours(k vip.FrontendKey, table *filter.Ruleset) bool {
	return t.opt.Owns(k.Addr) || t.held.frontends[k] != nil ||
		table.Has(filter.Element{Set: filter.SetFrontends, Key: k}) || table.Has(filter.Element{Set: filter.SetNodePorts, Key: k})
}

// has reports whether s, or the set that has its part, has a frontend.
func (r *reading) has(s filter.Set, k vip.FrontendKey) bool {
	if !filter.ByMark(k) {
		return r.table.Sets[k]&(1<<s) != 0
	}
	return r.table.Has(filter.ElementOf(s, k, r.marks(k)))
}

// interpret makes frontends of what was read: one for each service of ours, and
// one for each that has left elements behind.
func (t *Target) interpret(r *reading) []observed {
	all := make([]observed, 0, len(r.states))
	for k, s := range r.states {
		all = append(all, observed{Value: t.frontend(k, r, s)})
	}
	seen := map[vip.FrontendKey]bool{}
	left := func(k vip.FrontendKey) {
		if r.states[k] != nil || seen[k] {
			return
		}
		seen[k] = true
		o := observed{Value: t.frontend(k, r, nil)}
		if o.Value.Kind == vip.OnRealServer {
			realServer(&o.Value, t.held.frontends[k], r.tunnels)
		} else {
			o.Damage = append(o.Damage, "ipvs service missing")
		}
		all = append(all, o)
	}
	for k, sets := range r.table.Sets {
		if sets&^filter.BitsOfOthers != 0 {
			left(k)
		}
	}
	for e := range r.table.Others {
		if e.Set.OfFrontends() {
			left(e.Key)
		}
	}
	if !r.table.Intact {
		// What has nothing but elements is not to be seen without them.
		for k, f := range t.held.frontends {
			if f.Kind == vip.OnRealServer && r.states[k] == nil && !seen[k] {
				all = append(all, observed{Value: *f})
			}
		}
	}
	return all
}

// frontend is what a service in the kernel, which may be missing, amounts to.
func (t *Target) frontend(k vip.FrontendKey, r *reading, s *kernel.State) vip.Frontend {
	sets, marked := r.table.Sets[k], filter.ByMark(k)
	has := func(s filter.Set) bool { return sets&(1<<s) != 0 || marked && r.has(s, k) }
	f := vip.Frontend{Key: k, Kind: vip.OnVIP, Forward: vip.ForwardNAT, Masquerade: vip.MasqueradeNever}
	before := t.held.frontends[k]
	switch {
	case s == nil && (has(filter.SetServed) || has(filter.SetServedRanges)) && !has(recordOf(&f)):
		f.Kind, f.Forward = vip.OnRealServer, 0 // which nothing there tells
		return f
	case has(filter.SetNodePorts), !has(filter.SetFrontends) && before != nil && before.Kind == vip.OnHost:
		f.Kind = vip.OnHost
	}
	switch {
	case has(filter.SetMasqAlways):
		f.Masquerade = vip.MasqueradeAlways
	case has(filter.SetMasqAuto):
		f.Masquerade = vip.MasqueradeAuto
	case has(filter.SetMasqOwn):
		f.Masquerade = vip.MasqueradeOwn
	case !r.table.Intact && before != nil: // the elements may have gone with the table
		f.Masquerade = before.Masquerade
	}
	switch f.SourceRanges = r.ranges[k]; {
	case f.SourceRanges == nil && has(filter.SetRestricted):
		f.SourceRanges = nobody
	case !r.table.Intact && before != nil && f.SourceRanges == nil:
		f.SourceRanges = before.SourceRanges
	}
	if s == nil {
		return f
	}
	f.Scheduler = kernel.SchedulerOf(s.Scheduler)
	if hashes(f.Scheduler) {
		f.SchedulerFallback = s.Flags&kernel.FlagSched1 != 0
		f.SchedulerPort = s.Flags&kernel.FlagSched2 != 0
	}
	if s.Flags&kernel.FlagPersistent != 0 {
		f.Affinity = time.Duration(s.Timeout) * time.Second
	}
	f.OnePacket = s.Flags&kernel.FlagOnePacket != 0
	if f.Forward = forwardOf(s.Dests); f.OnePacket && len(s.Dests) == 0 {
		f.Forward = vip.ForwardDirect // with nat there is none
	}
	f.Backends = r.endpoints.Cut(len(s.Dests))
	for i, d := range s.Dests {
		f.Backends[i] = vip.Endpoint{Addr: d.Addr, Weight: d.Weight}
	}
	return f
}

// inspect looks for what the frontend can't express: parts that are missing,
// and oddities that only a foreign hand puts there.
func (t *Target) inspect(o *observed, r *reading, held *holdings, broken bool) {
	d := damage(o.Damage)
	if broken {
		d.addf("nftables table inet %s is missing or not as it should be", t.opt.Table)
	}
	f := &o.Value
	for _, a := range tunnelsHere(f) {
		if !r.tunnels[a] {
			d.addf("the device that takes packets for %s out of tunnels is missing or not as it should be", a)
		}
	}
	if onDevice(f) {
		if r.device.Fault != "" {
			d.addf("device %s %s", t.opt.Device, r.device.Fault)
		}
		if _, ok := r.device.Addrs[o.Value.Key.Addr]; !ok {
			d.addf("address %s missing from %s", o.Value.Key.Addr, t.opt.Device)
		}
	}
	if !broken {
		t.inspectElements(&d, f, r, held)
	}
	if s := r.states[o.Value.Key]; s != nil {
		whole := desiredService(f, s.Mark)
		if f.Scheduler == vip.OtherScheduler { // a frontend can't say which
			d.addf("scheduler is %s", s.Scheduler)
			whole.Scheduler = s.Scheduler
		}
		if s.Service != whole {
			d.addf("service has flags %#x, timeout %d, netmask %#x, persistence engine %q", s.Flags, s.Timeout, s.Netmask, s.PE)
		}
		if a := astray(s); a.IsValid() {
			d.addf("destinations are in another order than on other hosts, from %s on: %s goes by it", a, s.Scheduler)
		}
		for _, x := range s.Dests {
			if (x != kernel.Dest{Addr: x.Addr, Weight: x.Weight, Forward: methodOf(f.Forward)}) {
				d.addf("destination %s has forwarding method %d, thresholds %d and %d, tunnel %v", x.Addr, x.Forward, x.Upper, x.Lower, x.Tunnel)
			}
		}
	}
	o.Damage = d
}

// inspectElements compares the sets with what f needs.
func (t *Target) inspectElements(d *damage, f *vip.Frontend, r *reading, held *holdings) {
	mark := r.marks(f.Key)
	t.room.needed = elements(t.room.needed[:0], f, mark)
	t.room.had = possible(t.room.had[:0], f.Key, mark)
	want := t.room.needed
	for _, e := range t.room.had {
		if !slices.Contains(want, e) && r.table.Has(e) {
			d.addf("should not be: %s", e)
		}
	}
	want = sourceElements(want, f, mark)
	if onDevice(f) {
		want = append(want, filter.AddrElement(filter.SetVIPs, f.Key.Addr))
	}
	for _, a := range held.hairpinsOf(f) {
		want = append(want, filter.AddrElement(filter.SetHairpin, a))
	}
	t.room.needed = want
	for _, e := range want {
		if !r.table.Has(e) && (r.states[f.Key] != nil || !e.Set.Refuses()) {
			d.addf("missing: %s", e)
		}
	}
}

// stray reports whether a key stands for what is left over at an address, not
// for a frontend.
func stray(k vip.FrontendKey) bool { return k.Protocol == 0 }

// strays returns what is ours and belongs to no frontend, one for an address.
func strays(r *reading, held *holdings) []observed {
	found := map[netip.Addr]damage{}
	for a := range r.device.Addrs {
		if held.vips[a] == 0 {
			found[a] = append(found[a], fmt.Sprintf("address %s belongs to no service", a))
		}
	}
	for _, p := range r.device.Wide {
		found[p.Addr()] = append(found[p.Addr()], fmt.Sprintf("address %s sends all of %s to the device", p, p.Masked()))
	}
	for k, sets := range r.table.Sets {
		a := k.Addr
		if sets&(1<<filter.SetVIPs) != 0 && held.vips[a] == 0 {
			found[a] = append(found[a], fmt.Sprintf("should not be: %s", filter.AddrElement(filter.SetVIPs, a)))
		}
		if sets&(1<<filter.SetHairpin) != 0 && held.hairpins[a] == 0 {
			found[a] = append(found[a], fmt.Sprintf("should not be: %s", filter.AddrElement(filter.SetHairpin, a)))
		}
	}
	for a := range r.tunnels {
		if held.tunnels[a] == 0 {
			found[a] = append(found[a], fmt.Sprintf("the device that takes packets for %s out of tunnels belongs to no service", a))
		}
	}
	out := make([]observed, 0, len(found))
	for a, d := range found {
		out = append(out, observed{Value: vip.Frontend{Key: vip.FrontendKey{Addr: a}, Kind: vip.OnVIP}, Damage: d, Orphan: true})
	}
	return out
}

// damage collects what is wrong with one frontend in the kernel.
type damage []string

func (d *damage) addf(format string, args ...any) { *d = append(*d, fmt.Sprintf(format, args...)) }
