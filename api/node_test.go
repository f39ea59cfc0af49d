package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/forwarding"
	"github.com/ironvip/ironvip/api/request"
	"github.com/ironvip/ironvip/api/status/statustest"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

func TestLeasesAndPools(t *testing.T) {
	r := newRig(t)
	svc := decode[v1.Service](r, "PUT", webPath, `{"ports":[{"port":80,"node_port":"auto"}]}`)
	vips := decode[v1.VIPList](r, "GET", v1.PathVIPs, "")
	if len(vips.Items) != 3 || vips.Items[2].Kind != v1.KindNodePort || vips.Items[2].NodePort == 0 || vips.Items[2].Holders[0].Port != "80/tcp" {
		t.Fatalf("%+v", vips)
	}
	addresses := decode[v1.VIPList](r, "GET", v1.PathVIPs+"?kind=address", "")
	must.Equal(t, len(addresses.Items), 2, "%+v", addresses)
	one := decode[v1.VIP](r, "GET", v1.VIPPath(svc.Status.VIPs[0].String()), "")
	if one.State != "held" || one.Holders[0].Service != "web" || one.Holders[0].Source != "rest" || one.Pool != "lan" {
		t.Errorf("%+v", one)
	}
	decode[v1.Deleted](r, "DELETE", webPath, "", "Prefer: wait=60")
	wait.Until(t, "the address is no longer held", func() bool {
		one = decode[v1.VIP](r, "GET", v1.VIPPath(svc.Status.VIPs[0].String()), "")
		return one.State == "cooling"
	})
	expect.True(t, one.Until != nil, "after delete: %+v", one)
	pools := decode[v1.PoolList](r, "GET", v1.PathPools, "")
	if len(pools.Items) != 1 || pools.Items[0].Name != "lan" || pools.Items[0].Size != 256 || pools.Items[0].Used != 1 || pools.Items[0].Cooling != 1 {
		t.Errorf("%+v", pools)
	}
}

func TestSources(t *testing.T) {
	r := newRig(t)
	list := decode[v1.SourceList](r, "GET", v1.PathSources, "")
	if len(list.Items) != 2 || list.Items[0].Name != "files" || list.Items[0].Services != 1 || list.Items[0].Level != v1.LevelOK || list.Items[0].LastSync == nil {
		t.Errorf("%+v", list)
	}
	if got := decode[v1.Source](r, "POST", v1.ResyncPath("files"), ""); got.Name != "files" || r.resynced.Load() != 1 {
		t.Errorf("%+v after %d resyncs", got, r.resynced.Load())
	}
}

func TestNodes(t *testing.T) {
	var away error
	r := newRig(t, func(d *Deps) {
		d.Nodes.List = func(context.Context) (v1.NodeList, error) {
			return v1.NodeList{Store: "consul", Items: []v1.Node{{Name: "lb1", Self: true}, {Name: "lb2", Elected: true}}}, away
		}
	})
	if list := decode[v1.NodeList](r, "GET", v1.PathNodes, ""); len(list.Items) != 2 || !list.Items[1].Elected || list.Store != "consul" {
		t.Errorf("%+v", list)
	}
	away = fmt.Errorf("%w: connection refused", fleet.ErrUnavailable)
	a := r.ask("GET", v1.PathNodes, "")
	if doc := a.problem(t); a.StatusCode != 503 || doc.Code != v1.CodeStoreUnavailable || !strings.Contains(doc.Detail, "connection refused") || doc.Hint == "" ||
		a.Header.Get("Retry-After") == "" {
		t.Errorf("with consul away: %s %s", a.Status, a.body)
	}
}

