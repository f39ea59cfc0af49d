package pipeline

import (
	"context"
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/internal/reconcile"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/vip"
)

// Gone is the service revision that WaitApplied accepts for a deleted service.
const Gone uint64 = 0

// WaitApplied waits until row revision serviceRev of a service is compiled and the dataplane has
// tried every frontend of it. It returns the problems: what could not be granted, is not supported,
// or was rejected by the dataplane. It also waits while another host of the fleet must still
// process the service. It returns an error only when the context ends.
//
// If the service is replaced meanwhile, it waits for the newer version. If the service is deleted
// meanwhile, the wait doesn't end, so give the context a deadline. With Gone it is WaitGone for the
// row that it finds.
func WaitApplied(ctx context.Context, compiled table.Reader[vip.ServiceKey, Compiled],
	applied table.Reader[vip.FrontendKey, reconcile.AppliedFrontend], key vip.ServiceKey, serviceRev uint64) ([]vip.Problem, error) {
	if serviceRev == Gone {
		last, _, _ := compiled.Get(key)
		return WaitGone(ctx, compiled, applied, key, last)
	}
	return wait(ctx, compiled, applied, key, func() ([]vip.Problem, bool) {
		row, _, there := compiled.Get(key)
		if !there || row.ServiceRev < serviceRev || vip.HasCode(row.Problems, vip.CodeWaiting) {
			return nil, false
		}
		return tried(applied, key, &row)
	})
}

// WaitGone waits until a deleted service is out of the compiled table and the dataplane sends no
// new connections to its former frontends. Open connections may continue to drain. Last is the
// service's row of the compiled table, read before the service was deleted. It returns what the
// dataplane rejected, and an error only when the context ends.
func WaitGone(ctx context.Context, compiled table.Reader[vip.ServiceKey, Compiled],
	applied table.Reader[vip.FrontendKey, reconcile.AppliedFrontend], key vip.ServiceKey, last Compiled) ([]vip.Problem, error) {
	return wait(ctx, compiled, applied, key, func() ([]vip.Problem, bool) {
		if row, _, there := compiled.Get(key); there {
			last = row
			return nil, false
		}
		return letGoBy(applied, key, &last)
	})
}

// wait calls done after each change of the tables until done reports true.
func wait(ctx context.Context, compiled table.Reader[vip.ServiceKey, Compiled],
	applied table.Reader[vip.FrontendKey, reconcile.AppliedFrontend], key vip.ServiceKey, done func() ([]vip.Problem, bool)) ([]vip.Problem, error) {
	for {
		compiledChanged, appliedChanged := compiled.Changed(), applied.Changed() // read before done
		if problems, ok := done(); ok {
			return problems, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the dataplane to have service %q: %w", key, ctx.Err())
		case <-compiledChanged:
		case <-appliedChanged:
		}
	}
}

// tried reports whether the dataplane has tried every frontend of a row, and returns the problems
// of the row and of the dataplane.
func tried(applied table.Reader[vip.FrontendKey, reconcile.AppliedFrontend], key vip.ServiceKey, row *Compiled) (problems []vip.Problem, done bool) {
	problems = slices.Clone(row.Problems)
	for _, f := range row.Frontends {
		a, _, ok := applied.Get(f.Value.Key)
		if !ok || a.Tried.Rev < f.Rev {
			return nil, false
		}
		problems = appendProblem(problems, a.Problem, key)
	}
	return problems, true
}

// letGoBy reports whether the dataplane has tried a later version of each frontend of a row, or
// doesn't have it. A frontend that took no new connections may be missing.
func letGoBy(applied table.Reader[vip.FrontendKey, reconcile.AppliedFrontend], key vip.ServiceKey, last *Compiled) (problems []vip.Problem, done bool) {
	newest := last.FrontendsRev()
	for _, f := range last.Frontends {
		a, _, ok := applied.Get(f.Value.Key)
		if !ok || f.Value.Refuses() {
			continue
		}
		if a.Tried.Rev <= newest {
			return nil, false
		}
		problems = appendProblem(problems, a.Problem, key)
	}
	return problems, true
}

// appendProblem appends p, if it is not nil, with the name of the service.
func appendProblem(problems []vip.Problem, p *vip.Problem, key vip.ServiceKey) []vip.Problem {
	if p == nil {
		return problems
	}
	return append(problems, vip.OfService([]vip.Problem{*p}, key)...)
}
