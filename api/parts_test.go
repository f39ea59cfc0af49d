package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/api/status/statustest"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/dns"
	"github.com/ironvip/ironvip/dns/zone"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/sources"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// part is a part of the status of service 0, whose backend is backendNo(0).
type part struct {
	name       string
	begin, end func()
}

func backendNo(i int) vip.BackendKey {
	return vip.BackendKey{Service: statustest.ServiceNo(i), Address: statustest.OneBackend.Address, Port: statustest.OneBackend.Port}
}

// partsOf returns each part of a status that can end while its service stays.
func partsOf(t *testing.T, w *statustest.Tables, names *dns.Stage) []part {
	own, hostnames := w.Services.Row(statustest.ServiceNo(0)).Value, w.Services.Row(statustest.ServiceNo(0)).Value
	hostnames.Hostnames = vip.HostnamesOf("shop.example.com")
	front, allocation, compiled := w.Frontends.Row(statustest.FrontendNo(0)), w.Allocations.Row(statustest.ServiceNo(0)).Value, w.Compiled.Row(statustest.ServiceNo(0)).Value
	problem := &vip.Problem{Code: vip.CodeDataplane, Message: "refused"}
	leaving := front.Value
	leaving.Backends = []vip.Endpoint{{Addr: front.Value.Backends[0].Addr, Leaving: vip.InstantOf(time.Now().Add(time.Minute))}}
	failing := []vip.CheckResult{{Type: vip.CheckTCP, Port: 80, Health: vip.Unhealthy}}
	troubled := compiled
	troubled.Problems = []vip.Problem{*problem}
	rival := vip.Service{Key: statustest.ServiceNo(1), Hostnames: hostnames.Hostnames}
	leased := vip.Allocation{Asked: &rival, Since: 1, VIPs: []netip.Addr{statustest.FrontendNo(1).Addr}}
	settings, other := names.Settings, names.Settings
	other.Domain = "other.internal"
	reconfigure := func(s zone.Settings) func() {
		return func() {
			expect.Succeed(t, names.Reconfigure(s))
		}
	}
	return []part{
		{"an override", func() { w.Overrides.Set(vip.BackendState{Backend: backendNo(0), State: vip.Maint}) }, func() { w.Overrides.Delete(vip.OverrideKey{BackendKey: backendNo(0)}) }},
		{"a drain", func() { w.Overrides.Set(vip.BackendState{Backend: backendNo(0), State: vip.Drain}) }, func() { w.Overrides.Delete(vip.OverrideKey{BackendKey: backendNo(0)}) }},
		{"an endpoint that leaves", func() { w.Frontends.Set(leaving) }, func() { w.Frontends.Set(front.Value) }},
		{"passive health", func() {
			w.Passive.Set(vip.PassiveHealth{PassiveKey: statustest.PassiveKey(statustest.ServiceNo(0)), Health: vip.Ejected})
		},
			func() { w.Passive.Delete(statustest.PassiveKey(statustest.ServiceNo(0))) }},
		{"health", func() { w.Health.Set(vip.BackendHealth{Backend: backendNo(0), Checks: failing}) }, func() { w.Health.Delete(backendNo(0)) }},
		{"a problem of the service", func() { w.Compiled.Set(troubled) }, func() { w.Compiled.Set(compiled) }},
		{"a problem of the dataplane", func() { w.Applied.Set(reconcile.AppliedFrontend{Tried: front, Problem: problem}) },
			func() { w.Applied.Set(reconcile.AppliedFrontend{Tried: front}) }},
		{"a result of the dataplane", func() { w.Applied.Set(reconcile.AppliedFrontend{Tried: front}) }, func() { w.Applied.Delete(statustest.FrontendNo(0)) }},
		{"a frontend", func() { w.Frontends.Set(front.Value) }, func() { w.Frontends.Delete(statustest.FrontendNo(0)) }},
		{"an allocation", func() { w.Allocations.Set(allocation) }, func() { w.Allocations.Delete(statustest.ServiceNo(0)) }},
		{"a problem of the source", func() {
			w.Refused.Set(sources.Refused{RefusedKey: sources.RefusedKey{Service: statustest.ServiceNo(0)}, Problems: []vip.Problem{*problem}})
		}, func() { w.Refused.Delete(sources.RefusedKey{Service: statustest.ServiceNo(0)}) }},
		{"a hostname", func() { w.Services.Set(hostnames) }, func() { w.Services.Set(own) }},
		{"a conflict of names", func() {
			w.Services.Set(rival)
			w.Allocations.Set(leased)
			w.Services.Set(hostnames)
		}, func() { w.Services.Delete(statustest.ServiceNo(1)) }},
		{"a domain", reconfigure(other), reconfigure(settings)},
	}
}

