package consulstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/internal/leasetable"
	"github.com/ironvip/ironvip/vip"
)

const (
	// tries is how often an op is written that others get in the way of.
	tries = 8
	// catchUp is how long a commit waits for the tree to have all of what it has a
	// part of.
	catchUp = time.Second
	// oddFor is how long a service's leases and holdings must differ, while the tree is
	// in touch with Consul, before the leases are taken for the truth: somebody else's
	// hand has been there.
	oddFor = 30 * time.Second
	// commitTimeout is for how long a commit of whatever size begins to write more of
	// itself; what is left then has to come again.
	commitTimeout = 15 * time.Second
	// maxKeys bounds the keys of a batch: each takes at most two of the operations that
	// a batch may have.
	maxKeys = fleet.MaxBatch / 2
)

// errBehind says that the tree has a part of a change only, which will have
// passed in a moment.
var errBehind = errors.New("not all of a change has arrived yet")

// Commit implements ipam.Store. Ops that touch the same resource or service
// happen in one transaction, all or none; when another host gets in the way of it
// they are judged again, each alone, by what there is then.
func (s *Store) Commit(ctx context.Context, ops []ipam.Op) error {
	if err := s.await(ctx); err != nil {
		return err
	}
	pending := make([]*attempt, len(ops))
	for i := range ops {
		ops[i].Err = nil
		pending[i] = &attempt{op: &ops[i], place: i}
	}
	deadline := time.Now().Add(catchUp)
	until := time.Now().Add(commitTimeout)
	stored := false
	for len(pending) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		changed, fence := s.entries.Changed(), s.fences.Changed() // before looking
		groups, later, behind := s.plan(pending)
		wrote, again, err := s.write(ctx, until, groups)
		stored = stored || wrote
		later = append(later, again...)
		if err != nil && !errors.Is(err, errSmaller) {
			if err = unavailable(err); !stored {
				return err
			}
			for _, a := range append(later, behind...) {
				a.op.Err = err
			}
			return ctx.Err()
		}
		if len(behind) > 0 && !wrote && err == nil && !wait(ctx, deadline, changed, fence) {
			for _, a := range behind {
				a.op.Err = s.fenced(a.op)
			}
			behind = nil
		}
		pending = append(later, behind...)
		slices.SortFunc(pending, func(a, b *attempt) int { return a.place - b.place })
	}
	return nil
}

// unavailable is why nothing is known of an op.
func unavailable(err error) error {
	if errors.Is(err, fleet.ErrNoAnswer) && !errors.Is(err, ipam.ErrSlow) {
		err = fmt.Errorf("%w: %w", ipam.ErrSlow, err)
	}
	return fmt.Errorf("%w: %w", ipam.ErrUnavailable, err)
}

// wait waits for news until the deadline, and reports whether there are any.
func wait(ctx context.Context, deadline time.Time, leases, fence <-chan struct{}) bool {
	left := time.Until(deadline)
	if left <= 0 {
		return false
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-leases:
	case <-fence:
	case <-timer.C:
		return false
	case <-ctx.Done():
		return false
	}
	return true
}

// attempt is an op on its way.
type attempt struct {
	op    *ipam.Op
	place int // among all of the commit
	tries int
}

// group is ops that hang together, with the batch that they come to.
type group struct {
	attempts  []*attempt
	verdicts  []error // of each, provided that the batch happens
	resources []ipam.Resource
	services  []vip.ServiceKey
	changes   map[ipam.Resource]*ipam.Lease // what the batch makes of the resources
	batch     *fleet.Batch                  // nil: nothing is to be written
	err       error                         // why it can't be written at all
}

// plan judges ops, one after the other, and puts those that hang together into
// groups of bounded size. Those that no longer fit, and all that build on them, are
// for later; those of which not all that they touch is known are behind.
func (s *Store) plan(pending []*attempt) (groups []*group, later, behind []*attempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &plan{store: s, fences: make(map[vip.ServiceKey]fence), of: make(map[any]*group), closed: make(map[any]bool)}
	// The fences first, then the leases: a lease that is newer than its fence makes
	// the write of the fence fail; the other way round nothing would.
	for _, a := range pending {
		for _, k := range servicesOf(a.op) {
			p.fence(k)
		}
	}
	s.sync()
	p.trial = leasetable.NewTrial(s.view, len(pending))
	for _, a := range pending {
		switch err := p.add(a); {
		case errors.Is(err, errBehind):
			behind = append(behind, a)
		case err != nil:
			later = append(later, a)
		}
	}
	for _, g := range p.groups {
		if len(g.attempts) > 0 {
			p.compose(g)
			groups = append(groups, g)
		}
	}
	return groups, later, behind
}

