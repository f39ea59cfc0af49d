package probepath

import (
	"context"
	"errors"
	"maps"
	"net/netip"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/vip"
)

// fakeKernel has services by mark, a table and a sysctl.
type fakeKernel struct {
	services  map[serviceID]kernel.State
	elements  map[filter.Element]struct{} // nil: no table
	damaged   bool                        // the rules of the table
	conntrack bool
	noVIP     bool // on the host

	log []string // what was changed, in order
	// fail returns the error of a change, before it is made.
	fail func(*change) error
	// cut reports whether the socket fails after a change, without the answer to it.
	cut func(*change) bool
}

type serviceID struct {
	family vip.Family
	mark   uint32
}

func newFake() *fakeKernel {
	return &fakeKernel{services: map[serviceID]kernel.State{}, conntrack: true, fail: func(*change) error { return nil }, cut: func(*change) bool { return false }}
}

// target returns a Target as after a start.
func (k *fakeKernel) target() *Target {
	return newTarget(access{services: fakeServices{k}, table: fakeRules{k}, sysctl: fakeSysctl{k}, local: func(netip.Addr) bool { return !k.noVIP }, stats: &counters{}})
}

type fakeServices struct{ k *fakeKernel }

func (f fakeServices) Close() {}

func (f fakeServices) State(_ context.Context, family vip.Family, mark uint32) (*kernel.State, error) {
	if s, ok := f.k.services[serviceID{family, mark}]; ok {
		return &s, nil
	}
	return nil, nil
}

func (f fakeServices) Change(_ context.Context, all []change, done func(int, error)) error {
	for i := range all {
		f.k.log = append(f.k.log, all[i].String())
		err := f.change(&all[i])
		if f.k.cut(&all[i]) {
			return errSocket
		}
		done(i, err)
	}
	return nil
}

var errSocket = errors.New("socket failed")

func (f fakeServices) change(c *change) error {
	if err := f.k.fail(c); err != nil {
		return err
	}
	id, want := serviceID{vip.FamilyOf(c.path.VIP), c.mark}, wanted(c.path, c.mark)
	have, there := f.k.services[id]
	switch {
	case c.cmd == kernel.CmdNewService && there:
		return unix.EEXIST
	case c.cmd == kernel.CmdNewService:
		f.k.services[id] = kernel.State{Service: want.Service}
	case !there:
		return unix.ESRCH
	case c.cmd == kernel.CmdDelService:
		delete(f.k.services, id)
	case len(have.Dests) > 0:
		return unix.EEXIST
	default:
		f.k.services[id] = want
	}
	return nil
}

type fakeRules struct{ k *fakeKernel }

func (f fakeRules) Read(context.Context) (*filter.Ruleset, error) {
	r := filter.NewRuleset(0)
	r.Intact = f.k.elements != nil && !f.k.damaged
	for e := range f.k.elements {
		r.Add(e)
	}
	return r, nil
}

func (f fakeRules) Apply(_ context.Context, c filter.Change) error {
	f.k.log = append(f.k.log, "transaction")
	if f.k.elements == nil {
		return filter.ErrNoTable
	}
	f.put(c)
	return nil
}

func (f fakeRules) put(c filter.Change) {
	for e, present := range c {
		if delete(f.k.elements, e); present {
			f.k.elements[e] = struct{}{}
		}
	}
}

func (f fakeRules) Rebuild(_ context.Context, _ *netipx.IPSet, c filter.Change) error {
	f.k.log = append(f.k.log, "rebuild")
	f.k.elements, f.k.damaged = map[filter.Element]struct{}{}, false
	f.put(c)
	return nil
}

func (f fakeRules) Exists(context.Context) (bool, error) { return f.k.elements != nil, nil }

func (f fakeRules) Remove(context.Context) error {
	f.k.log = append(f.k.log, "remove table")
	f.k.elements = nil
	return nil
}

func (f fakeRules) Missing(context.Context) error { return nil }

type fakeSysctl struct{ k *fakeKernel }

func (f fakeSysctl) Check(w host.Setting) host.Finding {
	return host.Finding{Name: host.SysctlName(w.Key), OK: f.k.conntrack, Detail: "is 0"}
}

func (f fakeSysctl) Set(w host.Setting) host.Finding { return f.Check(w) }

// holds reports whether the kernel has exactly these paths, and nothing more with a mark of ours.
func (k *fakeKernel) holds(t *Target, paths ...vip.ProbePath) bool {
	services, elements := map[serviceID]kernel.State{}, map[filter.Element]struct{}{}
	for _, p := range paths {
		mark, err := t.Mark(p)
		if err != nil {
			return false
		}
		services[serviceID{vip.FamilyOf(p.VIP), mark}] = wanted(p, mark)
		for _, e := range filter.ProbeElements(p.VIP, p.Backend, mark) {
			elements[e] = struct{}{}
		}
	}
	return maps.EqualFunc(k.services, services, func(a, b kernel.State) bool {
		return a.Service == b.Service && len(a.Dests) == len(b.Dests) && (len(a.Dests) == 0 || a.Dests[0] == b.Dests[0])
	}) && maps.Equal(k.elements, elements)
}

func (fakeRules) Close() {}
