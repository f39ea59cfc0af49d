package share

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func targetsOf(n int) (out []probe.Target) {
	for i := range n {
		out = append(out, target(i+1))
	}
	return out
}

func TestSmallFleetSharesNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(10)
		w.fleet(SmallFleet, ProbersAuto, targets...)
		w.expect("at first", "healthy", targets...)
		for _, one := range targets {
			expect.Equal(t, len(w.probers(one)), SmallFleet, "%s is probed by so many hosts", one)
		}
		w.setDown(true, targets[0])
		w.setCut(w.hosts["host3"], true, targets[1])
		w.sleep(5 * time.Second)
		w.expect("after a failure", "unhealthy", targets[0])
		w.expect("on a broken path", "healthy: 15; unhealthy: host3", targets[1])
		expect.Equal(t, w.rows(), 0, "verdicts are in the store")
	})
}

// In a large fleet, three hosts probe a target, and a change costs two entries of the log and
// reaches all. Nothing is written at rest.
func TestLargeFleetShares(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(50)
		w.fleet(20, ProbersAuto, targets...)
		w.expect("at first", "healthy", targets...)
		for _, one := range targets {
			expect.Len(t, w.probers(one), 3, "%s is probed by", one)
		}
		before := w.entries()
		w.sleep(30 * time.Minute)
		expect.Equal(t, w.entries()-before, 0, "entries at rest")
		for _, step := range []struct {
			down bool
			want string
		}{{true, "unhealthy"}, {false, "healthy"}, {true, "unhealthy"}} {
			before = w.entries()
			w.setDown(step.down, targets[7])
			w.sleep(5 * time.Second)
			w.expect("after a change", step.want, targets[7])
			w.sleep(time.Minute)
			expect.Equal(t, w.entries()-before, 2, "entries of the log for a change to %s", step.want)
		}
		w.expect("the others", "healthy", targets[8:]...)
	})
}

// A backend's own host probes it, too, uses its own result, and has no vote.
func TestLocalHostProbes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(40)
		w.fleet(20, ProbersAuto, targets...)
		i := slices.IndexFunc(targets, func(one probe.Target) bool { return !slices.Contains(w.probers(one), "host5") })
		local, h := targets[i], w.hosts["host5"]
		h.Start(local, probe.Use{Namespace: "default", Local: true})
		w.sleep(10 * time.Second)
		if probers := w.probers(local); len(probers) != 4 || !slices.Contains(probers, "host5") {
			t.Errorf("probed by %v", probers)
		}
		before := w.entries()
		w.setCut(h, true, local)
		w.sleep(time.Minute)
		w.expect("its own host finds it unhealthy", "healthy: 19; unhealthy: host5", local)
		expect.Equal(t, w.entries()-before, 0, "entries of its host")
		h.Start(local, probe.Use{Namespace: "default"})
		w.sleep(time.Second)
		w.expect("no longer local", "healthy", local)
		expect.Len(t, w.probers(local), 3, "probed by")
	})
}

// A VIP that each host has for its own programs is another target on each: every host probes it, uses its own result at once,
// and tells the fleet nothing.
func TestPrivateTargets(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.fleet(20, ProbersAuto, targetsOf(40)...)
		before, own := w.entries(), probe.NewTarget(netip.MustParseAddrPort("10.96.0.1:443"), vip.HealthCheck{Type: vip.CheckTCP}).Along(vip.ProbePath{VIP: netip.MustParseAddr("10.96.0.1"), Backend: netip.MustParseAddr("10.96.0.1"), Forward: vip.ForwardHost})
		for _, h := range w.hosts {
			h.Start(own, probe.Use{Namespace: "default", Local: true})
		}
		w.sleep(10 * time.Second)
		expect.Len(t, w.probers(own), 20, "probed by")
		w.setCut(w.hosts["host5"], true, own)
		w.sleep(time.Minute)
		w.expect("its program is gone on one host", "healthy: 19; unhealthy: host5", own)
		expect.Equal(t, w.entries(), before, "entries of the log")
	})
}

