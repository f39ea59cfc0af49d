package ipvs

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/reconcile"
)

type (
	observed = reconcile.Observed[vip.FrontendKey, vip.Frontend]
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
	table  *ruleset
	addrs  map[netip.Addr]struct{}
	up     bool // the device is there and up
	states map[vip.FrontendKey]*state
}

// load reads the kernel and makes what it found what the Target believes.
func (t *Target) load(ctx context.Context) ([]observed, error) {
	r, err := t.read(ctx)
	if err != nil {
		return nil, err
	}
	t.pods = slices.Clone(t.opt.PodCIDRs())
	want := podSet(t.pods)
	held, broken := newHoldings(want), !r.table.intact
	stale := !broken && !r.table.pods.Equal(want)
	if stale {
		// What the table has was made for these; the next Apply goes from them to those wanted.
		held.pods = r.table.pods
	}
	all := t.interpret(r)
	for i := range all {
		held.set(all[i].Key, &all[i].Value)
	}
	for i := range all {
		t.inspect(&all[i], r, held, broken)
	}
	if len(all) > 0 {
		// What concerns all alike is mended by any repair: one is enough.
		first := slices.MinFunc(all, func(a, b observed) int { return vip.CompareFrontendKeys(a.Key, b.Key) }).Key
		i := slices.IndexFunc(all, func(o observed) bool { return o.Key == first })
		if stale {
			all[i].Damage = append(all[i].Damage, "pod ranges in the nftables table are not as configured")
		}
		all[i].Damage = append(all[i].Damage, t.untuned()...)
	}
	all = append(all, strays(r, held)...)
	t.held, t.broken, t.stalePods, t.loaded = held, broken, stale, true
	return all, nil
}

// untuned names the sysctls that were as they should be and no longer are.
func (t *Target) untuned() []string {
	var out []string
	good := t.Findings()
	for _, w := range t.wantedSettings() {
		f := t.sysctl.check(w)
		if !f.OK && slices.ContainsFunc(good, func(g Finding) bool { return g.Name == f.Name && g.OK }) {
			out = append(out, f.Name+" "+f.Detail)
		}
	}
	return out
}

