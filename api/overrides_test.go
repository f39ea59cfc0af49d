package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// An override is listed with its time and expiry, also for a backend that has left its service, and
// can be deleted.
func TestOverrides(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1", "10.0.0.2", "10.0.0.3"), "Prefer: wait=60")
	if list := decode[v1.OverrideList](r, "GET", v1.PathOverrides, ""); len(list.Items) != 0 || list.Items == nil {
		t.Errorf("%+v", list)
	}
	state := func(backend string) string { return webPath + "/backends/" + backend + ":8080/state" }
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	b := decode[v1.Backend](r, "PUT", state("10.0.0.2"), `{"state":"maint","expires":"`+expires.Format(time.RFC3339)+`"}`, "Prefer: wait=60")
	if b.Override == nil || b.Override.Expires == nil || !b.Override.Expires.Equal(expires) || time.Since(*b.Override.Since) > time.Minute {
		t.Errorf("%+v", b.Override)
	}
	decode[v1.Backend](r, "PUT", state("10.0.0.1"), `{"state":"drain"}`, "Prefer: wait=60")
	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1", "10.0.0.3"), "Prefer: wait=60")
	list := decode[v1.OverrideList](r, "GET", v1.PathOverrides, "")
	if len(list.Items) != 2 || list.Revision == 0 {
		t.Fatalf("%+v", list)
	}
	if o := list.Items[0]; o.Service != "web" || o.Backend != "10.0.0.1:8080" || o.State != "drain" || o.Missing || o.Expires != nil || o.Since == nil || o.Revision == 0 {
		t.Errorf("%+v", o)
	}
	if o := list.Items[1]; o.Backend != "10.0.0.2:8080" || o.State != "maint" || !o.Missing || o.Expires == nil || !o.Expires.Equal(expires) {
		t.Errorf("%+v", o)
	}
	text := string(r.ask("GET", v1.PathMetrics, "").body)
	for _, want := range []string{`ironvip_overrides{state="drain"} 1`, `ironvip_overrides{state="maint"} 1`} {
		expect.Contains(t, text, want, "no metric")
	}
	for _, backend := range []string{"10.0.0.1:8080", "10.0.0.2:8080"} {
		path := v1.OverridePath("default", "web", backend)
		if d := decode[v1.Deleted](r, "DELETE", path, "", "Prefer: wait=60"); d.Backend != backend || d.Service != "web" || !d.Applied || d.Revision == 0 {
			t.Errorf("%+v", d)
		}
		if again := r.ask("DELETE", path, ""); again.StatusCode != http.StatusNotFound || again.problem(t).Code != v1.CodeNotFound {
			t.Errorf("again: %s", again.body)
		}
	}
	if b := decode[v1.Backend](r, "GET", webPath+"/backends/10.0.0.1:8080", ""); b.State != "ready" || b.Override != nil {
		t.Errorf("%+v", b)
	}
}