// A prober with a broken path to a target changes its own result only, with one entry of the log.
func TestBrokenPathOfOneProber(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(30)
		w.fleet(20, ProbersAuto, targets...)
		for _, name := range w.probers(targets[0]) {
			h, before := w.hosts[name], w.entries()
			w.setCut(h, true, targets[0])
			w.sleep(5 * time.Minute)
			w.expect("with a broken path", "healthy: 19; unhealthy: "+name, targets[0])
			expect.Equal(t, w.entries()-before, 1, "entries of %s", name)
			w.setCut(h, false, targets[0])
			w.sleep(time.Minute)
			w.expect("with the path repaired", "healthy", targets[0])
		}
		// Its vote doesn't decide together with another one that is not there any more.
		names := w.probers(targets[0])
		w.setCut(w.hosts[names[0]], true, targets[0])
		w.sleep(time.Minute)
		w.kill(w.hosts[names[0]])
		w.sleep(2 * time.Minute)
		w.setCut(w.hosts[names[1]], true, targets[0])
		w.sleep(2 * time.Minute)
		w.expect("two paths, one after the other", "healthy: 18; unhealthy: "+names[1], targets[0])
	})
}

// Hosts that are lost are replaced. Their last verdicts don't stay.
func TestLostProbersAreReplaced(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(40)
		w.fleet(25, ProbersAuto, targets...)
		lost := w.probers(targets[0])
		before := map[probe.Target][]string{}
		for _, one := range targets {
			before[one] = w.probers(one)
		}
		for _, name := range lost {
			w.kill(w.hosts[name])
		}
		w.setDown(true, targets[0]) // before anybody else probes it
		w.sleep(90 * time.Second)
		w.expect("after its probers were lost", "unhealthy", targets[0])
		w.expect("the others", "healthy", targets[1:]...)
		for _, one := range targets {
			now := w.probers(one)
			expect.Equal(t, len(now), 3, "%s is probed by %v", one, now)
			for _, name := range before[one] {
				if !slices.Contains(lost, name) && !slices.Contains(now, name) {
					t.Errorf("%s has lost the prober %s, which is there", one, name)
				}
			}
		}
	})
}

// A host that is cut off from Consul probes everything slowly, beginning with what it knows. When it
// is back, it follows the verdicts again.
func TestHostThatIsCutOff(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(100)
		w.fleet(25, ProbersAuto, targets...)
		w.setDown(true, targets[0])
		w.sleep(10 * time.Second)
		h := w.hosts["host7"]
		own, _ := h.engine.probes()
		seen := h.results.Watch()
		defer seen.Close()
		changes := func() (n int) {
			for batch, _ := seen.TryNext(); len(batch) > 0; batch, _ = seen.TryNext() {
				for _, c := range batch {
					if c.Value.Target != targets[0] && c.Value.Target != targets[1] && c.Value.Health != vip.Healthy {
						t.Errorf("%s becomes %s", c.Value.Target, c.Value.Health)
					}
					n++
				}
			}
			return n
		}
		changes()
		h.tree.SetDown(true)
		w.sleep(alonePatience - time.Second)
		if n, _ := h.engine.probes(); n != own {
			t.Errorf("probes %d targets while an outage is short, not %d", n, own)
		}
		w.sleep(5 * time.Second)
		if n, slow := h.engine.probes(); n != len(targets) || slow != n-own {
			t.Errorf("probes %d of %d targets, %d of them slowly; %d before", n, len(targets), slow, own)
		}
		w.setDown(true, targets[1])
		w.setDown(false, targets[0])
		w.sleep(20 * time.Second)
		w.expect("after a failure meanwhile", "unhealthy", targets[1])
		w.expect("after a recovery meanwhile", "healthy", targets[0])
		h.tree.SetDown(false)
		w.sleep(5 * time.Second)
		if n, _ := h.engine.probes(); n != len(targets) {
			t.Errorf("probes %d targets just after it is back", n)
		}
		w.sleep(3 * time.Minute)
		if n, _ := h.engine.probes(); n != own {
			t.Errorf("probes %d targets when it is back, %d before", n, own)
		}
		w.expect("when it is back", "unhealthy", targets[1])
		changes()
	})
}

