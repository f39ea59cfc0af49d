package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// Events returns the stored events after the event with id since, oldest first.
func (c *Client) Events(ctx context.Context, since uint64) (v1.EventList, error) {
	q := url.Values{}
	if since > 0 {
		q.Set("since", strconv.FormatUint(since, 10))
	}
	all, err := fetchAll(ctx, c, call{path: v1.PathEvents, query: q}, func(l *v1.EventList) (*[]v1.Event, *string) { return &l.Items, &l.Next })
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
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		h := http.Header{"Accept": {"text/event-stream"}}
		if since > 0 {
			h.Set("Last-Event-ID", strconv.FormatUint(since, 10))
		}
		resp, err := c.send(ctx, call{method: http.MethodGet, path: v1.PathEvents, header: h})
		if err != nil {
			yield(v1.Event{}, err)
			return
		}
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
			if !ok { // ids, comments (keep-alives) and the empty lines between
				continue
			}
			var e v1.Event
			if err := json.Unmarshal(data, &e); err != nil {
				yield(v1.Event{}, fmt.Errorf("event stream: %w", err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
		err = lines.Err()
		if err == nil {
			err = fmt.Errorf("the agent ended the stream")
		}
		yield(v1.Event{}, c.unreachable(ctx, err))
	}
}
