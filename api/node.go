package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/request"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"
	"github.com/ironvip/ironvip/vip"
)

func (s *Server) nodeRoutes() {
	server.HandleJSON(s.http, server.Route{Path: v1.PathStatus, Early: true, Need: access.View, ID: "get-status", Tag: "node", Summary: "Show node health"}, s.getStatus)
	server.HandleJSON(s.http, server.Route{Path: v1.PathHealthz, Early: true, Need: access.Public, ID: "healthz", Tag: "node", Summary: "Liveness of the agent"}, s.healthz)
	server.HandleJSON(s.http, server.Route{Path: v1.PathReadyz, Early: true, Need: access.Public, ID: "readyz", Tag: "node", Summary: "Readiness: the first full reconcile is finished",
		Description: "503 until then, with the cause."}, s.readyz)
	server.Handle(s.http, server.Route{Path: v1.PathMetrics, Early: true, Need: access.View, ID: "metrics", Tag: "node", Summary: "Prometheus metrics",
		Content: server.Text("text/plain", "")}, s.metrics())
	server.Handle(s.http, server.Route{Path: v1.PathOpenAPI, Early: true, Need: access.View, ID: "openapi", Tag: "node", Summary: "This document",
		Content: server.Object("application/openapi+json")}, s.openAPI)
	server.HandleJSON(s.http, server.Route{Path: v1.PathNodes, Need: access.View, ID: "list-nodes", Tag: "node", Summary: "List the nodes of the fleet",
		Description: "Nodes that are lost included. Without a shared store, the node that answers and the peers of its announcer. 503 while the shared store is unavailable."}, s.listNodes)
	server.HandleJSON(s.http, server.Route{Method: http.MethodDelete, Path: v1.PathNodes + "/{name}", Need: access.Operate, ID: "forget-node", Tag: "node", Summary: "Forget a lost node",
		Description: "Removes a node that will not return from the list, and its drain. 409 if the node is present."}, s.forgetNode)
	server.HandleJSON(s.http, server.Route{Path: v1.PathNodeChecks, Need: access.View, ID: "compare-checks", Tag: "node", Summary: "Compare the health checks of the nodes",
		Description: "Which nodes of the fleet probe a backend, and what each finds. 503 while the shared store is unavailable."}, s.compareChecks)
	server.Handle(s.http, server.Route{Path: v1.PathExport, Need: access.Administer, ID: "export", Tag: "addresses", Summary: "Save a snapshot of the store",
		Description: "Leases, registrations and overrides, for a backup or another store. `ironvip snapshot restore` reads it.",
		Content:     server.Object("application/json")}, s.export)
	server.HandleJSON(s.http, server.Route{Path: v1.PathDebugTables, Need: access.View, ID: "list-debug-tables", Tag: "debug",
		Summary: "List the tables of the pipeline"}, s.listDebugTables)
	server.HandleJSON(s.http, server.Route{Path: v1.PathDebugTables + "/{table}", Need: access.View, ID: "get-debug-table", Tag: "debug",
		Summary: "Get a table of the pipeline as text", Description: "Its columns may change between versions."}, s.getDebugTable)
}

func (s *Server) healthz(context.Context, *struct{}) (v1.Health, error) {
	return v1.Health{Status: "ok"}, nil
}

func (s *Server) isReady() bool { return table.IsClosed(s.Ready) }

func (s *Server) readyz(context.Context, *struct{}) (v1.Health, error) {
	if !s.isReady() {
		return v1.Health{}, server.Refuse(http.StatusServiceUnavailable, v1.CodeNotReady, s.waitsFor(), "GET "+v1.PathStatus+" shows details").RetryAfter(1)
	}
	return v1.Health{Status: "ok"}, nil
}

func (s *Server) openAPI(context.Context, *struct{}) (*server.Stream, error) {
	return server.Raw("application/openapi+json", s.http.Document()), nil
}

func (s *Server) getStatus(context.Context, *struct{}) (v1.NodeStatus, error) { return s.status(), nil }

