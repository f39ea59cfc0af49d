package client

import (
	"context"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// Stats returns the traffic of every service, from one read of the dataplane.
func (c *Client) Stats(ctx context.Context) (v1.StatsList, error) {
	return fetchAll(ctx, c, call{path: v1.PathStats}, func(l *v1.StatsList) (*[]v1.ServiceTotal, *string) { return &l.Items, &l.Next })
}

// ServiceStats returns the traffic of one service and of its backends.
func (c *Client) ServiceStats(ctx context.Context, namespace, name string) (v1.ServiceStats, error) {
	return fetch[v1.ServiceStats](ctx, c, call{path: v1.ServiceStatsPath(namespace, name)})
}

// BackendConnections returns how many connections a backend has through the agent's host.
func (c *Client) BackendConnections(ctx context.Context, namespace, name, id string) (v1.BackendConnections, error) {
	return fetch[v1.BackendConnections](ctx, c, call{path: v1.BackendConnectionsPath(namespace, name, id)})
}
