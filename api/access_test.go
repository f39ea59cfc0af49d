package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/tokens"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/scope"
	"github.com/ironvip/ironvip/vip/spec"
)

// open are the routes by the lowest role that may use them. Each route of the API is in it once, so
// that a new route needs a decision. A registrar has the namespace "shop".
var open = map[string][]string{
	"none": {"DELETE /ui/session", "GET /healthz", "GET /readyz", "POST /ui/session"},
	"viewer": {
		"GET /metrics", "GET /openapi.json", "GET /v1/announce/peers", "GET /v1/announcements", "GET /v1/announcements/:ip", "GET /v1/dataplane", "GET /v1/dataplane/diff",
		"GET /v1/dataplane/frontends", "GET /v1/debug/tables", "GET /v1/debug/tables/:table", "GET /v1/dns/names", "GET /v1/dns/query", "GET /v1/events", "GET /v1/nodes", "GET /v1/nodes/:name/drain",
		"GET /v1/overrides", "GET /v1/pools", "GET /v1/services", "GET /v1/services/:namespace/:name", "GET /v1/services/:namespace/:name/backends",
		"GET /v1/services/:namespace/:name/backends/:id", "GET /v1/services/:namespace/:name/backends/:id/connections", "GET /v1/services/:namespace/:name/explain",
		"GET /v1/search", "GET /v1/services/:namespace/:name/stats", "GET /v1/services:watch", "GET /v1/sources", "GET /v1/stats", "GET /v1/status", "GET /v1/top", "GET /v1/vips", "GET /v1/vips/:ip", "GET /v1/whoami",
	},
	"registrar": {
		"DELETE /v1/overrides/:namespace/:name/:id", "DELETE /v1/services/:namespace/:name", "DELETE /v1/services/:namespace/:name/backends/:id", "PATCH /v1/services/:namespace/:name", "POST /v1/services:apply",
		"PUT /v1/services/:namespace/:name", "PUT /v1/services/:namespace/:name/backends/:id", "PUT /v1/services/:namespace/:name/backends/:id/heartbeat",
		"PUT /v1/services/:namespace/:name/backends/:id/state",
		"PUT /v1/services/:namespace/:name/groups/:group/weight",
	},
	"operator": {
		"DELETE /v1/announcements/:ip/move", "PUT /v1/announcements/:ip/move/:node", "DELETE /v1/nodes/:name", "DELETE /v1/nodes/:name/drain", "DELETE /v1/vips/:ip", "GET /v1/dataplane/connections", "POST /v1/config/plan", "POST /v1/config/validate", "POST /v1/dataplane/repair", "POST /v1/dataplane/switch", "POST /v1/reload",
		"POST /v1/sources/:source/resync", "POST /v1/vips", "PUT /v1/nodes/:name/drain",
	},
	"admin": {"DELETE /v1/tokens/:token", "GET /v1/export", "GET /v1/tokens", "PUT /v1/tokens/:token"},
}