func TestDataplane(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, `{"vips":["192.0.2.5"],`+webBody("10.0.0.1", "10.0.0.2")[1:], "Prefer: wait=60")
	dp := decode[v1.Dataplane](r, "GET", v1.PathDataplane, "")
	if !dp.InSync || !dp.Ready || dp.Mode != "proxy" || dp.Frontends != 2 || dp.Backends != 3 || dp.Summary != "in sync: 2 services, 3 backends" {
		t.Errorf("%+v", dp)
	}
	list := decode[v1.FrontendList](r, "GET", v1.PathDataplaneFrontends, "")
	if len(list.Items) != 2 || list.Items[0].Address != "192.0.2.5:80" || !list.Items[0].Applied || list.Items[1].Service != "from-file" {
		t.Errorf("%+v", list)
	}

	have := r.plane.Have()
	altered := have[webFrontend]
	altered.Scheduler, altered.Backends = vip.RoundRobin, altered.Backends[1:]
	r.plane.Put(altered)
	stray := altered
	stray.Key.Port = 81
	r.plane.Put(stray)
	diff := decode[v1.DataplaneDiff](r, "GET", v1.PathDataplaneDiff, "")
	if diff.InSync || len(diff.Items) != 2 || diff.Items[0].Action != v1.ActionChange || diff.Items[1].Action != v1.ActionRemove ||
		strings.Join(diff.Items[0].Details, "; ") != "scheduler is rr, not wrr; backend 10.0.0.1:8080 is missing" {
		t.Errorf("%+v", diff)
	}
	if repaired := decode[v1.RepairResult](r, "POST", v1.PathDataplaneRepair, ""); repaired.Repaired != 2 || len(repaired.Problems) != 0 {
		t.Errorf("%+v", repaired)
	}
	if diff := decode[v1.DataplaneDiff](r, "GET", v1.PathDataplaneDiff, ""); !diff.InSync {
		t.Errorf("after the repair: %+v", diff)
	}
	// Fields that not every dataplane programs are reported if nothing else differs.
	altered = r.plane.Have()[webFrontend]
	altered.Masquerade = vip.MasqueradeNever
	r.plane.Put(altered)
	if diff := decode[v1.DataplaneDiff](r, "GET", v1.PathDataplaneDiff, ""); len(diff.Items) != 1 || strings.Join(diff.Items[0].Details, "; ") != "masquerade is never, not auto" {
		t.Errorf("%+v", diff)
	}
}

// A dataplane that can't end connections with removed backends has a warning. Its services have none.
func TestUncleanDataplane(t *testing.T) {
	r := newRig(t, func(d *Deps) {
		stats := d.Forwarding.Stats
		d.Forwarding.Stats = func() reconcile.Stats {
			s := stats()
			s.Unclean, s.CleanError = true, "no buffer space"
			return s
		}
	})
	decode[v1.Service](r, "PUT", webPath, `{"vips":["192.0.2.5"],`+webBody("10.0.0.1")[1:], "Prefer: wait=60")
	dp := decode[v1.Dataplane](r, "GET", v1.PathDataplane, "")
	if dp.Level != v1.LevelWarn || !dp.InSync || dp.Summary != "connections with removed backends don't end: no buffer space" || len(dp.Problems) > 0 {
		t.Errorf("%+v", dp)
	}
}

