package api

import (
	"encoding/base64"
	"slices"

	"github.com/ironvip/ironvip/vip"
)

// Paging contains the parameters of a list. Inputs embed it, so it is exported: huma ignores
// unexported fields.
type Paging struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"rows in a page"`
	Cursor string `query:"cursor" doc:"next of the previous page"`
}

// encodeCursor returns a cursor: the key of the previous page's last row, encoded to discourage
// callers from building one. It remains valid across changes and restarts.
func encodeCursor(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

func (p Paging) after() (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	if err != nil {
		return "", badCursor()
	}
	return string(b), nil
}

func badCursor() error {
	return badRequest("invalid cursor", "send next of the previous page unchanged",
		vip.Problem{Code: vip.CodeInvalid, Field: "query.cursor", Message: "is not a cursor"})
}

// page sorts keys, builds up to limit rows, and returns the key to continue after if there are
// more. A key may occur several times, because a table's All can yield a row again that changes
// meanwhile. build reports whether a key has a row.
func page[K comparable, V any](keys []K, compare func(a, b K) int, limit int, build func(K) (V, bool)) (rows []V, last K, more bool) {
	slices.SortFunc(keys, compare)
	keys = slices.Compact(keys)
	rows = make([]V, 0, min(limit, len(keys)))
	for _, k := range keys {
		row, ok := build(k)
		if !ok {
			continue
		}
		if len(rows) == limit {
			return rows, last, true
		}
		rows, last = append(rows, row), k
	}
	return rows, last, false
}