// status returns the health of this node. It costs O(sources + pools + unhealthy services + frontends).
func (s *Server) status() v1.NodeStatus {
	out := v1.NodeStatus{Node: s.Node, Version: s.Version, Started: s.Started.UTC(), Uptime: int64(time.Since(s.Started) / time.Second),
		Level: v1.LevelOK, Ready: s.isReady(), Services: s.Services.Len(), Revision: s.tables.Revisions.Revision(), Checks: []v1.Check{}}
	next := map[string]string{"config": "ironvip config validate", "sources": "ironvip source list", "pools": "ironvip pool list",
		"services": "ironvip service list", "dataplane": "ironvip dataplane show", "health ports": "ironvip events", "overrides": "ironvip debug table overrides",
		"store": "ironvip events", "state": "ironvip doctor", "capacity": "ironvip service list", "limits": "ironvip service list",
		"health hold": "ironvip backend list", "panic mode": "ironvip service list", "probes": "ironvip events", "probe results": "ironvip backend list --nodes", "scope": "ironvip service list", "probe paths": "ironvip debug table applied_paths", "announce": "ironvip announce peers", "nodes": "ironvip node list", "dns": "ironvip doctor"}
	add := func(c v1.Check) {
		out.Checks = append(out.Checks, c)
		if rank(c.Level) > rank(out.Level) {
			out.Level, out.Next = c.Level, cmp.Or(c.Next, next[c.Name])
		}
	}
	add(s.Config.Check())
	add(s.sourcesCheck())
	if s.hasBegun() { // else it is not known
		add(s.poolsCheck())
		now := s.unhealthy.standing()
		add(s.servicesCheck(now))
		for _, c := range healthChecks(now, time.Now()) {
			add(c)
		}
	}
	d := s.dataplane()
	c := v1.Check{Name: "dataplane", Level: d.Level, Message: fmt.Sprintf("%s, %s, %d drift", d.Mode, d.Summary, d.Repairs)}
	if i := slices.IndexFunc(d.Problems, func(p v1.Problem) bool { return strings.Contains(d.Summary, p.Message) }); i >= 0 {
		c.Hint = d.Problems[i].Hint
	}
	if d.Level != v1.LevelOK || len(d.Problems) > 0 {
		for _, f := range d.Findings {
			c.Problems = append(c.Problems, v1.Problem{Code: vip.CodeDataplane, Message: f.Name + ": " + f.Message, Hint: f.Fix})
		}
	}
	if len(c.Problems) > 0 && c.Hint == "" {
		c.Message, c.Hint, c.InMessage = c.Message+"; "+c.Problems[0].Message, c.Problems[0].Hint, 1
	}
	add(c)
	for _, c := range append(s.limitChecks(), s.Checks()...) {
		add(c)
	}
	return out
}

// rank orders levels; 0 is ok.
func rank(level string) int {
	switch level {
	case v1.LevelFail:
		return 2
	case v1.LevelWarn:
		return 1
	}
	return 0
}

// sourcesCheck counts the services of each source and reports its first problem.
func (s *Server) sourcesCheck() v1.Check {
	c := v1.Check{Name: "sources", Level: v1.LevelOK}
	var parts []string
	for _, src := range s.sources() {
		part := src.Name + " " + text.Plural(src.Services, "service")
		switch {
		case src.Stale != "":
			part += " (stale: " + src.Stale + ")"
		case !src.Synced:
			part += " (not synced yet)"
		case len(src.Problems) > 0:
			part += " (" + text.Plural(len(src.Problems), "problem") + ": " + src.Problems[0].Error() + ")"
			c.Hint = src.Problems[0].Hint
		}
		parts = append(parts, part)
		if rank(src.Level) > rank(c.Level) {
			c.Level = src.Level
		}
	}
	c.Message = cmp.Or(strings.Join(parts, ", "), "none")
	return c
}

