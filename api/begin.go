package api

import (
	"cmp"
	"context"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/table"
)

// beginPatience is how long a request waits for an agent that hasn't begun. A start that waits for
// nothing takes less.
const beginPatience = time.Second

// hasBegun reports whether the stored state has been loaded. Only then is a row that the tables
// lack known not to exist.
func (s *Server) hasBegun() bool {
	return s.Begun == nil || table.IsClosed(s.Begun)
}

// onceBegun returns a handler for requests that can't be answered before the agent has begun. An
// empty list would be wrong, and the response to a heartbeat would be to register again.
func onceBegun[I, O any](s *Server, handler func(context.Context, *I) (*O, error)) func(context.Context, *I) (*O, error) {
	return func(ctx context.Context, in *I) (*O, error) {
		if s.Begun == nil {
			return handler(ctx, in)
		}
		late := time.NewTimer(beginPatience)
		defer late.Stop()
		select {
		case <-s.Begun:
			return handler(ctx, in)
		case <-ctx.Done():
		case <-late.C:
		}
		return nil, storeAway("agent not ready: it has not loaded the stored services and addresses yet: "+s.Awaits(),
			"try again later; GET "+v1.PathStatus+" shows the cause and the fix")
	}
}

// waitsFor returns what keeps the node from being ready.
func (s *Server) waitsFor() string {
	if !s.hasBegun() {
		return s.Awaits()
	}
	if !table.IsClosed(s.Services.Ready()) {
		for _, src := range s.sources() {
			if !src.Synced {
				return "source \"" + src.Name + "\" not read yet: " + cmp.Or(src.Stale, "no answer")
			}
		}
	}
	if s.Stats != nil {
		if why := s.Stats().TargetError; why != "" {
			return "dataplane unreachable: " + why
		}
	}
	return "first full reconcile not finished"
}
