package api

import (
	"cmp"
	"context"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/table"
)

// beginPatience is how long a request waits for an agent that hasn't begun: longer
// than a start takes that has nobody to wait for.
const beginPatience = time.Second

// hasBegun reports whether what the store keeps has been taken in, so that what the
// tables lack isn't there.
func (s *Server) hasBegun() bool {
	return s.Begun == nil || table.IsClosed(s.Begun)
}

// onceBegun is a handler for what can't be answered before the agent has begun: an
// empty list would be untrue, and a heartbeat would be told to register again.
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

// waitsFor says what keeps the node from being ready.
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