// The end of any part of a status, also of one that is not the newest, raises the revision of the
// service and changes its ETag: a read with the revision from before the end returns at once, and one that
// waits is woken.
func TestEndOfAnyPart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := statustest.New()
		w.Healthy(0)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		leases := table.New(w.Clock, func(l **ipam.Lease) ipam.Resource { return (*l).Resource }, nil)
		names, err := dns.New(dns.Options{Clock: w.Clock, Services: w.Services, Allocations: w.Allocations, Leases: leases,
			Settings: zone.Settings{Domain: "vip.internal", ShortNames: true, Servers: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}})
		if err != nil {
			t.Fatal(err)
		}
		go names.Run(ctx)
		d := depsOf(w)
		d.Tables.Naming = names
		handler := New(d).Handler()
		read := func(query, etag string) *httptest.ResponseRecorder {
			req := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+v1.ServicePath("default", statustest.ServiceNo(0).Name)+query, nil)
			req.Header.Set("If-None-Match", etag)
			out := httptest.NewRecorder()
			handler.ServeHTTP(out, req)
			return out
		}
		for _, p := range partsOf(t, w, names) {
			for _, waits := range []bool{false, true} {
				p.begin()
				w.Health.Set(vip.BackendHealth{Backend: vip.BackendKey{Service: statustest.ServiceNo(0), Port: 1}}) // the newest part
				synctest.Wait()
				var before v1.Service
				must.Succeed(t, json.Unmarshal(read("", "").Body.Bytes(), &before))
				if got := read("", before.ETag); got.Code != http.StatusNotModified {
					t.Errorf("%s: %d for the ETag of the newest state", p.name, got.Code)
				}
				query := fmt.Sprintf("?wait=5m&revision=%d", before.Revision)
				var after *httptest.ResponseRecorder
				start := time.Now()
				if waits {
					done := make(chan struct{})
					go func() { after = read(query, before.ETag); close(done) }()
					synctest.Wait()
					p.end()
					<-done
				} else {
					p.end()
					synctest.Wait()
					after = read(query, before.ETag)
				}
				expect.AtMost(t, time.Since(start), 0, "%s, waits %v: the read took", p.name, waits)
				var now v1.Service
				if err := json.Unmarshal(after.Body.Bytes(), &now); err != nil || after.Code != http.StatusOK || now.Revision <= before.Revision || now.ETag == before.ETag {
					t.Errorf("%s, waits %v: %d, revision %d and ETag %s after %d and %s (%v)", p.name, waits, after.Code, now.Revision, now.ETag, before.Revision, before.ETag, err)
				}
				synctest.Wait()
			}
		}
		cancel()
		synctest.Wait()
	})
}

// A change of one service wakes 20 blocking reads of other services, which read no row of 1,000
// services. The end of a problem of a source costs a reader of its service one look.
func TestBlockingReadsCost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const services, readers = 1000, 20
		w := statustest.New()
		w.Fill(services, 4)
		refused := sources.Refused{RefusedKey: sources.RefusedKey{Source: "files", Service: statustest.ServiceNo(0)}, Problems: []vip.Problem{{Code: vip.CodeInvalid}}}
		w.Refused.Set(refused)
		d := depsOf(w)
		counted := &reads{Reader: d.Tables.Services}
		d.Tables.Services = counted
		s := New(d)
		ctx, cancel := context.WithCancel(t.Context())
		var answers atomic.Int64
		for i := range readers {
			go func() {
				path := v1.ServicePath("default", statustest.ServiceNo(i).Name)
				req := httptest.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://localhost%s?wait=5m&revision=%d", path, s.Tables.Revisions.Revision()), nil)
				s.Handler().ServeHTTP(httptest.NewRecorder(), req)
				answers.Add(1)
			}()
		}
		synctest.Wait()
		for _, step := range []struct {
			what           string
			answers, reads int64
			change         func()
		}{
			{"100 changes of another service", 0, 0, func() {
				for range 50 {
					w.Overrides.Set(vip.BackendState{Backend: backendNo(services - 1), State: vip.Drain})
					w.Overrides.Delete(vip.OverrideKey{BackendKey: backendNo(services - 1)})
				}
			}},
			{"the end of a problem of the source", 1, 2, func() { w.Refused.Delete(refused.RefusedKey) }},
		} {
			answers.Store(0)
			counted.n.Store(0)
			step.change()
			synctest.Wait()
			if got, rows := answers.Load(), counted.n.Load(); got != step.answers || rows > step.reads {
				t.Errorf("%s: %d answers and %d services read, want %d and %d at most", step.what, got, rows, step.answers, step.reads)
			}
		}
		cancel()
		synctest.Wait()
	})
}
