package pipeline

import (
	"context"
	"fmt"
	"slices"

	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/wake"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Progress has the tables that show how far the dataplane is with a service. All are required. Its
// waits end when what they wait for can no longer come.
type Progress struct {
	Services table.Reader[vip.ServiceKey, vip.Service]
	Compiled table.Reader[vip.ServiceKey, Compiled]
	Applied  table.Reader[vip.FrontendKey, reconcile.AppliedFrontend]
}

// Progress returns the tables as a Progress.
func (t *Tables) Progress() Progress { return Progress{t.Services, t.Compiled, t.Applied} }

// GoneError is the error of a wait for a service that was deleted.
type GoneError struct {
	Service vip.ServiceKey
	Heir    string // the source whose service has the name now; "": no service has it
}

func (e *GoneError) Error() string {
	if e.Heir != "" {
		return fmt.Sprintf("service %q was deleted, and the service of source %q has its name", e.Service, e.Heir)
	}
	return fmt.Sprintf("service %q was deleted", e.Service)
}

// WaitApplied waits until the row of a source's service in [services] with revision rev, or a newer
// row of the source, is compiled and the dataplane has tried every frontend of it. It returns the
// problems: what could not be granted, is not supported, or was rejected by the dataplane, but not what
// has no effect, because the service is served without it. It also
// waits while another host of the fleet must still process the service. Its error is a *GoneError, at
// once, if [services] has no row of the source, and otherwise the context's.
func (p Progress) WaitApplied(ctx context.Context, key vip.ServiceKey, source string, rev uint64) ([]vip.Problem, error) {
	return p.wait(ctx, key, func() (problems []vip.Problem, done bool, err error) {
		row := p.Services.Row(key)
		if row == nil {
			return nil, true, &GoneError{Service: key}
		}
		if row.Value.Source != source {
			return nil, true, &GoneError{Service: key, Heir: row.Value.Source}
		}
		compiled, _, there := p.Compiled.Get(key)
		if !there || compiled.ServiceRev < rev || vip.HasCode(compiled.Problems, vip.CodeWaiting) {
			return nil, false, nil
		}
		problems, done = p.tried(key, &compiled)
		served := func(p vip.Problem) bool { return p.Code == vip.CodeIneffective }
		return slices.DeleteFunc(slices.Concat(compiled.Problems, problems), served), done, nil
	})
}

// WaitTried waits until the dataplane has tried every frontend of a service, of any source, as it is
// compiled when WaitTried is called, or newer. It returns what the dataplane rejected. Its error is a
// *GoneError, at once, if there is no such service, and otherwise the context's.
func (p Progress) WaitTried(ctx context.Context, key vip.ServiceKey) ([]vip.Problem, error) {
	return p.wait(ctx, key, func() (problems []vip.Problem, done bool, err error) {
		if p.Services.Row(key) == nil {
			return nil, true, &GoneError{Service: key}
		}
		compiled, _, there := p.Compiled.Get(key)
		if !there {
			return nil, false, nil
		}
		problems, done = p.tried(key, &compiled)
		return problems, done, nil
	})
}

// WaitGone waits until a service that is no longer in [services] is out of the compiled table and the
// dataplane sends no new connections to its former frontends. Open connections may continue to drain.
// Last is the service's row of the compiled table, read before the service was deleted. It returns
// what the dataplane rejected, and an error only when the context ends.
//
// If another service has the name, it waits until the dataplane has tried every frontend of it.
func (p Progress) WaitGone(ctx context.Context, key vip.ServiceKey, last Compiled) ([]vip.Problem, error) {
	return p.wait(ctx, key, func() (problems []vip.Problem, done bool, err error) {
		heir := p.Services.Row(key)
		compiled, _, there := p.Compiled.Get(key)
		switch {
		case heir == nil && there:
			last = compiled
			return nil, false, nil
		case heir == nil:
			problems, done = p.letGoBy(key, &last)
			return problems, done, nil
		case !there || compiled.ServiceRev < heir.Rev:
			return nil, false, nil
		}
		if _, done = p.tried(key, &compiled); done {
			last.Frontends = slices.DeleteFunc(slices.Clone(last.Frontends), func(f *FrontendRow) bool { return compiled.has(f.Value.Key) })
			problems, done = p.letGoBy(key, &last)
		}
		return problems, done, nil
	})
}

// wait calls check after each change of the tables, until check is done or the context ends.
func (p Progress) wait(ctx context.Context, key vip.ServiceKey, check func() (_ []vip.Problem, done bool, _ error)) ([]vip.Problem, error) {
	for {
		services, compiled, applied := p.Services.Changed(), p.Compiled.Changed(), p.Applied.Changed() // read before check
		if problems, done, err := check(); done {
			return problems, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the dataplane to have service %q: %w", key, ctx.Err())
		case <-services:
		case <-compiled:
		case <-applied:
		}
	}
}

// tried reports whether the dataplane has tried every frontend of a row, and returns the problems of
// the dataplane.
func (p Progress) tried(key vip.ServiceKey, row *Compiled) (problems []vip.Problem, done bool) {
	for _, f := range row.Frontends {
		a, _, ok := p.Applied.Get(f.Value.Key)
		if !ok || a.Tried.Rev < f.Rev {
			return nil, false
		}
		problems = appendProblem(problems, a.Problem, key)
	}
	return problems, true
}

// letGoBy reports whether the dataplane has tried a later version of each frontend of a row, or
// doesn't have it. A frontend that took no new connections may be missing.
func (p Progress) letGoBy(key vip.ServiceKey, last *Compiled) (problems []vip.Problem, done bool) {
	newest := last.FrontendsRev()
	for _, f := range last.Frontends {
		a, _, ok := p.Applied.Get(f.Value.Key)
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

// WaitWithdrawn returns once a service of a source takes no new connections here, or belongs to another
// source. It returns an error only when the context ends.
func (p *Pipeline) WaitWithdrawn(ctx context.Context, source string, key vip.ServiceKey) error {
	if err := wake.Wait(ctx, p.Loop.Synced()); err != nil { // earlier, an unknown service may be in the dataplane
		return err
	}
	progress := p.Progress()
	for {
		changed := p.Services.Changed()
		row := p.Services.Row(key)
		if row != nil && row.Value.Source != source {
			return nil
		}
		if row == nil {
			last, _, _ := p.Compiled.Get(key)
			if _, err := progress.WaitGone(ctx, key, last); err != nil {
				return err
			}
			if p.Services.Row(key) != nil { // the source has it again
				continue
			}
			// The row may have been deleted before it could be read. In that case, wait until the
			// dataplane has applied everything up to now.
			return p.Loop.WaitTried(ctx, p.Frontends.Revision())
		}
		if err := wake.Wait(ctx, changed); err != nil {
			return err
		}
	}
}
