package allocator_test

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

// An address that a source assigns is recorded as any lease.
func TestAssigned(t *testing.T) {
	w := newWorld(t, pools(pool("cluster", "10.96.0.0/24", "fd00::/120")))
	same(t, "addresses", w.get("web", assigned, requests("10.96.0.7", "fd00::7"), ports(on(tcp(80), 30081))), "10.96.0.7 fd00::7")
	l, _ := w.lease("10.96.0.7")
	if l.State != ipam.Held || l.Pool != "cluster" || l.HeldBy(key("web")) != 0 || l.Since != vip.InstantOf(w.now) {
		t.Errorf("lease %+v", l)
	}
	w.durable()
	w.restart()
	same(t, "addresses after a restart", w.get("web", assigned, requests("10.96.0.7", "fd00::7"), ports(on(tcp(80), 30081))), "10.96.0.7 fd00::7")

	w.refused(vip.CodeOutsidePool, "10.97.0.1 is in no pool", "elsewhere", assigned, requests("10.97.0.1"))
	w.a.SetPodCIDRs("kubernetes", prefixes("10.96.0.128/25"))
	w.refused(vip.CodeOverlap, "10.96.0.200 is held out of pool \"cluster\": it is in range 10.96.0.128/25, which source kubernetes says is in use",
		"overlap", assigned, requests("10.96.0.200"))
}

// A resource that another service released cools down for all services but the one that a source
// assigns it to, whatever sources the two services have.
func TestAssignedSkipsCooling(t *testing.T) {
	held := []change{requests("10.96.0.7"), ports(on(tcp(80), 30081)), checked(30082)}
	for _, tc := range []struct {
		name   string
		former []change
	}{
		{"assigned to the former, too", append([]change{assigned}, held...)},
		{"of another source", append([]change{assigned, source("rest")}, held...)},
		{"the former asked for it itself", held},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, pools(pool("cluster", "10.96.0.0/24")))
			w.get("former", tc.former...)
			w.now = w.now.Add(time.Minute)
			w.release("former")
			w.refused(vip.CodeAddressTaken, "10.96.0.7 was released by service \"former\" and is kept for it until", "other", requests("10.96.0.7"))
			w.refused(vip.CodePortTaken, "node port 30081/tcp was released by service \"former\"", "another", ports(on(tcp(80), 30081)))
			w.now = w.now.Add(time.Second)
			same(t, "address", w.get("web", append([]change{assigned}, held...)...), "10.96.0.7")
			for _, r := range []ipam.Resource{{Addr: addr("10.96.0.7")}, {NodePort: 30081, Protocol: vip.TCP}, {NodePort: 30082, Protocol: vip.TCP}} {
				l, _, _ := w.a.Leases().Get(r)
				if l.HeldBy(key("web")) != 0 || len(l.Holders) != 1 || l.Since != vip.InstantOf(w.now) || !l.Until.IsZero() {
					t.Errorf("lease %+v", l)
				}
			}
			same(t, "used", w.status("cluster").Used, 2) // with that of another
			same(t, "cooling", w.status("cluster").Cooling, 0)
			w.durable()

			// The former comes back and finds it taken. The end of its own cooling ends nothing.
			w.refused(vip.CodeAddressTaken, "10.96.0.7 is held by service \"web\"", "former", requests("10.96.0.7"), ports())
			w.now = w.now.Add(time.Hour)
			must.Succeed(t, w.a.Cool(t.Context()))
			l, _ := w.lease("10.96.0.7")
			same(t, "held by", l.HeldBy(key("web")), 0)
		})
	}
}

// While another service holds an assigned resource, the service waits, its problem names the holder,
// and Freed is closed once the resource is released.
func TestAssignedWaitsForTheHolder(t *testing.T) {
	w := newWorld(t, pools(pool("cluster", "10.96.0.0/24")))
	w.get("former", assigned, source("rest"), requests("10.96.0.7"))
	w.get("port", ports(on(tcp(80), 30081)))
	w.refused(vip.CodeAddressTaken, "10.96.0.7 is held by service \"former\" of source rest", "web", assigned, requests("10.96.0.7"))
	w.refused(vip.CodePortTaken, "node port 30081/tcp is held by port 80/tcp of service \"port\"", "web2", assigned, requests("10.96.0.8"), ports(on(tcp(80), 30081)))
	waiting := w.a.Freed()
	w.get("bystander", requests("10.96.0.9"))
	w.release("bystander")
	same(t, "freed by what nobody waits for", freed(waiting), false)
	w.release("former")
	same(t, "freed by the address", freed(waiting), true)
	waiting = w.a.Freed()
	w.release("port")
	same(t, "freed by the node port", freed(waiting), true)
	waiting = w.a.Freed()
	same(t, "address", w.get("web", assigned, requests("10.96.0.7")), "10.96.0.7")
	same(t, "other address", w.get("web2", assigned, requests("10.96.0.8"), ports(on(tcp(80), 30081))), "10.96.0.8")
	w.release("web")
	same(t, "freed once more", freed(waiting), false)
}

