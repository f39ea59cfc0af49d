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

// listingTime is how long an agent may take for a list of connections, in addition to the timeout of
// a call.
const listingTime = 2 * time.Minute

// Connections yields the connections through the agent's host, of one service if that is not "", and
// at most limit of them if that is not 0. It keeps one connection in memory. It ends at the first
// error.
func (c *Client) Connections(ctx context.Context, service string, limit int) iter.Seq2[v1.Connection, error] {
	return func(yield func(v1.Connection, error) bool) {
		ctx, cancel := context.WithTimeoutCause(ctx, c.timeout+listingTime, errTimeout)
		defer cancel()
		q := url.Values{}
		if service != "" {
			q.Set("service", service)
		}
		if limit > 0 {
			q.Set("limit", strconv.Itoa(limit))
		}
		for line, err := range stream[v1.Connection](ctx, c, v1.PathConnections, q) {
			if err == io.EOF {
				return
			}
			if err == nil && line.Problem != nil {
				err = errors.New(line.Problem.Message)
			}
			if !yield(line, err) || err != nil {
				return
			}
		}
	}
}
