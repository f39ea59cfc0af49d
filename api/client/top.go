package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/url"
	"strconv"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// Top are the settings of a stream of the busiest services.
type Top struct {
	Interval time.Duration // 1s to 1m
	Limit    int           // services in an item
	Count    int           // of items; 0: no end
	By       string        // "connections", "active", "in", "out" or "bytes"; "": connections
}

// Top yields the busiest services at intervals, the first ones after one interval. The last pair has
// an error, unless Count items were yielded.
func (c *Client) Top(ctx context.Context, t Top) iter.Seq2[v1.Top, error] {
	return func(yield func(v1.Top, error) bool) {
		q := url.Values{"interval": {t.Interval.String()}, "limit": {strconv.Itoa(t.Limit)}}
		if t.Count > 0 {
			q.Set("count", strconv.Itoa(t.Count))
		}
		if t.By != "" {
			q.Set("by", t.By)
		}
		n := 0
		for line, err := range stream[v1.Top](ctx, c, v1.PathTop, q) {
			if err == io.EOF && t.Count > 0 && n == t.Count {
				return
			}
			if err = c.ended(ctx, err); err == nil && line.Problem != nil {
				err = errors.New(line.Problem.Message)
			}
			if n++; !yield(line, err) || err != nil {
				return
			}
		}
	}
}
