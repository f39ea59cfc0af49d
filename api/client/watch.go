package client

import (
	"context"
	"iter"
	"net/url"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// WatchServices yields each selected service, a change with Synced, and then each change, until the
// context or the connection ends. Limit, Cursor, State and Wait of l are ignored. names are those of
// services; none: all. The last pair has the reason as its error.
func (c *Client) WatchServices(ctx context.Context, l List, names ...string) iter.Seq2[v1.ServiceChange, error] {
	return func(yield func(v1.ServiceChange, error) bool) {
		q := url.Values{}
		if l.Source != "" {
			q.Set("source", l.Source)
		}
		for _, label := range l.Labels {
			q.Add("label", label)
		}
		for _, name := range names {
			q.Add("service", name)
		}
		for change, err := range stream[v1.ServiceChange](ctx, c, v1.PathWatchServices, q) {
			if err = c.ended(ctx, err); !yield(change, err) || err != nil {
				return
			}
		}
	}
}