// plan is one round of a commit.
type plan struct {
	store  *Store
	trial  *leasetable.Trial
	fences map[vip.ServiceKey]fence
	groups []*group
	of     map[any]*group // by resource and by service
	closed map[any]bool   // resources and services that have to wait for the next round
}

// fence is what a service holds according to its own key.
type fence struct {
	holds []ipam.Resource
	index uint64
	err   error
}

func (p *plan) fence(k vip.ServiceKey) {
	if _, there := p.fences[k]; !there {
		holds, index, err := p.store.held(k)
		p.fences[k] = fence{holds, index, err}
	}
}

var errFull = errors.New("the batch is full")

// add judges an op and adds it to the group that it hangs together with.
func (p *plan) add(a *attempt) error {
	services := servicesOf(a.op)
	resource, bad := leasetable.ResourceOf(a.op)
	keys := []any{resource}
	for _, k := range services {
		keys = append(keys, k)
	}
	shut := func(err error) error {
		for _, k := range keys {
			p.closed[k] = true
		}
		return err
	}
	if bad != nil {
		keys, services = nil, nil
	}
	for _, k := range keys {
		if p.closed[k] {
			return shut(errFull)
		}
	}
	g := &group{}
	for _, k := range services {
		f := p.fences[k]
		refuse := func(err error) error {
			p.groups = append(p.groups, &group{attempts: []*attempt{a}, verdicts: []error{nil}, err: err})
			return nil
		}
		if f.err != nil {
			return refuse(unreadable(k, f.err))
		}
		if p.of[k] != nil || restores(a.op, k, p.store.view.Held(k), f) {
			continue
		}
		switch agrees, since := p.store.agrees(k, f); {
		case agrees:
		case time.Since(since) >= catchUp: // it doesn't come right by itself
			return refuse(p.store.disagree(k, f, since))
		default:
			return shut(errBehind)
		}
	}
	size := 0
	var joined []*group
	for _, k := range keys {
		if o := p.of[k]; o != nil && !slices.Contains(joined, o) {
			joined = append(joined, o)
			size += len(o.resources) + len(o.services)
		} else if o == nil {
			size++
		}
	}
	if len(joined) > 0 && size > maxKeys {
		return shut(errFull)
	}
	for _, o := range joined {
		g.attempts, g.verdicts = append(g.attempts, o.attempts...), append(g.verdicts, o.verdicts...)
		g.resources, g.services = append(g.resources, o.resources...), append(g.services, o.services...)
		o.attempts = nil // all of it is in g now
	}
	for i, k := range keys {
		if p.of[k] == nil && i == 0 {
			g.resources = append(g.resources, resource)
		} else if p.of[k] == nil {
			g.services = append(g.services, services[i-1])
		}
	}
	g.attempts, g.verdicts = append(g.attempts, a), append(g.verdicts, p.trial.Try(a.op))
	for _, r := range g.resources {
		p.of[r] = g
	}
	for _, k := range g.services {
		p.of[k] = g
	}
	p.groups = append(p.groups, g)
	return nil
}

// compose makes the batch that brings about what a group's ops come to.
func (p *plan) compose(g *group) {
	var writes []fleet.Write
	g.changes = make(map[ipam.Resource]*ipam.Lease, len(g.resources))
	for _, r := range g.resources {
		now, changed := p.trial.Changes[r]
		if !changed {
			continue
		}
		g.changes[r] = now
		w := p.store.leases.Remove(keyOf(r), p.store.index[r])
		if now != nil {
			if w, g.err = p.store.leases.Put(keyOf(r), p.store.index[r], *now); g.err != nil {
				return
			}
		} else if p.store.index[r] == 0 {
			continue // it came and went in this group
		}
		writes = append(writes, w)
	}
	for _, k := range g.services {
		f, holds := p.fences[k], sorted(p.trial.Held(k))
		key := serviceKeyOf(k)
		switch {
		case len(writes) == 0 || len(holds) == 0 && f.index == 0:
		case len(holds) == 0:
			writes = append(writes, p.store.holdings.Remove(key, f.index))
		default:
			w, err := p.store.holdings.Put(key, f.index, holdings{holds})
			if g.err = err; err != nil {
				return
			}
			writes = append(writes, w)
		}
	}
	if len(writes) > 0 {
		g.batch = &fleet.Batch{Writes: writes}
	}
}

// finish gives the ops of a group their answers, and returns those to try
// again.
func (s *Store) finish(g *group) (again []*attempt) {
	err := g.err
	if err == nil && g.batch != nil {
		err = g.batch.Err
	}
	if err == nil && g.batch != nil {
		s.took(g)
	}
	conflict := (*fleet.ConflictError)(nil)
	for i, a := range g.attempts {
		switch {
		case err == nil:
			a.op.Err = g.verdicts[i]
		case !errors.As(err, &conflict):
			a.op.Err = err
		case a.tries+1 >= tries:
			a.op.Err = s.conflict(a.op)
		default:
			a.tries++
			again = append(again, a)
		}
	}
	return again
}

