package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/plane/kernel/conntrack"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/vip"
)

// fakeFilters is the nftables table. A transaction is atomic.
type fakeFilters struct{ k *fakeKernel }

func (f fakeFilters) transaction(ctx context.Context, what string, do func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := f.k.call("nft transaction", what, do)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: %w", filter.ErrNoTable, err)
	}
	return err
}

// change applies a change of elements, removals first, or none of it. As in the kernel an element
// must not overlap another one of its set, and equal keys must have equal data.
func (f fakeFilters) change(old map[filter.Element]struct{}, c filter.Change) (map[filter.Element]struct{}, error) {
	elements := map[filter.Element]struct{}{}
	maps.Copy(elements, old)
	for _, adds := range []bool{false, true} {
		for e, present := range c {
			if !e.Key.Addr.IsValid() {
				panic(fmt.Sprintf("element %v without an address", e))
			}
			if present && e.Set.HasMark() != filter.IsMark(e.Mark) {
				panic(fmt.Sprintf("element %v with mark %#x", e, e.Mark))
			}
			if present != adds {
				continue
			}
			for other := range elements {
				if other != e && excludes(e, other) {
					return nil, fmt.Errorf("%s beside %s: %w", e, other, unix.EEXIST)
				}
			}
			if delete(elements, e); adds {
				elements[e] = struct{}{}
			}
		}
	}
	return elements, nil
}

// excludes reports whether a set can't have both elements.
func excludes(e, other filter.Element) bool {
	if e.Set != other.Set || e.Key.Addr != other.Key.Addr {
		return false
	}
	switch e.Set.Kind() {
	case filter.KindPorts:
		return e.Key.Protocol == other.Key.Protocol && usage.PortsOf(e.Key).Overlaps(usage.PortsOf(other.Key))
	case filter.KindSource:
		return e.Key == other.Key && e.Source.Overlaps(other.Source)
	case filter.KindMarkSource:
		return e.Mark == other.Mark && e.Source.Overlaps(other.Source)
	}
	return e.Set.IsMap() && e.Key == other.Key
}

func (f fakeFilters) Apply(ctx context.Context, c filter.Change) error {
	if len(c) == 0 {
		return nil
	}
	return f.transaction(ctx, fmt.Sprintf("of %v", c), func() error {
		if f.k.table == nil {
			return unix.ENOENT
		}
		elements, err := f.change(f.k.table.elements, c)
		if err == nil {
			f.k.table.elements = elements
		}
		return err
	})
}

func (f fakeFilters) SetPods(ctx context.Context, pods *netipx.IPSet, c filter.Change) error {
	return f.transaction(ctx, "of pods", func() error {
		if f.k.table == nil {
			return unix.ENOENT
		}
		elements, err := f.change(f.k.table.elements, c)
		if err == nil {
			f.k.table.elements, f.k.table.pods = elements, pods
		}
		return err
	})
}

func (f fakeFilters) Rebuild(ctx context.Context, pods *netipx.IPSet, c filter.Change) error {
	return f.transaction(ctx, "of all", func() error {
		if f.k.noModule != "" {
			return unix.ENOENT
		}
		elements, err := f.change(map[filter.Element]struct{}{}, c)
		if err == nil {
			f.k.table = &fakeTable{intact: true, elements: elements, pods: pods}
		}
		return err
	})
}

func (f fakeFilters) Exists(context.Context) (bool, error) {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	return f.k.table != nil, nil
}

func (f fakeFilters) Close() {}

func (f fakeFilters) Missing(context.Context) error {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	if f.k.noModule == "" {
		return nil
	}
	return host.Err([]host.Finding{host.MissingModule(f.k.noModule, "", true)})
}

func (f fakeFilters) Remove(ctx context.Context) error {
	return f.transaction(ctx, "of removal", func() error { f.k.table = nil; return nil })
}

func (f fakeFilters) Retire(context.Context) error { panic("not used") }

func (f fakeFilters) Read(ctx context.Context) (*filter.Ruleset, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := filter.NewRuleset(0)
	err := f.k.call("nft read", "", func() error {
		if t := f.k.table; t != nil {
			r.Intact, r.Pods = t.intact, t.pods
			for e := range t.elements {
				r.Add(e)
			}
		}
		return nil
	})
	return r, err
}

// fakeTunables are the sysctls.
type fakeTunables struct{ k *fakeKernel }

func (f fakeTunables) Check(w host.Setting) host.Finding {
	out := host.Finding{Name: "sysctl " + host.SysctlName(w.Key)}
	err := f.k.call("sysctl read", w.Key, func() error { out.OK = w.Fits(f.k.sysctls[w.Key]); return nil })
	if err != nil {
		out.OK = false
	}
	if !out.OK {
		out.Detail, out.Remedy = fmt.Sprintf("is not %s: %v", w.Value, err), "sysctl -w"
	}
	return out
}

func (f fakeTunables) Set(w host.Setting) host.Finding {
	if out := f.Check(w); out.OK || w.AtLeast {
		return out
	}
	_ = f.k.call("sysctl write", w.Key, func() error { f.k.sysctls[w.Key] = w.Value; return nil })
	return f.Check(w)
}

// fakeFlows is connection tracking.
type fakeFlows struct{ k *fakeKernel }

func (f fakeFlows) Supported(context.Context) host.Finding {
	return host.Finding{Name: conntrack.NoNetlink.Name, OK: true}
}

func (f fakeFlows) Sweep(ctx context.Context, family vip.Family, match conntrack.Flow, end func(*conntrack.Entry) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return f.k.call("conntrack sweep", fmt.Sprint(family, match), func() error {
		maps.DeleteFunc(f.k.entries, func(x conntrack.Flow, _ struct{}) bool {
			return (family == 0 || vip.FamilyOf(x.Frontend.Addr) == family && x.Frontend.Protocol == match.Frontend.Protocol) && end(&conntrack.Entry{Flow: x})
		})
		return nil
	})
}

// fakePorts are the sockets of processes.
type fakePorts struct{ k *fakeKernel }

func (f fakePorts) Free(key vip.FrontendKey) error {
	f.k.mu.Lock()
	defer f.k.mu.Unlock()
	if f.k.processes[key] {
		return vip.Problem{Code: vip.CodePortTaken, Message: fmt.Sprintf("a process has %s", key)}
	}
	return nil
}
