package probepath

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Actual implements reconcile.Target. It costs one read of the table and one of each service.
func (t *Target) Actual(ctx context.Context) iter.Seq2[observed, error] {
	return reconcile.ReadAll(ctx, t.readState)
}

// readState reads the kernel and replaces the records by what it found.
func (t *Target) readState(ctx context.Context) ([]observed, error) {
	table, err := t.table.Read(ctx)
	if err != nil {
		return nil, err
	}
	t.checkConntrack()
	record, owner, ours := map[vip.ProbePath]uint32{}, map[uint32]vip.ProbePath{}, map[uint32]struct{}{}
	var all []observed
	for e := range table.Others {
		if e.Set != filter.SetAnswers {
			continue
		}
		o, isOurs, err := t.observe(ctx, vip.ProbePath{VIP: e.Key.Addr, Backend: e.Source.Addr()}, e.Mark)
		if err != nil {
			return nil, err
		}
		p := o.Value
		_, twice := record[p]
		if _, taken := owner[e.Mark]; twice || taken {
			continue // another program's
		}
		record[p], owner[e.Mark] = e.Mark, p
		if isOurs {
			ours[e.Mark] = struct{}{}
		}
		if !table.Has(filter.ProbeElements(p.VIP, p.Backend, e.Mark)[1]) {
			o.Damage = append(o.Damage, fmt.Sprintf("mark %#x is incomplete in the nftables table", e.Mark))
		}
		t.next = max(t.next, filter.IndexOfProbeMark(e.Mark)+1) % filter.ProbeMarkCount
		all = append(all, o)
	}
	if !table.Intact {
		// The elements may be lost with the table. Their services are still ours.
		for p, mark := range t.record {
			_, known := record[p]
			if _, taken := owner[mark]; known || taken {
				continue
			}
			o, isOurs, err := t.observe(ctx, p, mark)
			if err != nil {
				return nil, err
			}
			record[o.Value], owner[mark] = mark, o.Value
			if isOurs {
				ours[mark] = struct{}{}
			}
			all = append(all, o)
		}
	}
	open, broken := map[vip.ProbePath]uint32{}, !table.Intact || len(table.Others) != 2*len(record)
	for i := range all {
		o := &all[i]
		if broken {
			o.Damage = append(o.Damage, "the nftables table of probes is not as it should be")
		}
		if len(o.Damage) == 0 {
			open[o.Value] = record[o.Value]
		}
	}
	clear(t.foreign)
	t.record, t.owner, t.ours, t.broken, t.adopted = record, owner, ours, broken, true
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = open
	return all, nil
}

// observe returns the path with a mark, for its addresses. How it forwards is in its service. If that
// is missing or not ours, the record counts. IsOurs reports whether it is ours.
func (t *Target) observe(ctx context.Context, p vip.ProbePath, mark uint32) (o observed, isOurs bool, err error) {
	p.Forward = vip.ForwardDirect
	if before, ok := t.owner[mark]; ok && before.VIP == p.VIP && before.Backend == p.Backend {
		p.Forward = before.Forward
	}
	s, err := t.services.State(ctx, vip.FamilyOf(p.VIP), mark)
	if err != nil {
		return observed{}, false, err
	}
	if s == nil {
		return observed{Value: p, Damage: []string{fmt.Sprintf("ipvs service by mark %#x missing", mark)}}, false, nil
	}
	isOurs = t.Owns(mark) || s.Service == wanted(p, mark).Service
	if isOurs && len(s.Dests) == 1 && s.Dests[0].Forward == kernel.ForwardTunnel {
		p.Forward = vip.ForwardTunnel
	}
	o.Value = p
	if want := wanted(p, mark); s.Service != want.Service || !slices.Equal(s.Dests, want.Dests) {
		o.Damage = append(o.Damage, fmt.Sprintf("ipvs service by mark %#x is %+v with %+v", mark, s.Service, s.Dests))
	}
	return o, isOurs, nil
}

// Find returns a Target for what an earlier process has left, and the number of paths there; nil without our table, or in a
// kernel without IPVS. It changes nothing.
func Find(ctx context.Context, o Options) (t *Target, paths int, err error) {
	if t, err = New(o); errors.Is(err, kernel.ErrNoIPVS) {
		return nil, 0, nil
	} else if err != nil {
		return nil, 0, err
	}
	var all []observed
	there, err := t.table.Exists(ctx)
	if there && err == nil {
		all, err = t.readState(ctx)
	}
	if err != nil || !there {
		t.Close()
		return nil, 0, err
	}
	return t, len(all), nil
}

// Remove removes all paths and the table.
func (t *Target) Remove(ctx context.Context) error {
	all, err := t.readState(ctx)
	if err != nil {
		return err
	}
	batch := make([]updateOf, len(all))
	for i := range all {
		batch[i] = updateOf{Key: all[i].Value, Old: &all[i].Value}
	}
	errs := []error{t.Apply(ctx, batch)}
	for i := range batch {
		errs = append(errs, batch[i].Err)
	}
	return errors.Join(append(errs, t.table.Remove(ctx))...)
}
