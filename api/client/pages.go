package client

import (
	"context"
	"maps"
	"net/url"
	"strconv"
)

// MaxLimit is the largest number of rows in a page of every list. Lists that can be long are read in
// these pages, because each page costs the agent a scan of the list.
const MaxLimit = 1000

// fetchAll sends a request for each page of a list, and returns the whole list. Its revision is that of
// the first page, so that a wait for changes misses nothing. The limit of a page is part of q; parts
// returns a page's items and the cursor of the next page.
func fetchAll[P, T any](ctx context.Context, c *Client, q call, parts func(*P) (items *[]T, next *string)) (P, error) {
	all, err := fetch[P](ctx, c, q)
	items, next := parts(&all)
	first := q.query
	for err == nil && *next != "" {
		q.query = url.Values{"cursor": {*next}}
		maps.Copy(q.query, first)
		var page P
		page, err = fetch[P](ctx, c, q)
		more, after := parts(&page)
		*items, *next = append(*items, *more...), *after
	}
	return all, err
}

// largePages returns the parameter for the largest pages.
func largePages() url.Values { return url.Values{"limit": {strconv.Itoa(MaxLimit)}} }
