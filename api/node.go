package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/ironvip/ironvip/internal/status"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/internal/text"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
)

func (s *Server) nodeRoutes() {
	server.HandleJSON(s.http, server.Route{Path: v1.PathStatus, Early: true, ID: "get-status", Tag: "node", Summary: "Show node health"}, s.getStatus)
	server.HandleJSON(s.http, server.Route{Path: v1.PathHealthz, Early: true, ID: "healthz", Tag: "node", Summary: "Liveness of the agent"}, s.healthz)
	server.HandleJSON(s.http, server.Route{Path: v1.PathReadyz, Early: true, ID: "readyz", Tag: "node", Summary: "Readiness: the first full reconcile is finished",
		Description: "503 until then, with the cause."}, s.readyz)
	server.Handle(s.http, server.Route{Path: v1.PathMetrics, Early: true, ID: "metrics", Tag: "node", Summary: "Prometheus metrics",
		Content: server.Text("text/plain", "")}, s.metrics())
	server.Handle(s.http, server.Route{Path: v1.PathOpenAPI, Early: true, ID: "openapi", Tag: "node", Summary: "This document",
		Content: server.Text("application/openapi+json", "")}, s.openAPI)
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

// status returns the health of this node. It costs O(sources + pools + notable frontends).
func (s *Server) status() v1.NodeStatus {
	out := v1.NodeStatus{Node: s.Node, Version: s.Version, Started: s.Started.UTC(), Uptime: int64(time.Since(s.Started) / time.Second),
		Level: v1.LevelOK, Ready: s.isReady(), Services: s.Services.Len(), Revision: s.servicesRevision(), Checks: []v1.Check{}}
	next := map[string]string{"config": "ironvip config validate", "sources": "ironvip source list", "pools": "ironvip pool list",
		"services": "ironvip service list", "dataplane": "ironvip dataplane show", "health ports": "ironvip events", "overrides": "ironvip debug table overrides",
		"store": "ironvip events", "state": "ironvip doctor"}
	add := func(c v1.Check) {
		out.Checks = append(out.Checks, c)
		if rank(c.Level) > rank(out.Level) {
			out.Level, out.Next = c.Level, next[c.Name]
		}
	}
	if s.Config.Check != nil {
		add(s.Config.Check())
	}
	add(s.sourcesCheck())
	if s.hasBegun() { // else it is not known
		if s.Pools != nil {
			add(s.poolsCheck())
		}
		add(s.servicesCheck())
	}
	if s.Stats != nil && s.Deps.Dataplane != nil {
		d := s.dataplane()
		c := v1.Check{Name: "dataplane", Level: d.Level, Message: fmt.Sprintf("%s, %s, %d drift", d.Mode, d.Summary, d.Repairs)}
		if len(d.Findings) > 0 && (d.Level != v1.LevelOK || len(d.Problems) > 0) {
			c.Hint = d.Findings[0].Message
		}
		add(c)
	}
	if s.Checks != nil {
		for _, c := range s.Checks() {
			add(c)
		}
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
	for i, src := range s.sources() {
		if i > 0 {
			c.Message += ", "
		}
		c.Message += src.Name + " " + text.Plural(src.Services, "service")
		switch {
		case src.Stale != "":
			c.Message += " (stale: " + src.Stale + ")"
		case !src.Synced:
			c.Message += " (not synced yet)"
		case len(src.Problems) > 0:
			c.Message += " (" + text.Plural(len(src.Problems), "problem") + ": " + src.Problems[0].String() + ")"
			c.Hint = src.Problems[0].Hint
		}
		if rank(src.Level) > rank(c.Level) {
			c.Level = src.Level
		}
	}
	if c.Message == "" {
		c.Message = "none"
	}
	return c
}

func (s *Server) poolsCheck() v1.Check {
	c := v1.Check{Name: "pools", Level: v1.LevelOK}
	for i, p := range s.Pools() {
		if i > 0 {
			c.Message += ", "
		}
		size := "many"
		if p.Size < maxCount {
			size = strconv.FormatUint(p.Size, 10)
		}
		c.Message += fmt.Sprintf("%s %d of %s used", p.Name, p.Used, size)
		if len(p.Alarms) > 0 {
			c.Level, c.Hint = v1.LevelWarn, p.Alarms[0].Hint
			c.Message += " (" + p.Alarms[0].Message + ")"
		}
	}
	if c.Message == "" {
		c.Level, c.Message, c.Hint = v1.LevelWarn, "none: no service can get an address", "add a [[pool]] to ironvip.toml"
	}
	return c
}

// servicesCheck counts services by state, from the unhealthy index.
func (s *Server) servicesCheck() v1.Check {
	c := v1.Check{Name: "services", Level: v1.LevelOK}
	total, count := s.unhealthy.states()
	healthy := total
	for _, n := range count {
		healthy -= n
	}
	c.Message = fmt.Sprintf("%d of %d healthy", max(healthy, 0), total) // services may be removed between the two counts
	for _, state := range []string{v1.StateElsewhere, v1.StateDegraded, v1.StateDown, v1.StatePending, v1.StateRefused} {
		if n := count[status.State(state)]; n > 0 {
			c.Message += fmt.Sprintf(", %d %s", n, state)
			if state != v1.StateElsewhere && (state != v1.StatePending || s.isReady()) {
				c.Level = v1.LevelWarn
			}
		}
	}
	return c
}
