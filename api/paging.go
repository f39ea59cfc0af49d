package api

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
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

// order is how a list sorts its rows.
type order[K comparable] struct {
	list    string // in cursors, so that no other list accepts them
	compare func(a, b K) int
}

// of returns the order for another list.
func (o order[K]) of(list string) order[K] {
	o.list = list
	return o
}

// cursor is where a page of a list begins. Its text is JSON in base64, to discourage callers from building
// one. It remains valid across changes and restarts.
type cursor[K comparable] struct {
	List string
	Last K // the key of the previous page's last row
}

func (c cursor[K]) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		panic("a key of the list " + c.List + " can't be written as JSON: " + err.Error())
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// after returns the key that the page begins after.
func (o order[K]) after(p Paging) (last K, err error) {
	if p.Cursor == "" {
		return last, nil
	}
	var c cursor[K]
	text, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil || c.List != o.list {
		return last, server.BadRequest("invalid cursor", "send next of the previous page unchanged",
			vip.Problem{Code: vip.CodeInvalid, Field: "query.cursor", Message: "is not a cursor"})
	}
	return c.Last, nil
}

// page builds the rows of a page, in the order of their keys, and returns the cursor of the next page. A key may
// occur several times, because a table's All can yield a row again that changes meanwhile. build reports whether a key
// has a row.
func page[K comparable, V any](p Paging, o order[K], keys iter.Seq[K], build func(K) (V, bool)) (rows []V, next string, err error) {
	last, err := o.after(p)
	if err != nil {
		return nil, "", err
	}
	var all []K
	for k := range keys {
		if p.Cursor == "" || o.compare(k, last) > 0 {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, o.compare)
	all = slices.Compact(all)
	rows = make([]V, 0, min(p.Limit, len(all)))
	for _, k := range all {
		row, ok := build(k)
		if !ok {
			continue
		}
		if len(rows) == p.Limit {
			return rows, cursor[K]{o.list, last}.String(), nil
		}
		rows, last = append(rows, row), k
	}
	return rows, "", nil
}

// keys yields the keys of the rows that are selected.
func keys[K comparable, V any](rows iter.Seq2[K, V], selected func(*V) bool) iter.Seq[K] {
	return func(yield func(K) bool) {
		for k, v := range rows {
			if selected(&v) && !yield(k) {
				return
			}
		}
	}
}

// all selects every row.
func all[V any](*V) bool { return true }

// list returns a page of a list that is read as a whole: rows in any order, each with a key that no
// other row has.
func list[K comparable, V any](p Paging, o order[K], rows []V, key func(*V) K) (out []V, next string, err error) {
	at := make(map[K]*V, len(rows))
	for i := range rows {
		at[key(&rows[i])] = &rows[i]
	}
	return page(p, o, maps.Keys(at), func(k K) (V, bool) { return *at[k], true })
}

// The orders of lists with keys that several lists or no other file has. byName needs the name of the list.
var (
	byName       = order[string]{"", strings.Compare}
	eventOrder   = order[uint64]{"events", cmp.Compare[uint64]}
	backendOrder = order[vip.BackendKey]{"backends", compareBackends}
	checkOrder   = order[checkKey]{"checks", compareChecks}
)

func compareBackends(a, b vip.BackendKey) int {
	return cmp.Or(a.Service.Compare(b.Service), a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
}

// checkKey identifies a row of the comparison of checks.
type checkKey struct {
	Backend vip.BackendKey
	Port    uint16
	Check   string
}

func compareChecks(a, b checkKey) int {
	return cmp.Or(compareBackends(a.Backend, b.Backend), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Check, b.Check))
}

func keyOfCheck(c *v1.CheckComparison) checkKey {
	k := checkKey{Port: c.Port, Check: c.Check}
	k.Backend.Service, _ = vip.ParseServiceKey(c.Service) // both were written by String
	k.Backend.Address, k.Backend.Port, _ = vip.ParseBackendID(c.Backend)
	return k
}
