package client

import (
	"context"
	"net/url"
	"strconv"

	v1 "github.com/ironvip/ironvip/api/v1"
)

// Search finds objects by a part of a name or address. limit is 1 to 100; 0: the agent's default.
func (c *Client) Search(ctx context.Context, text string, limit int) (v1.SearchResult, error) {
	q := url.Values{"q": {text}}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return fetch[v1.SearchResult](ctx, c, call{path: v1.PathSearch, query: q})
}