// Every route, with every role and without any.
func TestRoutesByRole(t *testing.T) {
	r := newRig(t, withTokens)
	roles := []access.Role{access.None, access.Viewer, access.Registrar, access.Operator, access.Admin}
	secrets := map[access.Role]string{}
	for _, role := range roles[1:] {
		grant := access.Grant{Role: role}
		if role == access.Registrar {
			grant.Namespaces = []string{"shop"}
		}
		secrets[role] = r.create(tokens.Token{Name: role.String(), Grant: grant})
	}
	var listed, routes []string
	for _, all := range open {
		listed = append(listed, all...)
	}
	for _, route := range r.server.http.Engine.Routes() {
		routes = append(routes, route.Method+" "+strings.ReplaceAll(route.Path, `\:`, ":"))
	}
	slices.Sort(listed)
	slices.Sort(routes)
	must.SameList(t, listed, routes, "the table has\n%q\nthe API has\n", listed)
	for least, all := range open {
		for _, route := range all {
			method, path, _ := strings.Cut(route, " ")
			for _, namespace := range []string{"shop", "other"} {
				place := regexp.MustCompile(`:[a-z]+`).ReplaceAllStringFunc(strings.Replace(path, "services:", "services|", 1), func(name string) string {
					return map[string]string{":namespace": namespace, ":ip": "192.0.2.77"}[name] + strings.Repeat("absent", boolInt(name != ":namespace" && name != ":ip"))
				})
				place = strings.Replace(place, "services|", "services:", 1)
				for _, role := range roles {
					want := role.String() == least || slices.IndexFunc(roles, func(x access.Role) bool { return x == role }) >= slices.IndexFunc(roles, func(x access.Role) bool { return x.String() == least })
					if role == access.Registrar && least == "registrar" && namespace != "shop" && path != v1.PathApply {
						want = false
					}
					header := []string{}
					if role != access.None {
						header = append(header, "Authorization: Bearer "+secrets[role])
					}
					if path == v1.PathEvents {
						header = append(header, "Accept: application/json")
					}
					status := r.statusOf(method, place, header...)
					got := status != http.StatusUnauthorized && status != http.StatusForbidden
					expect.Equal(t, got, want, "%s %s as %s: %d", method, place, role, status)
					if role == access.None && !want && status != http.StatusUnauthorized {
						t.Errorf("%s %s without a role: %d", method, place, status)
					}
				}
			}
		}
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// statusOf sends a request with an empty object as its body, from a page of its own, as sessions need it.
func (r *rig) statusOf(method, path string, header ...string) int {
	r.t.Helper()
	body := "{}"
	if method == http.MethodGet {
		body = ""
	}
	resp := r.send(method, path, body, append(header, "Sec-Fetch-Site: same-origin")...)
	resp.Body.Close()
	return resp.StatusCode
}

// A caller learns who it is and what it may do.
func TestWhoami(t *testing.T) {
	r := newRig(t, withTokens)
	for _, c := range []struct {
		name  string
		grant access.Grant
		want  v1.Whoami
	}{
		{"grafana", access.Grant{Role: access.Viewer}, v1.Whoami{Name: "token grafana", Role: "viewer", Namespaces: []string{}}},
		{"deploy", access.Grant{Role: access.Registrar, Namespaces: []string{"shop", "web"}}, v1.Whoami{Name: "token deploy", Role: "registrar", Namespaces: []string{"shop", "web"}}},
	} {
		secret := r.create(tokens.Token{Name: c.name, Grant: c.grant})
		c.want.Node, c.want.Version = "lb1", "0.0.1"
		got := decode[v1.Whoami](r, "GET", v1.PathWhoami, "", "Authorization: Bearer "+secret)
		expect.True(t, reflect.DeepEqual(got, c.want), "%s: %+v, want %+v", c.name, got, c.want)
	}
	a := r.ask("GET", v1.PathWhoami, "")
	expect.Equal(t, a.StatusCode, http.StatusUnauthorized, "a caller without a role: %s", a.Status)
}

var contentTypes = map[string]string{"PUT": "application/json", "POST": "application/json", "PATCH": v1.MergePatchType}

// A registrar reaches no other namespace: not by the body, not by an apply, also not partly. A registrar opens no
// address that only the host may reach.
func TestRegistrarStaysInItsNamespaces(t *testing.T) {
	r := newRig(t, withTokens)
	secret := r.create(tokens.Token{Name: "deploy", Grant: access.Grant{Role: access.Registrar, Namespaces: []string{"shop"}, Hostnames: []string{"*.shop.example"}}})
	const ports = `"ports": [{"port": 80}]`
	local, problems := (&spec.Service{Name: "local", Namespace: "shop", Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}, Backends: []spec.Backend{{Address: "127.0.0.1"}}}).Build("rest", "")
	must.Empty(t, problems)
	must.Get(r.deps.Services.Registrar.PutService(t.Context(), rest.Put{Spec: spec.FromService(local)}))(t)
	backends := func(address string) string {
		return `{"name": "e", "namespace": "shop", ` + ports + `, "backends": [{"address": "` + address + `"}]}`
	}
	for _, c := range []struct {
		method, path, body string
		want               int
	}{
		{"PUT", "/v1/services/shop/a", "{" + ports + "}", 201},
		{"PUT", "/v1/services/shop/b", `{"namespace": "default", ` + ports + "}", 422},
		{"PUT", "/v1/services/default/b", `{"namespace": "shop", ` + ports + "}", 403},
		{"PUT", "/v1/services/shop%2Fx/b", "{" + ports + "}", 403},
		{"POST", "/v1/services:apply", `{"services": [{"name": "c", "namespace": "shop", ` + ports + `}]}`, 200},
		{"POST", "/v1/services:apply", `{"services": [{"name": "d", "namespace": "shop", ` + ports + `}, {"name": "d", ` + ports + `}]}`, 403},
		{"POST", "/v1/services:apply?dry_run=true", `{"services": [{"name": "d", "namespace": "default", ` + ports + `}]}`, 403},
		{"PUT", "/v1/services/shop/a", `{"labels": {"namespace": "default"}, ` + ports + "}", 200},
		{"PATCH", "/v1/services/shop/a", `{"labels": {"namespace": "other"}}`, 200},
		{"PATCH", "/v1/services/shop/a", `{"namespace": "default"}`, 422},
		{"PATCH", "/v1/services/shop/a", `{"name": "b"}`, 422},
		{"PATCH", "/v1/services/default/from-file", `{"namespace": "shop"}`, 403},
		{"DELETE", "/v1/services/default/from-file", "", 403},
		{"PUT", "/v1/services/default/from-file/backends/10.9.0.1/state", `{"state": "drain"}`, 403},
		{"PUT", "/v1/services/default/from-file/groups/canary/weight", `{"weight": 1}`, 403},

		{"PUT", "/v1/services/shop/e", backends("127.0.0.1"), 403},
		{"PUT", "/v1/services/shop/e", backends("127.255.0.9"), 403},
		{"PUT", "/v1/services/shop/e", strings.Replace(backends("::1"), "{", `{"families": ["ipv6"], `, 1), 403},
		{"PUT", "/v1/services/shop/e", backends("169.254.169.254"), 403},
		{"PUT", "/v1/services/shop/e", strings.Replace(backends("fe80::1"), "{", `{"families": ["ipv6"], `, 1), 422},
		{"PUT", "/v1/services/shop/e", backends("::ffff:127.0.0.1"), 422},
		{"PUT", "/v1/services/shop/e", backends("0.0.0.0"), 422},
		{"PUT", "/v1/services/shop/e", backends("::"), 422},
		{"PUT", "/v1/services/shop/e", `{"forward": "host", ` + ports + "}", 403}, // its backend is the host itself
		{"PUT", "/v1/services/shop/e", backends("10.0.0.1"), 201},
		{"PATCH", "/v1/services/shop/e", `{"backends": [{"address": "127.0.0.1"}]}`, 403},
		{"PATCH", "/v1/services/shop/local", `{"ports": [{"port": 80, "target_port": 7480}]}`, 403},
		{"PUT", "/v1/services/shop/e/backends/127.0.0.1:7480", `{}`, 403},
		{"PUT", "/v1/services/shop/e/backends/10.0.0.2", `{}`, 201},
		{"POST", "/v1/services:apply", `{"services": [` + backends("127.0.0.1") + `]}`, 403},
		{"POST", "/v1/services:apply?dry_run=true", `{"services": [` + backends("127.0.0.1") + `]}`, 403},
		{"PATCH", "/v1/services/shop/e", `{"hostnames": ["www.shop.example"]}`, 200},
		{"PATCH", "/v1/services/shop/e", `{"hostnames": ["www.shop.example", "www.bank.example"]}`, 403},
		{"PUT", "/v1/services/shop/f", `{"hostnames": ["db.vip.internal"], ` + ports + "}", 403},
		{"DELETE", "/v1/services/shop/e", "", 200},
		{"DELETE", "/v1/services/shop/local", "", 200},
	} {
		a := r.ask(c.method, c.path, c.body, "Authorization: bearer "+secret, "Content-Type: "+contentTypes[c.method])
		expect.Equal(t, a.StatusCode, c.want, "%s %s %s", c.method, c.path, c.body)
	}
	var names []string
	for s := range r.deps.Tables.Services.All() {
		names = append(names, s.String())
	}
	slices.Sort(names)
	expect.SameList(t, names, []string{"from-file", "shop/a", "shop/c"}, "services")
}

// A write has one line in the log that says who did what.
func TestAudit(t *testing.T) {
	r := newRig(t, withTokens)
	secret := r.create(tokens.Token{Name: "ci", Grant: access.Grant{Role: access.Operator}})
	for _, c := range []struct{ method, path, body, want string }{
		{"PUT", "/v1/services/shop/a", `{"ports": [{"port": 80}]}`, `status=201 .* caller="token ci" operation=put-service revision=[1-9]`},
		{"PATCH", "/v1/services/shop/a", `{"ports": [{"port": 81}]}`, `status=200 .* caller="token ci" operation=patch-service revision=[1-9]`},
		{"PUT", "/v1/tokens/x", `{"role": "admin"}`, `status=403 .* caller="token ci" operation=create-token revision=0`},
		{"PUT", "/v1/services/shop/heartbeat", `{"ports": [{"port": 80}]}`, `status=201 .* operation=put-service`},
		{"GET", "/v1/services/shop/a", "", ""},
	} {
		before := len(r.log.String())
		r.ask(c.method, c.path, c.body, "Authorization: Bearer "+secret, "Content-Type: "+contentTypes[c.method])
		lines := regexp.MustCompile(`(?m)^.*msg=audit .*$`).FindAllString(r.log.String()[before:], -1)
		if c.want == "" && len(lines) == 0 || len(lines) == 1 && regexp.MustCompile(c.want).MatchString(lines[0]) {
			continue
		}
		t.Errorf("%s %s: %q, want %q", c.method, c.path, lines, c.want)
	}
}

// On the unix socket, the user of the process decides; a token that is not valid is refused there, too.
func TestRolesOnTheSocket(t *testing.T) {
	r := newRig(t, func(d *Deps) {
		policy, _ := access.NewPolicy(access.Owners{SocketGID: -1}, nil) // this test may be root, or not
		policy.Tokens = d.Tokens.Caller
		d.Policy = func() *access.Policy { return policy }
	})
	socket := filepath.Join(t.TempDir(), "sock")
	l := must.Get(net.Listen("unix", socket))(t)
	defer scope.Go(t, func(ctx context.Context) error { return r.server.Serve(ctx, l, nil) })()
	c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	root := fmt.Sprint(isRoot())
	for _, test := range []struct {
		path, token string
		want        map[string]int // by whether the test runs as root
	}{
		{"/healthz", "", map[string]int{"true": 200, "false": 200}},
		{"/v1/tokens", "", map[string]int{"true": 200, "false": 403}},
		{"/v1/services", "wrong", map[string]int{"true": 401, "false": 401}},
	} {
		req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+test.path, nil))(t)
		if test.token != "" {
			req.Header.Set("Authorization", "Bearer "+test.token)
		}
		resp := must.Get(c.Do(req))(t)
		resp.Body.Close()
		expect.Equal(t, resp.StatusCode, test.want[root], "%s with token %q", test.path, test.token)
	}
}

