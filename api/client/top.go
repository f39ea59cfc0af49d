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
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		q := url.Values{"interval": {t.Interval.String()}, "limit": {strconv.Itoa(t.Limit)}}
		if t.Count > 0 {
			q.Set("count", strconv.Itoa(t.Count))
		}
		if t.By != "" {
			q.Set("by", t.By)
		}
		resp, err := c.send(ctx, call{method: http.MethodGet, path: v1.PathTop, query: q, header: http.Header{"Accept": {"application/x-ndjson, application/json"}}})
		if err != nil {
			yield(v1.Top{}, err)
			return
		}
		defer resp.Body.Close()
		for n, lines := 0, json.NewDecoder(resp.Body); ; n++ {
			var line v1.Top
			err := lines.Decode(&line)
			switch {
			case errors.Is(err, io.EOF) && t.Count > 0 && n == t.Count:
				return
			case errors.Is(err, io.EOF):
				err = c.unreachable(ctx, fmt.Errorf("the agent ended the stream"))
			case err != nil:
				err = c.unreachable(ctx, err)
			case line.Problem != nil:
				err = errors.New(line.Problem.Message)
			}
			if !yield(line, err) || err != nil {
				return
			}
		}
	}
}
