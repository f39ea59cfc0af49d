package request

import (
	"encoding/base64"
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ironvip/ironvip/api/server"
	"github.com/ironvip/ironvip/vip"
)

// Paging contains the parameters of a list. Inputs embed it, so it is exported: huma ignores
// unexported fields.
type Paging struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"rows in a page"`
	Cursor string `query:"cursor" doc:"next of the previous page"`
}

// LongPaging is Paging for lists whose rows are short, or whose pages cost a read of the dataplane
// or of the fleet's store each.
type LongPaging struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"10000" default:"10000" doc:"rows in a page"`
	Cursor string `query:"cursor" doc:"next of the previous page"`
}

// Order is how a list sorts its rows.
type Order[K comparable] struct {
	List    string // in cursors, so that no other list accepts them
	Compare func(a, b K) int
}

// of returns the order for another list.
func (o Order[K]) Of(list string) Order[K] {
	o.List = list
	return o
}

// Cursor is where a page of a list begins. Its text is JSON in base64, to discourage callers from building
// one. It remains valid across changes and restarts.
type Cursor[K comparable] struct {
	List string
	Last K // the key of the previous page's last row
}

func (c Cursor[K]) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic("a key of the list " + c.List + " can't be written as JSON: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// After returns the key that the page begins after.
func (o Order[K]) After(p Paging) (last K, err error) {
	if p.Cursor == "" {
		return last, nil
	}
	var c Cursor[K]
	text, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil || c.List != o.List {
		return last, server.BadRequest("invalid cursor", "send next of the previous page unchanged",
			vip.Problem{Code: vip.CodeInvalid, Field: "query.cursor", Message: "is not a cursor"})
	}
	return c.Last, nil
}

// Page builds the rows of a page, in the order of their keys, and returns the cursor of the next page. A key may
// occur several times, because a table's All can yield a row again that changes meanwhile. build reports whether a key
// has a row.
func Page[K comparable, V any](p Paging, o Order[K], keys iter.Seq[K], build func(K) (V, bool)) (rows []V, next string, err error) {
	last, err := o.After(p)
	if err != nil {
		return nil, "", err
	}
	var all []K
	for k := range keys {
		if p.Cursor == "" || o.Compare(k, last) > 0 {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, o.Compare)
	all = slices.Compact(all)
	rows = make([]V, 0, min(p.Limit, len(all)))
	for _, k := range all {
		row, ok := build(k)
		if !ok {
			continue
		}
		if len(rows) == p.Limit {
			return rows, Cursor[K]{o.List, last}.String(), nil
		}
		rows, last = append(rows, row), k
	}
	return rows, "", nil
}

// Keys yields the keys of the rows that are selected.
func Keys[K comparable, V any](rows iter.Seq2[K, V], selected func(*V) bool) iter.Seq[K] {
	return func(yield func(K) bool) {
		for k, v := range rows {
			if selected(&v) && !yield(k) {
				return
			}
		}
	}
}

// All selects every row.
func All[V any](*V) bool { return true }

// List returns a page of a list that is read as a whole: rows in any order, each with a key that no
// other row has.
func List[K comparable, V any](p Paging, o Order[K], rows []V, key func(*V) K) (out []V, next string, err error) {
	at := make(map[K]*V, len(rows))
	for i := range rows {
		at[key(&rows[i])] = &rows[i]
	}
	return Page(p, o, maps.Keys(at), func(k K) (V, bool) { return *at[k], true })
}

// ByName is the order of lists by name. It needs the name of the list.
var ByName = Order[string]{"", strings.Compare}

// Convert returns the results of f for all elements. It never returns nil, because lists in the API
// are never null.
func Convert[T, U any](in []T, f func(T) U) []U {
	out := make([]U, len(in))
	for i := range in {
		out[i] = f(in[i])
	}
	return out
}

// When returns a time of the API in UTC, nil for none.
func When(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// Object is the response about one object.
type Object[T any] struct {
	Status            int
	ETag              string `header:"ETag"`
	Location          string `header:"Location"`
	PreferenceApplied string `header:"Preference-Applied"`
	Body              T
}