func (s *Server) poolsCheck() v1.Check {
	c := v1.Check{Name: "pools", Level: v1.LevelOK}
	var parts []string
	for _, p := range s.Pools() {
		size := "many"
		if p.Size < maxCount {
			size = strconv.FormatUint(p.Size, 10)
		}
		part := fmt.Sprintf("%s %d of %s used", p.Name, p.Used, size)
		if len(p.Alarms) > 0 {
			c.Level, c.Hint = v1.LevelWarn, p.Alarms[0].Hint
			part += " (" + p.Alarms[0].Message + ")"
		}
		parts = append(parts, part)
	}
	if c.Message = strings.Join(parts, ", "); len(parts) == 0 {
		c.Level, c.Message, c.Hint = v1.LevelWarn, "none: no service can get an address", "add a [[pool]] to ironvip.toml"
	}
	return c
}

// servicesCheck counts services by state, from the unhealthy index.
func (s *Server) servicesCheck(now standing) v1.Check {
	c := v1.Check{Name: "services", Level: v1.LevelOK}
	healthy := now.services
	for _, n := range now.states {
		healthy -= n
	}
	c.Message = fmt.Sprintf("%d of %d healthy", max(healthy, 0), now.services) // services may be removed between the two counts
	for _, state := range []string{v1.StateUnchecked, v1.StateElsewhere, v1.StateDegraded, v1.StateDown, v1.StatePending, v1.StateRefused} {
		if n := now.states[status.State(state)]; n > 0 {
			c.Message += fmt.Sprintf(", %d %s", n, state)
			if state != v1.StateUnchecked && state != v1.StateElsewhere && (state != v1.StatePending || s.isReady()) {
				c.Level = v1.LevelWarn
			}
		}
	}
	if now.ejected > 0 {
		c.Message += fmt.Sprintf("; %d of %s ejected", now.ejected, text.Plural(now.backends, "backend"))
		c.Hint = "ironvip backend list shows the reasons"
	}
	if now.down > 0 {
		c.Message += fmt.Sprintf("; %d of %s unhealthy", now.down, text.Plural(now.backends, "backend"))
		c.Hint = "ironvip backend list shows the reasons"
		if 2*now.down > now.backends {
			c.Level = v1.LevelFail
			c.Hint = "most backends fail their health checks: check this host's network, and the checks; " + c.Hint
		}
	}
	return c
}

// healthChecks returns the lines about clients that are sent to unhealthy backends on purpose: by a
// hold of this host, and by the panic mode of services.
func healthChecks(now standing, at time.Time) (checks []v1.Check) {
	if now.held > 0 {
		since, left := max(0, at.Sub(now.since.Time())), max(0, now.until.Time().Sub(at))
		checks = append(checks, v1.Check{Name: "health hold", Level: v1.LevelWarn,
			Message: fmt.Sprintf("all health checks of this host failed at once %s ago; %s that fail keep getting clients for %s more, until %s",
				since.Round(time.Second), text.Plural(now.held, "backend"), left.Round(time.Second), now.until.Time().UTC().Format(time.RFC3339)),
			Hint: "check this host's network and firewall: backends that still fail then get no new connections; ironvip backend list shows the errors"})
	}
	if n := len(now.panics); n > 0 {
		names := request.Convert(now.panics, vip.ServiceKey.String)
		checks = append(checks, v1.Check{Name: "panic mode", Level: v1.LevelWarn,
			Message: fmt.Sprintf("%s sent to unhealthy backends, too, because fewer than panic_threshold are healthy: %s",
				"clients of "+text.Plural(n, "service")+" are", text.First(3, names, ", ")),
			Hint: "see ironvip service explain " + names[0]})
	}
	return checks
}

func (s *Server) listNodes(ctx context.Context, in *request.Paging) (out v1.NodeList, err error) {
	if out, err = s.Nodes(ctx); err != nil {
		return out, nodesAway(err, v1.PathStatus)
	}
	out.Items, out.Next, err = request.List(*in, request.ByName.Of("nodes"), out.Items, func(n *v1.Node) string { return n.Name })
	return out, err
}

// nodesAway returns the error of a request that reads the nodes of the fleet. Instead is the request
// that shows this node alone.
func nodesAway(err error, instead string) error {
	if errors.Is(err, fleet.ErrUnavailable) {
		return request.StoreAway(err.Error(), "see GET "+instead+" for this node alone; traffic is not affected")
	}
	return err
}

