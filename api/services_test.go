package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/services"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/pipeline/compile"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec"
)

func TestServiceLife(t *testing.T) {
	r := newRig(t)
	first := r.ask("PUT", webPath, webBody("10.0.0.1", "10.0.0.2"), "Prefer: wait=60")
	if first.StatusCode != http.StatusCreated || first.Header.Get("Location") != webPath || first.Header.Get("Preference-Applied") != "wait=60" {
		t.Fatalf("create: %s %v\n%s", first.Status, first.Header, first.body)
	}
	var svc v1.Service
	must.Succeed(t, json.Unmarshal(first.body, &svc))
	if svc.Status.State != v1.StateUnchecked || !svc.Status.Applied || len(svc.Status.VIPs) != 1 || svc.Status.Usable != 2 ||
		svc.ETag != first.Header.Get("ETag") || svc.Source != "rest" || svc.Spec.Scheduler != "wrr" {
		t.Errorf("after create with wait: %s", first.body)
	}
	if len(r.plane.Have()) != 2 { // including from-file's
		t.Errorf("the dataplane has %v", r.plane.Have())
	}

	wait.Until(t, "its names", func() bool { // DNS follows by itself, which is a change of the status
		svc = decode[v1.Service](r, "GET", webPath, "")
		return len(svc.Status.Names) > 0
	})
	again := r.ask("PUT", webPath, webBody("10.0.0.1", "10.0.0.2"))
	if again.StatusCode != http.StatusOK || again.Header.Get("ETag") != svc.ETag {
		t.Errorf("the same again: %s, ETag %s, was %s", again.Status, again.Header.Get("ETag"), svc.ETag)
	}
	got := r.ask("GET", webPath, "")
	if string(got.body) != string(again.body) {
		t.Errorf("GET and PUT answer differently:\n%s\n%s", got.body, again.body)
	}
	if same := r.ask("GET", webPath, "", "If-None-Match: "+svc.ETag); same.StatusCode != http.StatusNotModified || len(same.body) != 0 {
		t.Errorf("GET of what is known: %s, %d bytes", same.Status, len(same.body))
	}
	if head := r.ask("HEAD", webPath, ""); head.StatusCode != http.StatusOK || head.Header.Get("ETag") != svc.ETag || len(head.body) != 0 {
		t.Errorf("HEAD: %s %v, %d bytes", head.Status, head.Header, len(head.body))
	}

	explained := decode[v1.Explanation](r, "GET", webPath+"/explain", "")
	if explained.State != v1.StateUnchecked || !strings.Contains(strings.Join(explained.Lines, " "), "pool lan") {
		t.Errorf("explanation: %+v", explained)
	}
	deleted := decode[v1.Deleted](r, "DELETE", webPath, "", "Prefer: wait=60")
	if deleted.Service != "web" || !deleted.Applied || deleted.Revision <= svc.Revision {
		t.Errorf("deleted: %+v", deleted)
	}
	gone := r.ask("GET", webPath, "")
	expect.Equal(t, gone.problem(t).Code, v1.CodeNotFound, "after delete: %s", gone.body)
}

// The response to a PUT has the VIP, even without a wait for the dataplane.
func TestPutAnswersWithTheVIP(t *testing.T) {
	r := newRig(t)
	svc := decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"))
	if len(svc.Status.VIPs) != 1 || svc.Status.Pool != "lan" || svc.Status.Since == nil {
		t.Errorf("%+v", svc.Status)
	}
	taken := decode[v1.Service](r, "PUT", "/v1/services/default/other", `{"ports":[{"port":80}],"vips":["`+svc.Status.VIPs[0].String()+`"]}`)
	if taken.Status.State != v1.StatePending || len(taken.Status.Problems) != 1 || taken.Status.Problems[0].Code != "address_taken" {
		t.Errorf("a service that asks for the same address: %+v", taken.Status)
	}
}

func TestPreconditions(t *testing.T) {
	r := newRig(t)
	svc := decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "If-None-Match: *", "Prefer: wait=60")
	specOnly := fmt.Sprintf(`"%d.0"`, svc.Status.SpecRev)
	for _, c := range []struct {
		name, method, header string
		want                 int
	}{
		{"create only, and it exists", "PUT", "If-None-Match: *", 412},
		{"the spec that was seen, with another status", "PUT", "If-Match: " + specOnly, 200},
		{"one of several", "PUT", `If-Match: "7.7", ` + specOnly, 200},
		{"any", "PUT", "If-Match: *", 200},
		{"a spec that isn't there any more", "PUT", `If-Match: "1.1"`, 412},
		{"delete of the same", "DELETE", `If-Match: "1.1"`, 412},
		{"backend by the same", "PUTB", `If-Match: "1.1"`, 412},
		{"no ETag of ours", "PUT", `If-Match: "abc"`, 400},
		{"an ETag without quotes", "PUT", "If-Match: 1.1", 400},
		{"a weak ETag", "PUT", "If-Match: W/" + specOnly, 400},
		{"an ETag with another status", "PUT", fmt.Sprintf(`If-Match: "%d.x"`, svc.Status.SpecRev), 400},
		{"If-None-Match of a delete", "DELETE", "If-None-Match: *", 400},
		{"a condition of an apply", "APPLY", "If-Match: *", 400},
		{"If-None-Match with a tag", "PUT", `If-None-Match: "1.1"`, 400},
		{"If-None-Match of a backend", "PUTB", `If-None-Match: *`, 400},
		{"delete of what was seen", "DELETE", "If-Match: " + specOnly, 200},
		{"and once more", "DELETE", "If-Match: " + specOnly, 404},
		{"put of what is gone", "PUT", "If-Match: *", 412},
	} {
		method, path, body := c.method, webPath, webBody("10.0.0.1")
		if method == "PUTB" {
			method, path, body = "PUT", webPath+"/backends/10.0.0.5", ""
		}
		if method == "APPLY" {
			method, path, body = "POST", v1.PathApply, `{"services":[]}`
		}
		a := r.ask(method, path, body, c.header)
		expect.Equal(t, a.StatusCode, c.want, "%s: %s, want %d\n%s", c.name, a.Status, c.want, a.body)
		if a.StatusCode == 412 && a.problem(t).Code != v1.CodePreconditionFailed {
			t.Errorf("%s: %s", c.name, a.body)
		}
	}
}

