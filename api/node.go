package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/addresses"
	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/trouble"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/api/status"
	v1 "github.com/ironvip/ironvip/api/v1"
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
		return v1.Health{}, server.Refuse(http.StatusServiceUnavailable, v1.CodeNotReady, s.waitsFor(), "ironvip status shows details").RetryAfter(1)
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
		Level: v1.LevelOK, Ready: s.isReady(), Services: s.Tables.Services.Len(), Revision: s.Tables.Revisions.Revision(), Checks: []v1.Check{}}
	next := map[string]string{"config": "ironvip config validate", "sources": "ironvip source list", "pools": "ironvip pool list",
		"services": "ironvip service list", "dataplane": "ironvip dataplane show", "health ports": "ironvip events", "overrides": "ironvip override list",
		"store": "ironvip events", "state": "ironvip doctor", "capacity": "ironvip service list", "limits": "ironvip service list",
		"health hold": "ironvip backend list", "panic mode": "ironvip service list", "probes": "ironvip events", "probe results": "ironvip debug table verdicts", "scope": "ironvip service list", "probe paths": "ironvip debug table applied_paths", "announce": "ironvip announce peers", "nodes": "ironvip node list", "dns": "ironvip dns list"}
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
		now := s.trouble.Standing()
		add(s.servicesCheck(now))
		for _, c := range healthChecks(now, time.Now()) {
			add(c)
		}
	}
	d := s.forwarding.State()
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
	for _, p := range s.Addresses.Pools() {
		size := "many"
		if p.Size < addresses.MaxCount {
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

// servicesCheck counts services by state, from the index of trouble.
func (s *Server) servicesCheck(now trouble.Standing) v1.Check {
	c := v1.Check{Name: "services", Level: v1.LevelOK}
	healthy := now.Services
	for _, n := range now.States {
		healthy -= n
	}
	c.Message = fmt.Sprintf("%d of %d healthy", max(healthy, 0), now.Services) // services may be removed between the two counts
	for _, state := range []string{v1.StateUnchecked, v1.StateElsewhere, v1.StateDegraded, v1.StateDown, v1.StatePending, v1.StateRefused} {
		if n := now.States[status.State(state)]; n > 0 {
			c.Message += fmt.Sprintf(", %d %s", n, state)
			if state != v1.StateUnchecked && state != v1.StateElsewhere && (state != v1.StatePending || s.isReady()) {
				c.Level = v1.LevelWarn
			}
		}
	}
	if now.Ejected > 0 {
		c.Message += fmt.Sprintf("; %d of %s ejected", now.Ejected, text.Plural(now.Backends, "backend"))
		c.Hint = "ironvip backend list shows the reasons"
	}
	if now.Down > 0 {
		c.Message += fmt.Sprintf("; %d of %s unhealthy", now.Down, text.Plural(now.Backends, "backend"))
		c.Hint = "ironvip backend list shows the reasons"
		if 2*now.Down > now.Backends {
			c.Level = v1.LevelFail
			c.Hint = "most backends fail their health checks: check this host's network, and the checks; " + c.Hint
		}
	}
	return c
}

// healthChecks returns the lines about clients that are sent to unhealthy backends on purpose: by a
// hold of this host, and by the panic mode of services.
func healthChecks(now trouble.Standing, at time.Time) (checks []v1.Check) {
	if now.Held > 0 {
		since, left := max(0, at.Sub(now.Since.Time())), max(0, now.Until.Time().Sub(at))
		checks = append(checks, v1.Check{Name: "health hold", Level: v1.LevelWarn,
			Message: fmt.Sprintf("all health checks of this host failed at once %s ago; %s that fail keep getting clients for %s more, until %s",
				since.Round(time.Second), text.Plural(now.Held, "backend"), left.Round(time.Second), now.Until.Time().UTC().Format(time.RFC3339)),
			Hint: "check this host's network and firewall: backends that still fail then get no new connections; ironvip backend list shows the errors"})
	}
	if n := len(now.Panics); n > 0 {
		names := request.Convert(now.Panics, vip.ServiceKey.String)
		checks = append(checks, v1.Check{Name: "panic mode", Level: v1.LevelWarn,
			Message: fmt.Sprintf("%s sent to unhealthy backends, too, because fewer than panic_threshold are healthy: %s",
				"clients of "+text.Plural(n, "service")+" are", text.First(3, names, ", ")),
			Hint: "see ironvip service explain " + names[0]})
	}
	return checks
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
	tables := request.Convert(s.DebugTables, func(t status.DebugTable) v1.DebugTableInfo {
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
	names := make([]string, len(s.DebugTables))
	for i, t := range s.DebugTables {
		if names[i] = t.Name; t.Name == in.Table {
			return v1.DebugTable{Name: t.Name, Revision: t.Revision(), Columns: t.Columns, Rows: t.Rows()}, nil
		}
	}
	return v1.DebugTable{}, server.Refuse(http.StatusNotFound, v1.CodeNotFound, "table \""+in.Table+"\" does not exist", "use one of "+strings.Join(names, ", "))
}
