//go:build system

package fleet

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/api/client"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/process"
)

// BenchmarkFleet measures how long one agent's change takes to the dataplanes of the others, with
// 10,000 services on three agents. The unit is a bare write to Consul's KV store that the same
// hosts wait for.
func BenchmarkFleet(b *testing.B) {
	const services, rounds = 10_000, 300
	l := newLab(b, shape{servers: 1, reuse: time.Hour, pool: netip.MustParsePrefix("127.96.0.0/17")})
	l.fill(services)

	var bare, changed, added []time.Duration
	b.ResetTimer()
	for range b.N {
		index := l.bareWrite(-1) // writing the same value again would change nothing
		for i := range rounds {
			bare = append(bare, l.bareWait(&index, i)...)
			changed = append(changed, l.put1(fmt.Sprintf("s%d", i*31%services), i+2)...)
			added = append(added, l.put1(fmt.Sprintf("new-%d-%d", len(added), i), 1)...)
		}
	}
	b.StopTimer()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(percentile(bare, 50).Microseconds()), "bare-median-us")
	for _, m := range []struct {
		name string
		all  []time.Duration
	}{{"change", changed}, {"new", added}} {
		for _, p := range []int{50, 99} {
			b.ReportMetric(float64(percentile(m.all, p))/float64(percentile(bare, p)), fmt.Sprintf("%s-p%d/bare-p%d", m.name, p, p))
		}
	}
	b.Logf("bare %v, change %v, new %v (medians); bare p99 %v, change %v, new %v",
		percentile(bare, 50), percentile(changed, 50), percentile(added, 50), percentile(bare, 99), percentile(changed, 99), percentile(added, 99))
}

// BenchmarkJoin measures how long an agent without any state takes to join a fleet of 10,000
// services, and its CPU time. The unit is a bare read of all keys, with which it alternates.
func BenchmarkJoin(b *testing.B) {
	const services, rounds = 10_000, 9
	l := newLab(b, shape{servers: 1, reuse: time.Hour, pool: netip.MustParsePrefix("127.96.0.0/17")})
	l.fill(services)
	var read, known, joined, cpu, knownUnits, joinedUnits []time.Duration
	const unit = time.Second // of a ratio
	b.ResetTimer()
	for range b.N {
		for range rounds {
			before := l.bareRead(services)
			k, j, c := l.join(l.agents[2], services)
			r := (before + l.bareRead(services)) / 2
			read, known, joined, cpu = append(read, r), append(known, k), append(joined, j), append(cpu, c)
			knownUnits, joinedUnits = append(knownUnits, unit*k/r), append(joinedUnits, unit*j/r)
		}
	}
	b.StopTimer()
	b.ReportMetric(0, "ns/op")
	b.Logf("bare reading %v, services known after %v, in effect after %v, CPU time until then %v", read, known, joined, cpu)
	b.ReportMetric(percentile(read, 50).Seconds(), "read-s")
	b.ReportMetric(percentile(cpu, 50).Seconds(), "cpu-s")
	b.ReportMetric(percentile(knownUnits, 50).Seconds(), "known/read")
	b.ReportMetric(percentile(joinedUnits, 50).Seconds(), "joined/read")
}

// fill registers services through the first agent and waits until all have them.
func (l *lab) fill(services int) { l.fillWith(services, service) }

// fillWith is fill with services of the given function.
func (l *lab) fillWith(services int, service func(name string, value int) v1.ServiceSpec) {
	l.t.Helper()
	began := time.Now()
	for first := 0; first < services; first += 1000 {
		var some []v1.ServiceSpec
		for i := range min(1000, services-first) {
			some = append(some, service(fmt.Sprintf("s%d", first+i), 1))
		}
		ctx, cancel := context.WithTimeout(l.t.Context(), maxWait)
		_, err := l.agents[0].api.Apply(ctx, some, false, false, client.Write{})
		cancel()
		l.must("apply", err)
	}
	for _, a := range l.agents {
		l.awaitServices(a, services)
	}
	l.t.Logf("%d services on all agents after %s", services, time.Since(began))
}

// percentile returns a percentile of durations, by the nearest rank.
func percentile(all []time.Duration, p int) time.Duration {
	all = slices.Sorted(slices.Values(all))
	return all[(len(all)*p-1)/100]
}

// awaitServices waits until an agent's dataplane has the given number of services.
func (l *lab) awaitServices(a *agent, services int) {
	l.t.Helper()
	l.eventually(fmt.Sprintf("%s has %d services", a.name, services), func(ctx context.Context) error { return inSync(ctx, a, services) })
}

// inSync returns nil if an agent's dataplane has that many services.
func inSync(ctx context.Context, a *agent, services int) error {
	d, err := a.api.Dataplane(ctx)
	if err == nil && (d.Frontends != services || !d.InSync) {
		err = fmt.Errorf("%s", d.Summary)
	}
	return err
}

// consulFrom returns a client of Consul on a host.
func (l *lab) consulFrom(a *agent) *api.KV {
	l.t.Helper()
	transport := api.DefaultConfig().Transport
	transport.DialContext = a.node.DialContext
	l.t.Cleanup(transport.CloseIdleConnections)
	c, err := api.NewClient(&api.Config{Address: l.consul[0].URL, Transport: transport})
	l.must("a client of Consul", err)
	return c.KV()
}

