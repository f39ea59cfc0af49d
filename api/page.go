package api

import (
	"encoding/base64"
	"slices"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/vip"
)

// Paging contains the parameters of a list. Inputs embed it, so it is exported: huma ignores
// unexported fields.
type Paging struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"rows in a page"`
	Cursor string `query:"cursor" doc:"next of the previous page"`
}

// order is how a list sorts its rows, and how a cursor names one.
type order[K comparable] struct {
	compare func(a, b K) int
	format  func(K) string
	parse   func(string) (K, error)
}

// after returns the key that the page begins after.
func (o order[K]) after(p Paging) (last K, err error) {
	if p.Cursor == "" {
		return last, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	if err == nil {
		last, err = o.parse(string(text))
	}
	if err != nil {
		return last, server.BadRequest("invalid cursor", "send next of the previous page unchanged",
			vip.Problem{Code: vip.CodeInvalid, Field: "query.cursor", Message: "is not a cursor"})
	}
	return last, nil
}

// page builds the rows of the keys after last, up to the limit, and returns the cursor of the next
// page. A key may occur several times, because a table's All can yield a row again that changes
// meanwhile. build reports whether a key has a row.
func page[K comparable, V any](p Paging, o order[K], last K, keys []K, build func(K) (V, bool)) (rows []V, next string) {
	if p.Cursor != "" {
		keys = slices.DeleteFunc(keys, func(k K) bool { return o.compare(k, last) <= 0 })
	}
	slices.SortFunc(keys, o.compare)
	keys = slices.Compact(keys)
	rows = make([]V, 0, min(p.Limit, len(keys)))
	for _, k := range keys {
		row, ok := build(k)
		if !ok {
			continue
		}
		if len(rows) == p.Limit {
			return rows, encodeCursor(o.format(last))
		}
		rows, last = append(rows, row), k
	}
	return rows, ""
}

// encodeCursor returns a cursor: the key of the previous page's last row, encoded to discourage
// callers from building one. It remains valid across changes and restarts.
func encodeCursor(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }
