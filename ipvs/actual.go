package ipvs

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

type (
	observed = reconcile.Observed[vip.Frontend]
	updateOf = reconcile.Update[vip.FrontendKey, vip.Frontend]
)

// Actual implements reconcile.Target. It costs one dump of all services, one dump of
// destinations per service of ours, and one read of the table.
//
// A frontend without a service that has other parts is yielded as damaged, under its
// key. Elements and tunnels of no frontend have port and protocol 0.
func (t *Target) Actual(ctx context.Context) iter.Seq2[observed, error] {
	return reconcile.ReadAll(ctx, t.readState)
}

// kernelState is what readKernel found.
type kernelState struct {
	table  *filter.Ruleset
	ranges map[vip.FrontendKey][]netip.Prefix // the table's source ranges
	marks  func(vip.FrontendKey) uint32
	// tunnels are the addresses of our tunnel devices, and whether each device is intact.
	tunnels map[netip.Addr]bool
	states  map[vip.FrontendKey]*kernel.State
}

// readState reads the kernel and replaces the records by what it found.
func (t *Target) readState(ctx context.Context) ([]observed, error) {
	if t.unbuildable {
		// A read works without the modules that a write needs. So a successful read doesn't
		// mean that the dataplane works again.
		if err := t.fw.Missing(ctx); err != nil {
			return nil, err
		}
		t.unbuildable = false
	}
	t.drift.Take(nil) // what follows shows it, too
	r, err := t.readKernel(ctx)
	if err != nil {
		return nil, err
	}
	t.pods = slices.Clone(t.opt.PodCIDRs())
	want := usage.PodSet(t.pods)
	held, broken := usage.NewRecords(want), !r.table.Intact
	stale := !broken && !r.table.Pods.Equal(want)
	if stale {
		// The records describe the table. The next Apply changes it to the wanted ranges.
		held.Pods = r.table.Pods
	}
	all := t.interpret(r)
	t.optional = optionalSettings{}
	for i := range all {
		held.Set(all[i].Value.Key, &all[i].Value)
		if f := &all[i].Value; (f.Kind == vip.OnRealServer) == t.opt.RealServer {
			t.optional = t.optional.with(f) // Apply may have nothing to do after a restart
		}
	}
	for i := range all {
		t.inspect(&all[i], r, held, broken)
	}
	shared := t.sysctlDrift()
	if stale {
		shared = append(shared, filter.StalePods)
	}
	if broken && t.adopted {
		shared = append(shared, filter.Damage(t.opt.table()))
	}
	usage.Blame(all, shared)
	all = append(all, orphans(r, held)...)
	t.records, t.broken, t.stalePods, t.adopted = held, broken, stale, true
	return all, nil
}

// sysctlDrift returns the sysctls that have changed since they were set, and those that
// were never set. It records which of the others have been repaired.
func (t *Target) sysctlDrift() []string {
	var out []string
	if f := t.sysctl.Check(expireConnections); t.expiryOff && !f.OK {
		out = append(out, f.Name+" "+f.Detail)
	}
	out = append(out, host.Drift(&t.findings, t.sysctl, t.wantedSettings())...)
	if t.optional.idle == 0 {
		t.findings.Drop(func(name string) bool { return name == timeoutName })
	} else if f := t.checkTimeout(); t.findings.Drifted(f) {
		out = append(out, f.Name+" "+f.Detail)
	}
	return out
}