// Without Consul, the whole fleet goes on by itself, and agrees again afterwards.
func TestFleetWithoutConsul(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(40)
		w.fleet(20, ProbersAuto, targets...)
		w.store.SetDown(true)
		w.sleep(20 * time.Second)
		w.setDown(true, targets[:5]...)
		w.sleep(20 * time.Second)
		w.expect("without Consul", "unhealthy", targets[:5]...)
		w.expect("without Consul", "healthy", targets[5:]...)
		w.store.SetDown(false)
		for range 60 {
			w.sleep(time.Second)
			w.expect("while Consul is back", "unhealthy", targets[:5]...)
			w.expect("while Consul is back", "healthy", targets[5:]...)
		}
		w.sleep(2 * time.Minute)
		for _, one := range targets {
			expect.Equal(t, len(w.probers(one)), 3, "%s is probed by so many hosts", one)
		}
	})
}

// A rack of backends that fails is written with few transactions.
// Slow: 20 hosts read 600 verdicts each, with the race detector.
func TestMassFailureIsFewTransactions(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		const down = 300
		targets := targetsOf(down + 100)
		w.fleet(20, ProbersAuto, targets...)
		w.expect("at first", "healthy", targets...)
		before := w.entries()
		w.setDown(true, targets[:down]...)
		w.sleep(6 * time.Second)
		w.expect("after the failure", "unhealthy", targets[:down]...)
		w.expect("the others", "healthy", targets[down:]...)
		w.sleep(time.Minute)
		n := w.entries() - before
		t.Logf("%d transactions", n)
		expect.AtMost(t, n, down/6, "transactions for %d targets", down)
	})
}

// The rows of targets that no host has any more are removed.
func TestRowsAreRemoved(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(50)
		w.fleet(20, ProbersAuto, targets...)
		must.Equal(t, w.rows(), len(targets), "rows")
		for _, h := range w.hosts {
			for _, one := range targets[:20] {
				h.Stop(one)
			}
		}
		w.sleep(4 * time.Minute)
		expect.Equal(t, w.rows(), len(targets)-20, "rows")
		before := w.entries()
		w.sleep(10 * time.Minute)
		expect.Equal(t, w.entries()-before, 0, "entries at rest")
		for _, h := range w.hosts {
			h.mu.Lock()
			expect.Equal(t, len(h.items), len(targets)-20, "%s has %d items", h.name, len(h.items))
			h.mu.Unlock()
		}
	})
}

// A target that its probers don't have is probed by the hosts that have it. No verdict is left of
// probers that had it before.
func TestTargetOfFewHosts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(20)
		w.fleet(20, ProbersAuto, targets...)
		one := targets[0]
		for _, name := range w.probers(one) {
			w.hosts[name].Stop(one)
		}
		w.sleep(5 * time.Minute)
		expect.Equal(t, len(w.probers(one)), 17, "probers of 17 hosts that have it")
		w.setDown(true, one)
		w.sleep(30 * time.Second)
		for name, h := range w.hosts {
			if r, _, ok := h.results.Get(one); ok && r.Health != vip.Unhealthy {
				t.Errorf("%s: %s", name, r.Health)
			}
		}
		before := w.entries()
		w.sleep(10 * time.Minute)
		expect.Equal(t, w.entries()-before, 0, "entries at rest")
	})
}

// A fleet that grows beyond SmallFleet shares from then on. One that shrinks waits for a minute.
func TestFleetGrowsAndShrinks(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(20)
		w.fleet(SmallFleet, ProbersAuto, targets...)
		w.setDown(true, targets[0])
		w.sleep(10 * time.Second)
		h := w.join("another", ProbersAuto, targets...)
		for range 120 {
			w.sleep(time.Second)
			delete(w.hosts, "another") // it has no result at first
			w.expect("while the fleet grows", "unhealthy", targets[0])
			w.expect("while the fleet grows", "healthy", targets[1:]...)
			w.hosts["another"] = h
		}
		for _, one := range targets {
			expect.Equal(t, len(w.probers(one)), 3, "%s is probed by so many hosts", one)
		}
		h.end()
		delete(w.hosts, "another")
		for second := range 120 {
			w.sleep(time.Second)
			w.expect("while the fleet shrinks", "unhealthy", targets[0])
			w.expect("while the fleet shrinks", "healthy", targets[1:]...)
			if n := len(w.probers(targets[0])); second == 55 && n != 3 {
				t.Errorf("probed by %d hosts within a minute", n)
			}
		}
		expect.Equal(t, len(w.probers(targets[0])), SmallFleet, "probers")
	})
}