// Every kind of refusal, with its status, code and field.
func TestRefusals(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"))
	big := `{"labels":{"x":"` + strings.Repeat("y", 1<<20) + `"}}`
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		code, field              string
	}{
		{name: "not JSON", method: "PUT", path: webPath, body: `{"ports":`, status: 400, code: v1.CodeInvalidRequest},
		{name: "a list", method: "PUT", path: webPath, body: `[]`, status: 400, code: v1.CodeInvalidRequest},
		{name: "no body", method: "PUT", path: webPath, status: 400, code: v1.CodeInvalidRequest},
		{name: "unknown key", method: "PUT", path: webPath, body: `{"ports":[{"prot":"tcp","port":80}]}`, status: 422, code: v1.CodeInvalidService, field: "ports[0].prot"},
		{name: "key twice", method: "PUT", path: webPath, body: `{"ports":[{"port":80,"port":81}]}`, status: 422, code: v1.CodeInvalidService, field: "ports[0].port"},
		{name: "wrong type", method: "PUT", path: webPath, body: `{"ports":[{"port":"80"}]}`, status: 422, code: v1.CodeInvalidService, field: "ports[0].port"},
		{name: "out of bounds", method: "PUT", path: webPath, body: `{"ports":[{"port":80}],"backends":[{"address":"10.0.0.1","weight":-1}]}`, status: 422, code: v1.CodeInvalidService, field: "backends[0].weight"},
		{name: "a health check without a type", method: "PUT", path: webPath, body: `{"ports":[{"port":80}],"health":{}}`, status: 422, code: v1.CodeInvalidService, field: "health.type"},
		{name: "backend in a pool", method: "PUT", path: webPath, body: webBody("192.0.2.9"), status: 422, code: v1.CodeInvalidService, field: "backends[0].address"},
		{name: "another name in the body", method: "PUT", path: webPath, body: `{"name":"db","ports":[{"port":80}]}`, status: 422, code: v1.CodeInvalidService, field: "name"},
		{name: "a bad name", method: "PUT", path: "/v1/services/default/No_Good", body: webBody(), status: 422, code: v1.CodeInvalidService, field: "name"},
		{name: "too large", method: "PUT", path: webPath, body: big, status: 413, code: v1.CodeBodyTooLarge},
		{name: "YAML", method: "PUT", path: webPath, body: "a: b", headers: []string{"Content-Type: application/yaml"}, status: 415, code: v1.CodeUnsupportedMedia},
		{name: "curl -d", method: "PUT", path: webPath, body: webBody(), headers: []string{"Content-Type: application/x-www-form-urlencoded"}, status: 415, code: v1.CodeUnsupportedMedia},
		{name: "compressed", method: "PUT", path: webPath, body: webBody(), headers: []string{"Content-Encoding: gzip"}, status: 415, code: v1.CodeUnsupportedMedia},
		{name: "Latin-1", method: "PUT", path: webPath, body: webBody(), headers: []string{"Content-Type: application/json; charset=iso-8859-1"}, status: 415, code: v1.CodeUnsupportedMedia},
		{name: "half a character", method: "PUT", path: webPath, body: `{"labels":{"a":"\ud800"},"ports":[{"port":80}]}`, status: 400, code: v1.CodeInvalidRequest},
		{name: "another source's", method: "PUT", path: "/v1/services/default/from-file", body: webBody(), status: 409, code: v1.CodeReadOnlySource},
		{name: "deletion of another source's", method: "DELETE", path: "/v1/services/default/from-file", status: 409, code: v1.CodeReadOnlySource},
		{name: "backend of another source's", method: "PUT", path: "/v1/services/default/from-file/backends/10.0.0.1", status: 409, code: v1.CodeReadOnlySource},
		{name: "no such service", method: "GET", path: "/v1/services/default/ghost", status: 404, code: v1.CodeNotFound},
		{name: "nothing to delete", method: "DELETE", path: "/v1/services/default/ghost", status: 404, code: v1.CodeNotFound},
		{name: "nothing to explain", method: "GET", path: "/v1/services/default/ghost/explain", status: 404, code: v1.CodeNotFound},
		{name: "backends of no service", method: "GET", path: "/v1/services/default/ghost/backends", status: 404, code: v1.CodeNotFound},
		{name: "registration with no service", method: "PUT", path: "/v1/services/default/ghost/backends/10.0.0.1:80", status: 404, code: v1.CodeNotFound},
		{name: "heartbeat of no backend", method: "PUT", path: webPath + "/backends/10.0.0.77/heartbeat", status: 404, code: v1.CodeNotFound},
		{name: "state of no backend", method: "PUT", path: webPath + "/backends/10.0.0.77/state", body: `{"state":"drain"}`, status: 404, code: v1.CodeNotFound},
		{name: "unknown state", method: "PUT", path: webPath + "/backends/10.0.0.1:8080/state", body: `{"state":"asleep"}`, status: 422, code: v1.CodeInvalidService, field: "state"},
		{name: "no state", method: "PUT", path: webPath + "/backends/10.0.0.1:8080/state", body: `{}`, status: 422, code: v1.CodeInvalidService, field: "state"},
		{name: "no backend's name", method: "GET", path: webPath + "/backends/nowhere", status: 400, code: v1.CodeInvalidRequest, field: "path.id"},
		{name: "backend with port 0", method: "PUT", path: webPath + "/backends/10.9.0.23:0", status: 400, code: v1.CodeInvalidRequest, field: "path.id"},
		{name: "state of a backend with port 0", method: "PUT", path: webPath + "/backends/10.0.0.1:0/state", body: `{"state":"drain"}`, status: 400, code: v1.CodeInvalidRequest, field: "path.id"},
		{name: "a backend's unknown key", method: "PUT", path: webPath + "/backends/10.0.0.3", body: `{"wieght":1}`, status: 422, code: v1.CodeInvalidService, field: "wieght"},
		{name: "a ttl of zero", method: "PUT", path: webPath + "/backends/10.0.0.3", body: `{"ttl":"0s"}`, status: 422, code: v1.CodeInvalidService, field: "ttl"},
		{name: "a ttl that is too short", method: "PUT", path: webPath + "/backends/10.0.0.3", body: `{"ttl":"1ms"}`, status: 422, code: v1.CodeInvalidService, field: "ttl"},
		{name: "a bad wait", method: "GET", path: webPath + "?wait=ever", status: 400, code: v1.CodeInvalidRequest, field: "query.wait"},
		{name: "a repeated limit", method: "GET", path: "/v1/services?limit=1&limit=2", status: 400, code: v1.CodeInvalidRequest, field: "query.limit"},
		{name: "a flag without a value", method: "POST", path: v1.PathApply + "?dry_run", body: `{"services":[]}`, status: 400, code: v1.CodeInvalidRequest, field: "query.dry_run"},
		{name: "a filter without a value", method: "GET", path: "/v1/services?state=", status: 400, code: v1.CodeInvalidRequest, field: "query.state"},
		{name: "a repeated flag", method: "POST", path: v1.PathApply + "?dry_run=true&dry_run=false", body: `{"services":[]}`, status: 400, code: v1.CodeInvalidRequest, field: "query.dry_run"},
		{name: "a wait too long", method: "GET", path: "/v1/services?wait=1h", status: 400, code: v1.CodeInvalidRequest, field: "query.wait"},
		{name: "a bad limit", method: "GET", path: "/v1/services?limit=0", status: 422, code: v1.CodeInvalidRequest, field: "query.limit"},
		{name: "a query that can't be read", method: "GET", path: "/v1/services?state=healthy;limit=1", status: 400, code: v1.CodeInvalidRequest},
		{name: "an unknown parameter", method: "GET", path: "/v1/services?stat=x", status: 422, code: v1.CodeInvalidRequest, field: "query.stat"},
		{name: "an unknown state to list", method: "GET", path: "/v1/services?state=x", status: 422, code: v1.CodeInvalidRequest, field: "query.state"},
		{name: "a bad cursor", method: "GET", path: "/v1/services?cursor=%21", status: 400, code: v1.CodeInvalidRequest, field: "query.cursor"},
		{name: "a foreign cursor", method: "GET", path: "/v1/vips?cursor=" + request.Cursor[string]{List: "vips", Last: "default/web"}.String(), status: 400, code: v1.CodeInvalidRequest, field: "query.cursor"},
		{name: "a foreign cursor of frontends", method: "GET", path: "/v1/dataplane/frontends?cursor=" + request.Cursor[string]{List: "frontends", Last: "x"}.String(), status: 400, code: v1.CodeInvalidRequest, field: "query.cursor"},
		{name: "frontends of no name", method: "GET", path: "/v1/dataplane/frontends?service=A%20B", status: 400, code: v1.CodeInvalidRequest, field: "query.service"},
		{name: "a lease on no address", method: "GET", path: "/v1/vips/nowhere", status: 400, code: v1.CodeInvalidRequest, field: "path.ip"},
		{name: "a lease nobody has", method: "GET", path: "/v1/vips/192.0.2.200", status: 404, code: v1.CodeNotFound},
		{name: "no such source", method: "POST", path: "/v1/sources/ghost/resync", status: 404, code: v1.CodeNotFound},
		{name: "no such path", method: "GET", path: "/v2/services", status: 404, code: v1.CodeNoRoute},
		{name: "a slash too many", method: "GET", path: "/v1/services/", status: 404, code: v1.CodeNoRoute},
		{name: "no such method", method: "POST", path: webPath, status: 405, code: v1.CodeMethodNotAllowed},
		{name: "events after no number", method: "GET", path: v1.PathEvents + "?since=x", status: 422, code: v1.CodeInvalidRequest, field: "query.since"},
		{name: "apply of nothing", method: "POST", path: v1.PathApply, status: 400, code: v1.CodeInvalidRequest},
		{name: "apply of a list", method: "POST", path: v1.PathApply, body: `[]`, status: 400, code: v1.CodeInvalidRequest},
		{name: "apply cut off", method: "POST", path: v1.PathApply, body: `{"services":[{"name":"a"`, status: 400, code: v1.CodeInvalidRequest},
		{name: "apply with more behind", method: "POST", path: v1.PathApply, body: `{"services":[]} {}`, status: 400, code: v1.CodeInvalidRequest},
		{name: "apply of another key", method: "POST", path: v1.PathApply, body: `{"service":[]}`, status: 422, code: v1.CodeInvalidService, field: "service"},
		{name: "apply of the key twice", method: "POST", path: v1.PathApply, body: `{"services":[],"services":[]}`, status: 422, code: v1.CodeInvalidService, field: "services"},
		{name: "apply of bad ones only", method: "POST", path: v1.PathApply, body: `{"services":[{"name":"a","ports":[{"port":0}]}]}`, status: 422, code: v1.CodeInvalidService, field: "services[0].ports[0].port"},
		{name: "apply of another source's", method: "POST", path: v1.PathApply, body: `{"services":[{"name":"from-file","ports":[{"port":1}]}]}`, status: 422, code: v1.CodeInvalidService, field: "services[0].name"},
		{name: "apply of a form", method: "POST", path: v1.PathApply, body: `a`, headers: []string{"Content-Type: multipart/form-data"}, status: 415, code: v1.CodeUnsupportedMedia},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := r.ask(c.method, c.path, c.body, c.headers...)
			doc := a.problem(t)
			if a.StatusCode != c.status || doc.Code != c.code {
				t.Fatalf("%s %s, want %d %s\n%s", a.Status, doc.Code, c.status, c.code, a.body)
			}
			if c.field != "" && (len(doc.Errors) == 0 || doc.Errors[0].Field != c.field || doc.Errors[0].Message == "") {
				t.Errorf("errors %+v, want one with %s", doc.Errors, c.field)
			}
		})
	}
	expect.Equal(t, r.ask("PUT", webPath, big).problem(t).Detail, "the body is larger than 1 MiB", "detail")
	if doc := r.ask("PUT", webPath, `{"ports":`).problem(t); !strings.HasPrefix(doc.Detail, "the body is not valid JSON near line 1") {
		t.Errorf("detail %q", doc.Detail)
	}
	if doc := r.ask("GET", v1.PathServices+"?limit=0", "").problem(t); !strings.HasPrefix(doc.Detail, "query.limit: ") {
		t.Errorf("detail %q", doc.Detail)
	}
	if doc := r.ask("PUT", "/v1/services/default/from-file", webBody()).problem(t); !strings.Contains(doc.Detail, `"files"`) || !strings.Contains(doc.Detail, "mail.toml:1") {
		t.Errorf("the problem doesn't name the source: %+v", doc)
	}
	n := len(decode[v1.ServiceList](r, "GET", v1.PathServices, "").Items)
	expect.Equal(t, n, 2, "services after nothing but refusals")
}

func TestFullDisk(t *testing.T) {
	r := newRig(t)
	svc := decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
	for _, c := range []struct {
		cause  error
		status int
		code   string
	}{{syscall.ENOSPC, 507, v1.CodeStoreFull}, {errors.New("away"), 503, v1.CodeStoreUnavailable},
		{fleet.ErrUnavailable, 503, v1.CodeStoreUnavailable}} {
		r.registry.fail(fmt.Errorf("%w: %w", store.ErrUnavailable, c.cause))
		for method, path := range map[string]string{"PUT": webPath, "DELETE": webPath, "POST": v1.PathApply} {
			body := webBody("10.0.0.2")
			if method == "POST" {
				body = `{"services":[{"name":"new","ports":[{"port":1}]}]}`
			}
			a := r.ask(method, path, body)
			if doc := a.problem(t); a.StatusCode != c.status || doc.Code != c.code || doc.Hint == "" {
				t.Errorf("%s: %s %s", method, a.Status, a.body)
			}
		}
	}
	spec := func(s v1.Service) string { before, _, _ := strings.Cut(s.ETag, "."); return before } // the status may follow later
	now := decode[v1.Service](r, "GET", webPath, "")
	expect.Equal(t, spec(now), spec(svc), "something changed: %s, %s", svc.ETag, now.ETag)
}

