//go:build system

package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/consul"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/must"
)

// BenchmarkStart measures the start of 100 hosts at the same time, beside the start of one, in a
// fleet with 10,000 services: as many registrations and leases. The hosts are trees in this
// process.
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
	time.Sleep(3 * time.Second) // what came before ends, also the lock delays
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	trees := make([]*fleet.Tree, hosts)
	before := usageOf(b, s)
	for i := range trees {
		store := must.Get(consul.New(consul.Config{Address: s.URL, Token: s.Token}))(b)
		trees[i] = fleet.New(fleet.Options{KV: store, Clock: &table.Clock{}, Node: fmt.Sprint(name, i), Folders: []string{"leases", "services"}})
		running.Go(func() {
			defer store.Close()
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
