package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/fleet"
)

func (s *Server) fleetRoutes() {
	register(s, operation{method: http.MethodGet, path: v1.PathNodes, id: "list-nodes", tag: "node", summary: "List the nodes of the fleet",
		description: "Without a shared store, only the node that answers. 503 while the shared store is unavailable."}, s.listNodes)
	register(s, operation{method: http.MethodGet, path: v1.PathExport, id: "export", tag: "addresses", summary: "Save a snapshot of the store",
		description: "Leases, registrations and operator states, for a backup or another store. `ironvip snapshot restore` reads it.",
		content:     "application/json"}, s.export)
}

type listNodesOutput struct{ Body v1.NodeList }

func (s *Server) listNodes(ctx context.Context, _ *struct{}) (*listNodesOutput, error) {
	if s.Nodes == nil {
		return nil, unavailable("fleet")
	}
	list, err := s.Nodes(ctx)
	switch {
	case errors.Is(err, fleet.ErrUnavailable):
		return nil, storeAway(err.Error(), "traffic is not affected; for this node alone: GET "+v1.PathStatus)
	case err != nil:
		return nil, err
	}
	return &listNodesOutput{Body: list}, nil
}

// storeAway returns the problem of a request that needs the fleet's shared store while it is
// unreachable.
func storeAway(detail, hint string) *problem {
	p := refuse(http.StatusServiceUnavailable, v1.CodeStoreUnavailable, detail, hint)
	p.header = http.Header{"Retry-After": {"5"}}
	return p
}

// export returns the store as a document. It costs O(leases and registrations).
func (s *Server) export(ctx context.Context, _ *struct{}) (*documentOutput, error) {
	if s.Snapshot == nil {
		return nil, unavailable("store")
	}
	document, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(document, "", " ")
	if err != nil {
		return nil, err
	}
	return &documentOutput{Body: func(ctx huma.Context) {
		ctx.SetHeader("Content-Type", "application/json")
		_, _ = ctx.BodyWriter().Write(append(text, '\n')) // the caller may be gone
	}}, nil
}
