package fleetstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/allocator"
	"github.com/ironvip/ironvip/pipeline"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/reconciletest"
	"github.com/ironvip/ironvip/test/scope"
	testwait "github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// director is a host with its pipeline.
type director struct {
	*host
	pipeline.Tables
	events *event.Log
	end    func()
}

func direct(t testing.TB, m *fleettest.Memory, name string, services ...vip.Service) *director {
	t.Helper()
	d := &director{host: start(t, m, name), Tables: pipeline.NewTables(table.NewClock(time.Now())), events: event.NewLog(1000, time.Now)}
	cfg := ipam.Config{Pools: poolOf("192.0.2.0/24"), ReuseDelay: time.Minute}
	a, err := allocator.New(context.Background(), d.Store, cfg, allocator.Options{Clock: d.Clock, Events: d.events, Node: name, Leadership: d.Tree})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range services {
		d.Services.Set(s)
	}
	line := pipeline.New(pipeline.Options{Tables: d.Tables, Allocator: a, Shared: true, Plane: reconciletest.NewPlane(), Resync: -1, Events: d.events})
	end := scope.Go(t, line.Run)
	d.end = func() { end(); d.End() }
	return d
}

// serves is what a service has, in one line.
func (d *director) serves(name string) string {
	row, _, _ := d.Allocations.Get(vip.ServiceKey{Namespace: "default", Name: name})
	return fmt.Sprint(row.VIPs, row.NodePorts)
}

func (d *director) problems(name string) []vip.Problem {
	row, _, _ := d.Allocations.Get(vip.ServiceKey{Namespace: "default", Name: name})
	return row.Problems
}

func (d *director) reported(kind string) bool {
	events, _ := d.events.Since(0)
	return slices.ContainsFunc(events, func(e event.Event) bool { return e.Kind == kind })
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	testwait.Within(t, 20*time.Minute, what, func() error {
		if synctest.Wait(); !is() {
			return errors.New("the condition is false")
		}
		return nil
	})
}

func webService() vip.Service {
	return vip.Service{Key: vip.ServiceKey{Namespace: "default", Name: "web"}, Source: "static",
		Ports: []vip.Port{{Protocol: vip.TCP, Port: 80, TargetPort: 80, NodePort: vip.NodePort{Auto: true}}}}
}

func plain(name string) vip.Service {
	return vip.Service{Key: vip.ServiceKey{Namespace: "default", Name: name}, Source: "static", Ports: []vip.Port{{Protocol: vip.TCP, Port: 80, TargetPort: 80}}}
}

// The service of an unreadable lease keeps what it has, on running and on restarted hosts, and gets
// nothing else until the key is fixed or removed.
func TestUnreadableLease(t *testing.T) {
	damages := map[string]func(string) string{
		"cut":           func(was string) string { return was[:40] },
		"newer version": func(was string) string { return strings.Replace(was, `{"v":1,`, `{"v":2,`, 1) },
		"foreign":       func(string) string { return "another program's" },
	}
	for _, of := range []string{"leases/", "leases/node-port/tcp/30086"} {
		for name, damage := range damages {
			removed := (of == "leases/") == (name == "cut")
			t.Run(fmt.Sprintf("%s/%s/removed=%v", of, name, removed), func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) { leaseThatCantBeRead(t, of, damage, removed) })
			})
		}
	}
}