func isRoot() bool { return os.Getuid() == 0 }

// BenchmarkAuthorization measures which part of a GET of one service is the check of a token. Batches
// with and without the check alternate, so that the load of the machine changes both. The request
// doesn't include the network.
func BenchmarkAuthorization(b *testing.B) {
	var checks bool
	r := newRig(b, func(d *Deps) {
		d.Policy = func() *access.Policy { return &access.Policy{Everyone: !checks, Tokens: d.Tokens.Caller} }
	})
	handler := r.server.Handler()
	request := func(method, body, token string) {
		req := httptest.NewRequest(method, webPath, strings.NewReader(body))
		req.Host = "localhost"
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		answer := httptest.NewRecorder()
		if handler.ServeHTTP(answer, req); answer.Code >= 300 {
			b.Fatal(answer.Code, answer.Body)
		}
	}
	request(http.MethodPut, `{"ports":[{"port":80}],"backends":[{"address":"10.0.0.1"},{"address":"10.0.0.2"}]}`, "")
	secret, err := r.deps.Tokens.Create(b.Context(), tokens.Token{Name: "viewer", Grant: access.Grant{Role: access.Viewer}})
	if err != nil {
		b.Fatal(err)
	}
	const batch = 10 // too short for most interruptions
	measure := func(check bool) time.Duration {
		checks = check
		start := time.Now()
		for range batch {
			if check {
				request(http.MethodGet, "", secret)
			} else {
				request(http.MethodGet, "", "")
			}
		}
		return time.Since(start)
	}
	var with, without []time.Duration
	for b.Loop() {
		with, without = append(with, measure(true)), append(without, measure(false))
	}
	checked, unchecked := undisturbed(with), undisturbed(without)
	b.ReportMetric(float64(checked.Nanoseconds())/batch, "ns/request")
	b.ReportMetric(100*float64(checked-unchecked)/float64(checked), "auth-%")
}

// undisturbed returns the time of a batch that other programs did not interrupt: a tenth was faster.
func undisturbed(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/10]
}