// readKernel reads everything that may be ours.
func (t *Target) readKernel(ctx context.Context) (*kernelState, error) {
	r := &kernelState{ranges: map[vip.FrontendKey][]netip.Prefix{}, marks: t.marks.get}
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
	if r.tunnels, err = t.tunnels.Read(); err != nil {
		return nil, err
	}
	services, err := t.kernel.Services(ctx)
	if err != nil {
		return nil, err
	}
	t.marks.clearForeign()
	r.states = make(map[vip.FrontendKey]*kernel.State, len(services))
	for i := range services {
		s := &services[i]
		key, known := t.frontendOf(s)
		if !known {
			t.marks.markForeign(s.Mark)
			continue
		}
		s.Key = key
		if r.states[s.Key] != nil || s.Mark == 0 && !t.ours(s.Key, r.table) {
			continue
		}
		if r.states[s.Key], err = t.kernel.StateOf(ctx, s); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// learnMarks adopts the marks in the table. If one differs from the record, another
// program has changed the table, which is then rebuilt.
func (t *Target) learnMarks(table *filter.Ruleset) {
	for e := range table.Others {
		if e.Set.IsMap() && !t.marks.adopt(e.Key, e.Mark) {
			table.Intact = false
		}
	}
}

// ours reports whether the service at k is ours.
func (t *Target) ours(k vip.FrontendKey, table *filter.Ruleset) bool {
	return t.opt.Owns(k.Addr) || t.records.Frontends[k] != nil ||
		table.Has(filter.Element{Set: filter.SetFrontends, Key: k}) || table.Has(filter.Element{Set: filter.SetNodePorts, Key: k})
}

// has reports whether k is in set s, or in its counterpart for marks.
func (r *kernelState) has(s filter.Set, k vip.FrontendKey) bool {
	if !filter.ByMark(k) {
		return r.table.Sets[k]&(1<<s) != 0
	}
	return r.table.Has(filter.ElementOf(s, k, r.marks(k)))
}

// eachRecorded calls f with the key of each frontend that the table has elements of, perhaps several times.
func (r *kernelState) eachRecorded(f func(vip.FrontendKey)) {
	for k, sets := range r.table.Sets {
		if sets&^filter.BitsOfOthers != 0 {
			f(k)
		}
	}
	for e := range r.table.Others {
		if e.Set.OfFrontends() {
			f(e.Key)
		}
	}
}

// interpret returns one frontend for each service of ours, and one for each key that
// only has elements.
func (t *Target) interpret(r *kernelState) []observed {
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
			completeRealServer(&o.Value, t.records.Frontends[k], r.tunnels)
		} else {
			o.Damage = append(o.Damage, "ipvs service missing")
		}
		all = append(all, o)
	}
	r.eachRecorded(left)
	if !r.table.Intact {
		// Without the table, nothing in the kernel shows a real server's frontends.
		for k, f := range t.records.Frontends {
			if f.Kind == vip.OnRealServer && r.states[k] == nil && !seen[k] {
				all = append(all, observed{Value: *f})
			}
		}
	}
	return all
}

// frontend returns the frontend that the kernel's state at k stands for. S is nil if
// there is no service.
func (t *Target) frontend(k vip.FrontendKey, r *kernelState, s *kernel.State) vip.Frontend {
	sets, marked := r.table.Sets[k], filter.ByMark(k)
	has := func(s filter.Set) bool { return sets&(1<<s) != 0 || marked && r.has(s, k) }
	f := vip.Frontend{Key: k, Kind: vip.OnVIP, Forward: vip.ForwardNAT, Masquerade: vip.MasqueradeNever}
	before := t.records.Frontends[k]
	if before != nil {
		f.Relay = before.Relay // the kernel doesn't have it
	}
	switch {
	case s == nil && (has(filter.SetServed) || has(filter.SetServedRanges)) && !has(recordOf(&f)):
		f.Kind, f.Forward = vip.OnRealServer, 0 // unknown here; see completeRealServer
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
	case !r.table.Intact && before != nil: // the elements may be lost with the table
		f.Masquerade = before.Masquerade
	}
	switch f.SourceRanges = r.ranges[k]; {
	case f.SourceRanges == nil && has(filter.SetRestricted):
		f.SourceRanges = usage.NoClient
	case !r.table.Intact && before != nil && f.SourceRanges == nil:
		f.SourceRanges = before.SourceRanges
	}
	if s == nil {
		return f
	}
	f.Scheduler = kernel.SchedulerOf(s.Scheduler)
	if isHash(f.Scheduler) {
		f.SchedulerFallback = s.Flags&kernel.FlagSched1 != 0
		f.SchedulerPort = s.Flags&kernel.FlagSched2 != 0
	}
	if s.Flags&kernel.FlagPersistent != 0 {
		f.Affinity = time.Duration(s.Timeout) * time.Second
	}
	f.OnePacket = s.Flags&kernel.FlagOnePacket != 0
	if f.Forward = forwardOf(s.Dests); f.OnePacket && len(s.Dests) == 0 {
		f.Forward = vip.ForwardDirect // one-packet is never nat
	}
	f.Backends = make([]vip.Endpoint, len(s.Dests))
	for i, d := range s.Dests {
		f.Backends[i] = vip.Endpoint{Addr: d.Addr, Weight: uint16(min(d.Weight, vip.MaxWeight)), MaxConnections: d.Upper}
	}
	return f
}

