package client

import (
	"context"
	"io"
	"net/http"
	"net/url"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// Status returns the health of the node.
func (c *Client) Status(ctx context.Context) (v1.NodeStatus, error) {
	return fetch[v1.NodeStatus](ctx, c, call{path: v1.PathStatus})
}

// Ready returns nil if the agent has done its first full reconcile.
func (c *Client) Ready(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodGet, path: v1.PathReadyz}, nil)
}

// VIPs lists the leases. kind is "address", "node_port", or "" for both.
func (c *Client) VIPs(ctx context.Context, kind string) (v1.VIPList, error) {
	q := largePages()
	if kind != "" {
		q.Set("kind", kind)
	}
	return fetchAll(ctx, c, call{path: v1.PathVIPs, query: q}, func(l *v1.VIPList) (*[]v1.VIP, *string) { return &l.Items, &l.Next })
}

// ReserveVIP reserves an address and returns its lease.
func (c *Client) ReserveVIP(ctx context.Context, spec v1.ReservationSpec) (v1.VIP, error) {
	return fetch[v1.VIP](ctx, c, call{method: http.MethodPost, path: v1.PathVIPs, body: spec})
}

// ReleaseVIP releases the reservation of an address and returns its lease, with the state "free" if
// it has none.
func (c *Client) ReleaseVIP(ctx context.Context, address string) (v1.VIP, error) {
	return fetch[v1.VIP](ctx, c, call{method: http.MethodDelete, path: v1.VIPPath(address)})
}

// VIP returns the lease on one address.
func (c *Client) VIP(ctx context.Context, address string) (v1.VIP, error) {
	return fetch[v1.VIP](ctx, c, call{path: v1.VIPPath(address)})
}

// Pools returns every pool.
func (c *Client) Pools(ctx context.Context) (v1.PoolList, error) {
	return fetchAll(ctx, c, call{path: v1.PathPools}, func(l *v1.PoolList) (*[]v1.Pool, *string) { return &l.Items, &l.Next })
}

// Sources returns every source.
func (c *Client) Sources(ctx context.Context) (v1.SourceList, error) {
	return fetchAll(ctx, c, call{path: v1.PathSources}, func(l *v1.SourceList) (*[]v1.Source, *string) { return &l.Items, &l.Next })
}

// Nodes returns every node of the fleet.
func (c *Client) Nodes(ctx context.Context) (v1.NodeList, error) {
	return fetchAll(ctx, c, call{path: v1.PathNodes, query: largePages()}, func(l *v1.NodeList) (*[]v1.Node, *string) { return &l.Items, &l.Next })
}

// Resync makes a source read everything again.
func (c *Client) Resync(ctx context.Context, source string) (v1.Source, error) {
	return fetch[v1.Source](ctx, c, call{method: http.MethodPost, path: v1.ResyncPath(source)})
}

// Dataplane reports whether the dataplane matches the desired state.
func (c *Client) Dataplane(ctx context.Context) (v1.Dataplane, error) {
	return fetch[v1.Dataplane](ctx, c, call{path: v1.PathDataplane})
}

// Frontends lists the desired frontends of a service, or of all services.
func (c *Client) Frontends(ctx context.Context, service string) (v1.FrontendList, error) {
	q := largePages()
	if service != "" {
		q.Set("service", service)
	}
	return fetchAll(ctx, c, call{path: v1.PathDataplaneFrontends, query: q}, func(l *v1.FrontendList) (*[]v1.Frontend, *string) { return &l.Items, &l.Next })
}

// Diff reads the dataplane and compares it with the desired state.
func (c *Client) Diff(ctx context.Context) (v1.DataplaneDiff, error) {
	return fetchAll(ctx, c, call{path: v1.PathDataplaneDiff}, func(l *v1.DataplaneDiff) (*[]v1.DiffEntry, *string) { return &l.Items, &l.Next })
}

// Repair reads the dataplane and repairs the differences immediately.
func (c *Client) Repair(ctx context.Context) (v1.RepairResult, error) {
	return fetch[v1.RepairResult](ctx, c, call{method: http.MethodPost, path: v1.PathDataplaneRepair})
}

// Switch moves the host to another dataplane. With dryRun, it only returns what that does.
func (c *Client) Switch(ctx context.Context, mode string, force, dryRun bool) (v1.SwitchPlan, error) {
	q := url.Values{"mode": {mode}}
	if force {
		q.Set("force", "true")
	}
	if dryRun {
		q.Set("dry_run", "true")
	}
	return fetch[v1.SwitchPlan](ctx, c, call{method: http.MethodPost, path: v1.PathDataplaneSwitch, query: q})
}

// Validate checks the configuration on the agent's disk.
func (c *Client) Validate(ctx context.Context) (v1.ValidateResult, error) {
	return fetch[v1.ValidateResult](ctx, c, call{method: http.MethodPost, path: v1.PathConfigValidate})
}

// Plan returns what a reload would change.
func (c *Client) Plan(ctx context.Context) (v1.Plan, error) {
	return fetch[v1.Plan](ctx, c, call{method: http.MethodPost, path: v1.PathConfigPlan})
}

// Reload reads the configuration again. An error means that nothing changed.
func (c *Client) Reload(ctx context.Context) (v1.ReloadResult, error) {
	return fetch[v1.ReloadResult](ctx, c, call{method: http.MethodPost, path: v1.PathReload})
}

// Get writes the unmodified response of any path: metrics, the OpenAPI document.
func (c *Client) Get(ctx context.Context, path string, to io.Writer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errTimeout)
	defer cancel()
	resp, err := c.send(ctx, call{method: http.MethodGet, path: path, header: http.Header{"Accept": {"*/*"}}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(to, resp.Body); err != nil {
		return c.unreachable(ctx, err)
	}
	return nil
}

// DebugTables lists the tables of the pipeline.
func (c *Client) DebugTables(ctx context.Context) (v1.DebugTableList, error) {
	return fetchAll(ctx, c, call{path: v1.PathDebugTables}, func(l *v1.DebugTableList) (*[]v1.DebugTableInfo, *string) { return &l.Items, &l.Next })
}

// DebugTable returns one table of the pipeline as text.
func (c *Client) DebugTable(ctx context.Context, name string) (v1.DebugTable, error) {
	return fetch[v1.DebugTable](ctx, c, call{path: v1.DebugTablePath(name)})
}