// of is a lease's key below the tree, or "leases/" for the web service's address.
func leaseThatCantBeRead(t *testing.T, of string, damage func(string) string, removed bool) {
	m := fleettest.NewMemory()
	hosts := map[string]*director{}
	for _, name := range []string{"lb1", "lb2", "lb3"} {
		hosts[name] = direct(t, m, name, webService(), plain("db"))
		defer func() { hosts[name].end() }()
	}
	var web, db string // what they hold, by the first who asked
	same := func(names ...string) func() bool {
		return func() bool {
			for _, name := range names {
				h := hosts[name]
				if h.serves("web") != web || h.serves("db") != db || len(h.problems("web"))+len(h.problems("db")) > 0 {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "the services are not served alike everywhere", func() bool {
		web, db = hosts["lb1"].serves("web"), hosts["lb1"].serves("db")
		return strings.Contains(web, "[192.0.2.") && strings.Contains(web, "80/tcp:30086") && strings.Contains(db, "[192.0.2.") && same("lb1", "lb2", "lb3")()
	})
	key := prefix + of
	if of == "leases/" {
		key += strings.Trim(strings.Fields(web)[0], "[]")
	}
	was, ok := m.Get(key)
	must.True(t, ok, "no %s", key)
	tree := func() (out []string) {
		for _, folder := range Folders() {
			for _, p := range m.Pairs(prefix + folder + "/") {
				out = append(out, p.Key+" "+string(p.Value))
			}
		}
		return out
	}
	m.Put(key, damage(was))
	want := tree()
	reports := func(name string) bool {
		p := hosts[name].problems("web")
		return len(p) == 1 && p[0].Code == vip.CodeWaiting && strings.Contains(p[0].Message, key) && p[0].Hint != ""
	}
	unmoved := func() {
		t.Helper()
		synctest.Wait()
		for name, h := range hosts {
			if h.serves("web") != web || h.serves("db") != db || len(h.problems("db")) > 0 || h.reported("lease_store_down") {
				t.Errorf("%s serves web at %s %v, db at %s %v", name, h.serves("web"), h.problems("web"), h.serves("db"), h.problems("db"))
			}
		}
		expect.SameList(t, tree(), want, "Consul has")
	}
	hosts["lb3"].end()
	hosts["lb3"] = direct(t, m, "lb3", webService(), plain("db"))
	eventually(t, "a restarted host doesn't report what it waits for", func() bool { return reports("lb3") })
	for range 30 {
		unmoved()
		time.Sleep(20 * time.Second)
	}
	for name := range hosts {
		if !reports(name) {
			t.Errorf("after 10 minutes, %s says of web: %v", name, hosts[name].problems("web"))
		}
	}
	for _, name := range []string{"lb1", "lb2"} { // the leader is among them
		hosts[name].end()
		hosts[name] = direct(t, m, name, webService(), plain("db"))
		eventually(t, "another restarted host doesn't report it", func() bool { return reports(name) })
		time.Sleep(time.Minute)
		unmoved()
	}
	next := plain("next")
	for _, h := range hosts {
		h.Services.Set(next)
	}
	eventually(t, "a new service doesn't get the next address", func() bool { return hosts["lb2"].serves("next") == "[192.0.2.19] map[]" })
	if removed {
		m.Delete(key)
	} else {
		m.Put(key, was)
	}
	eventually(t, "the services don't go on", same("lb1", "lb2", "lb3"))
	for name, h := range hosts {
		expect.False(t, h.reported("lease_store_down"), "%s says that the store can't be written", name)
	}
	got, _ := m.Get(key)
	expect.True(t, got != "", "the lease is not there again")
}

// The service of unreadable holdings keeps what it has.
func TestUnreadableHoldings(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		h := direct(t, m, "lb1", plain("web"))
		defer h.end()
		const web = "[192.0.2.17] map[]"
		eventually(t, "not served", func() bool { return h.serves("web") == web })
		key := prefix + "holdings/default/web"
		was, _ := m.Get(key)
		m.Put(key, was[:20])
		time.Sleep(10 * time.Minute) // until the next full read
		more := webService()
		h.Services.Set(more)
		for range 60 {
			synctest.Wait()
			if p := h.problems("web"); h.serves("web") != web || len(p) != 1 || p[0].Code != vip.CodeWaiting || !strings.Contains(p[0].Message, key) {
				t.Fatalf("%s %v", h.serves("web"), p)
			}
			time.Sleep(time.Second)
		}
		m.Put(key, was)
		eventually(t, "it doesn't go on with the first node port", func() bool {
			return h.serves("web") == "[192.0.2.17] map[80/tcp:30086]" && len(h.problems("web")) == 0
		})
		expect.False(t, h.reported("lease_store_down"), "it said that the store can't be written")
	})
}

// A lease that was deleted by hand is written again without a store problem. Holdings that were edited by
// hand make their service wait.
func TestEditedByHand(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		hosts := []*director{direct(t, m, "lb1", plain("web")), direct(t, m, "lb2", plain("web"))}
		for _, h := range hosts {
			defer h.end()
		}
		const web = "[192.0.2.17] map[]"
		served := func() bool { return hosts[0].serves("web") == web && hosts[1].serves("web") == web }
		eventually(t, "not served", served)
		lease := prefix + "leases/192.0.2.17"
		m.Delete(lease)
		eventually(t, "the lease isn't put back", func() bool {
			if !served() {
				t.Fatalf("served %s, %s meanwhile", hosts[0].serves("web"), hosts[1].serves("web"))
			}
			_, there := m.Get(lease)
			return there
		})
		m.Put(prefix+"holdings/default/web", `{"v":1,"value":{"holds":["192.0.2.77"]}}`)
		time.Sleep(10 * time.Minute)
		for _, h := range hosts {
			more := webService()
			h.Services.Set(more)
		}
		waits := func(h *director) bool {
			return slices.ContainsFunc(h.problems("web"), func(p vip.Problem) bool {
				return p.Code == vip.CodeWaiting && strings.Contains(p.Message, "tree/holdings/default/web")
			})
		}
		eventually(t, "nobody says what it waits for", func() bool { return waits(hosts[0]) || waits(hosts[1]) })
		if !served() {
			t.Errorf("served %s, %s", hosts[0].serves("web"), hosts[1].serves("web"))
		}
		eventually(t, "it doesn't go on", func() bool {
			return hosts[0].serves("web") == "[192.0.2.17] map[80/tcp:30086]" && hosts[1].serves("web") == hosts[0].serves("web")
		})
		for _, h := range hosts {
			expect.False(t, h.reported("lease_store_down"), "it said that the store can't be written")
		}
	})
}