// A contested frontend is a warning with its start and its number of changes, for the node, the
// dataplane, the frontend and its service.
func TestContestedFrontend(t *testing.T) {
	contested := 0
	r := newRig(t, func(d *Deps) {
		stats := d.Forwarding.Stats
		d.Forwarding.Stats = func() reconcile.Stats {
			s := stats()
			s.Contested = contested
			return s
		}
	})
	decode[v1.Service](r, "PUT", webPath, `{"vips":["192.0.2.5"],`+webBody("10.0.0.1")[1:], "Prefer: wait=60")
	applied := r.deps.Tables.Applied.(*table.Table[vip.FrontendKey, reconcile.AppliedFrontend]) // its writer is idle without a resync
	row, _, _ := applied.Get(webFrontend)
	w := vip.Problem{Code: vip.CodeContested, Message: "somebody else keeps changing it: 5 times since noon"}

	check := func(state string, isApplied bool) {
		t.Helper()
		dp := decode[v1.Dataplane](r, "GET", v1.PathDataplane, "")
		if want := "1 frontend contested: 192.0.2.5:80/tcp: " + w.Message; dp.Level != v1.LevelWarn || dp.Summary != want || dp.Failed != 0 || dp.Contested != 1 || len(dp.Problems) != 1 {
			t.Errorf("%+v, want %q", dp, want)
		}
		status := decode[v1.NodeStatus](r, "GET", v1.PathStatus, "")
		if i := slices.IndexFunc(status.Checks, func(c v1.Check) bool { return c.Name == "dataplane" }); status.Level != v1.LevelWarn || !strings.Contains(status.Checks[i].Message, w.Message) {
			t.Errorf("%+v", status)
		}
		f := decode[v1.FrontendList](r, "GET", v1.PathDataplaneFrontends+"?service=web", "").Items[0]
		if f.Applied != isApplied || f.Warning == nil || f.Warning.Message != w.Message || (f.Problem == nil) != isApplied {
			t.Errorf("%+v", f)
		}
		web := decode[v1.Service](r, "GET", webPath, "")
		if contested := len(web.Status.Problems) == 1 && web.Status.Problems[0].Code == vip.CodeContested; web.Status.State != state || contested == isApplied {
			t.Errorf("%+v", web.Status)
		}
	}
	contested = 1
	row.Warning = &w
	applied.Set(row)
	check(v1.StateUnchecked, true)

	// Foreign entries have no row.
	row.Warning = nil
	applied.Set(row)
	if dp := decode[v1.Dataplane](r, "GET", v1.PathDataplane, ""); dp.Level != v1.LevelWarn || !strings.Contains(dp.Summary, "entries that ironvip removed") {
		t.Errorf("%+v", dp)
	}
}

func TestUnreadableDataplane(t *testing.T) {
	away := func(context.Context) ([]forwarding.Difference, error) { return nil, errors.New("netlink: timeout") }
	r := newRig(t, func(d *Deps) { d.Forwarding.Diff, d.Forwarding.Repair = away, away })
	for method, path := range map[string]string{"GET": v1.PathDataplaneDiff, "POST": v1.PathDataplaneRepair} {
		a := r.ask(method, path, "")
		if doc := a.problem(t); a.StatusCode != 503 || doc.Code != v1.CodeDataplane || !strings.Contains(doc.Detail, "netlink: timeout") {
			t.Errorf("%s: %s", path, a.body)
		}
	}
}

func TestConfig(t *testing.T) {
	var bad []vip.Problem
	r := newRig(t, func(d *Deps) {
		d.Config = Config{
			Check:    func() v1.Check { return v1.Check{Name: "config", Level: v1.LevelOK, Message: "loaded 1m ago"} },
			Validate: func(context.Context) (problems, warnings []vip.Problem) { return bad, nil },
			Plan: func(context.Context) (v1.Plan, []vip.Problem) {
				return v1.Plan{Changes: []v1.PlanChange{{Action: v1.ActionAdd, Kind: v1.KindService, Name: "api", Detail: "443/tcp"}}, Add: 1}, bad
			},
			Reload: func(context.Context) (v1.ReloadResult, []vip.Problem) {
				return v1.ReloadResult{Revision: 7, Message: "1 pool added"}, bad
			},
			Loaded: func() (bool, time.Time) { return true, time.Now() },
		}
	})
	if v := decode[v1.ValidateResult](r, "POST", v1.PathConfigValidate, ""); !v.Valid || v.Problems == nil {
		t.Errorf("%+v", v)
	}
	if p := decode[v1.Plan](r, "POST", v1.PathConfigPlan, ""); p.Add != 1 || p.Changes[0].Name != "api" || p.Changes[0].Action != v1.ActionAdd {
		t.Errorf("%+v", p)
	}
	if l := decode[v1.ReloadResult](r, "POST", v1.PathReload, ""); l.Revision != 7 || l.Warnings == nil {
		t.Errorf("%+v", l)
	}
	bad = []vip.Problem{{Code: vip.CodeUnknownKey, Place: "web.toml:7", Field: "prot", Message: "unknown key", Hint: "did you mean \"protocol\"?"}}
	if v := decode[v1.ValidateResult](r, "POST", v1.PathConfigValidate, ""); v.Valid || v.Problems[0].Place != "web.toml:7" {
		t.Errorf("%+v", v)
	}
	a := r.ask("POST", v1.PathReload, "")
	if doc := a.problem(t); a.StatusCode != 422 || doc.Code != v1.CodeInvalidConfig || doc.Errors[0].Place != "web.toml:7" {
		t.Errorf("%s", a.body)
	}
}