// The weight of a group is overridden for a service, listed, and reset to that of its source.
func TestWeightOfAGroup(t *testing.T) {
	r := newRig(t)
	body := `{"ports":[{"port":80}],"groups":[{"name":"stable","weight":90,"backends":[{"address":"10.0.0.1"},{"address":"10.0.0.2"}]},{"name":"canary","weight":10,"backends":[{"address":"10.0.0.3"}]}]}`
	s := decode[v1.Service](r, "PUT", webPath, body, "Prefer: wait=60")
	expect.SameList(t, s.Status.Groups, []v1.GroupStatus{{Name: "stable", Weight: 90, Backends: 2, Usable: 2, Share: 90}, {Name: "canary", Weight: 10, Backends: 1, Usable: 1, Share: 10}})
	path := v1.GroupWeightPath("default", "web", "canary")
	g := decode[v1.Group](r, "PUT", path, `{"weight":30}`, "Prefer: wait=60")
	if g.Name != "canary" || g.Weight != 30 || g.SourceWeight == nil || *g.SourceWeight != 10 || g.Share != 25 || g.Override == nil || g.Override.Since == nil || g.Revision == 0 {
		t.Errorf("%+v", g)
	}
	list := decode[v1.OverrideList](r, "GET", v1.PathOverrides, "").Items
	if len(list) != 1 || list[0].Group != "canary" || list[0].Weight == nil || *list[0].Weight != 30 || list[0].Backend+list[0].State != "" || list[0].Missing {
		t.Errorf("%+v", list)
	}
	for body, want := range map[string]int{`{}`: http.StatusUnprocessableEntity, `{"weight":65536}`: http.StatusUnprocessableEntity, `{"weight":-1}`: http.StatusUnprocessableEntity, `{"wieght":1}`: http.StatusUnprocessableEntity,
		`{"weight":1,"expires":"2020-01-01T00:00:00Z"}`: http.StatusUnprocessableEntity} {
		if refused := r.ask("PUT", path, body); refused.StatusCode != want {
			t.Errorf("%s: %d %s", body, refused.StatusCode, refused.body)
		}
	}
	if nobody := r.ask("PUT", v1.GroupWeightPath("default", "web", "other"), `{"weight":1}`); nobody.StatusCode != http.StatusNotFound || !strings.Contains(nobody.problem(t).Detail, `no group "other"`) {
		t.Errorf("of no group: %s", nobody.body)
	}
	decode[v1.Group](r, "PUT", path, `{"weight":0}`, "Prefer: wait=60")
	if last := r.ask("PUT", v1.GroupWeightPath("default", "web", "stable"), `{"weight":0}`); last.StatusCode != http.StatusConflict || last.problem(t).Code != v1.CodeLastBackend {
		t.Errorf("of the last group: %s", last.body)
	}
	if d := decode[v1.Deleted](r, "DELETE", v1.OverridePath("default", "web", "canary"), "", "Prefer: wait=60"); d.Group != "canary" || d.Backend != "" || !d.Applied {
		t.Errorf("%+v", d)
	}
	if again := r.ask("DELETE", v1.OverridePath("default", "web", "canary"), ""); again.StatusCode != http.StatusNotFound {
		t.Errorf("again: %s", again.body)
	}
	s = decode[v1.Service](r, "GET", webPath, "")
	expect.Equal(t, s.Status.Groups[1], v1.GroupStatus{Name: "canary", Weight: 10, Backends: 1, Usable: 1, Share: 10})

	for _, c := range []struct{ id, body, group string }{{"10.0.0.4", `{"group":"canary"}`, "canary"}, {"10.0.0.4", `{"weight":2}`, "canary"}, {"10.0.0.5", `{}`, ""}, {"10.0.0.5", `{"group":"other"}`, ""}} {
		answer := r.ask("PUT", webPath+"/backends/"+c.id, c.body)
		switch {
		case c.group == "" && (answer.StatusCode != http.StatusUnprocessableEntity || answer.problem(t).Errors[0].Field != "group"):
			t.Errorf("%s: %s", c.body, answer.body)
		case c.group != "":
			expect.AtMost(t, answer.StatusCode, http.StatusCreated, "%s: %s", c.body, answer.body)
			expect.Equal(t, decode[v1.Backend](r, "GET", webPath+"/backends/"+c.id, "").Group, c.group, c.body)
		}
	}
	without := strings.ReplaceAll(strings.ReplaceAll(body, `,"backends":[{"address":"10.0.0.1"},{"address":"10.0.0.2"}]`, ""), `,"backends":[{"address":"10.0.0.3"}]`, "")
	s = decode[v1.Service](r, "PUT", webPath, without, "Prefer: wait=60")
	if b := s.Status.Backends; b[0].ID != "10.0.0.4" || b[0].Removed || len(b) > 1 && !b[1].Removed || s.Status.Backends[0].Group != "canary" {
		t.Errorf("registered backends after a put without any: %+v", s.Status.Backends)
	}
	s = decode[v1.Service](r, "PUT", webPath, body, "Prefer: wait=60")
	expect.Len(t, s.Spec.All(), 3, "backends after a put with some")
}

func TestExpiryOfAnOverride(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1", "10.0.0.2"), "Prefer: wait=60")
	path := webPath + "/backends/10.0.0.1:8080/state"
	for body, message := range map[string]string{
		`{"state":"drain","expires":"2020-01-01T00:00:00Z"}`: "has passed",
		`{"state":"ready","expires":"2099-01-01T00:00:00Z"}`: "does not expire",
		`{"state":"drain","expires":"soon"}`:                 `"soon" is not a time`,
		`{"state":"drain","expires":3}`:                      "wants",
	} {
		a := r.ask("PUT", path, body)
		if doc := a.problem(t); a.StatusCode/100 != 4 || len(doc.Errors) != 1 || doc.Errors[0].Field != "expires" || !strings.Contains(doc.Errors[0].Message, message) {
			t.Errorf("%s: %s", body, a.body)
		}
	}
	for soon := 50 * time.Millisecond; ; soon *= 2 { // a loaded machine may read or apply it too late for it to be in effect
		a := r.ask("PUT", path, `{"state":"drain","expires":"`+time.Now().Add(soon).Format(time.RFC3339Nano)+`"}`)
		if a.StatusCode == http.StatusOK && strings.Contains(string(a.body), `"override"`) {
			break
		}
		must.AtMost(t, soon, time.Minute, a.body)
	}
	wait.Until(t, "it has expired", func() bool { return r.deps.Tables.Overrides.Len() == 0 })
	ended := func() bool {
		for _, e := range decode[v1.EventList](r, "GET", v1.PathEvents, "").Items {
			if e.Message == "override expired: drain" && e.Object == "10.0.0.1:8080" {
				return true
			}
		}
		return false
	}
	wait.Until(t, "its end is an event", ended)
}