// overtaken is a Registrar with a conflict of another host for every write.
type overtaken struct {
	services.Registrar
	err *registry.ConflictError
}

func (o overtaken) PutService(context.Context, rest.Put) (rest.Result, error) {
	return rest.Result{}, o.err
}

func (o overtaken) PutServices(_ context.Context, puts []rest.Put, _ bool) (out []rest.Result, _ error) {
	for range puts {
		out = append(out, rest.Result{Key: o.err.Service, Action: rest.Refused, Err: o.err})
	}
	return out, nil
}

func (o overtaken) DeleteService(context.Context, vip.ServiceKey, rest.Check) (uint64, error) {
	return 0, o.err
}

func TestConflictNamesTheOtherNode(t *testing.T) {
	r := newRig(t, func(d *Deps) {
		d.Services.Registrar = overtaken{d.Services.Registrar, &registry.ConflictError{Service: vip.ServiceKey{Namespace: "default", Name: "web"}, Node: "lb2"}}
	})
	for method, path := range map[string]string{"PUT": webPath, "DELETE": webPath} {
		a := r.ask(method, path, webBody())
		if doc := a.problem(t); a.StatusCode != http.StatusConflict || doc.Code != v1.CodeConflict || !strings.Contains(doc.Detail, `"lb2"`) ||
			!strings.Contains(doc.Hint, "ironvip service get web;") {
			t.Errorf("%s: %s %s", method, a.Status, a.body)
		}
	}
	a := r.ask("POST", v1.PathApply, `{"services":[`+`{"name":"web","ports":[{"port":1}]}`+`]}`)
	if doc := a.problem(t); len(doc.Errors) != 1 || doc.Errors[0].Code != vip.CodeNameTaken || doc.Errors[0].Message != `was registered meanwhile through node "lb2"` || doc.Errors[0].Hint == "" {
		t.Errorf("apply: %s %s", a.Status, a.body)
	}
}

// A file takes a name during an atomic apply of it. The response is correct, and nothing is
// changed.
func TestNameTakenDuringAnAtomicApply(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		decode[v1.Service](r, "PUT", "/v1/services/default/db", `{"ports":[{"port":81}]}`)
		key := vip.ServiceKey{Namespace: "default", Name: "web"}
		r.registry.interrupt(func() {
			r.files.more <- spec.Service{Name: "web", Ports: []spec.Port{{Port: spec.PortRange{First: 25}}}}
			wait.Until(t, "the file has the name", func() bool { return r.deps.Tables.Services.Row(key) != nil })
		})
		a := r.ask("POST", v1.PathApply+"?atomic=true", `{"services":[{"name":"web","ports":[{"port":80}]},{"name":"new","ports":[{"port":82}]},{"name":"db","ports":[{"port":91}]}]}`)
		doc := a.problem(t)
		if a.StatusCode != 422 || len(doc.Errors) != 1 || doc.Errors[0].Field != "services[0].name" || !strings.Contains(doc.Errors[0].Hint, "late.toml") {
			t.Errorf("%s %s", a.Status, a.body)
		}
		ports := map[string]int{}
		for _, svc := range decode[v1.ServiceList](r, "GET", v1.PathServices, "").Items {
			ports[svc.Spec.Name] = int(svc.Spec.Ports[0].Port.First)
		}
		want := map[string]int{"from-file": 25, "web": 25, "db": 81}
		expect.True(t, maps.Equal(ports, want), "there is %v, want %v", ports, want)
	})
}

// meanwhile is a Registrar that calls then after each write and before the response, if then is set.
type meanwhile struct {
	services.Registrar
	then *func(vip.ServiceKey) error
}

func (m meanwhile) after(key vip.ServiceKey, err error) error {
	if then := *m.then; err == nil && then != nil {
		*m.then = nil
		err = then(key)
	}
	return err
}

func (m meanwhile) PutService(ctx context.Context, p rest.Put) (rest.Result, error) {
	out, err := m.Registrar.PutService(ctx, p)
	return out, m.after(out.Key, err)
}

func (m meanwhile) PutServices(ctx context.Context, puts []rest.Put, atomic bool) ([]rest.Result, error) {
	out, err := m.Registrar.PutServices(ctx, puts, atomic)
	return out, m.after(out[0].Key, err)
}

func (m meanwhile) DeleteService(ctx context.Context, key vip.ServiceKey, check rest.Check) (uint64, error) {
	rev, err := m.Registrar.DeleteService(ctx, key, check)
	return rev, m.after(key, err)
}

func (m meanwhile) PutBackend(ctx context.Context, key vip.ServiceKey, b spec.Backend, ttl time.Duration, check rest.Check) (uint64, bool, error) {
	rev, created, err := m.Registrar.PutBackend(ctx, key, b, ttl, check)
	return rev, created, m.after(key, err)
}

func (m meanwhile) DeleteBackend(ctx context.Context, key vip.BackendKey, check rest.Check) (uint64, error) {
	rev, err := m.Registrar.DeleteBackend(ctx, key, check)
	return rev, m.after(key.Service, err)
}

