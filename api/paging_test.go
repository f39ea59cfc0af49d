package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/api/forwarding"
	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/tokens"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// Every list of the API has pages, which together are the list.
func TestEveryListHasPages(t *testing.T) {
	stats, edit := counting(everything)
	other := netip.MustParseAddr("198.51.100.1")
	r := newRig(t, edit, func(d *Deps) {
		newAnnounceRig().use(&d.Nodes)
		d.Nodes.List = func(context.Context) (v1.NodeList, error) {
			return v1.NodeList{Items: []v1.Node{{Name: "lb2"}, {Name: "lb1"}, {Name: "lb3"}}}, nil
		}
		d.Forwarding.Diff = func(context.Context) (out []forwarding.Difference, _ error) {
			for port := range uint16(3) {
				key := vip.FrontendKey{Addr: other, Port: 9 - port, Protocol: vip.TCP}
				out = append(out, forwarding.Difference{Key: key, Have: &vip.Frontend{Key: key}})
			}
			return out, nil
		}
		d.Addresses.Pools = func() []ipam.PoolStatus {
			return []ipam.PoolStatus{{Pool: ipam.Pool{Name: "b"}}, {Pool: ipam.Pool{Name: "a"}}, {Pool: ipam.Pool{Name: "c"}}}
		}
	})
	for _, path := range []string{webPath, v1.ServicePath("default", "db"), v1.ServicePath("shop", "api")} {
		decode[v1.Service](r, "PUT", path, webBody("10.0.0.10", "10.0.0.9", "10.0.0.11"), "Prefer: wait=60")
		decode[v1.Backend](r, "PUT", path+"/backends/10.0.0.9:8080/state", `{"state":"drain"}`, "Prefer: wait=60")
	}
	for key := range r.deps.Tables.Frontends.All() {
		stats.Set(key, reconcile.Breakdown{Traffic: carried(1)})
	}
	for _, name := range []string{"b", "a", "c"} {
		r.create(tokens.Token{Name: name, Grant: access.Grant{Role: access.Viewer}})
	}

	// The lists, with parameters that they need and their number of rows at least.
	lists := map[string]struct {
		path string
		rows int
	}{
		"/v1/announce/peers":      {rows: 2},
		"/v1/announcements":       {rows: 5},
		"/v1/dataplane/diff":      {rows: 3},
		"/v1/dataplane/frontends": {rows: 4},
		"/v1/debug/tables":        {rows: 2},
		"/v1/dns/names":           {rows: 4},
		"/v1/events":              {path: "/v1/events?since=1", rows: 3},
		"/v1/nodes":               {rows: 3},
		"/v1/overrides":           {rows: 3},
		"/v1/pools":               {rows: 3},
		"/v1/services":            {rows: 4},
		"/v1/services/{namespace}/{name}/backends": {path: webPath + "/backends", rows: 3},
		"/v1/sources": {rows: 2},
		"/v1/stats":   {rows: 4},
		"/v1/tokens":  {rows: 3},
		"/v1/vips":    {rows: 4},
	}
	listed := listRoutes(t, r)
	for _, route := range listed {
		_, ok := lists[route]
		expect.True(t, ok, "the list %s is not in this test", route)
	}
	cursors := map[string]string{} // of the second page of each list
	for route, l := range lists {
		path := cmp.Or(l.path, route)
		_, cursors[route] = r.rows(path + map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")] + "limit=1")
	}
	for route, l := range lists {
		expect.True(t, slices.Contains(listed, route), "%s is not a list", route)
		path := cmp.Or(l.path, route)
		all, next := r.rows(path)
		if len(all) < l.rows || next != "" {
			t.Errorf("%s: %d rows, next %q", path, len(all), next)
		}
		for _, limit := range []int{1, 2, len(all)} {
			var paged []string
			pages := 0
			for cursor := ""; ; pages++ {
				rows, next := r.rows(fmt.Sprintf("%s%slimit=%d&cursor=%s", path, map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")], limit, cursor))
				if len(rows) > limit || len(rows) == 0 || pages > len(all) {
					t.Fatalf("%s: page %d of at most %d rows has %d", path, pages, limit, len(rows))
				}
				if paged = append(paged, rows...); next == "" {
					break
				}
				cursor = next
			}
			expect.SameList(t, paged, all, "%s: pages of %d rows have\n%q\nthe list has\n", path, limit, paged)
		}
		for _, cursor := range []string{"!", request.Cursor[string]{List: "unknown", Last: "A b\tc"}.String()} {
			if a := r.ask("GET", strings.Split(path, "?")[0]+"?cursor="+cursor, ""); a.StatusCode != 400 {
				t.Errorf("%s: cursor %q: %s\n%s", path, cursor, a.Status, a.body)
			} else if a.problem(t).Errors[0].Field != "query.cursor" {
				t.Errorf("%s: cursor %q: %s", path, cursor, a.body)
			}
		}
		for other, cursor := range cursors {
			if a := r.ask("GET", strings.Split(path, "?")[0]+"?cursor="+cursor, ""); a.StatusCode == 200 && other != route {
				t.Errorf("%s accepts a cursor of %s", route, other)
			}
		}
		if a := r.ask("GET", strings.Split(path, "?")[0]+"?limit=0", ""); a.StatusCode != 422 {
			t.Errorf("%s: limit 0: %s", path, a.Status)
		}
	}
}

// rows returns the rows of a page as text, and the cursor of the next page.
func (r *rig) rows(path string) (out []string, next string) {
	page := decode[struct {
		Items []map[string]any
		Next  string
	}](r, "GET", path, "")
	for _, row := range page.Items {
		b := must.Get(json.Marshal(row))(r.t)
		out = append(out, string(b))
	}
	return out, page.Next
}

// listRoutes returns the paths of the document with a GET that answers with items.
func listRoutes(t *testing.T, r *rig) (out []string) {
	var doc document
	must.Succeed(t, json.Unmarshal(r.ask("GET", v1.PathOpenAPI, "").body, &doc))
	for path, methods := range doc.Paths {
		get, ok := methods["get"]
		if !ok {
			continue
		}
		var body struct {
			Schema struct {
				Ref string `json:"$ref"`
			}
		}
		if content := get.Responses["200"].Content["application/json"]; content != nil {
			must.Succeed(t, json.Unmarshal(content, &body))
		}
		var schema struct{ Properties map[string]json.RawMessage }
		if name := strings.TrimPrefix(body.Schema.Ref, "#/components/schemas/"); name != "" {
			must.Succeed(t, json.Unmarshal(doc.Components.Schemas[name], &schema))
		}
		if schema.Properties["items"] != nil {
			out = append(out, path)
		}
	}
	return out
}