// A prober that loses its network is against the verdicts of all of its targets, in few transactions,
// and changes none.
func TestProberWithoutNetwork(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(100)
		w.fleet(20, ProbersAuto, targets...)
		h := w.hosts[w.probers(targets[0])[0]]
		before := w.entries()
		w.setCut(h, true, targets...)
		w.sleep(time.Minute)
		own, _ := h.engine.probes()
		if n := w.votesAgainst(); n != own || w.entries()-before > 6 {
			t.Errorf("%d votes of a host without network that probes %d targets, in %d entries", n, own, w.entries()-before)
		}
		for name, other := range w.hosts {
			for _, one := range targets {
				if r, _, _ := other.results.Get(one); other != h && r.Health != vip.Healthy {
					t.Fatalf("%s: %s is %s", name, one, r.Health)
				}
			}
		}
	})
}

// After a restart, a host begins with what it knew before: in a small fleet, and in a large one with
// the verdict instead.
func TestHostBeginsWithWhatItKnew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for _, hosts := range []int{2, 20} {
			w := newWorld(t)
			targets := targetsOf(3)
			w.restored = vip.Unhealthy
			w.fleet(hosts, ProbersAuto, targets[0])
			h := w.join("again", ProbersAuto, targets[:2]...)
			r0, _, _ := h.results.Get(targets[0])
			r1, _, _ := h.results.Get(targets[1])
			want := vip.Unhealthy
			if hosts > SmallFleet {
				want = vip.Healthy
			}
			if r0.Health != want || r1.Health != vip.Unhealthy {
				t.Errorf("of %d hosts, one begins with %s and %s", hosts, r0.Health, r1.Health)
			}
			w.sleep(firstHosts + 500*time.Millisecond) // no probe has ended yet
			if r, _, _ := h.engine.own.Get(targets[1]); hosts <= SmallFleet && r.Health != vip.Unhealthy {
				t.Errorf("its probes begin with %s", r.Health)
			}
			w.sleep(2 * time.Minute)
			if r, _, _ := h.results.Get(targets[1]); r.Health != vip.Healthy {
				t.Errorf("of %d hosts, one finds %s", hosts, r.Health)
			}
			for _, h := range w.hosts {
				h.end()
			}
		}
	})
}

// The hosts of a new, large fleet don't take it for a small one while they start: no host ever probes
// everything.
func TestNewFleetMakesNoBurst(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(100)
		for i := range 25 {
			w.join(fmt.Sprint("host", i), ProbersAuto, targets...)
			w.sleep(50 * time.Millisecond)
		}
		w.sleep(2 * time.Minute)
		w.expect("at the end", "healthy", targets...)
		for name, h := range w.hosts {
			h.engine.mu.Lock()
			expect.AtMost(t, h.engine.most, len(targets)/2, "targets that %s has probed at a time", name)
			h.engine.mu.Unlock()
		}
	})
}

// A host knows which targets it probes, and probes them, when it is assigned: at once after a restart
// or in a known fleet, and otherwise when it has waited for others.
func TestAssigned(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		targets := targetsOf(100)
		first := w.join("host0", ProbersAuto, targets...)
		w.sleep(firstHosts - time.Millisecond)
		expect.False(t, table.IsClosed(first.Assigned()), "assigned before other hosts could join")
		w.sleep(time.Second)
		if n, _ := first.engine.probes(); !table.IsClosed(first.Assigned()) || n != len(targets) {
			t.Errorf("it probes %d targets alone", n)
		}
		w = newWorld(t)
		w.fleet(20, ProbersAuto, targets...)
		for _, c := range []struct {
			name string
			most time.Duration
		}{{"host5", 0}, {"new", time.Minute}} { // a new one waits until the leader has listed it
			if h := w.hosts[c.name]; h != nil {
				h.end()
			}
			h := w.join(c.name, ProbersAuto, targets...)
			began := time.Now()
			<-h.Assigned()
			n, slow := h.engine.probes()
			if took := time.Since(began); took > c.most || n == 0 || slow > 0 {
				t.Errorf("%s probes %d targets after %v, %d of them slowly", c.name, n, took, slow)
			}
			w.sleep(5 * time.Second)
			now, _ := h.engine.probes()
			expect.Equal(t, now, n, "%s probes %d targets, and %d later", c.name, n, now)
		}
	})
}