// A write whose object another client deletes before the response is never "not found", and a wait for
// the dataplane ends at once. Deletions and states of backends have the effect that their callers want.
// Slow: each of 27 cases starts a whole pipeline.
func TestDeletedBeforeTheAnswer(t *testing.T) {
	const backend = webPath + "/backends/10.0.0.1:8080"
	const override = v1.PathOverrides + "/default/web/10.0.0.1:8080"
	two := `{"services":[{"name":"web",` + webBody("10.0.0.2")[1:] + `,{"name":"other",` + webBody("10.0.0.2")[1:] + `]}`
	for _, c := range []struct {
		method, path, body string
		again, heir        bool // what has the name at the end: a service of another client, or of another source
		want               int
	}{
		{method: "PUT", path: webPath, body: webBody("10.0.0.2"), want: 409},
		{method: "PUT", path: webPath, body: webBody("10.0.0.1"), want: 409}, // unchanged
		{method: "PATCH", path: webPath, body: `{"labels":{"a":"b"}}`, want: 409},
		{method: "PUT", path: backend, want: 409},
		{method: "PUT", path: webPath, body: webBody("10.0.0.2"), heir: true, want: 409},
		{method: "PUT", path: backend, heir: true, want: 409},
		{method: "POST", path: v1.PathApply, body: two, want: 409},
		{method: "POST", path: v1.PathApply, body: two, heir: true, want: 409},
		{method: "DELETE", path: backend, want: 200},
		{method: "DELETE", path: backend, heir: true, want: 200},
		{method: "DELETE", path: webPath, again: true, want: 200},
		{method: "PUT", path: backend + "/state?force=true", body: `{"state":"drain"}`, want: 200},
		{method: "PUT", path: backend + "/state?force=true", body: `{"state":"drain"}`, heir: true, want: 200},
		{method: "DELETE", path: override, want: 200},
	} {
		for _, header := range []string{"Prefer: wait=60", "X-Nothing: asked"} {
			waits := strings.HasPrefix(header, "Prefer")
			if c.path == v1.PathApply && !waits {
				continue // each service has its own result
			}
			t.Run(fmt.Sprintf("%s %s again %t heir %t %s", c.method, c.path, c.again, c.heir, header), func(t *testing.T) {
				var then func(vip.ServiceKey) error
				inRig(t, func(t *testing.T, r *rig) {
					decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1", "10.0.0.3"), "Prefer: wait=60")
					if c.path == override {
						decode[v1.Backend](r, "PUT", backend+"/state", `{"state":"drain"}`, "Prefer: wait=60")
					}
					if c.heir {
						r.files.more <- spec.Service{Name: "web", Ports: []spec.Port{{Port: spec.PortRange{First: 81}}}}
						synctest.Wait()
					}
					registrar := r.deps.Services.Registrar.(meanwhile).Registrar
					then = func(key vip.ServiceKey) error {
						defer synctest.Wait() // the dataplane has it before the wait begins
						if c.again {
							_, err := registrar.PutService(t.Context(), rest.Put{Spec: spec.Service{Name: "web", Ports: []spec.Port{{Port: spec.PortRange{First: 80}}}}})
							return err
						}
						_, err := registrar.DeleteService(t.Context(), key, nil)
						return err
					}
					kind := "Content-Type: application/json"
					if c.method == "PATCH" {
						kind = "Content-Type: " + v1.MergePatchType
					}
					began := time.Now()
					a := r.ask(c.method, c.path, c.body, header, kind)
					expect.AtMost(t, time.Since(began), time.Second, "the response took")
					must.Equal(t, a.StatusCode, c.want, "%s %s", a.Status, a.body)
					if c.want == http.StatusConflict {
						doc := a.problem(t)
						text := doc.Detail
						if c.path == v1.PathApply {
							if len(doc.Errors) != 1 || doc.Errors[0].Service != "web" || doc.Errors[0].Code != v1.CodeDeletedMeanwhile {
								t.Fatalf("%s", a.body)
							}
							text = doc.Errors[0].Message
						}
						if doc.Code != v1.CodeDeletedMeanwhile || !strings.Contains(text, "another client deleted it") || strings.Contains(text, `source "files"`) != c.heir {
							t.Errorf("%s", a.body)
						}
					} else if applied := a.Header.Get("Preference-Applied"); waits && applied != "wait=60" {
						t.Errorf("Preference-Applied: %q", applied)
					}
					if strings.Contains(c.path, "/state") {
						var set v1.Backend
						if err := json.Unmarshal(a.body, &set); err != nil || !set.Removed || set.State != "drain" || set.ID != "10.0.0.1:8080" || set.Address != "10.0.0.1" || set.Port != 8080 || set.Service != "web" || set.Revision == 0 {
							t.Errorf("%v %s", err, a.body)
						}
					}
					if !c.heir { // an override ends with its name
						wait.Until(t, "no override is left", func() bool { return r.deps.Tables.Overrides.Len() == 0 })
					}
				}, func(d *Deps) {
					m, set := meanwhile{d.Services.Registrar, &then}, d.Services.SetState
					d.Services.Registrar = m
					d.Services.SetState = func(ctx context.Context, o overrides.Request) (overrides.Result, error) {
						done, err := set(ctx, o)
						return done, m.after(o.Backend.Service, err)
					}
				})
			})
		}
	}
}

func TestPreferWaitSaysWhatFailed(t *testing.T) {
	r := newRig(t)
	r.plane.FailKey(webFrontend, errors.New("no such module"))
	body := `{"vips":["192.0.2.5"],` + webBody("10.0.0.1")[1:]
	a := r.ask("PUT", webPath, body, "Prefer: respond-async, wait=10")
	doc := a.problem(t)
	if a.StatusCode != http.StatusBadGateway || doc.Code != v1.CodeApplyFailed || len(doc.Errors) != 1 || !strings.Contains(doc.Errors[0].Message, "no such module") {
		t.Fatalf("%s\n%s", a.Status, a.body)
	}
	svc := decode[v1.Service](r, "GET", webPath, "") // stored nevertheless
	if svc.Status.State != v1.StateDown || len(svc.Status.Problems) == 0 {
		t.Errorf("status: %+v", svc.Status)
	}
	r.plane.FailKey(webFrontend, nil)

	full := r.ask("PUT", "/v1/services/default/far", `{"ports":[{"port":80}],"vips":["203.0.113.1"]}`, "Prefer: wait=60")
	if doc := full.problem(t); doc.Code != v1.CodeApplyFailed || doc.Errors[0].Code != "outside_pool" {
		t.Errorf("an address outside of every pool: %s", full.body)
	}
}

// The wait for a deletion ends when another source's service of the same name is in effect. The
// name itself never disappears.
func TestRemovalThatAnotherSourceIsHeirTo(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
		r.files.more <- spec.Service{Name: "web", Ports: []spec.Port{{Port: spec.PortRange{First: 81}}}}
		for lost := false; !lost; time.Sleep(time.Millisecond) {
			source := decode[v1.SourceList](r, "GET", v1.PathSources, "").Items[0]
			lost = len(source.Problems) > 0
			if want := `source "rest" holds the name, at `; lost && (source.Name != "files" || source.Level != v1.LevelWarn || source.Problems[0].Code != vip.CodeNameTaken || !strings.HasPrefix(source.Problems[0].Message, want)) {
				t.Fatalf("source %+v, want the problem %q", source, want)
			}
		}
		deleted := decode[v1.Deleted](r, "DELETE", webPath, "", "Prefer: wait=60")
		expect.True(t, deleted.Applied, "%+v", deleted)
		if svc := decode[v1.Service](r, "GET", webPath, ""); svc.Source != "files" || !svc.Status.Applied {
			t.Errorf("of source %q, applied %v", svc.Source, svc.Status.Applied)
		}
	})
}