type compareChecksInput struct {
	request.LongPaging
	Service []string `query:"service,explode" maxItems:"100" doc:"of these services only: \"name\" or \"namespace/name\""`
}

// compareChecks reads the rows of all nodes from the store for each page, and costs O(services) and
// O(backends) of the services of the page.
func (s *Server) compareChecks(ctx context.Context, in *compareChecksInput) (out v1.CheckComparisonList, err error) {
	last, err := checkOrder.After(request.Paging(in.LongPaging))
	if err != nil {
		return out, err
	}
	var services []*vip.Service
	for _, name := range in.Service {
		key, err := request.ServiceParameter(name)
		if err != nil {
			return out, err
		}
		row := s.Services.Row(key)
		if row == nil {
			return out, request.NoService(key)
		}
		services = append(services, &row.Value)
	}
	if len(in.Service) == 0 {
		for _, service := range s.Services.All() {
			services = append(services, &service)
		}
	}
	services = slices.DeleteFunc(services, func(v *vip.Service) bool { return in.Cursor != "" && v.Key.Compare(last.Backend.Service) < 0 })
	slices.SortFunc(services, func(a, b *vip.Service) int { return a.Key.Compare(b.Key) })
	rows, err := s.CompareChecks(ctx, services)
	if err != nil {
		here := v1.PathServices + "/NAMESPACE/NAME"
		if len(services) == 1 {
			here = v1.ServicePath(services[0].Key.Namespace, services[0].Key.Name)
		}
		return out, nodesAway(err, here+"/backends")
	}
	// The rows of a service have no order, so the page needs all rows of its last service.
	var read []v1.CheckComparison
	for row := range rows {
		if n := len(read); n > in.Limit && read[n-1].Service != row.Service {
			break
		}
		if in.Cursor == "" || checkOrder.Compare(keyOfCheck(&row), last) > 0 {
			read = append(read, row)
		}
	}
	out.Items, out.Next, err = request.List(request.Paging(in.LongPaging), checkOrder, read, keyOfCheck)
	return out, err
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

func (s *Server) listDebugTables(_ context.Context, in *request.Paging) (out v1.DebugTableList, err error) {
	tables := request.Convert(s.Tables, func(t status.DebugTable) v1.DebugTableInfo {
		return v1.DebugTableInfo{Name: t.Name, Rows: t.Len(), Revision: t.Revision()}
	})
	place := func(name string) int {
		return slices.IndexFunc(tables, func(t v1.DebugTableInfo) bool { return t.Name == name })
	}
	along := request.ByName.Of("tables") // along the pipeline
	along.Compare = func(a, b string) int { return cmp.Compare(place(a), place(b)) }
	out.Items, out.Next, err = request.List(*in, along, tables, func(t *v1.DebugTableInfo) string { return t.Name })
	return out, err
}

type debugTableInput struct {
	Table string `path:"table"`
}

func (s *Server) getDebugTable(_ context.Context, in *debugTableInput) (v1.DebugTable, error) {
	names := make([]string, len(s.Tables))
	for i, t := range s.Tables {
		if names[i] = t.Name; t.Name == in.Table {
			return v1.DebugTable{Name: t.Name, Revision: t.Revision(), Columns: t.Columns, Rows: t.Rows()}, nil
		}
	}
	return v1.DebugTable{}, server.Refuse(http.StatusNotFound, v1.CodeNotFound, "table \""+in.Table+"\" does not exist", "use one of "+strings.Join(names, ", "))
}

var checkOrder = request.Order[checkKey]{List: "checks", Compare: compareChecks}

// checkKey identifies a row of the comparison of checks.
type checkKey struct {
	Backend vip.BackendKey
	Port    uint16
	Check   string
}

func compareChecks(a, b checkKey) int {
	return cmp.Or(compareBackends(a.Backend, b.Backend), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Check, b.Check))
}

func keyOfCheck(c *v1.CheckComparison) checkKey {
	k := checkKey{Port: c.Port, Check: c.Check}
	k.Backend.Service, _ = vip.ParseServiceKey(c.Service) // both were written by String
	k.Backend.Address, k.Backend.Port, _ = vip.ParseBackendID(c.Backend)
	return k
}
