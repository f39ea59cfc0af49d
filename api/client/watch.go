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

	v1 "github.com/ironvip/ironvip/api/v1"
)

// WatchServices yields each selected service, a change with Synced, and then each change, until the
// context or the connection ends. Limit, Cursor, State and Wait of l are ignored. names are those of
// services; none: all. The last pair has the reason as its error.
func (c *Client) WatchServices(ctx context.Context, l List, names ...string) iter.Seq2[v1.ServiceChange, error] {
	return func(yield func(v1.ServiceChange, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
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
		resp, err := c.send(ctx, call{method: http.MethodGet, path: v1.PathWatchServices, query: q, header: http.Header{"Accept": {"application/x-ndjson, application/json"}}})
		if err != nil {
			yield(v1.ServiceChange{}, err)
			return
		}
		defer resp.Body.Close()
		for lines := json.NewDecoder(resp.Body); ; {
			var change v1.ServiceChange
			if err = lines.Decode(&change); err != nil {
				break
			}
			if !yield(change, nil) {
				return
			}
		}
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("the agent ended the stream")
		}
		yield(v1.ServiceChange{}, c.unreachable(ctx, err))
	}
}