func TestPreferWaitTimesOut(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		d := r.deps // as while the dataplane hangs: nothing is ever applied
		d.Tables.Applied = table.New(&table.Clock{}, reconcile.KeyOfApplied, nil)
		req := httptest.NewRequestWithContext(t.Context(), "PUT", "http://localhost"+webPath, strings.NewReader(webBody("10.0.0.1")))
		req.Header.Set("Prefer", "wait=1")
		rec := httptest.NewRecorder()
		New(d).Handler().ServeHTTP(rec, req)
		var doc v1.ProblemDocument
		if err := json.Unmarshal(rec.Body.Bytes(), &doc); err != nil || rec.Code != http.StatusGatewayTimeout || doc.Code != v1.CodeApplyTimeout {
			t.Errorf("%d %v\n%s", rec.Code, err, rec.Body)
		}
		_, ok := r.server.services.Service(vip.ServiceKey{Namespace: "default", Name: "web"})
		expect.True(t, ok, "it is not stored")
	})
}

func TestWaitForNewer(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
		r.eventually(webPath, "web.vip.internal") // its names come last
		svc := decode[v1.Service](r, "GET", webPath, "")
		list := decode[v1.ServiceList](r, "GET", v1.PathServices, "")

		start := time.Now()
		same := decode[v1.Service](r, "GET", fmt.Sprintf("%s?wait=50ms&revision=%d", webPath, svc.Revision), "")
		if took := time.Since(start); took < 50*time.Millisecond || same.Revision != svc.Revision {
			t.Errorf("a wait for nothing took %s and gave revision %d", took, same.Revision)
		}
		type result struct {
			svc  v1.Service
			list v1.ServiceList
		}
		one, all := make(chan v1.Service, 1), make(chan v1.ServiceList, 1)
		go func() {
			one <- decode[v1.Service](r, "GET", fmt.Sprintf("%s?wait=30s&revision=%d", webPath, svc.Revision), "")
		}()
		go func() {
			all <- decode[v1.ServiceList](r, "GET", fmt.Sprintf("%s?wait=30s&revision=%d", v1.PathServices, list.Revision), "")
		}()
		decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1", "10.0.0.2"))
		got := result{<-one, <-all}
		if len(got.svc.Status.Backends) != 2 || got.svc.Revision <= svc.Revision {
			t.Errorf("the waiting GET: revision %d, %d backends", got.svc.Revision, len(got.svc.Status.Backends))
		}
		if got.list.Revision <= list.Revision {
			t.Errorf("the waiting list: revision %d, had %d", got.list.Revision, list.Revision)
		}
		gone := make(chan answer, 1)
		go func() { gone <- r.ask("GET", webPath+"?wait=30s&revision=9007199254740991", "") }()
		decode[v1.Deleted](r, "DELETE", webPath, "")
		a := <-gone
		expect.Equal(t, a.StatusCode, http.StatusNotFound, "a GET that waits for a service that goes: %s", a.Status)
	})
}

// If a service changes during a read, the response's revision is not that of a change that the
// response lacks. A caller that waits for a newer revision would otherwise miss the change.
func TestRevisionIsNotNewerThanTheAnswer(t *testing.T) {
	key, frontend := vip.ServiceKey{Namespace: "default", Name: "web"}, vip.FrontendKey{Port: 80}
	for reading := range 4 {
		clock := &table.Clock{}
		services := table.New(clock, vip.KeyOfService, compile.SameService)
		frontends := table.New(clock, vip.KeyOfFrontend, compile.SameFrontend)
		compiled := table.New(clock, pipeline.KeyOfCompiled, pipeline.SameCompiled)
		applied := table.New(clock, reconcile.KeyOfApplied, nil)
		put := func(backends ...vip.Backend) uint64 {
			services.Set(vip.Service{Key: key, Backends: backends})
			row := frontends.Put(vip.Frontend{Key: frontend, Service: key, Backends: make([]vip.Endpoint, len(backends))})
			compiled.Set(pipeline.Compiled{Service: &vip.Service{Key: key}, Frontends: []*pipeline.FrontendRow{row}})
			return applied.Set(reconcile.AppliedFrontend{Tried: row})
		}
		put(vip.Backend{})
		var changed uint64
		d := idle(pipeline.NewTables(clock))
		d.Tables.Services, d.Tables.Frontends, d.Tables.Compiled = services, frontends, compiled
		d.Tables.Applied = &interrupted{Reader: applied, left: reading, f: func() { changed = put(vip.Backend{}, vip.Backend{}) }}
		got, ok := New(d).services.Service(key)
		if !ok || len(got.Spec.Backends) == 1 && changed > 0 && got.Revision >= changed {
			t.Errorf("changed to revision %d during reading %d of applied: answered with revision %d and %d backends", changed, reading, got.Revision, len(got.Spec.Backends))
		}
	}
}

// interrupted is a table that calls f after a number of reads.
type interrupted struct {
	table.Reader[vip.FrontendKey, reconcile.AppliedFrontend]
	left int
	f    func()
}

func (i *interrupted) Get(k vip.FrontendKey) (reconcile.AppliedFrontend, uint64, bool) {
	a, rev, ok := i.Reader.Get(k)
	if i.left--; i.left == -1 {
		i.f()
	}
	return a, rev, ok
}

func TestListPagesAndFilters(t *testing.T) {
	r := newRig(t)
	var specs []string
	for i := range 25 {
		specs = append(specs, fmt.Sprintf(`{"name":"s%02d","namespace":"n%d","labels":{"odd":"%t"},"ports":[{"port":80}],"backends":[{"address":"10.0.0.1"}]}`, i, i%2, i%2 == 1))
	}
	decode[v1.ApplyResult](r, "POST", v1.PathApply, `{"services":[`+strings.Join(specs, ",")+`]}`, "Prefer: wait=60")
	count := func(query string) (names []string, pages int) {
		for cursor := ""; ; {
			list := decode[v1.ServiceList](r, "GET", v1.PathServices+"?"+query+cursor, "")
			for _, s := range list.Items {
				names = append(names, s.Spec.Namespace+"/"+s.Spec.Name)
			}
			pages++
			if list.Next == "" {
				return names, pages
			}
			cursor = "&cursor=" + list.Next
		}
	}
	for _, c := range []struct {
		query       string
		rows, pages int
	}{
		{"limit=10", 26, 3}, {"limit=13", 26, 2}, {"limit=26", 26, 1}, {"limit=1000", 26, 1}, {"limit=1", 26, 26},
		{"source=files", 1, 1}, {"source=rest&limit=20", 25, 2}, {"source=ghost", 0, 1},
		{"label=odd=true", 12, 1}, {"label=odd", 25, 1}, {"label=odd&label=odd=false&limit=5", 13, 3}, {"label=tier", 1, 1},
		{"state=unchecked", 26, 1}, {"state=healthy", 0, 1}, {"state=down", 0, 1},
	} {
		names, pages := count(c.query)
		if len(names) != c.rows || pages != c.pages {
			t.Errorf("%s: %d rows in %d pages, want %d in %d", c.query, len(names), pages, c.rows, c.pages)
		}
		for i := 1; i < len(names); i++ {
			if names[i-1] >= names[i] {
				t.Errorf("%s: %s before %s", c.query, names[i-1], names[i])
			}
		}
	}
}