func TestStatus(t *testing.T) {
	r := newRig(t)
	st := decode[v1.NodeStatus](r, "GET", v1.PathStatus, "")
	if st.Level != v1.LevelOK || !st.Ready || st.Node != "lb1" || st.Next != "" || len(st.Checks) != 5 {
		t.Errorf("%+v", st)
	}
	decode[v1.Service](r, "PUT", webPath, webBody(), "Prefer: wait=60")
	st = decode[v1.NodeStatus](r, "GET", v1.PathStatus, "")
	if st.Level != v1.LevelWarn || st.Next != "ironvip service list" || st.Checks[3].Message != "0 of 2 healthy, 1 unchecked, 1 down" {
		t.Errorf("with a service that is down: %+v", st)
	}
}

func TestReadiness(t *testing.T) {
	ready := make(chan struct{})
	r := newRig(t, func(d *Deps) { d.Ready = ready })
	if a := r.ask("GET", v1.PathHealthz, ""); a.StatusCode != http.StatusOK {
		t.Errorf("healthz: %s", a.Status)
	}
	if a := r.ask("GET", v1.PathReadyz, ""); a.StatusCode != 503 || a.problem(t).Code != v1.CodeNotReady || a.Header.Get("Retry-After") == "" {
		t.Errorf("readyz before: %s %v", a.Status, a.Header)
	}
	close(ready)
	if a := r.ask("GET", v1.PathReadyz, ""); a.StatusCode != http.StatusOK {
		t.Errorf("readyz after: %s", a.Status)
	}
}

func TestEvents(t *testing.T) {
	log := event.NewLog(100, func() time.Time { return time.UnixMicro(101) }) // the first id
	for _, kind := range []string{"a", "b", "c", "d"} {
		log.Add(event.Event{Kind: kind, Message: kind})
	}
	r := newRig(t, func(d *Deps) { d.Events = log })
	kinds := func(query string, headers ...string) (out string, last uint64) {
		list := decode[v1.EventList](r, "GET", v1.PathEvents+query, "", headers...)
		for _, e := range list.Items {
			out += e.Kind
		}
		return out, list.Last
	}
	for _, c := range []struct {
		query, want string
		last        uint64
	}{{"", "abcd", 104}, {"?limit=2", "cd", 104}, {"?since=101", "bcd", 104}, {"?since=101&limit=2", "bc", 103}, {"?since=104", "", 104},
		// of earlier runs:
		{"?since=2", "abcd", 104}, {"?since=999", "abcd", 104}, {"?since=2&limit=2", "ab", 102}, {"?limit=2&cursor=" + request.Cursor[uint64]{List: "events", Last: 2}.String(), "ab", 102}} {
		if got, last := kinds(c.query); got != c.want || last != c.last {
			t.Errorf("%s: %q up to %d, want %q up to %d", c.query, got, last, c.want, c.last)
		}
	}
	resp := r.send("GET", v1.PathEvents+"?since=103", "", "Accept: application/x-ndjson")
	defer resp.Body.Close()
	expect.Equal(t, resp.Header.Get("Content-Type"), request.Ndjson, "content type")
	lines := bufio.NewScanner(resp.Body)
	expect := func(want string) {
		t.Helper()
		for lines.Scan() {
			if line := lines.Text(); line != "" {
				must.True(t, strings.HasPrefix(line, want), "line %q, want %q", line, want)
				return
			}
		}
		t.Fatalf("the stream ended before %q: %v", want, lines.Err())
	}
	expect(`{"id":104,`)
	log.Add(event.Event{Kind: "e", Message: "two\nlines"})
	expect(`{"id":105,`)
}

// Unhealthy backends are a warning, and a failure if they are most of all.
func TestStatusOfUnhealthyBackends(t *testing.T) {
	w := statustest.New()
	for i := range 4 {
		w.Healthy(i)
	}
	s := New(depsOf(w))
	observe := func(i int, health vip.Health) {
		w.Health.Set(vip.BackendHealth{Backend: statustest.OneBackend.Key(statustest.ServiceNo(i)), Checks: []vip.CheckResult{{Type: vip.CheckTCP, Port: 80, Health: health}}})
	}
	for i, want := range []v1.Check{
		{Level: v1.LevelWarn, Message: "3 of 4 healthy, 1 degraded; 1 of 4 backends unhealthy", Hint: "ironvip backend list shows the reasons"},
		{Level: v1.LevelWarn, Message: "2 of 4 healthy, 2 degraded; 2 of 4 backends unhealthy", Hint: "ironvip backend list shows the reasons"},
		{Level: v1.LevelFail, Message: "1 of 4 healthy, 3 degraded; 3 of 4 backends unhealthy",
			Hint: "most backends fail their health checks: check this host's network, and the checks; ironvip backend list shows the reasons"},
	} {
		observe(i, vip.Unhealthy)
		want.Name = "services"
		got := s.status()
		if !reflect.DeepEqual(got.Checks[3], want) || got.Level != want.Level || got.Next != "ironvip service list" {
			t.Errorf("%d unhealthy: %+v, want %+v", i+1, got, want)
		}
	}
	for i := range 3 {
		observe(i, vip.Healthy)
	}
	if got := s.status(); got.Checks[3].Level != v1.LevelOK || got.Checks[3].Message != "4 of 4 healthy" {
		t.Errorf("%+v", got)
	}
}

// A hold and the panic mode of services have a line each, which says since when, until when, and
// what to do.
func TestStatusOfHoldAndPanic(t *testing.T) {
	w := statustest.New()
	for i := range 3 {
		w.Healthy(i)
	}
	s := New(depsOf(w))
	line := func(name string) *v1.Check {
		checks := s.status().Checks
		if i := slices.IndexFunc(checks, func(c v1.Check) bool { return c.Name == name }); i >= 0 {
			return &checks[i]
		}
		return nil
	}
	now := time.Now()
	check := vip.CheckResult{Type: vip.CheckTCP, Port: 80, Health: vip.Healthy, Since: vip.InstantOf(now.Add(-time.Hour))}
	observe := func(i int, c vip.CheckResult) {
		w.Health.Set(vip.BackendHealth{Backend: statustest.OneBackend.Key(statustest.ServiceNo(i)), Checks: []vip.CheckResult{c}})
	}
	if line("health hold") != nil || line("panic mode") != nil || s.status().Level != v1.LevelOK {
		t.Errorf("%+v", s.status())
	}
	held := check
	held.Since, held.HeldUntil, held.Reason = vip.InstantOf(now.Add(-12*time.Minute)), vip.InstantOf(now.Add(time.Hour)), "timeout"
	observe(0, held)
	held.Since = vip.InstantOf(now.Add(-time.Minute))
	observe(1, held)
	c := line("health hold")
	if c == nil || c.Level != v1.LevelWarn || !strings.HasPrefix(c.Message, "all health checks of this host failed at once 12m0s ago; 2 backends that fail keep getting clients for ") ||
		!strings.HasSuffix(c.Message, "until "+now.Add(time.Hour).UTC().Format(time.RFC3339)) || !strings.Contains(c.Hint, "check this host's network") {
		t.Errorf("%+v", c)
	}
	got := s.status()
	expect.Equal(t, got.Level, v1.LevelWarn, "%+v", got)
	if row, _ := s.services.Service(statustest.ServiceNo(0)); row.Status.Held != 1 || row.Status.State != v1.StateDegraded || !row.Status.Backends[0].Held {
		t.Errorf("%+v", row.Status)
	}
	observe(0, check)
	observe(1, check)
	if c := line("health hold"); c != nil {
		t.Errorf("after the hold: %+v", c)
	}

	service, _, _ := w.Services.Get(statustest.ServiceNo(2))
	service.PanicThreshold = 50
	wanted := w.Services.Put(service)
	row, _, _ := w.Compiled.Get(statustest.ServiceNo(2))
	row.Service, row.ServiceRev = &wanted.Value, wanted.Rev
	w.Compiled.Set(row)
	check.Health = vip.Unhealthy
	observe(2, check)
	if c := line("panic mode"); c == nil || c.Level != v1.LevelWarn || !strings.Contains(c.Message, "clients of 1 service are sent to unhealthy backends") || !strings.HasSuffix(c.Message, ": s2") ||
		c.Hint != "see ironvip service explain s2" {
		t.Errorf("%+v", c)
	}
	if row, _ := s.services.Service(statustest.ServiceNo(2)); !row.Status.Panic || !row.Status.Backends[0].Serving || row.Status.Backends[0].Usable {
		t.Errorf("%+v", row.Status)
	}
}

