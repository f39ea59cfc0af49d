package client

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strconv"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// Status returns the health of the node.
func (c *Client) Status(ctx context.Context) (out v1.NodeStatus, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.PathStatus, out: &out})
	return out, err
}

// Ready returns nil if the agent has done its first full reconcile.
func (c *Client) Ready(ctx context.Context) error {
	return c.do(ctx, call{method: http.MethodGet, path: v1.PathReadyz})
}

// VIPs returns one page of leases. kind is "address", "node_port", or "" for both.
func (c *Client) VIPs(ctx context.Context, kind, cursor string, limit int) (out v1.VIPList, err error) {
	q := page(cursor, limit)
	if kind != "" {
		q.Set("kind", kind)
	}
	err = c.do(ctx, call{method: http.MethodGet, path: v1.PathVIPs, query: q, out: &out})
	return out, err
}

// VIP returns the lease on one address.
func (c *Client) VIP(ctx context.Context, address string) (out v1.VIP, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.VIPPath(address), out: &out})
	return out, err
}

// Pools returns every pool.
func (c *Client) Pools(ctx context.Context) (out v1.PoolList, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.PathPools, out: &out})
	return out, err
}

// Sources returns every source.
func (c *Client) Sources(ctx context.Context) (out v1.SourceList, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.PathSources, out: &out})
	return out, err
}

// Nodes returns every node of the fleet.
func (c *Client) Nodes(ctx context.Context) (out v1.NodeList, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.PathNodes, out: &out})
	return out, err
}

// Resync makes a source read everything again.
func (c *Client) Resync(ctx context.Context, source string) (out v1.Source, err error) {
	err = c.do(ctx, call{method: http.MethodPost, path: v1.ResyncPath(source), out: &out})
	return out, err
}

// Dataplane reports whether the dataplane matches the desired state.
func (c *Client) Dataplane(ctx context.Context) (out v1.Dataplane, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.PathDataplane, out: &out})
	return out, err
}

// Frontends returns one page of the desired frontends.
func (c *Client) Frontends(ctx context.Context, service, cursor string, limit int) (out v1.FrontendList, err error) {
	q := page(cursor, limit)
	if service != "" {
		q.Set("service", service)
	}
	err = c.do(ctx, call{method: http.MethodGet, path: v1.PathDataplaneFrontends, query: q, out: &out})
	return out, err
}

// Diff reads the dataplane and compares it with the desired state.
func (c *Client) Diff(ctx context.Context) (out v1.DataplaneDiff, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.PathDataplaneDiff, out: &out})
	return out, err
}

// Repair reads the dataplane and repairs the differences immediately.
func (c *Client) Repair(ctx context.Context) (out v1.RepairResult, err error) {
	err = c.do(ctx, call{method: http.MethodPost, path: v1.PathDataplaneRepair, out: &out})
	return out, err
}

// Validate checks the configuration on the agent's disk.
func (c *Client) Validate(ctx context.Context) (out v1.ValidateResult, err error) {
	err = c.do(ctx, call{method: http.MethodPost, path: v1.PathConfigValidate, out: &out})
	return out, err
}

// Plan returns what a reload would change.
func (c *Client) Plan(ctx context.Context) (out v1.Plan, err error) {
	err = c.do(ctx, call{method: http.MethodPost, path: v1.PathConfigPlan, out: &out})
	return out, err
}

// Reload reads the configuration again. An error means that nothing changed.
func (c *Client) Reload(ctx context.Context) (out v1.ReloadResult, err error) {
	err = c.do(ctx, call{method: http.MethodPost, path: v1.PathReload, out: &out})
	return out, err
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

func page(cursor string, limit int) url.Values {
	q := url.Values{}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return q
}

// DebugTables lists the tables of the pipeline.
func (c *Client) DebugTables(ctx context.Context) (out v1.DebugTableList, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.PathDebugTables, out: &out})
	return out, err
}

// DebugTable returns one table of the pipeline as text.
func (c *Client) DebugTable(ctx context.Context, name string) (out v1.DebugTable, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.DebugTablePath(name), out: &out})
	return out, err
}