// read reads everything that may be ours.
func (t *Target) read(ctx context.Context) (*reading, error) {
	r := &reading{states: map[vip.FrontendKey]*state{}}
	var err error
	if r.table, err = t.fw.read(ctx); err != nil {
		return nil, err
	}
	if r.addrs, r.up, err = t.device.read(); err != nil {
		return nil, err
	}
	services, err := t.kernel.services(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range services {
		if r.states[s.key] != nil || s.fwmark != 0 || !t.ours(s.key, r.table) {
			continue
		}
		dests, err := t.kernel.dests(ctx, s.key)
		if err != nil {
			return nil, err
		}
		r.states[s.key] = &state{service: s, dests: dests}
	}
	return r, nil
}

// ours reports whether a service at key is ours.
func (t *Target) ours(k vip.FrontendKey, table *ruleset) bool {
	return t.opt.Owns(k.Addr) || t.held.frontends[k] != nil || table.has(setFrontends, k) || table.has(setNodePorts, k)
}

func (r *ruleset) has(s setID, k vip.FrontendKey) bool {
	_, ok := r.elements[element{s, k}]
	return ok
}

// interpret makes frontends of what was read: one for each service of ours, and
// one for each that has left elements behind.
func (t *Target) interpret(r *reading) []observed {
	all := make([]observed, 0, len(r.states))
	for k, s := range r.states {
		all = append(all, observed{Key: k, Value: t.frontend(k, r.table, s)})
	}
	seen := map[vip.FrontendKey]bool{}
	for e := range r.table.elements {
		k := e.key
		if r.states[k] != nil || seen[k] || e.set.kind() != kindListener {
			continue
		}
		seen[k] = true
		o := observed{Key: k, Value: t.frontend(k, r.table, nil)}
		o.Damage = append(o.Damage, "ipvs service missing")
		all = append(all, o)
	}
	return all
}

// frontend is what a service in the kernel, which may be missing, amounts to.
func (t *Target) frontend(k vip.FrontendKey, table *ruleset, s *state) vip.Frontend {
	f := vip.Frontend{Key: k, Kind: vip.OnVIP, Forward: vip.ForwardNAT, Masquerade: vip.MasqueradeNever}
	before := t.held.frontends[k]
	if table.has(setNodePorts, k) || !table.has(setFrontends, k) && before != nil && before.Kind == vip.OnHost {
		f.Kind = vip.OnHost
	}
	switch {
	case table.has(setMasqAlways, k):
		f.Masquerade = vip.MasqueradeAlways
	case table.has(setMasqAuto, k):
		f.Masquerade = vip.MasqueradeAuto
	case !table.intact && before != nil: // the elements may have gone with the table
		f.Masquerade = before.Masquerade
	}
	if s == nil {
		return f
	}
	f.Scheduler = vip.Scheduler(s.sched)
	if hashes(f.Scheduler) {
		f.SchedulerFallback = s.flags&flagSched1 != 0
		f.SchedulerPort = s.flags&flagSched2 != 0
	}
	if s.flags&flagPersistent != 0 {
		f.Affinity = time.Duration(s.timeout) * time.Second
	}
	f.Backends = make([]vip.Endpoint, len(s.dests))
	for i, d := range s.dests {
		f.Backends[i] = vip.Endpoint{Addr: d.addr, Weight: d.weight}
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
	if f.Kind == vip.OnVIP {
		if !r.up {
			d.addf("device %s is missing or down", t.opt.Device)
		}
		if _, ok := r.addrs[o.Key.Addr]; !ok {
			d.addf("address %s missing from %s", o.Key.Addr, t.opt.Device)
		}
	}
	if !broken {
		t.inspectElements(&d, f, r.table, held)
	}
	if s := r.states[o.Key]; s != nil {
		if want := desired(f); s.service != want.service {
			d.addf("service has flags %#x, timeout %d, netmask %#x, persistence engine %q", s.flags, s.timeout, s.netmask, s.pe)
		}
		for _, x := range s.dests {
			if (x != dest{addr: x.addr, weight: x.weight, forward: forwardNAT}) {
				d.addf("destination %s has forwarding method %d, thresholds %d and %d", x.addr, x.forward, x.upper, x.lower)
			}
		}
	}
	o.Damage = d
}

// inspectElements compares the sets with what f needs.
func (t *Target) inspectElements(d *damage, f *vip.Frontend, table *ruleset, held *holdings) {
	want := elements(nil, f)
	for _, s := range listenerSets {
		e := element{s, f.Key}
		switch needed := slices.Contains(want, e); {
		case needed && !table.has(s, f.Key):
			d.addf("missing: %s", e)
		case !needed && table.has(s, f.Key):
			d.addf("should not be: %s", e)
		}
	}
	var shared []element
	if f.Kind == vip.OnVIP {
		shared = append(shared, addrElement(setVIPs, f.Key.Addr))
	}
	for _, a := range held.hairpinsOf(f) {
		shared = append(shared, addrElement(setHairpin, a))
	}
	for _, e := range shared {
		if !table.has(e.set, e.key) {
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
	for a := range r.addrs {
		if held.vips[a] == 0 {
			found[a] = append(found[a], fmt.Sprintf("address %s belongs to no service", a))
		}
	}
	for e := range r.table.elements {
		a := e.key.Addr
		if e.set == setVIPs && held.vips[a] == 0 || e.set == setHairpin && held.hairpins[a] == 0 {
			found[a] = append(found[a], fmt.Sprintf("should not be: %s", e))
		}
	}
	out := make([]observed, 0, len(found))
	for a, d := range found {
		k := vip.FrontendKey{Addr: a}
		out = append(out, observed{Key: k, Value: vip.Frontend{Key: k, Kind: vip.OnVIP}, Damage: d})
	}
	return out
}

// damage collects what is wrong with one frontend in the kernel.
type damage []string

func (d *damage) addf(format string, args ...any) { *d = append(*d, fmt.Sprintf(format, args...)) }
