package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
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
		resp, err := c.send(ctx, call{method: http.MethodGet, path: v1.PathConnections, query: q, header: http.Header{"Accept": {"application/x-ndjson, application/json"}}})
		if err != nil {
			yield(v1.Connection{}, err)
			return
		}
		defer resp.Body.Close()
		lines := json.NewDecoder(resp.Body)
		for {
			var line v1.Connection
			err := lines.Decode(&line)
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				err = c.unreachable(ctx, fmt.Errorf("list of connections: %w", err))
			case line.Problem != nil:
				err = errors.New(line.Problem.Message)
			}
			if !yield(line, err) || err != nil {
				return
			}
		}
	}
}
