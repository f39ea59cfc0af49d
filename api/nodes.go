package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/fleet"
)

func (s *Server) fleetRoutes() {
	server.HandleJSON(s.http, server.Route{Path: v1.PathNodes, Lacks: server.Needs(s.Nodes != nil, "fleet"), ID: "list-nodes", Tag: "node", Summary: "List the nodes of the fleet",
		Description: "Without a shared store, only the node that answers. 503 while the shared store is unavailable."}, s.listNodes)
	server.Handle(s.http, server.Route{Path: v1.PathExport, Lacks: server.Needs(s.Snapshot != nil, "store"), ID: "export", Tag: "addresses", Summary: "Save a snapshot of the store",
		Description: "Leases, registrations and operator states, for a backup or another store. `ironvip snapshot restore` reads it.",
		Content:     server.Text("application/json", "")}, s.export)
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
func storeAway(detail, hint string) *server.Problem {
	return server.Refuse(http.StatusServiceUnavailable, v1.CodeStoreUnavailable, detail, hint).RetryAfter(5)
}

// export returns the store as a document. It costs O(leases and registrations).
func (s *Server) export(ctx context.Context, _ *struct{}) (*server.Stream, error) {
	document, err := s.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(document, "", " ")
	if err != nil {
		return nil, err
	}
	return server.Raw("application/json", append(text, '\n')), nil
}
