// Package forwarding serves the routes of the dataplane: its state and its differences from the desired one, traffic, and
// connections.
//
// Its input is requests. Its output is what the tables and the dataplane have. It owns no table, and programs nothing
// itself: repairs and the move to another dataplane are functions of its Deps.
//
// Files:
//
//	forwarding.go   the routes
//	dataplane.go    the state, frontends, differences, repair
//	stats.go        traffic, and the connections of a backend
//	top.go          a stream of the busiest services
//	connections.go  single connections
package forwarding

import (
	"context"
	"net/http"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	"github.com/ironvip/ironvip/api/trouble"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

// Difference is one frontend that differs between the desired state and the dataplane.
type Difference = reconcile.Difference[vip.FrontendKey, vip.Frontend]

// Deps contains what the handlers read and call, beside the tables of statuses.
type Deps struct {
	Stats     func() reconcile.Stats
	Dataplane func() Dataplane
	// Switch moves the host to another dataplane, or returns what that does.
	Switch           func(ctx context.Context, mode string, force, dryRun bool) (v1.SwitchPlan, error)
	Statistics       reconcile.Statistics                        // the dataplane's counters
	Connections      reconcile.Connections                       // counts the connections of backends
	ConnectionLister reconcile.ConnectionLister                  // lists single connections
	Diff             func(context.Context) ([]Difference, error) // reads the dataplane
	Repair           func(context.Context) ([]Difference, error) // the same, and repairs the differences
}

// Dataplane is the running dataplane and the reason for its choice.
type Dataplane struct {
	Mode     string // "ipvs", "nft", "proxy"
	Reason   string
	Findings []v1.Finding          // what the host lacks for a dataplane
	Leaving  []v1.LeavingDataplane // those that it has replaced

	Switching string // the one to which the host is being moved; "": none
}

// Handlers answer the requests.
type Handlers struct {
	Deps
	*status.Tables
	trouble *trouble.Index
	http    *server.Server
	totals  request.Recent[map[vip.ServiceKey]reconcile.Traffic] // of streams of the busiest services
}

// New returns the handlers and adds their routes to a server.
func New(s *server.Server, t *status.Tables, trouble *trouble.Index, d Deps) *Handlers {
	h := &Handlers{Deps: d, Tables: t, trouble: trouble, http: s}
	server.HandleJSON(s, server.Route{Path: v1.PathDataplane, Early: true, Need: access.View, ID: "get-dataplane", Tag: "dataplane",
		Summary: "Show the state of the dataplane", Description: "Answers from the record of applied changes, without reading the kernel."}, h.getDataplane)
	server.HandleJSON(s, server.Route{Path: v1.PathDataplaneFrontends, Need: access.View, ID: "list-frontends", Tag: "dataplane",
		Summary: "List desired frontends and whether they are applied"}, h.listFrontends)
	server.HandleJSON(s, server.Route{Path: v1.PathDataplaneDiff, Need: access.View, ID: "diff-dataplane", Tag: "dataplane",
		Summary: "Compare the dataplane with the desired state", Description: "Reads the whole dataplane, for each page."}, h.diffDataplane)
	server.HandleJSON(s, server.Route{Method: http.MethodPost, Path: v1.PathDataplaneRepair, Need: access.Operate, ID: "repair-dataplane", Tag: "dataplane",
		Summary: "Repair differences between the dataplane and the desired state"}, h.repairDataplane)
	server.HandleJSON(s, server.Route{Method: http.MethodPost, Path: v1.PathDataplaneSwitch, Need: access.Operate, ID: "switch-dataplane", Tag: "dataplane",
		Summary: "Move the host to another dataplane", Description: "Begins to let the other dataplane serve, and returns what that does. Until it serves, `switching` of `/v1/dataplane` names that dataplane."}, h.switchDataplane)
	server.HandleJSON(s, server.Route{Path: v1.PathStats, Need: access.View, ID: "list-stats", Tag: "services", Summary: "Read the traffic of every service",
		Description: "Connections, bytes and packets from one read of the dataplane's counters. Services without frontends are missing."}, h.listStats)
	server.Handle(s, server.Route{Path: v1.PathTop, Need: access.View, ID: "top-services", Tag: "services", Summary: "Follow the busiest services",
		Description: "A stream of lines of JSON: the services that carried most in each interval. The counters are read once per interval.",
		Content:     s.JSON(request.Ndjson, v1.Top{})}, h.topServices)
	server.HandleJSON(s, server.Route{Path: v1.PathServices + "/{namespace}/{name}/stats", Need: access.View, ID: "service-stats", Tag: "services",
		Summary: "Read a service's traffic, by frontend and backend"}, h.serviceStats)
	server.HandleJSON(s, server.Route{Path: v1.PathServices + "/{namespace}/{name}/backends/{id}/connections", Need: access.View, ID: "backend-connections", Tag: "backends", Summary: "Count a backend's connections",
		Description: "The open connections through this host, read from the dataplane: of a backend in any state, and of a removed one until its drain ends."}, h.backendConnections)
	server.Handle(s, server.Route{Path: v1.PathConnections, Need: access.Operate, ID: "list-connections", Tag: "dataplane", Summary: "List single connections",
		Description: "Reads the dataplane, and sends each connection through this host as a line of JSON, in any order. The list has no pages: it is not stored anywhere. " +
			"A line with a problem is the last one. It needs the role operator, because it has the addresses of clients.",
		Content: s.JSON(request.Ndjson, v1.Connection{})}, h.listConnections)
	return h
}
