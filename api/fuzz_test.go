package api

import (
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/must"
)

// For any body, the response is a success or a complete problem, never an error of the agent. An
// accepted service can be read and written back unchanged.
func FuzzPutService(f *testing.F) {
	r := newRig(f)
	for _, seed := range []string{webBody("10.0.0.1"), `{}`, `[]`, ``, `{"ports":[{"port":80,"node_port":"auto"}],"vips":["192.0.2.9"]}`,
		`{"ports":[{"port":1e2}],"labels":{"a":null}}`, `{"ports":[{"port":53,"protocol":"udp"}],"affinity":{},"scheduler":"sh"}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		rec := send(t, r, "PUT", webPath, body)
		if rec.Code >= 400 {
			refusal(t, rec)
			return
		}
		var svc v1.Service
		if err := json.Unmarshal(rec.Body.Bytes(), &svc); err != nil {
			t.Fatalf("%v\n%s", err, rec.Body)
		}
		b := must.Get(json.Marshal(svc.Spec))(t)
		var again v1.Service
		rec = send(t, r, "PUT", webPath, string(b))
		if err := json.Unmarshal(rec.Body.Bytes(), &again); err != nil || rec.Code != 200 || again.Status.SpecRev != svc.Status.SpecRev {
			t.Fatalf("put back: %d %v\n%s\n%s", rec.Code, err, b, rec.Body)
		}
	})
}

func FuzzApply(f *testing.F) {
	r := newRig(f)
	for _, seed := range []string{`{"services":[{"name":"a","ports":[{"port":80}]}]}`, `{"services":[{"name":"a"},{"name":"a"}]}`, `{"services":[null]}`,
		`{"services":{}}`, `{"services":[[]]}`, `{`, `{"services":[{"name":"from-file","ports":[{"port":80}]},{"name":"b","ports":[{"port":1}]}]}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		rec := send(t, r, "POST", v1.PathApply+"?dry_run=true", body)
		if rec.Code >= 400 {
			refusal(t, rec)
			return
		}
		var out v1.ApplyResult
		if err := json.Unmarshal(rec.Body.Bytes(), &out); err != nil || out.Created+out.Updated+out.Unchanged+out.Refused != len(out.Items) || (rec.Code == 207) != (out.Refused > 0) {
			t.Fatalf("%d %v\n%s", rec.Code, err, rec.Body)
		}
	})
}

// Bodies and cursors of the other writes and lists: no input is an error of the agent, and no answer is larger than its
// input by a factor.
func FuzzRequests(f *testing.F) {
	r := newRig(f)
	kinds := []struct{ method, path string }{
		{"PATCH", webPath}, {"PUT", webPath + "/backends/10.0.0.9"}, {"PUT", webPath + "/backends/10.0.0.1/state"}, {"PUT", v1.PathTokens + "/fuzz"},
		{"POST", v1.PathSession}, {"PUT", v1.PathVIPs + "/192.0.2.77"}, {"GET", v1.PathServices + "?cursor="}, {"GET", v1.PathVIPs + "?limit=1&cursor="},
		{"GET", v1.PathEvents + "?since="}, {"GET", v1.PathSearch + "?q="},
	}
	for i := range kinds {
		for _, seed := range []string{``, `{}`, `null`, `{"ports":null}`, `{"labels":{"a":"b","c":null}}`, `{"state":"drain"}`, `{"token":"x"}`, `{"":0,"":0}`,
			`{"role":"registrar","namespaces":["shop"],"backends":["10.0.0.0/8"],"hostnames":["*.a"]}`, `{"for":"default/web"}`, `eyJhIjoxfQ`, `[[[[`, "\x00\xff", "[ipam]\n[[pool]]"} {
			f.Add(uint(i), seed)
		}
	}
	f.Fuzz(func(t *testing.T, i uint, text string) {
		k := kinds[i%uint(len(kinds))]
		path, body := k.path, text
		if k.method == "GET" {
			path, body = path+url.QueryEscape(text), ""
		}
		rec := send(t, r, k.method, path, body)
		if rec.Code >= 400 {
			refusal(t, rec)
		}
		if most := 64<<10 + 4*len(text); rec.Body.Len() > most {
			t.Errorf("%s %s: an answer of %d bytes to %d", k.method, k.path, rec.Body.Len(), len(text))
		}
		send(t, r, "DELETE", v1.PathTokens+"/fuzz", "")
	})
}

func send(t *testing.T, r *rig, method, path, body string) *httptest.ResponseRecorder {
	req := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	if kind := contentTypes[method]; kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	rec := httptest.NewRecorder()
	r.server.Handler().ServeHTTP(rec, req)
	return rec
}

func refusal(t *testing.T, rec *httptest.ResponseRecorder) {
	var doc v1.ProblemDocument
	if err := json.Unmarshal(rec.Body.Bytes(), &doc); err != nil || doc.Code == "" || rec.Code >= 500 {
		t.Fatalf("%d %v\n%s", rec.Code, err, rec.Body)
	}
}
