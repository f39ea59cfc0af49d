package client

import (
	"context"
	"net/http"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// Stats returns the traffic of every service, from one read of the dataplane.
func (c *Client) Stats(ctx context.Context) (out v1.StatsList, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.PathStats, out: &out})
	return out, err
}

// ServiceStats returns the traffic of one service and of its backends.
func (c *Client) ServiceStats(ctx context.Context, namespace, name string) (out v1.ServiceStats, err error) {
	err = c.do(ctx, call{method: http.MethodGet, path: v1.ServiceStatsPath(namespace, name), out: &out})
	return out, err
}
