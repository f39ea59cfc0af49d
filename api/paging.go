package api

import (
	"cmp"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
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

// order is how a list sorts its rows, and how a cursor names one.
type order[K comparable] struct {
	list    string // in cursors, so that no other list accepts them
	compare func(a, b K) int
	format  func(K) string
	parse   func(string) (K, error)
}

// of returns the order for another list.
func (o order[K]) of(list string) order[K] {
	o.list = list
	return o
}

// after returns the key that the page begins after.
func (o order[K]) after(p Paging) (last K, err error) {
	if p.Cursor == "" {
		return last, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(p.Cursor)
	list, key, _ := strings.Cut(string(text), " ")
	if err == nil && list != o.list {
		err = errors.New("it is the cursor of another list")
	}
	if err == nil {
		last, err = o.parse(key)
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
			return rows, encodeCursor(o.list + " " + o.format(last))
		}
		rows, last = append(rows, row), k
	}
	return rows, ""
}

// encodeCursor returns a cursor: the list and the key of the previous page's last row, encoded to discourage
// callers from building one. It remains valid across changes and restarts.
func encodeCursor(key string) string { return base64.RawURLEncoding.EncodeToString([]byte(key)) }

// list returns a page of a list that is read as a whole: rows in any order, each with a key that no
// other row has.
func list[K comparable, V any](p Paging, o order[K], rows []V, key func(*V) K) (out []V, next string, err error) {
	last, err := o.after(p)
	if err != nil {
		return nil, "", err
	}
	at, keys := make(map[K]*V, len(rows)), make([]K, len(rows))
	for i := range rows {
		keys[i] = key(&rows[i])
		at[keys[i]] = &rows[i]
	}
	out, next = page(p, o, last, keys, func(k K) (V, bool) { return *at[k], true })
	return out, next, nil
}

// The orders of lists with keys that several lists or no other file has. byName needs the name of the list.
var (
	byName       = order[string]{"", strings.Compare, func(s string) string { return s }, func(s string) (string, error) { return s, nil }}
	eventOrder   = order[uint64]{"events", cmp.Compare[uint64], func(id uint64) string { return strconv.FormatUint(id, 10) }, func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }}
	backendOrder = order[vip.BackendKey]{"backends", compareBackends, func(k vip.BackendKey) string { return k.Service.String() + " " + k.ID() }, parseBackendKey}
)

func compareBackends(a, b vip.BackendKey) int {
	return cmp.Or(compareKeys(a.Service, b.Service), a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port))
}

// parseBackendKey reads "namespace/name address:port".
func parseBackendKey(s string) (k vip.BackendKey, err error) {
	service, id, _ := strings.Cut(s, " ")
	if k.Service, err = vip.ParseServiceKey(service); err != nil {
		return k, err
	}
	k.Address, k.Port, err = vip.ParseBackendID(id)
	return k, err
}

// checkKey identifies a row of the comparison of checks.
type checkKey struct {
	backend vip.BackendKey
	port    uint16
	check   string
}

var checkOrder = order[checkKey]{
	"checks",
	func(a, b checkKey) int {
		return cmp.Or(compareBackends(a.backend, b.backend), cmp.Compare(a.port, b.port), cmp.Compare(a.check, b.check))
	},
	func(k checkKey) string {
		return backendOrder.format(k.backend) + " " + strconv.Itoa(int(k.port)) + " " + k.check
	},
	func(s string) (k checkKey, err error) {
		var number string
		s, k.check, _ = cutLast(s)
		s, number, _ = cutLast(s)
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return k, err
		}
		k.port = uint16(port)
		k.backend, err = parseBackendKey(s)
		return k, err
	},
}

// cutLast cuts s at its last space.
func cutLast(s string) (before, after string, found bool) {
	i := strings.LastIndexByte(s, ' ')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

func keyOfCheck(c *v1.CheckComparison) (k checkKey) {
	k.backend, _ = parseBackendKey(c.Service + " " + c.Backend) // both were written by String
	k.port, k.check = c.Port, c.Check
	return k
}