// took has the view know what a group wrote, as whoever commits does: the feed
// passes over what others have changed again, and their change would be none.
func (s *Store) took(g *group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r, l := range g.changes {
		if old := s.view.Get(r); (old == nil) != (l == nil) || l != nil && !l.Equal(*old) {
			s.view.Set(r, l)
		}
		s.look(keyOf(r))
	}
}

// conflict says that others are always faster.
func (s *Store) conflict(op *ipam.Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sync()
	r, err := leasetable.ResourceOf(op)
	if err != nil {
		return err
	}
	c := &ipam.ConflictError{Resource: r}
	if l := s.view.Get(r); l != nil {
		c.Actual = new(*l)
	}
	return c
}

// servicesOf returns the services that an op gives its resource or takes it
// from, and whom it claims it for.
func servicesOf(op *ipam.Op) []vip.ServiceKey {
	out := slices.AppendSeq(slices.Collect(leasetable.Lost(op.Old, op.New)), leasetable.Lost(op.New, op.Old))
	if op.Claim != nil && !slices.Contains(out, op.Claim.Service) {
		out = append(out, op.Claim.Service)
	}
	return out
}

// oddity is a service whose leases and fence differ.
type oddity struct {
	index uint64 // of the fence
	since time.Time
}

// restores reports whether an op gives a service back a lease that is gone, of
// which its fence still says that the service holds it, and the fence knows the rest.
// Nothing need be waited for: should either be old news, the op fails on the index of
// the other.
func restores(op *ipam.Op, k vip.ServiceKey, held []ipam.Resource, f fence) bool {
	return op.Old == nil && op.New != nil && op.Claim != nil && op.Claim.Service == k && slices.Contains(f.holds, op.New.Resource) &&
		!slices.ContainsFunc(held, func(r ipam.Resource) bool { return !slices.Contains(f.holds, r) })
}

// unreadable says that nothing is known of what a service holds.
func unreadable(k vip.ServiceKey, err error) error {
	e := &ipam.FencedError{Service: k, Why: err.Error()}
	var p vip.Problem
	if errors.As(err, &p) {
		e.Why, e.Hint = p.Place+": "+p.Message, p.Hint
	}
	return e
}

// fenced says what an op has waited for in vain.
func (s *Store) fenced(op *ipam.Op) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range servicesOf(op) {
		f := fence{}
		if f.holds, f.index, f.err = s.held(k); f.err != nil {
			return unreadable(k, f.err)
		}
		s.sync()
		if agrees, since := s.agrees(k, f); !agrees {
			return s.disagree(k, f, since)
		}
	}
	r, _ := leasetable.ResourceOf(op)
	return &ipam.ConflictError{Resource: r, Actual: s.view.Get(r)} // it has come right this moment
}

// disagree says how the leases and the fence of a service differ. The caller
// holds mu.
func (s *Store) disagree(k vip.ServiceKey, f fence, since time.Time) error {
	return &ipam.FencedError{
		Service: k,
		Why:     fmt.Sprintf("by tree/%s/%s it holds %s, by tree/%s/ it holds %s", holdingsFolder, serviceKeyOf(k), textOf(f.holds), leasesFolder, textOf(s.view.Held(k))),
		Hint: fmt.Sprintf("one was edited without the other: put it right, or wait until %s, when the leases are taken to be right",
			since.Add(oddFor).UTC().Format(time.RFC3339)),
	}
}

func textOf(list []ipam.Resource) string {
	if len(list) == 0 {
		return "nothing"
	}
	var names []string
	for _, r := range sorted(list) {
		names = append(names, r.String())
	}
	return strings.Join(names, ", ")
}

// agrees reports whether the leases and the fence of a service say the same, or
// else since when they don't. They do but for moments, unless somebody has taken a
// hand in it. The caller holds mu.
func (s *Store) agrees(k vip.ServiceKey, f fence) (bool, time.Time) {
	held := s.view.Held(k)
	if len(held) == len(f.holds) && !slices.ContainsFunc(held, func(r ipam.Resource) bool { return !slices.Contains(f.holds, r) }) {
		delete(s.odd, k)
		return true, time.Time{}
	}
	now := time.Now()
	o, there := s.odd[k]
	if !there || o.index != f.index || s.tree.Stale() != "" {
		s.odd[k] = oddity{f.index, now}
		return false, now
	}
	return now.Sub(o.since) >= oddFor, o.since
}