// The last usable backend needs force=true. The refusal says so.
func TestLastUsableBackend(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, webBody("10.0.0.1", "10.0.0.2"), "Prefer: wait=60")
	one, two := webPath+"/backends/10.0.0.1:8080/state", webPath+"/backends/10.0.0.2:8080/state"
	decode[v1.Backend](r, "PUT", one, `{"state":"drain"}`)
	for _, state := range []string{"drain", "maint"} {
		a := r.ask("PUT", two, `{"state":"`+state+`"}`)
		if doc := a.problem(t); a.StatusCode != http.StatusConflict || doc.Code != v1.CodeLastBackend || !strings.Contains(doc.Detail, `10.0.0.2:8080 is the last usable backend of service "web"`) ||
			!strings.Contains(doc.Hint, "?force=true") {
			t.Errorf("%s: %s", state, a.body)
		}
	}
	b := decode[v1.Backend](r, "GET", webPath+"/backends/10.0.0.2:8080", "")
	expect.Equal(t, b.State, vip.Ready.String(), "%+v", b)
	decode[v1.Backend](r, "PUT", two+"?force=true", `{"state":"maint"}`)
	decode[v1.Backend](r, "PUT", two, `{"state":"drain"}`) // it takes no connections already
	decode[v1.Backend](r, "PUT", one, `{"state":"ready"}`)
}

// A state can be set by every id that the agent prints: of an event or a counter, too. An id that
// fits several backends answers with theirs.
func TestIdsOfBackends(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, `{"ports":[{"name":"http","port":80,"target_port":8080},{"name":"admin","port":81}],"backends":[
		{"address":"10.0.0.1"},{"address":"10.0.0.2","port":9090},{"address":"10.0.0.3","port":1},{"address":"10.0.0.3","port":2},
		{"address":"10.0.0.4","ports":["http"]},{"address":"2001:db8::1"}],"families":["ipv4","ipv6"]}`)
	for id, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "10.0.0.1:8080": "10.0.0.1", "10.0.0.1:81": "10.0.0.1", "10.0.0.1:80": "",
		"10.0.0.2": "10.0.0.2:9090", "10.0.0.2:9090": "10.0.0.2:9090", "10.0.0.2:8080": "",
		"10.0.0.3:2": "10.0.0.3:2", "10.0.0.3": "10.0.0.3:1, 10.0.0.3:2", "10.0.0.3:8080": "",
		"10.0.0.4:8080": "10.0.0.4", "10.0.0.4:81": "", "[2001:db8::1]:8080": "2001:db8::1", "10.0.0.9": "",
	} {
		path := webPath + "/backends/" + id
		got := r.ask("GET", path, "")
		set := r.ask("PUT", path+"/state?force=true", `{"state":"drain"}`)
		switch {
		case want == "":
			if got.StatusCode != http.StatusNotFound || set.StatusCode != http.StatusNotFound {
				t.Errorf("%s: %s, %s", id, got.body, set.body)
			}
		case strings.Contains(want, ","):
			for _, a := range []answer{got, set} {
				if doc := a.problem(t); a.StatusCode != http.StatusConflict || doc.Code != v1.CodeAmbiguousBackend || !strings.Contains(doc.Hint, want) {
					t.Errorf("%s: %s", id, a.body)
				}
			}
		default:
			for _, a := range []answer{got, set} {
				if a.StatusCode != http.StatusOK || !strings.Contains(string(a.body), `"id":"`+want+`"`) {
					t.Errorf("%s: %s", id, a.body)
				}
			}
			d := decode[v1.Deleted](r, "DELETE", v1.OverridePath("default", "web", id), "")
			expect.Equal(t, d.Backend, want, "%s: the override of %s ended", id, d.Backend)
		}
	}
	// A registration is deleted by its exact id only: its server may have registered another one.
	if a := r.ask("DELETE", webPath+"/backends/10.0.0.1:8080", ""); a.StatusCode != http.StatusNotFound {
		t.Errorf("%s", a.body)
	}
}