// A selector has at most as many labels as a service.
func TestLabelsOfASelector(t *testing.T) {
	r := newRig(t)
	labels := strings.Repeat("&label=tier", spec.MaxLabels)
	list := decode[v1.ServiceList](r, "GET", v1.PathServices+"?limit=10"+labels, "")
	expect.Equal(t, len(list.Items), 1, "services with a label")
	for _, path := range []string{v1.PathServices + "?limit=10", v1.PathWatchServices + "?view=summary"} {
		resp := r.send("GET", path+labels+"&label=tier", "")
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest { // it may have no end
			t.Errorf("%s: %s", path, resp.Status)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		if doc := (answer{resp, body}).problem(t); len(doc.Errors) != 1 || doc.Errors[0].Field != "query.label" || doc.Hint == "" {
			t.Errorf("%s: %s", path, body)
		}
	}
}

func TestApply(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"), "Prefer: wait=60")
	body := `{"services":[
		{"name":"web","scheduler":"mh","ports":[{"port":80}],"backends":[{"address":"10.0.0.1","port":8080}]},
		{"name":"new","namespace":"shop","ports":[{"port":443}],"backends":[{"address":"10.0.0.2"}]},
		{"name":"bad","ports":[{"prot":1,"port":2}]},
		{"name":"from-file","ports":[{"port":80}]}]}`

	dry := decode[v1.ApplyResult](r, "POST", v1.PathApply+"?dry_run=true", body)
	if !dry.DryRun || dry.Created != 1 || dry.Updated != 1 || dry.Refused != 2 || dry.Plan == nil || dry.Plan.Add != 1 || dry.Plan.Change != 1 || len(dry.Plan.Problems) != 2 {
		t.Errorf("dry run: %+v, plan %+v", dry, dry.Plan)
	}
	atomic := r.ask("POST", v1.PathApply+"?atomic=true", body)
	if doc := atomic.problem(t); atomic.StatusCode != 422 || len(doc.Errors) != 2 || doc.Errors[0].Field != "services[2].ports[0].prot" ||
		doc.Errors[1].Field != "services[3].name" || doc.Errors[1].Code != "name_taken" {
		t.Errorf("atomic: %s", atomic.body)
	}
	late := r.ask("POST", v1.PathApply+"?atomic=true", strings.Replace(body, `{"name":"bad","ports":[{"prot":1,"port":2}]},`, "", 1))
	if doc := late.problem(t); late.StatusCode != 422 || len(doc.Errors) != 1 || doc.Errors[0].Code != "name_taken" {
		t.Errorf("atomic with a name that is taken: %s", late.body)
	}
	twice := r.ask("POST", v1.PathApply+"?atomic=true", strings.Replace(body, "from-file", "web", 1))
	if doc := twice.problem(t); twice.StatusCode != 422 || len(doc.Errors) != 2 || !strings.HasPrefix(doc.Errors[1].Message, "services[0] ") {
		t.Errorf("atomic with a name twice: %s", twice.body)
	}
	behind := r.ask("POST", v1.PathApply+"?atomic=true", `{"services":[{"name":"bad","ports":[{"prot":1}]},{"name":"x","ports":[{"port":1}]},{"name":"x","ports":[{"port":1}]}]}`)
	if doc := behind.problem(t); len(doc.Errors) != 2 || !strings.HasPrefix(doc.Errors[1].Message, "services[1] ") {
		t.Errorf("a name twice behind an invalid service: %s", behind.body)
	}
	n := len(decode[v1.ServiceList](r, "GET", v1.PathServices, "").Items)
	must.Equal(t, n, 2, "services: the dry run or the atomic apply changed something")

	a := r.ask("POST", v1.PathApply, body, "Prefer: wait=60")
	var got v1.ApplyResult
	if err := json.Unmarshal(a.body, &got); err != nil || a.StatusCode != http.StatusMultiStatus {
		t.Fatalf("%s %v\n%s", a.Status, err, a.body)
	}
	var actions []string
	for _, item := range got.Items {
		actions = append(actions, item.Namespace+"/"+item.Name+" "+item.Action)
	}
	want := "[default/web updated shop/new created default/bad refused default/from-file refused]"
	expect.Equal(t, fmt.Sprint(actions), want, actions)
	if got.Revision == 0 || got.Revision != got.Items[0].Revision && got.Revision != got.Items[1].Revision || len(got.Items[1].VIPs) != 1 {
		t.Errorf("%s", a.body)
	}
	if again := decode[v1.ApplyResult](r, "POST", v1.PathApply, `{"services":[`+strings.Split(body, "\n")[1]+`{"name":"x","ports":[{"port":1}]}]}`); again.Unchanged != 1 || again.Created != 1 {
		t.Errorf("again: %+v", again)
	}
	empty := decode[v1.ApplyResult](r, "POST", v1.PathApply, `{}`)
	expect.Equal(t, len(empty.Items), 0, "of nothing: %+v", empty)
}

// The hint for a body that is too large names what helps: another call for services, and none for a token.
func TestHintForLargeBodies(t *testing.T) {
	r := newRig(t)
	big := `{"x":"` + strings.Repeat("y", 1<<20) + `"}`
	for _, c := range []struct{ method, path, hint string }{
		{"PUT", webPath, v1.PathApply}, {"PATCH", webPath, v1.PathApply}, {"POST", v1.PathSession, "see /openapi.json"}, {"POST", v1.PathVIPs, "see /openapi.json"},
	} {
		a := r.ask(c.method, c.path, big, sameOrigin, "Content-Type: "+map[bool]string{true: "application/merge-patch+json", false: "application/json"}[c.method == "PATCH"])
		if doc := a.problem(t); a.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(doc.Hint, c.hint) || strings.Contains(doc.Hint, v1.PathApply) != (c.hint == v1.PathApply) {
			t.Errorf("%s %s: %s %q", c.method, c.path, a.Status, doc.Hint)
		}
	}
}

func TestApplyTooLarge(t *testing.T) {
	r := newRig(t)
	for size, want := range map[int]int{services.MaxApplyBody: http.StatusBadRequest, services.MaxApplyBody + 1: http.StatusRequestEntityTooLarge} {
		const begin = `{"services":[`
		a := r.ask("POST", v1.PathApply, begin+strings.Repeat(" ", size-len(begin)))
		if doc := a.problem(t); a.StatusCode != want || want == http.StatusRequestEntityTooLarge && (doc.Detail != "the body is larger than 16 MiB" || doc.Hint != "split it into several requests") {
			t.Errorf("%d bytes: %+v", size, doc)
		}
	}
}

// A body costs the agent and its caller an answer within bounds, however many mistakes it has.
func TestAnswersAreBounded(t *testing.T) {
	r := newRig(t)
	many := func(n int, of string) string { return strings.TrimSuffix(strings.Repeat(of+",", n), ",") }
	for _, c := range []struct{ name, method, path, body string }{
		{"duplicate keys", "PUT", webPath, "{" + many(10_000, `"":0`) + "}"},
		{"unknown keys", "PUT", webPath, func() string {
			var b strings.Builder
			for i := range 6000 {
				fmt.Fprintf(&b, `,"%d":0`, i)
			}
			return "{" + b.String()[1:] + "}"
		}()},
		{"one long key", "PUT", webPath, `{"` + strings.Repeat("<", 900_000) + `":0}`},
		{"invalid backends", "PUT", webPath, `{"ports":[{"port":80}],"backends":[` + many(2000, `{"address":""}`) + `]}`},
		{"backends of a wrong type", "PUT", webPath, `{"ports":[{"port":80}],"backends":[` + many(10_000, `0`) + `]}`},
		{"labels of a wrong type", "PATCH", webPath, `{"labels":{` + many(5000, `"a":[]`) + `}}`},
		{"a session", "POST", v1.PathSession, "{" + many(500, `"":0`) + "}"},
		{"services with mistakes", "POST", v1.PathApply, `{"services":[` + many(500, "{"+many(50, `"x":0`)+"}") + `]}`},
		{"services with invalid values", "POST", v1.PathApply, `{"services":[` + many(500, `{"name":"A","ports":[{"port":0}]}`) + `]}`},
	} {
		header := []string{sameOrigin}
		if c.method == "PATCH" {
			r.ask("PUT", webPath, `{"ports":[{"port":80}]}`)
			header = append(header, "Content-Type: application/merge-patch+json")
		}
		a := r.ask(c.method, c.path, c.body, header...)
		if doc := a.problem(t); a.StatusCode/100 != 4 || len(doc.Errors) > 2*vip.MaxProblems || len(a.body) > 100<<10 {
			t.Errorf("%s: %s, %d mistakes, %d bytes", c.name, a.Status, len(doc.Errors), len(a.body))
		}
	}
	for body, detail := range map[string]string{
		`{"services":[` + many(spec.MaxListed+1, "{}") + `]}`:                           "more than 20000 services",
		`{"services":[{},{"name":"` + strings.Repeat("x", services.MaxService) + `"}]}`: "services[1] is larger than 1 MiB",
	} {
		a := r.ask("POST", v1.PathApply, body)
		if doc := a.problem(t); a.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(doc.Detail, detail) {
			t.Errorf("%s: %q", a.Status, doc.Detail)
		}
	}
}

// Small bodies don't wait for large ones.
func TestSmallBodiesAreDecodedBesideLargeOnes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var all sync.WaitGroup
		decode := func(size int, read func()) {
			all.Go(func() {
				request.Decoded(make([]byte, size), func([]byte) (struct{}, []vip.Problem) { read(); return struct{}{}, nil })
			})
			synctest.Wait()
		}
		for range 50 {
			decode(services.MaxService, func() { <-release })
		}
		var small atomic.Bool
		decode(request.SmallBody, func() { small.Store(true) })
		expect.True(t, small.Load(), "a small body waits for large ones")
		close(release)
		all.Wait()
	})
}

