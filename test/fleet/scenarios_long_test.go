//go:build system && long

package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// operations is the minimum number of requests of each lab, over all of its scenarios.
const operations = 1000

// enough checks that the scenarios have sent enough requests for a meaningful result, unless only
// some of them were selected.
func (l *lab) enough() {
	l.t.Helper()
	if l.ran < l.scenarios {
		return
	}
	h := l.history()
	acknowledged := 0
	for _, o := range h.Ops {
		if o.Outcome == Acknowledged {
			acknowledged++
		}
	}
	least := operations * l.size() / l.rarely()
	if len(h.Ops) < least || acknowledged < least/3 || len(h.Views) < 100 {
		l.t.Errorf("%d requests, %d of them acknowledged, and %d views are too few", len(h.Ops), acknowledged, len(h.Views))
	}
}

// during sends requests to all agents while f runs and until more further ones are sent.
func (l *lab) during(more int, f func()) {
	l.t.Helper()
	load := l.load(l.agents...)
	f()
	l.requests(more)
	load.end()
}

// requests waits until the given number of further requests has been sent, or fewer in a large
// fleet.
func (l *lab) requests(more int) {
	l.t.Helper()
	more = more * l.size() / l.rarely()
	until := len(l.history().Ops) + more
	l.eventually(fmt.Sprintf("%d more requests", more), func(context.Context) error {
		if n := len(l.history().Ops); n < until {
			return fmt.Errorf("%d are still to be made", until-n)
		}
		return nil
	})
}

func TestOneServer(t *testing.T) { onEachStore(t, oneServer) }

func oneServer(t *testing.T, etcd bool) {
	// The cooldown is longer than the test: no released address may ever be seen with a second
	// service.
	l := newLab(t, shape{servers: 1, etcd: etcd, reuse: time.Hour}).record()
	rnd := rand.New(rand.NewPCG(l.seed, 1))

	l.scenario(t, "all have the same VIPs", l.sameVIPs)
	l.scenario(t, "one name by several hosts at once", func() { l.oneName(20) })
	l.scenario(t, "agents are killed while they allocate", func() { l.killedAllocating(20, rnd) })
	l.scenario(t, "the elected allocator is killed", func() {
		l.during(50, func() {
			first := l.elected(l.agents...)
			first.proc.Kill()
			l.electedInstead(first)
			l.start(first)
		})
	})
	l.scenario(t, "the elected allocator is stalled for longer than its session", l.stalledLeader)
	l.scenario(t, "a host is cut off", func() {
		l.during(50, func() {
			a := l.agents[rnd.IntN(len(l.agents))]
			l.cut(a)
			l.answers(a, 5)
			l.withoutStore(a)
			l.requests(100)
			l.answers(a, 5)
			l.heal(a)
		})
	})
	l.scenario(t, "the store comes and goes", l.storeComesAndGoes)
	l.enough()
}

func TestCluster(t *testing.T) { onEachStore(t, cluster) }

func cluster(t *testing.T, etcd bool) {
	// Released addresses are soon assigned to others.
	l := newLab(t, shape{servers: 3, etcd: etcd, reuse: 3 * time.Second}).record()
	rnd := rand.New(rand.NewPCG(l.seed, 2))

	l.scenario(t, "the leading server is killed", func() { l.serversKilled(3, 0) })
	l.scenario(t, "another server is killed", func() { l.serversKilled(1, 1) })
	l.scenario(t, "the leading server is stalled", func() {
		l.during(100, func() {
			leader := l.store.servers[l.store.leads(l.t)]
			leader.Pause()
			l.requests(100)
			leader.Continue()
		})
	})
	l.scenario(t, "a host is cut off", func() {
		l.during(50, func() {
			a := l.agents[rnd.IntN(len(l.agents))]
			l.cut(a)
			l.requests(100)
			l.heal(a)
		})
	})
	l.scenario(t, "everything at random", func() { l.everything(15, rnd) })
	l.enough()
}

