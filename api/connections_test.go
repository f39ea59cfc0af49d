package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// connectionList is a dataplane with these connections, and the error at its end.
type connectionList struct {
	all  []reconcile.Connection
	err  error
	read int
}

func (l *connectionList) ListConnections(_ context.Context, want func(vip.FrontendKey) bool, yield func(reconcile.Connection) bool) error {
	l.read = 0
	for _, c := range l.all {
		l.read++
		if want(c.Frontend) && !yield(c) {
			return nil
		}
	}
	return l.err
}

func connectionsOf(t *testing.T, a answer) (out []v1.Connection) {
	t.Helper()
	if a.StatusCode != 200 || a.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Fatalf("%s %s: %s", a.Status, a.Header.Get("Content-Type"), a.body)
	}
	for line := range bytes.Lines(a.body) {
		var c v1.Connection
		err := json.Unmarshal(line, &c)
		must.Succeed(t, err, "%v in %s", err, line)
		out = append(out, c)
	}
	return out
}

func TestConnections(t *testing.T) {
	list := &connectionList{}
	r := newRig(t, func(d *Deps) { d.Forwarding.ConnectionLister = list })
	decode[v1.Service](r, "PUT", webPath, `{"ports":[{"name":"http","port":80},{"name":"media","protocol":"udp","port":"10000-10099"}],"backends":[{"address":"10.0.0.1"}]}`, "Prefer: wait=60")
	decode[v1.Service](r, "PUT", "/v1/services/shop/db", `{"ports":[{"port":5432}],"backends":[{"address":"10.0.0.2"}]}`, "Prefer: wait=60")
	at := func(service string, port uint16) vip.FrontendKey {
		key := r.frontends(service)[port]
		key.LastPort = 0
		return key
	}
	client, backend := netip.MustParseAddrPort("198.51.100.7:40000"), netip.MustParseAddrPort("10.0.0.1:80")
	inRange := at("web", 10000)
	inRange.Port = 10042
	outside := inRange
	outside.Port = 10100
	list.all = []reconcile.Connection{
		{Frontend: at("web", 80), Client: client, Backend: backend, State: "ESTABLISHED", Expires: 90 * time.Second},
		{Frontend: inRange, Client: client, Backend: backend, State: "UDP", Expires: time.Second},
		{Frontend: outside, Client: client, Backend: backend, State: "UDP"}, // foreign
		{Frontend: at("shop/db", 5432), Client: netip.AddrPortFrom(client.Addr(), 0), Backend: backend, State: reconcile.StateAffinity},
	}
	web := []v1.Connection{
		{Service: "web", Frontend: at("web", 80).String(), Client: "198.51.100.7:40000", Backend: "10.0.0.1:80", State: "ESTABLISHED", Expires: 90},
		{Service: "web", Frontend: inRange.String(), Client: "198.51.100.7:40000", Backend: "10.0.0.1:80", State: "UDP", Expires: 1},
	}
	db := v1.Connection{Service: "shop/db", Frontend: at("shop/db", 5432).String(), Client: "198.51.100.7", Backend: "10.0.0.1:80", State: "AFFINITY"}
	for query, want := range map[string][]v1.Connection{
		"": {web[0], web[1], db}, "?service=web": web, "?service=default/web&limit=1": web[:1], "?limit=2": web, "?limit=3": {web[0], web[1], db}, "?service=shop/db": {db},
	} {
		got := connectionsOf(t, r.ask("GET", v1.PathConnections+query, ""))
		expect.NoDiff(t, cmp.Diff(want, got), "%q:", query)
		if len(got) == 1 && got[0].Service == "web" && list.read != 1 {
			t.Errorf("%q: %d connections were read", query, list.read)
		}
	}
	for query, status := range map[string]int{"?service=none": 404, "?service=a/b/c": 400, "?limit=0": 422, "?limit=x": 422} {
		if a := r.ask("GET", v1.PathConnections+query, ""); a.StatusCode != status {
			t.Errorf("%q: %s %s", query, a.Status, a.body)
		}
	}

	list.err = errors.New("the kernel went away")
	got := connectionsOf(t, r.ask("GET", v1.PathConnections, ""))
	if len(got) != 4 || got[3].Problem == nil || !strings.Contains(got[3].Problem.Message, "not complete: the kernel went away") {
		t.Errorf("a list that breaks off: %+v", got)
	}
	list.all = nil
	a := r.ask("GET", v1.PathConnections, "")
	if doc := a.problem(t); a.StatusCode != 503 || !strings.Contains(doc.Detail, "the kernel went away") {
		t.Errorf("a list without a beginning: %s %+v", a.Status, doc)
	}
	list.err = nil
	expect.Empty(t, connectionsOf(t, r.ask("GET", v1.PathConnections, "")), "no connections")
}