// Bodies are decoded as many at a time as the budget has room for.
func TestDecodingIsBounded(t *testing.T) {
	var now, most atomic.Int64
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			request.Decoded(make([]byte, services.MaxService), func([]byte) (struct{}, []vip.Problem) {
				for n := now.Add(1); ; {
					if seen := most.Load(); n <= seen || most.CompareAndSwap(seen, n) {
						break
					}
				}
				runtime.Gosched()
				now.Add(-1)
				return struct{}{}, nil
			})
		})
	}
	all.Wait()
	if n := most.Load(); n < 1 || n > 3 {
		t.Errorf("%d bodies were decoded at one time", n)
	}
}

// A write that waits for the dataplane also waits until the drains that it began are stored.
func TestWaitIsForDrains(t *testing.T) {
	keep := func(context.Context) error { return nil }
	inRig(t, func(t *testing.T, r *rig) {
		put := func(want int, headers ...string) {
			t.Helper()
			got := r.ask("PUT", webPath, webBody("10.1.0.11"), headers...)
			expect.Equal(t, got.StatusCode, want, "%d %s", got.StatusCode, got.body)
		}
		put(201, "Prefer: wait=60")
		keep = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		put(504, "Prefer: wait=1")
		put(200)
	}, func(d *Deps) { d.Services.DrainsKept = func(ctx context.Context) error { return keep(ctx) } })
}

// A wait ends with the agent, and its answer says so.
func TestWaitEndsWithTheAgent(t *testing.T) {
	inRig(t, func(t *testing.T, r *rig) {
		ctx, stop := context.WithCancel(t.Context())
		l, ended := newPipes(), make(chan error, 1)
		go func() { ended <- r.server.Serve(ctx, l, nil) }()
		began := time.Now()
		time.AfterFunc(time.Second, stop)
		r.web.Client().Transport.(*http.Transport).DialContext = l.dial
		r.web.Client().CloseIdleConnections()
		a := r.ask("PUT", webPath, webBody("10.1.0.11"), "Prefer: wait=60")
		if doc := a.problem(t); a.StatusCode != http.StatusGatewayTimeout || !strings.Contains(doc.Detail, "before the end of this agent") {
			t.Errorf("%s %s", a.Status, a.body)
		}
		expect.Is(t, <-ended, context.Canceled)
		expect.AtMost(t, time.Since(began), 2*time.Second, "it took")
	}, func(d *Deps) {
		d.Services.DrainsKept = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	})
}
