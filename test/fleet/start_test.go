//go:build system

package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/process"
)

// BenchmarkStart measures the start of 100 hosts at the same time, beside the start of one, in a
// fleet with 10,000 services: as many registrations and leases. The hosts are trees in this
// process. There is no snapshot of the tree before each start, as after a power failure.
func BenchmarkStart(b *testing.B) {
	const services, hosts, singles = 10_000, 100, 5
	for range b.N {
		s := consultest.Start(b, consultest.Options{Config: map[string]any{"limits": map[string]any{"http_max_conns_per_client": 8000}}})
		fill(b, s, services)
		var one usage // the mean
		for i := range singles {
			used := measureStart(b, s, fmt.Sprint("single", i, "-"), 1)
			one.consul += used.consul / singles
			one.agents += used.agents / singles
			one.time += used.time / singles
			one.bytes += used.bytes / singles
		}
		all := measureStart(b, s, "host", hosts)
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(one.consul.Seconds()*1e3, "one-consul-ms")
		b.ReportMetric(all.consul.Seconds()*1e3, "all-consul-ms")
		b.ReportMetric(all.consul.Seconds()/one.consul.Seconds(), "all/one-consul")
		b.ReportMetric(one.agents.Seconds()*1e3, "one-agent-ms")
		b.ReportMetric(all.agents.Seconds()*1e3/hosts, "all-agent-ms/host")
		b.ReportMetric(one.bytes/1e6, "one-MB")
		b.ReportMetric(all.bytes/1e6/hosts, "all-MB/host")
		b.ReportMetric(one.time.Seconds()*1e3, "one-ms")
		b.ReportMetric(all.time.Seconds()*1e3, "all-ms")
		// With two processors, the CPU time of the hosts alone takes half of it.
		b.ReportMetric(all.time.Seconds()/(hosts*one.agents.Seconds()/2), "all/bound")
	}
}

// fill writes that many registrations and leases to the tree of a fleet.
func fill(b *testing.B, s *consultest.Server, services int) {
	b.Helper()
	var ops api.TxnOps
	for i := range services {
		lease := fmt.Appendf(nil, `{"v":1,"value":{"pool":"cluster","state":"held","since":1763928000000,"holders":[{"service":"default/service-%d","source":"rest","since":1763928000000}]}}`, i)
		service := fmt.Appendf(nil, `{"v":1,"value":{"service":{"name":"service-%d","ports":[{"name":"http","port":80,"protocol":"TCP"}]},"backends":[{"address":"10.%d.%d.1","port":8080},{"address":"10.%d.%d.2","port":8080}],"owner":"host1"}}`,
			i, i>>8, i&255, i>>8, i&255)
		ops = append(ops, &api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: fmt.Sprintf("ironvip/v2/tree/leases/10.200.%d.%d", i>>8, i&255), Value: lease}},
			&api.TxnOp{KV: &api.KVTxnOp{Verb: api.KVSet, Key: fmt.Sprintf("ironvip/v2/tree/services/default/service-%d", i), Value: service}})
	}
	for some := range slices.Chunk(ops, 128) {
		if ok, answer, _, err := s.Client.Txn().Txn(some, nil); err != nil || !ok {
			b.Fatalf("%v %+v", err, answer)
		}
	}
}

// measureStart starts that many hosts at the same time and waits until all have the tree. It ends
// them afterwards.
func measureStart(b *testing.B, s *consultest.Server, name string, hosts int) usage {
	b.Helper()
	must.Get(s.Client.KV().DeleteTree("ironvip/v2/snapshot/", nil))(b)
	time.Sleep(3 * time.Second) // what came before ends, also the lock delays
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	trees := make([]*fleet.Tree, hosts)
	before := usageOf(b, s)
	for i := range trees {
		kv := must.Get(consulkv.New(consulkv.Config{Address: s.URL, Token: s.Token}))(b)
		trees[i] = fleet.New(fleet.Options{KV: kv, Clock: &table.Clock{}, Node: fmt.Sprint(name, i), Folders: []string{"leases", "services"}})
		running.Go(func() {
			defer kv.Close()
			_ = trees[i].Run(ctx)
		})
	}
	for i, tree := range trees {
		select {
		case <-tree.Folder("services").Ready():
		case <-time.After(5 * time.Minute):
			b.Fatalf("host %d is not ready: %s", i, tree.Stale())
		}
	}
	used := usageOf(b, s).since(before)
	if leader, err := s.Client.Status().Leader(); err != nil || leader == "" {
		b.Errorf("Consul has no leader after the start of %d hosts: %v", hosts, err)
	}
	return used
}

