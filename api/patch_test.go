package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
)

const asPatch = "Content-Type: " + v1.MergePatchType

// A patch changes what it names, and the result is applied like that of a PUT.
func TestPatchService(t *testing.T) {
	r := newRig(t)
	first := decode[v1.Service](r, "PUT", webPath, `{"labels":{"a":"1","b":"2"},"scheduler":"mh","affinity":{"timeout":"1h"},"ports":[{"port":80}],"backends":[{"address":"10.0.0.1","port":8080}]}`)
	decode[v1.Backend](r, "PUT", webPath+"/backends/10.0.0.2:8080", `{"ttl":"10m"}`)
	a := r.ask("PATCH", webPath, `{"labels":{"a":null,"c":"3"},"scheduler":null,"drain_timeout":"30s","health":{"type":"tcp"}}`, asPatch+"; charset=utf-8", "Prefer: wait=60")
	if a.StatusCode != http.StatusOK || a.Header.Get("Preference-Applied") != "wait=60" {
		t.Fatalf("%s\n%s", a.Status, a.body)
	}
	svc := decode[v1.Service](r, "GET", webPath, "")
	if got := fmt.Sprintf("%v %s %s %s %s %d", svc.Spec.Labels, svc.Spec.Scheduler, svc.Spec.DrainTimeout, svc.Spec.Affinity.Timeout, svc.Spec.Health.Type, len(svc.Spec.Backends)); got != "map[b:2 c:3] wrr 30s 1h tcp 2" {
		t.Errorf("spec after the patch: %s", got)
	}
	if svc.ETag != a.Header.Get("ETag") || svc.Status.VIPs[0] != first.Status.VIPs[0] || !svc.Status.Applied {
		t.Errorf("ETag %s, was %s; status %+v", svc.ETag, a.Header.Get("ETag"), svc.Status)
	}
	same := decode[v1.Service](r, "PATCH", webPath, `{"labels":{"c":"3","d":null}}`, asPatch)
	expect.Equal(t, same.Status.SpecRev, svc.Status.SpecRev, "a patch that changes nothing: spec revision")
	beat := r.ask("PUT", webPath+"/backends/10.0.0.2:8080/heartbeat", "")
	expect.Equal(t, beat.StatusCode, http.StatusNoContent, "a heartbeat after patches: %s", beat.Status)
	registered := decode[v1.Service](r, "PATCH", webPath, `{"backends":null}`, asPatch)
	if b := registered.Spec.Backends; len(b) != 1 || b[0].Address != "10.0.0.2" {
		t.Errorf("without backends, as with a PUT, those that registered themselves stay: %+v", b)
	}
	replaced := decode[v1.Service](r, "PATCH", webPath, `{"backends":[{"address":"10.0.0.3"}]}`, asPatch)
	if b := replaced.Spec.Backends; len(b) != 1 || b[0].Address != "10.0.0.3" {
		t.Errorf("a list is replaced: %+v", b)
	}
}

