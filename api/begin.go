package api

import (
	"cmp"
	"context"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/table"
)

// beginTimeout is how long a request waits for an agent that hasn't begun. A start that waits for
// nothing takes less.
const beginTimeout = time.Second

// hasBegun reports whether the stored state has been loaded. Only then is a row that the tables
// lack known not to exist.
func (s *Server) hasBegun() bool {
	return s.Begun == nil || table.IsClosed(s.Begun)
}

// waitBegun returns an error if the agent has not begun. Requests are refused then: an empty list
// would be wrong, and the response to a heartbeat would be to register again.
func (s *Server) waitBegun(ctx context.Context) error {
	if s.Begun == nil {
		return nil
	}
	late := time.NewTimer(beginTimeout)
	defer late.Stop()
	select {
	case <-s.Begun:
		return nil
	case <-ctx.Done():
	case <-late.C:
	}
	return storeAway("agent not ready: it has not loaded the stored services and addresses yet: "+s.Awaits(),
		"try again later; GET "+v1.PathStatus+" shows the cause and the fix")
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