// A large fleet has the guarantees of a small one.
func TestThirtyAgents(t *testing.T) {
	t.Parallel()
	l := newLab(t, shape{agents: 30, servers: 3, reuse: time.Hour}).record()
	rnd := rand.New(rand.NewPCG(l.seed, 4))

	l.scenario(t, "all have the same VIPs", l.sameVIPs)
	l.scenario(t, "one name by several hosts at once", func() { l.oneName(4) })
	l.scenario(t, "agents are killed while they allocate", func() { l.killedAllocating(5, rnd) })
	l.scenario(t, "the leading server is killed", func() { l.serversKilled(1, 0) })
	l.scenario(t, "the store comes and goes", l.storeComesAndGoes)
	l.scenario(t, "everything at random", func() { l.everything(10, rnd) })
	l.enough()
}

// sameVIPs makes requests, and then asks services on every host.
func (l *lab) sameVIPs() {
	l.during(150, func() {})
	l.settles()
	for _, a := range l.agents {
		l.answers(a, 20)
	}
}

// killedAllocating kills that many agents, one after the other, while they allocate.
func (l *lab) killedAllocating(kills int, rnd *rand.Rand) {
	l.during(50, func() {
		for i := range kills {
			l.killAllocating(l.agents[rnd.IntN(len(l.agents))], i, rnd)
		}
	})
}

// stalledLeader stalls the elected allocator until another one is elected.
func (l *lab) stalledLeader() {
	l.during(50, func() {
		first := l.elected(l.agents...)
		l.must("stall", first.proc.Pause())
		l.electedInstead(first)
		l.requests(50)
		l.must("revive", first.proc.Resume())
	})
	l.elected(l.agents...)
}

// storeComesAndGoes kills all servers of the store, three times.
func (l *lab) storeComesAndGoes() {
	l.during(50, func() {
		for range 3 {
			l.takeStore()
			l.requests(20)
			l.bringStore()
			l.requests(20)
		}
	})
}

// serversKilled kills a server, several times: the one with that distance from the leading one. Every agent writes through
// the others.
func (l *lab) serversKilled(times, distance int) {
	l.during(100, func() {
		for range times {
			l.requests(30)
			s := l.store.servers[(l.store.leads(l.t)+distance)%len(l.store.servers)]
			s.Kill()
			l.allWrite(l.agents)
			l.requests(30)
			s.Start()
		}
	})
}

// everything kills, stalls and cuts off agents, and kills servers of the store.
func (l *lab) everything(rounds int, rnd *rand.Rand) {
	l.during(100, func() {
		for range rounds {
			l.requests(10 + rnd.IntN(20))
			a := l.agents[rnd.IntN(len(l.agents))]
			switch rnd.IntN(4) {
			case 0:
				a.proc.Kill()
				l.requests(rnd.IntN(10))
				l.start(a)
			case 1:
				l.must("stall", a.proc.Pause())
				l.requests(rnd.IntN(20))
				l.must("revive", a.proc.Resume())
			case 2:
				l.cut(a)
				l.requests(rnd.IntN(20))
				l.heal(a)
			case 3:
				s := l.store.servers[rnd.IntN(len(l.store.servers))]
				s.Kill()
				l.requests(rnd.IntN(20))
				s.Start()
			}
		}
	})
}

// killAllocating registers some services at once through an agent, and kills it meanwhile at a
// random time.
func (l *lab) killAllocating(a *agent, round int, rnd *rand.Rand) {
	l.t.Helper()
	var done sync.WaitGroup
	for i := range 4 {
		done.Go(func() {
			l.put(context.Background(), a, fmt.Sprintf("victim-%d-%d", round, i), Condition{})
		})
	}
	time.Sleep(time.Duration(rnd.Int64N(int64(20 * time.Millisecond)))) // a random time
	a.proc.Kill()
	done.Wait()
	l.requests(rnd.IntN(5))
	l.start(a)
}
