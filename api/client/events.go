package client

import (
	"context"
	"iter"
	"net/url"
	"strconv"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// Events returns the stored events after the event with id since, oldest first.
func (c *Client) Events(ctx context.Context, since uint64) (v1.EventList, error) {
	all, err := fetchAll(ctx, c, call{path: v1.PathEvents, query: after(since)}, func(l *v1.EventList) (*[]v1.Event, *string) { return &l.Items, &l.Next })
	if n := len(all.Items); n > 0 {
		all.Last = all.Items[n-1].ID
	}
	return all, err
}

// FollowEvents yields the stored events after the event with id since, and then each new event,
// until the context or the connection ends. The last pair has the reason as its error. Call again
// with the last id to continue.
func (c *Client) FollowEvents(ctx context.Context, since uint64) iter.Seq2[v1.Event, error] {
	return func(yield func(v1.Event, error) bool) {
		for e, err := range stream[v1.Event](ctx, c, v1.PathEvents, after(since)) {
			if err = c.ended(ctx, err); !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// after returns the parameter for the events after the one with an id.
func after(id uint64) url.Values {
	q := url.Values{}
	if id > 0 {
		q.Set("since", strconv.FormatUint(id, 10))
	}
	return q
}
