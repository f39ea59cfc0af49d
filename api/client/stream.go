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
)

// stream yields the lines of an answer with one JSON document per line. The last pair has an error: io.EOF
// if the agent has ended the answer.
func stream[V any](ctx context.Context, c *Client, path string, q url.Values) iter.Seq2[V, error] {
	return func(yield func(V, error) bool) {
		var none V
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		resp, err := c.send(ctx, call{method: http.MethodGet, path: path, query: q, header: http.Header{"Accept": {"application/x-ndjson, application/json"}}})
		if err != nil {
			yield(none, err)
			return
		}
		defer resp.Body.Close()
		for lines := json.NewDecoder(resp.Body); ; {
			var line V
			switch err := lines.Decode(&line); {
			case errors.Is(err, io.EOF):
				yield(none, io.EOF)
				return
			case err != nil:
				yield(none, c.unreachable(ctx, fmt.Errorf("read %s: %w", path, err)))
				return
			case !yield(line, nil):
				return
			}
		}
	}
}

// ended returns the error of a stream that only its caller ends.
func (c *Client) ended(ctx context.Context, err error) error {
	if err == io.EOF {
		return c.unreachable(ctx, errors.New("the agent ended the stream"))
	}
	return err
}