// In a fleet, most nodes have no backend of a service with the local policy. This is as requested
// and no reason for a warning.
func TestStatusOfServicesElsewhere(t *testing.T) {
	r := newRig(t)
	decode[v1.Service](r, "PUT", webPath, `{"external_traffic":"local","internal_traffic":"local",`+webBody("10.0.0.1")[1:], "Prefer: wait=60")
	if web := decode[v1.Service](r, "GET", webPath, ""); web.Status.State != v1.StateElsewhere || len(web.Status.Problems) > 0 {
		t.Errorf("%+v", web.Status)
	}
	status := decode[v1.NodeStatus](r, "GET", v1.PathStatus, "")
	i := slices.IndexFunc(status.Checks, func(c v1.Check) bool { return c.Name == "services" })
	if c := status.Checks[i]; c.Level != v1.LevelOK || c.Message != "0 of 2 healthy, 1 unchecked, 1 elsewhere" {
		t.Errorf("%+v", c)
	}
	list := decode[v1.ServiceList](r, "GET", v1.PathServices+"?state=elsewhere", "")
	expect.Equal(t, len(list.Items), 1, "%+v", list)
}

// The line of the dataplane names the first frontend that it refuses, with what to do, and everything that the host lacks.
func TestStatusOfARefusedFrontend(t *testing.T) {
	lacks := []v1.Finding{{Level: v1.LevelWarn, Name: "sysctl a", Message: "is 0", Fix: "sysctl -w a=1"}, {Level: v1.LevelWarn, Name: "sysctl b", Message: "is 0", Fix: "sysctl -w b=1"}}
	r := newRig(t, func(d *Deps) {
		about := d.Forwarding.Dataplane
		d.Forwarding.Dataplane = func() forwarding.Dataplane {
			now := about()
			now.Findings = lacks
			return now
		}
	})
	r.plane.FailKey(webFrontend, vip.Problem{Code: vip.CodeDataplane, Message: "no address", Hint: "sysctl -w x=0"})
	r.ask("PUT", webPath, `{"vips":["192.0.2.5"],`+webBody("10.0.0.1")[1:], "Prefer: wait=60")
	st := decode[v1.NodeStatus](r, "GET", v1.PathStatus, "")
	i := slices.IndexFunc(st.Checks, func(c v1.Check) bool { return c.Name == "dataplane" })
	if i < 0 || !strings.Contains(st.Checks[i].Message, "refused: no address") || st.Checks[i].Hint != "sysctl -w x=0" || st.Checks[i].InMessage != 0 {
		t.Errorf("%+v", st.Checks)
	}
	for n, p := range st.Checks[i].Problems {
		if p.Message != lacks[n].Name+": is 0" || p.Hint != lacks[n].Fix {
			t.Errorf("%+v", p)
		}
	}
	expect.Equal(t, len(st.Checks[i].Problems), len(lacks), "problems")
}
