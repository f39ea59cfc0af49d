package snapshot

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/ipam"
)

// write applies the plan. It writes leases first, so that the address of a registration exists when
// another host reads the registration.
func (p *plan) write(ctx context.Context, to Stores) error {
	if err := p.writeLeases(ctx, to.Leases); err != nil {
		return fmt.Errorf("write leases: %w", err)
	}
	if err := writeAll(ctx, p, "registration", &p.result.Services, p.services, to.Services); err != nil {
		return fmt.Errorf("write registrations: %w", err)
	}
	for i := range p.states {
		if there := to.States.Get(p.states[i].Key); there.Value.Ended() { // as good as none
			p.states[i].Version = there.Version
		}
	}
	if err := writeAll(ctx, p, "state", &p.result.States, p.states, to.States); err != nil {
		return fmt.Errorf("write backends' states: %w", err)
	}
	return nil
}

func (p *plan) writeLeases(ctx context.Context, to ipam.Store) error {
	if err := to.Commit(ctx, p.ops); err != nil {
		return err
	}
	refused := map[ipam.Resource]bool{} // a shared lease has several ops
	for i := range p.ops {
		op := &p.ops[i]
		var conflict *ipam.ConflictError
		var fenced *ipam.FencedError
		switch {
		case op.Err == nil:
		case !errors.As(op.Err, &conflict) && !errors.As(op.Err, &fenced):
			return fmt.Errorf("%s: %w", op.New.Resource, op.Err)
		case !refused[op.New.Resource]:
			refused[op.New.Resource] = true
			p.result.Leases--
			p.conflict(Conflict{Kind: "lease", Name: op.New.Resource.String(), Service: holdersOf(*op.New), Message: "not written: " + op.Err.Error()})
		}
	}
	return nil
}

func writeAll[V any](ctx context.Context, p *plan, kind string, count *int, edits []registry.Edit[V], to registry.Store[V]) error {
	errs, err := commitEach(ctx, edits, to)
	if err != nil {
		return err
	}
	for i, err := range errs {
		if _, outdated := errors.AsType[*registry.OutdatedError](err); outdated {
			*count--
			p.conflict(Conflict{Kind: kind, Name: nameOf(edits[i].Key), Message: "changed by another host at the same time, or unreadable in the store"})
		} else if err != nil {
			return fmt.Errorf("%s: %w", edits[i].Key, err)
		}
	}
	return nil
}

// commitEach writes each edit on its own and returns its error, or why all failed.
func commitEach[V any](ctx context.Context, edits []registry.Edit[V], to registry.Store[V]) (errs []error, err error) {
	if len(edits) == 0 {
		return nil, nil
	}
	batches := make([]*registry.Batch[V], len(edits))
	for i, e := range edits {
		batches[i] = &registry.Batch[V]{Edits: []registry.Edit[V]{e}}
	}
	err = to.Commit(ctx, batches)
	for _, b := range batches {
		errs = append(errs, b.Err)
	}
	return errs, err
}
