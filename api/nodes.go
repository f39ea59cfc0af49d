package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/fleet"
)

func (s *Server) fleetRoutes() {
	serve(s, operation{path: v1.PathNodes, lacks: needs(s.Nodes != nil, "fleet"), id: "list-nodes", tag: "node", summary: "List the nodes of the fleet",
		description: "Without a shared store, only the node that answers. 503 while the shared store is unavailable."}, s.listNodes)
	register(s, operation{path: v1.PathExport, lacks: needs(s.Snapshot != nil, "store"), id: "export", tag: "addresses", summary: "Save a snapshot of the store",
		description: "Leases, registrations and operator states, for a backup or another store. `ironvip snapshot restore` reads it.",
		content:     plain("application/json", "")}, s.export)
}

func (s *Server) listNodes(ctx context.Context, _ *struct{}) (v1.NodeList, error) {
	list, err := s.Nodes(ctx)
	if errors.Is(err, fleet.ErrUnavailable) {
		err = storeAway(err.Error(), "traffic is not affected; for this node alone: GET "+v1.PathStatus)
	}
	return list, err
}

// storeAway returns the problem of a request that needs the fleet's shared store while it is
// unreachable.
func storeAway(detail, hint string) *problem {
	return refuse(http.StatusServiceUnavailable, v1.CodeStoreUnavailable, detail, hint).retryAfter(5)
}

// export returns the store as a document. It costs O(leases and registrations).
func (s *Server) export(ctx context.Context, _ *struct{}) (*stream, error) {
	document, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(document, "", " ")
	if err != nil {
		return nil, err
	}
	return raw("application/json", append(text, '\n')), nil
}
