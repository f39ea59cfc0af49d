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

// AllPages reads every page of a list into the first one. Its revision remains that of the first
// page, so that a wait for changes misses nothing. parts returns a page's items and the cursor of
// the next page.
func AllPages[P, T any](read func(cursor string) (P, error), parts func(*P) (items *[]T, next *string)) (P, error) {
	all, err := read("")
	items, next := parts(&all)
	for err == nil && *next != "" {
		var page P
		page, err = read(*next)
		more, after := parts(&page)
		*items, *next = append(*items, *more...), *after
	}
	return all, err
}

// fetchAll sends a request for each page of a list, and returns the whole list. The limit of a page is
// part of q.
func fetchAll[P, T any](ctx context.Context, c *Client, q call, parts func(*P) (items *[]T, next *string)) (P, error) {
	return AllPages(func(cursor string) (P, error) {
		one := q
		if cursor != "" {
			one.query = maps.Clone(q.query)
			if one.query == nil {
				one.query = url.Values{}
			}
			one.query.Set("cursor", cursor)
		}
		return fetch[P](ctx, c, one)
	}, parts)
}

// page returns the parameters of one page. Without a limit, the server has a default.
func page(cursor string, limit int) url.Values {
	q := url.Values{}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return q
}