func TestPatchIsRefused(t *testing.T) {
	r := newRig(t)
	svc := decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1"))
	if a := r.ask("PATCH", webPath, `{"labels":{"x":"`+strings.Repeat("y", 1<<20)+`"}}`, asPatch); !strings.Contains(a.problem(t).Hint, "several patches") {
		t.Errorf("the hint of a large patch: %s", a.body)
	}
	const none = "Content-Type: "
	for _, c := range []struct {
		name, path, body string
		headers          []string
		status           int
		code, field      string
	}{
		{name: "not JSON", body: `{"labels":`, status: 400, code: v1.CodeInvalidRequest},
		{name: "a JSON patch", body: `[{"op":"remove","path":"/labels"}]`, status: 400, code: v1.CodeInvalidRequest},
		{name: "no body", status: 400, code: v1.CodeInvalidRequest},
		{name: "too large", body: `{"labels":{"x":"` + strings.Repeat("y", 1<<20) + `"}}`, status: 413, code: v1.CodeBodyTooLarge},
		{name: "unknown key", body: `{"port":80}`, status: 422, code: v1.CodeInvalidService, field: "port"},
		{name: "unknown key that is null", body: `{"helth":null}`, status: 422, code: v1.CodeInvalidService, field: "helth"},
		{name: "key twice", body: `{"pool":"lan","pool":"lan"}`, status: 422, code: v1.CodeInvalidService, field: "pool"},
		{name: "wrong type", body: `{"labels":7}`, status: 422, code: v1.CodeInvalidService, field: "labels"},
		{name: "null in a list", body: `{"ports":[null]}`, status: 422, code: v1.CodeInvalidService, field: "ports[0]"},
		{name: "without ports", body: `{"ports":null}`, status: 422, code: v1.CodeInvalidService, field: "ports"},
		{name: "backend in a pool", body: `{"backends":[{"address":"192.0.2.9"}]}`, status: 422, code: v1.CodeInvalidService, field: "backends[0].address"},
		{name: "another name", body: `{"name":"db"}`, status: 422, code: v1.CodeInvalidService, field: "name"},
		{name: "another namespace", body: `{"namespace":"shop"}`, status: 422, code: v1.CodeInvalidService, field: "namespace"},
		{name: "another source's", path: "/v1/services/default/from-file", body: `{"pool":"lan"}`, status: 409, code: v1.CodeReadOnlySource},
		{name: "no such service", path: "/v1/services/default/ghost", body: `{}`, status: 404, code: v1.CodeNotFound},
		{name: "a version that isn't there any more", body: `{}`, headers: []string{asPatch, `If-Match: "1.1"`}, status: 412, code: v1.CodePreconditionFailed},
		{name: "only if there is none", body: `{}`, headers: []string{asPatch, `If-None-Match: *`}, status: 412, code: v1.CodePreconditionFailed},
		{name: "no ETag of ours", body: `{}`, headers: []string{asPatch, `If-Match: x`}, status: 400, code: v1.CodeInvalidRequest},
		{name: "as plain JSON", body: `{}`, headers: []string{"Content-Type: application/json"}, status: 415, code: v1.CodeUnsupportedMedia},
		{name: "as a form", body: `{}`, headers: []string{"Content-Type: application/x-www-form-urlencoded"}, status: 415, code: v1.CodeUnsupportedMedia},
		{name: "as UTF-16", body: `{}`, headers: []string{asPatch + "; charset=utf-16"}, status: 415, code: v1.CodeUnsupportedMedia},
		{name: "without a type", body: `{}`, headers: []string{none}, status: 415, code: v1.CodeUnsupportedMedia},
	} {
		if c.path == "" {
			c.path = webPath
		}
		if c.headers == nil {
			c.headers = []string{asPatch}
		}
		a := r.ask("PATCH", c.path, c.body, c.headers...)
		doc := a.problem(t)
		field := ""
		if len(doc.Errors) > 0 {
			field = doc.Errors[0].Field
		}
		if a.StatusCode != c.status || doc.Code != c.code || field != c.field {
			t.Errorf("%s: %s, code %q, field %q; want %d, %q, %q\n%s", c.name, a.Status, doc.Code, field, c.status, c.code, c.field, a.body)
		}
		if c.status != 409 && doc.Hint == "" && field == "" {
			t.Errorf("%s: no hint: %s", c.name, a.body)
		}
		if c.status == 415 && a.Header.Get("Accept-Patch") != v1.MergePatchType {
			t.Errorf("%s: Accept-Patch %q", c.name, a.Header.Get("Accept-Patch"))
		}
	}
	for _, kind := range []string{v1.MergePatchType, "application/json-patch+json"} {
		if a := r.ask("PUT", webPath, webBody(), "Content-Type: "+kind); a.StatusCode != 415 {
			t.Errorf("PUT of a patch as %s: %s", kind, a.Status)
		}
	}
	now := decode[v1.Service](r, "GET", webPath, "")
	expect.Equal(t, now.Status.SpecRev, svc.Status.SpecRev, "refused patches changed the service: %+v", now.Spec)
	ok := r.ask("PATCH", webPath, `{"pool":"lan"}`, asPatch, "If-Match: "+svc.ETag)
	expect.Equal(t, ok.StatusCode, 200, "the version that was read: %s\n%s", ok.Status, ok.body)
}
