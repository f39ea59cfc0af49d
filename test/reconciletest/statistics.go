package reconciletest

import (
	"context"
	"maps"
	"sync"

	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Statistics is a reconcile.Statistics of figures that a test sets. It counts
// how often it is read, and fails on request.
type Statistics struct {
	Parts reconcile.Counted // what Counted answers; not to be changed once in use

	mu                 sync.Mutex
	all                map[vip.FrontendKey]reconcile.Breakdown
	err                error
	totals, breakdowns int
}

// Set makes a frontend's figures those of b.
func (s *Statistics) Set(key vip.FrontendKey, b reconcile.Breakdown) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[vip.FrontendKey]reconcile.Breakdown{}
	}
	s.all[key] = b
}

// Fail makes every reading end with err; nil ends that.
func (s *Statistics) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// Readings returns how often Totals and Breakdown were called.
func (s *Statistics) Readings() (totals, breakdowns int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.totals, s.breakdowns
}

// Counted implements reconcile.Statistics.
func (s *Statistics) Counted() reconcile.Counted { return s.Parts }

// Totals implements reconcile.Statistics.
func (s *Statistics) Totals(ctx context.Context, want func(vip.FrontendKey) bool) (map[vip.FrontendKey]reconcile.Traffic, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.totals++
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.err != nil {
		return nil, s.err
	}
	out := map[vip.FrontendKey]reconcile.Traffic{}
	for key, b := range s.all {
		if want(key) {
			out[key] = b.Traffic
		}
	}
	return out, nil
}

// Breakdown implements reconcile.Statistics.
func (s *Statistics) Breakdown(ctx context.Context, key vip.FrontendKey) (reconcile.Breakdown, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.breakdowns++
	if err := ctx.Err(); err != nil {
		return reconcile.Breakdown{}, false, err
	}
	b, ok := s.all[key]
	if s.err != nil || !ok {
		return reconcile.Breakdown{}, false, s.err
	}
	b.Endpoints = maps.Clone(b.Endpoints)
	return b, true, nil
}