const bareKey = "bare/key"

// bareWrite writes the key and returns its index.
func (l *lab) bareWrite(i int) uint64 {
	l.t.Helper()
	kv := l.kv(l.agents[0])
	_, err := kv.Put(&api.KVPair{Key: bareKey, Value: fmt.Append(nil, i)}, nil)
	l.must("bare write", err)
	pair, _, err := kv.Get(bareKey, nil)
	l.must("bare write", err)
	return pair.ModifyIndex
}

// kv returns a host's client of Consul, always the same one.
func (l *lab) kv(a *agent) *api.KV {
	if a.kv == nil {
		a.kv = l.consulFrom(a)
	}
	return a.kv
}

// settled is the time for a reader to start waiting before the write begins.
const settled = 5 * time.Millisecond

// bareWait writes the key on the first host while the others wait for it. It returns how long each
// has waited since the write began.
func (l *lab) bareWait(index *uint64, i int) []time.Duration {
	return l.wait(func(a *agent) error {
		kv := l.kv(a)
		pair, _, err := kv.Get(bareKey, &api.QueryOptions{WaitIndex: *index, WaitTime: maxWait})
		if err == nil && string(pair.Value) != fmt.Sprint(i) {
			err = fmt.Errorf("read %q", pair.Value)
		}
		return err
	}, func() error {
		_, err := l.kv(l.agents[0]).Put(&api.KVPair{Key: bareKey, Value: fmt.Append(nil, i)}, nil)
		return err
	}, func() {
		pair, _, err := l.kv(l.agents[0]).Get(bareKey, nil)
		l.must("bare read", err)
		*index = pair.ModifyIndex
	})
}

// put1 registers a service through the first agent. It returns the time from the beginning of the
// request until the service was in the dataplane of each of the others. The agents record these
// times themselves with this machine's clock.
func (l *lab) put1(name string, value int) []time.Duration {
	time.Sleep(settled)
	began := time.Now()
	_, err := l.agents[0].api.PutService(l.t.Context(), "default", name, service(name, value), client.Write{})
	l.must("write", err)
	var took []time.Duration
	for _, a := range l.agents[1:] {
		// A request makes an agent iterate over its frontends, so there is none during the
		// measurement.
		for limit := began.Add(maxWait); ; {
			time.Sleep(10 * settled)
			list, err := a.api.Frontends(l.t.Context(), name)
			if err == nil && len(list.Items) == 1 && list.Items[0].Applied && list.Items[0].Backends[0].Weight == uint32(value) {
				took = append(took, list.Items[0].AppliedAt.Sub(began))
				break
			}
			if time.Now().After(limit) {
				l.t.Fatalf("%s has not %s within %s: %+v %v", a.name, name, maxWait, list, err)
			}
		}
	}
	return took
}

// wait runs do on the first host while see runs on the others.
func (l *lab) wait(see func(*agent) error, do func() error, then func()) []time.Duration {
	l.t.Helper()
	others := l.agents[1:]
	seen, errs := make([]time.Time, len(others)), make([]error, len(others))
	var waiting sync.WaitGroup
	for i, a := range others {
		waiting.Go(func() {
			errs[i] = see(a)
			seen[i] = time.Now()
		})
	}
	time.Sleep(settled)
	began := time.Now()
	l.must("write", do())
	waiting.Wait()
	var took []time.Duration
	for i, err := range errs {
		l.must(others[i].name, err)
		took = append(took, seen[i].Sub(began))
	}
	then()
	return took
}

// bareRead reads all keys of the tree, and returns the time for it.
func (l *lab) bareRead(atLeast int) time.Duration {
	l.t.Helper()
	kv := l.consulFrom(l.agents[2])
	began := time.Now()
	pairs, _, err := kv.List("ironvip/v2/tree/", nil)
	took := time.Since(began)
	l.must("bare reading", err)
	must.AtLeast(l.t, len(pairs), atLeast, "keys")
	return took
}

// join starts an agent without any state. It returns the times until the agent knows all services
// and until they are in its dataplane, and the agent's CPU time until then.
func (l *lab) join(a *agent, services int) (known, joined, cpu time.Duration) {
	l.t.Helper()
	l.must("stop", a.proc.Stop())
	l.must("forget", os.RemoveAll(filepath.Join(a.dir, "state")))
	began := time.Now()
	l.launch(a)
	for known == 0 || joined == 0 { // with requests that cost the agent little
		list, err := a.api.Sources(l.t.Context())
		has := 0
		for _, s := range list.Items {
			has += s.Services
		}
		switch {
		case err == nil && has == services && known == 0:
			known = time.Since(began)
		case known != 0 && a.api.Ready(l.t.Context()) == nil:
			joined, cpu = time.Since(began), process.CPUTime(l.t, a.proc.Pid())
		case time.Since(began) > maxWait:
			l.t.Fatalf("%s has not joined within %s: %+v %v", a.name, maxWait, list, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	l.awaitServices(a, services)
	return known, joined, cpu
}