// inspect adds the damage that a frontend can't express: missing parts, and settings
// that only another program makes.
func (t *Target) inspect(o *observed, r *kernelState, held *usage.Records, broken bool) {
	d := damage(o.Damage)
	if broken && !t.adopted { // at the start, any of them may be the first that is desired
		d = append(d, filter.Damage(t.opt.table()))
	}
	f := &o.Value
	for _, a := range usage.LocalTunnels(f) {
		if !r.tunnels[a] {
			d.addf("the device that takes packets for %s out of tunnels is missing or not as it should be", a)
		}
	}
	if !broken {
		t.inspectElements(&d, f, r, held)
	}
	if s := r.states[o.Value.Key]; s != nil {
		whole := desiredService(f, s.Mark)
		if f.Scheduler == vip.OtherScheduler { // a frontend doesn't contain its name
			d.addf("scheduler is %s", s.Scheduler)
			whole.Scheduler = s.Scheduler
		}
		if s.Service != whole {
			d.addf("service has flags %#x, timeout %d, netmask %#x, persistence engine %q", s.Flags, s.Timeout, s.Netmask, s.PE)
		}
		if a := firstMisplaced(s); a.IsValid() {
			d.addf("destinations are in another order than on other hosts, from %s on: %s goes by it", a, s.Scheduler)
		}
		for _, x := range s.Dests {
			if (x != kernel.Dest{Addr: x.Addr, Weight: x.Weight, Forward: methodOf(f.Forward), Upper: x.Upper}) {
				d.addf("destination %s has forwarding method %d, lower threshold %d, tunnel %v", x.Addr, x.Forward, x.Lower, x.Tunnel)
			}
		}
	}
	o.Damage = d
}

// inspectElements compares the sets with the elements that f needs.
func (t *Target) inspectElements(d *damage, f *vip.Frontend, r *kernelState, held *usage.Records) {
	mark := r.marks(f.Key)
	t.buffers.needed = elements(t.buffers.needed[:0], f, mark)
	t.buffers.had = possible(t.buffers.had[:0], f.Key, mark)
	want := t.buffers.needed
	for _, e := range t.buffers.had {
		if !slices.Contains(want, e) && r.table.Has(e) {
			d.addf("should not be: %s", e)
		}
	}
	want = sourceElements(want, f, mark)
	if usage.OnDevice(f) {
		want = append(want, filter.AddrElement(filter.SetVIPs, f.Key.Addr))
	}
	for _, a := range held.HairpinsOf(f) {
		want = append(want, filter.AddrElement(filter.SetHairpin, a))
	}
	t.buffers.needed = want
	for _, e := range want {
		if !r.table.Has(e) && (r.states[f.Key] != nil || !e.Set.Refuses()) {
			d.addf("missing: %s", e)
		}
	}
}

// orphans returns what is ours and belongs to no frontend, one item per address.
func orphans(r *kernelState, held *usage.Records) []observed {
	out := r.table.Orphans(held)
	for a := range r.tunnels {
		if held.Tunnels[a] > 0 {
			continue
		}
		i := slices.IndexFunc(out, func(o observed) bool { return o.Value.Key.Addr == a })
		if i < 0 {
			i, out = len(out), append(out, usage.Orphan(a))
		}
		out[i].Damage = append(out[i].Damage, fmt.Sprintf("the device that takes packets for %s out of tunnels belongs to no service", a))
	}
	return out
}

// damage describes what is wrong with one frontend in the kernel.
type damage []string

func (d *damage) addf(format string, args ...any) { *d = append(*d, fmt.Sprintf(format, args...)) }

// Changed implements reconcile.Target.
func (t *Target) Changed() <-chan struct{} { return t.drift.Changed() }

// Check implements reconcile.Target. It sees that others have changed the table or forwarding. The kernel has no
// events of IPVS.
func (t *Target) Check(ctx context.Context) (reconcile.Drift[vip.FrontendKey, vip.Frontend], error) {
	return drift.Check[vip.FrontendKey, vip.Frontend](ctx, &t.drift)
}