// A service that was deleted while no agent ran loses its address at once if its source has assigned
// that to another service, and after the grace period if it came from another source.
func TestAssignedAfterAnOrphan(t *testing.T) {
	for _, tc := range []struct {
		name    string
		source  string
		known   []string
		atOnce  bool
		atGrace bool
	}{
		{"its source has assigned it to another", "kubernetes", []string{"web"}, true, true},
		{"it was another source's", "static", []string{"web"}, false, true},
		{"it is there", "kubernetes", []string{"former", "web"}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w, stop := running(t, pools(pool("cluster", "10.96.0.0/24")))
				w.get("former", source(tc.source), requests("10.96.0.7"),
					ports(on(tcp(80), 30081), on(tcp(81), 30082), on(tcp(82), 30083), on(tcp(83), 30084), on(tcp(84), 30085)))
				w.get("bystander", source(tc.source), requests("10.96.0.8"))
				stop()
				stop = w.run()
				web := []change{assigned, source("kubernetes"), requests("10.96.0.7")}
				w.refused(vip.CodeAddressTaken, "10.96.0.7 is held by service \"former\"", "web", web...)
				waiting := w.a.Freed()
				w.a.Settled(func(k vip.ServiceKey) bool { return slices.Contains(tc.known, k.Name) })
				synctest.Wait()
				same(t, "freed at once", freed(waiting), tc.atOnce)
				same(t, "leases held by former", held(w, "former"), map[bool]int{true: 0, false: 6}[tc.atOnce])
				same(t, "leases held by a bystander", held(w, "bystander"), 1)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				same(t, "leases held by former in the end", held(w, "former"), map[bool]int{true: 0, false: 6}[tc.atGrace])
				if tc.atGrace {
					same(t, "address", w.get("web", web...), "10.96.0.7")
				}
				stop()
			})
		})
	}
}

// held counts the leases that a service holds.
func held(w *world, name string) (n int) {
	for _, l := range w.a.Leases().All() {
		if l.HeldBy(key(name)) >= 0 {
			n++
		}
	}
	return n
}

// Nothing is chosen for a service if its source assigns its addresses.
func TestAssignedIsNeverChosen(t *testing.T) {
	w := newWorld(t, pools(pool("cluster", "10.96.0.0/24", "fd00::/120")))
	same(t, "address", w.refused(vip.CodeInvalid, "source provided no address", "none", assigned), "")
	same(t, "address", w.refused(vip.CodeInvalid, "source provided no address", "none", assigned, families(vip.IPv4)), "")
	same(t, "of both families", w.get("one", assigned, requests("10.96.0.7"), families(vip.IPv4, vip.IPv6)), "10.96.0.7")
	same(t, "address", w.refused(vip.CodeInvalid, "source provided no node port", "auto", assigned, requests("10.96.0.8"), ports(on(tcp(80), 0))), "10.96.0.8")
	same(t, "what it holds", w.get("one", assigned), "10.96.0.7")

	// Other addresses than before are a move, and the former ones cool.
	same(t, "both", w.get("two", assigned, requests("10.96.0.20", "fd00::20")), "10.96.0.20 fd00::20")
	same(t, "one is no more", w.get("two", assigned, requests("10.96.0.21")), "10.96.0.21")
	for _, a := range []string{"10.96.0.20", "fd00::20"} {
		l, _ := w.lease(a)
		expect.Equal(t, l.State, ipam.Cooling, "lease %+v", l)
	}
}

// One edit may move a node port to another port of its service.
func TestAssignedNodePortMovesWithinAService(t *testing.T) {
	w := newWorld(t, pools(pool("cluster", "10.96.0.0/24")))
	w.get("web", assigned, requests("10.96.0.7"), ports(on(tcp(80), 30081), tcp(81)))
	moved := []change{assigned, requests("10.96.0.7"), ports(tcp(80), on(tcp(81), 30081))}
	waiting := w.a.Freed()
	w.refused(vip.CodePortTaken, "node port 30081/tcp is held by port 80/tcp of service \"web\"", "web", moved...)
	same(t, "freed", freed(waiting), true)
	got := w.assign(service("web", moved...))[0]
	same(t, "node port", got.NodePorts[vip.PortKey{Port: 81, Protocol: vip.TCP}], 30081)
	same(t, "problems", len(got.Problems), 0)
}

// The order of resources, which decides SourceOf, is the same on all hosts.
func TestOrderOfResources(t *testing.T) {
	want := []ipam.Resource{
		{Addr: netip.MustParseAddr("192.0.2.1")},
		{Addr: netip.MustParseAddr("192.0.2.2")},
		{Addr: netip.MustParseAddr("2001:db8::1")},
		{NodePort: 30000, Protocol: vip.UDP},
		{NodePort: 30001, Protocol: vip.TCP},
		{NodePort: 30001, Protocol: vip.UDP},
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, ipam.Resource.Compare)
	expect.SameList(t, got, want)
}
