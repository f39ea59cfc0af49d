package request

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"syscall"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/vip"
)

func NoService(key vip.ServiceKey) *server.Problem {
	return server.Refuse(http.StatusNotFound, v1.CodeNotFound, "service \""+key.String()+"\" does not exist",
		"create it first: ironvip service apply; list services: ironvip service list")
}

func NoBackend(key vip.BackendKey) *server.Problem {
	id := key.ID()
	return server.Refuse(http.StatusNotFound, v1.CodeNotFound, "service \""+key.Service.String()+"\" has no backend "+id,
		"register it: PUT "+v1.BackendPath(key.Service.Namespace, key.Service.Name, id))
}

// StoreAway returns the problem of a request that needs the fleet's shared store while it is
// unreachable.
func StoreAway(detail, hint string) *server.Problem {
	return server.Refuse(http.StatusServiceUnavailable, v1.CodeStoreUnavailable, detail, hint).RetryAfter(5)
}

// WriteFailed returns the problem of a write that the store refused or did not confirm.
func WriteFailed(err error) error {
	if conflict, ok := errors.AsType[*registry.ConflictError](err); ok {
		return server.Refuse(http.StatusConflict, v1.CodeConflict, conflict.Error(), ConflictHint(conflict))
	}
	switch {
	case errors.Is(err, fleet.ErrUnavailable):
		what := "try again when the store is reachable"
		if store, ok := errors.AsType[*registry.StoreError](err); !ok || store.Unknown {
			what = "the result is unknown until the store is reachable, and repeating the request is safe"
		}
		return StoreAway(err.Error(), "traffic is not affected; "+what+". ironvip status shows the cause and the fix")
	case errors.Is(err, registry.ErrStore):
		status, code, hint := http.StatusServiceUnavailable, v1.CodeStoreUnavailable, "check the agent's log and try again"
		if p, ok := errors.AsType[vip.Problem](err); ok && p.Hint != "" {
			hint = p.Hint
		}
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			status, code, hint = http.StatusInsufficientStorage, v1.CodeStoreFull, "free disk space in state_dir and try again"
		}
		return server.Refuse(status, code, err.Error(), hint)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return server.Refuse(http.StatusServiceUnavailable, v1.CodeUnavailable, "request canceled before the write; nothing changed", "try again")
	}
	return err // an own fault: 500, logged
}

// ConflictHint returns the hint for a conflicting write of another host.
func ConflictHint(c *registry.ConflictError) string {
	switch {
	case c.Unreadable:
		return "ironvip source list names the key in the fleet's store; remove it there if ironvip did not write it"
	case c.Removed:
		return "write it again if needed"
	}
	return "read the current version with ironvip service get " + c.Service.String() + "; write again to replace it (with If-Match), or use another name"
}

// Plan returns a plan with more problems. Its lists are not null.
func Plan(p v1.Plan, more []vip.Problem) *v1.Plan {
	p.Problems, p.Warnings = server.Problems(slices.Concat(more, p.Problems)), server.Problems(p.Warnings)
	p.Changes = append([]v1.PlanChange{}, p.Changes...)
	return &p
}
