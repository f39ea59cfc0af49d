package consul_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet/consul"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/test/must"
)

// A list is accepted only if it is a complete answer to the query.
func TestWhatIsAList(t *testing.T) {
	const good = `[{"LockIndex":0,"Key":"p/a b%2F","Flags":0,"Value":"eDo=","CreateIndex":3,"ModifyIndex":4,"Session":"s"},{"Key":"p/b","Value":null,"ModifyIndex":5,"Namespace":"default"}]` + "\n"
	for name, c := range map[string]struct {
		status   int
		index    string
		filtered bool
		body     string
		refused  string // text of the error; "" for none
		many     int
	}{
		"all":                {200, "7", false, good, "", 2},
		"nothing":            {404, "7", false, "", "", 0},
		"no index":           {200, "", false, good, "no index", 0},
		"nothing, no index":  {404, "", false, "", "no index", 0},
		"an odd index":       {200, "x", false, good, "no index", 0},
		"a part":             {200, "7", true, good, "may not read all", 0},
		"no right":           {403, "7", false, "Permission denied", "not accepted: Permission denied", 0},
		"out of order":       {500, "7", false, "No cluster leader", "answers 500: its servers have no leader yet", 0},
		"broken":             {500, "7", false, "disk full", "answers 500: disk full", 0},
		"cut off early":      {200, "7", false, good[:10], "EOF", 0},
		"cut off":            {200, "7", false, good[:len(good)-3], "EOF", 0},
		"no list":            {200, "7", false, `{}`, "cannot unmarshal object", 0},
		"a value that isn't": {200, "7", false, `[{"Key":"p/a","Value":"!","ModifyIndex":4}]`, "base64", 0},
		"somebody's keys":    {200, "7", false, `[{"Key":"q/a","ModifyIndex":4}]`, "outside the prefix", 0},
		"no key":             {200, "7", false, `[null]`, "outside the prefix", 0},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got, want := r.URL.Path+"?"+r.URL.RawQuery, "/v1/kv/p/ %2F/?consistent=&dc=dc2&index=3&ns=team&partition=part&recurse=&wait=1500ms"; got != want {
					t.Errorf("asked for %s, not %s", got, want)
				}
				if r.Header.Get("Accept-Encoding") != "identity" || r.Header.Get("X-Consul-Token") != "secret" {
					t.Errorf("asked with %v", r.Header)
				}
				if c.index != "" {
					w.Header().Set("X-Consul-Index", c.index)
				}
				if c.filtered {
					w.Header().Set("X-Consul-Results-Filtered-By-ACLs", "true")
				}
				w.Header().Set("X-Consul-KnownLeader", "true")
				w.Header().Set("X-Consul-LastContact", "0")
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(strings.ReplaceAll(c.body, `"p/`, `"p/ %2F/`)))
			}))
			defer server.Close()
			store, err := consul.New(consul.Config{Address: server.URL, Datacenter: "dc2", Namespace: "team", Partition: "part", Token: "secret"})
			must.Succeed(t, err)
			defer store.Close()
			pairs, index, err := store.List(t.Context(), "p/ %2F/", kv.Query{After: 3, Wait: 1500 * time.Millisecond, Consistent: true})
			switch {
			case c.refused != "":
				if err == nil || !strings.Contains(err.Error(), c.refused) || !strings.HasPrefix(err.Error(), "consul: ") {
					t.Errorf("%d pairs, %v", len(pairs), err)
				}
			case err != nil || index != 7 || len(pairs) != c.many:
				t.Errorf("%+v up to %d, %v", pairs, index, err)
			case c.many == 2:
				if p := pairs[0]; p.Key != "p/ %2F/a b%2F" || string(p.Value) != "x:" || p.Index != 4 || p.Session != "s" {
					t.Errorf("%+v", p)
				}
				if p := pairs[1]; p.Key != "p/ %2F/b" || len(p.Value) > 0 || p.Index != 5 || p.Session != "" {
					t.Errorf("%+v", p)
				}
			}
		})
	}
}