// BenchmarkStartAgents measures the start of that many agents at the same time in a fleet with
// 10,000 services, beside the start of one: whole agents with the proxy dataplane, each in its own
// namespace, without state. There is no snapshot of the tree before each start, as after a power
// failure. Each agent needs 0.2 GB of memory with its sockets.
func BenchmarkStartAgents(b *testing.B) {
	for _, agents := range []int{10, 50, 100} {
		b.Run(fmt.Sprint(agents), func(b *testing.B) { measureAgents(b, agents) })
	}
}

func measureAgents(b *testing.B, hosts int) {
	const services, singles = 10_000, 3
	l := newLab(b, shape{servers: 1, agents: 1, reuse: time.Hour, pool: netip.MustParsePrefix("127.96.0.0/17")})
	l.fill(services)
	l.must("stop", l.agents[0].proc.Stop())
	var agents []*agent
	for i := range hosts {
		agents = append(agents, l.newAgent(fmt.Sprintf("host%d", i)))
	}
	b.ResetTimer()
	for range b.N {
		var one agentStart // the mean
		for i := range singles {
			single := l.startAtOnce(agents[i:i+1], services)
			one.consul += single.consul / singles
			one.agents += single.agents / singles
			one.took += single.took / singles
		}
		all := l.startAtOnce(agents, services)
		b.ReportMetric(one.consul.Seconds()*1e3, "one-consul-ms")
		b.ReportMetric(all.consul.Seconds()*1e3, "all-consul-ms")
		b.ReportMetric(all.consul.Seconds()/one.consul.Seconds(), "all/one-consul")
		b.ReportMetric(one.agents.Seconds()*1e3, "one-agent-ms")
		b.ReportMetric(all.agents.Seconds()*1e3/float64(hosts), "all-agent-ms/host")
		b.ReportMetric(one.took.Seconds(), "one-s")
		b.ReportMetric(all.took.Seconds(), "all-s")
		// With two processors, the CPU time of the agents alone takes half of it.
		b.ReportMetric(all.took.Seconds()/(float64(hosts)*one.agents.Seconds()/2), "all/bound")
		b.ReportMetric(float64(all.memory>>20)/float64(hosts), "MB/agent")
		b.ReportMetric(float64(all.looks), "looks")
		b.ReportMetric(float64(all.leaderless), "looks-without-leader")
		b.ReportMetric(all.slowest.Seconds()*1e3, "slowest-look-ms")
	}
	b.ReportMetric(0, "ns/op")
}

// agentStart is what a start of some agents took.
type agentStart struct {
	consul, agents    time.Duration // CPU time
	took              time.Duration // until all were in sync
	memory            int64         // resident bytes of the agents at the end, shared pages divided among them
	looks, leaderless int           // how often Consul was asked for its leader, and had none
	slowest           time.Duration // of these requests
}

// startAtOnce starts agents without state, waits until all are in sync, and stops them.
func (l *lab) startAtOnce(agents []*agent, services int) (out agentStart) {
	l.t.Helper()
	s := l.servers[0]
	_, err := s.Client.KV().DeleteTree("ironvip/v2/snapshot/", nil)
	l.must("delete the snapshot", err)
	time.Sleep(3 * time.Second) // what came before ends, also the lock delays
	ctx, stop := context.WithCancel(l.t.Context())
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		for ctx.Err() == nil {
			began := time.Now()
			leader, err := s.Client.Status().LeaderWithQueryOptions(query(ctx))
			if errors.Is(err, context.Canceled) {
				return
			}
			out.looks++
			out.slowest = max(out.slowest, time.Since(began))
			if err != nil || leader == "" {
				out.leaderless++
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	consul, began := process.CPUTime(l.t, s.Pid()), time.Now()
	for _, a := range agents {
		l.launch(a)
	}
	for _, a := range agents { // one request at a time: they cost the agents little
		l.within(10*time.Minute, a.name+" is in sync", func(ctx context.Context) error { return inSync(ctx, a, services) })
	}
	out.took = time.Since(began)
	out.consul = process.CPUTime(l.t, s.Pid()) - consul
	stop()
	<-looked
	for _, a := range agents {
		out.agents += process.CPUTime(l.t, a.proc.Pid())
		out.memory += proportional(l.t, a.proc.Pid())
	}
	var stopping errgroup.Group
	for _, a := range agents {
		stopping.Go(func() error { return errors.Join(a.proc.Stop(), os.RemoveAll(filepath.Join(a.dir, "state"))) })
	}
	l.must("stop", stopping.Wait())
	return out
}

// proportional returns the resident bytes of a process. Pages that processes share are divided
// among them.
func proportional(t testing.TB, pid int) int64 {
	t.Helper()
	text := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)))(t)
	for line := range strings.Lines(string(text)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "Pss: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	t.Fatalf("no proportional size in %s", text)
	return 0
}
