//go:build system

package fleet

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/consul"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/process"
	"github.com/ironvip/ironvip/test/wait"
)

// The size of the measured tree, and the numbers of changes and of seconds at rest.
const (
	scaleValues  = 1000
	scaleChanges = 50
	scaleRest    = 90 * time.Second
)

// BenchmarkHosts measures the cost of a fleet of that many hosts: trees in this process, without
// dataplanes, that follow one Consul server. Every host has written before. The floor is that many
// plain followers of one key in the same run.
func BenchmarkHosts(b *testing.B) {
	for _, hosts := range []int{10, 100, 300, 1000} {
		b.Run(fmt.Sprint(hosts), func(b *testing.B) {
			for range b.N {
				measureHosts(b, hosts)
			}
		})
	}
}

func measureHosts(b *testing.B, hosts int) {
	s := consultest.Start(b, consultest.Options{Config: map[string]any{"limits": map[string]any{"http_max_conns_per_client": 8000}}})
	config := consul.Config{Address: s.URL, Token: s.Token}
	empty := usageOf(b, s)
	floor := followers(b, s, hosts)

	for i := range scaleValues {
		if _, err := s.Client.KV().Put(&api.KVPair{Key: fmt.Sprintf("ironvip/v2/tree/a/v%d", i), Value: bytes.Repeat([]byte("v"), 400)}, nil); err != nil {
			b.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	b.Cleanup(func() {
		stop()
		running.Wait()
	})
	arrivals := newArrivals(hosts)
	trees := make([]*fleet.Tree, hosts)
	started := usageOf(b, s)
	for i := range trees {
		store := must.Get(consul.New(config))(b)
		b.Cleanup(store.Close)
		tree := fleet.New(fleet.Options{KV: store, Clock: &table.Clock{}, Node: fmt.Sprintf("host%d", i), Folders: []string{"a"}})
		trees[i] = tree
		running.Go(func() { _ = tree.Run(ctx) })
		running.Go(func() { arrivals.follow(ctx, tree) })
	}
	for i, tree := range trees {
		select {
		case <-tree.Folder("a").Ready():
		case <-time.After(5 * time.Minute):
			b.Fatalf("host %d is not ready: %s", i, tree.Stale())
		}
	}
	start := usageOf(b, s).since(started)
	var writing sync.WaitGroup // 20 at a time
	for first := range 20 {
		writing.Go(func() {
			for i := first; i < hosts; i += 20 {
				commitTo(b, trees[i], fmt.Sprintf("host%d", i), "1")
			}
		})
	}
	writing.Wait()
	last := arrivals.expect("written")
	commitTo(b, trees[0], "changed", "written")
	<-last
	time.Sleep(5 * time.Second) // the pauses after these writes

	rested := usageOf(b, s)
	time.Sleep(scaleRest)
	rest := usageOf(b, s).since(rested)

	before := usageOf(b, s)
	var took []time.Duration
	for n := range scaleChanges {
		time.Sleep(time.Duration(hosts) * time.Millisecond) // longer than the pace of this many hosts
		value := fmt.Sprint("change", n)
		done := arrivals.expect(value)
		began := time.Now()
		commitTo(b, trees[rand.IntN(hosts)], "changed", value)
		<-done
		took = append(took, time.Since(began))
	}
	change := usageOf(b, s).since(before)
	change.consul -= time.Duration(float64(rest.consul) * change.time.Seconds() / rest.time.Seconds())
	change.agents -= time.Duration(float64(rest.agents) * change.time.Seconds() / rest.time.Seconds())
	change.bytes -= rest.bytes * change.time.Seconds() / rest.time.Seconds()

	end := usageOf(b, s)
	per := func(total float64, n int) float64 { return total / float64(n) / float64(hosts) }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(per(change.bytes, scaleChanges), "B/host/change")
	b.ReportMetric(per(change.consul.Seconds()*1e6, scaleChanges), "consul-us/host/change")
	b.ReportMetric(floor.consulPerFollower, "floor-us/host/write")
	b.ReportMetric(per(change.agents.Seconds()*1e6, scaleChanges), "agent-us/host/change")
	b.ReportMetric(float64(percentile(took, 50).Microseconds())/1e3, "p50-ms")
	b.ReportMetric(float64(percentile(took, 99).Microseconds())/1e3, "p99-ms")
	b.ReportMetric(floor.p50, "floor-p50-ms")
	b.ReportMetric(rest.bytes/scaleRest.Seconds()/float64(hosts), "idle-B/s/host")
	b.ReportMetric(per(rest.consul.Seconds()*1e6, int(scaleRest.Seconds())), "idle-consul-us/s/host")
	b.ReportMetric(start.bytes/float64(hosts), "start-B/host")
	b.ReportMetric(per(start.consul.Seconds()*1e3, 1), "start-consul-ms/host")
	b.ReportMetric((end.memory-empty.memory)/1024/float64(hosts), "consul-KB/host")
	b.ReportMetric((end.files-empty.files)/float64(hosts), "connections/host")
}

func commitTo(b *testing.B, tree *fleet.Tree, key, value string) {
	b.Helper()
	wait.Until(b, "a write", func() bool {
		e, _, _ := tree.Folder("a").Get(key)
		batch := &fleet.Batch{Writes: []fleet.Write{{Folder: "a", Key: key, Value: []byte(value), Index: e.Index}}}
		err := tree.Commit(b.Context(), []*fleet.Batch{batch})
		return err == nil && batch.Err == nil
	})
}

// arrivals counts the hosts that have received a value.
type arrivals struct {
	hosts int
	mu    sync.Mutex
	value string
	left  int
	done  chan struct{}
}

func newArrivals(hosts int) *arrivals { return &arrivals{hosts: hosts} }

// expect returns a channel that is closed when every host has that value.
func (a *arrivals) expect(value string) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.value, a.left, a.done = value, a.hosts, make(chan struct{})
	return a.done
}

func (a *arrivals) arrived(value string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if value != a.value {
		return
	}
	if a.left--; a.left == 0 {
		close(a.done)
	}
}

func (a *arrivals) follow(ctx context.Context, tree *fleet.Tree) {
	feed := tree.Folder("a").Watch()
	defer feed.Close()
	for {
		batch, err := feed.Next(ctx)
		if err != nil {
			return
		}
		for _, c := range batch {
			if c.Value.Key == "changed" {
				a.arrived(string(c.Value.Value))
			}
		}
	}
}

// floorCost is what plain followers of one key cost.
type floorCost struct{ consulPerFollower, p50 float64 }

// followers measures that many blocking queries of one key.
func followers(b *testing.B, s *consultest.Server, n int) floorCost {
	const key = "floor"
	must.Get(s.Client.KV().Put(&api.KVPair{Key: key}, nil))(b)
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	a := newArrivals(n)
	var ready atomic.Int64
	for range n {
		store := must.Get(consul.New(consul.Config{Address: s.URL, Token: s.Token}))(b)
		running.Go(func() {
			defer store.Close()
			after, counted := uint64(0), false
			for ctx.Err() == nil {
				p, index, err := store.Get(ctx, key, kv.Query{After: after, Wait: time.Minute})
				if err != nil {
					continue
				}
				if after = index; p != nil {
					a.arrived(string(p.Value))
				}
				if !counted {
					counted = true
					ready.Add(1)
				}
			}
		})
	}
	wait.Until(b, "all follow", func() bool { return ready.Load() == int64(n) })
	before := usageOf(b, s)
	var took []time.Duration
	for i := range scaleChanges {
		value := strings.Repeat("v", 400) + strconv.Itoa(i)
		done := a.expect(value)
		began := time.Now()
		must.Get(s.Client.KV().Put(&api.KVPair{Key: key, Value: []byte(value)}, nil))(b)
		<-done
		took = append(took, time.Since(began))
	}
	used := usageOf(b, s).since(before)
	return floorCost{used.consul.Seconds() * 1e6 / float64(scaleChanges*n), float64(percentile(took, 50).Microseconds()) / 1e3}
}

var benchmarkStarted = time.Now()

// usage is what Consul and this process have used until now.
type usage struct {
	bytes          float64 // that this process has sent and received
	memory, files  float64 // of Consul now: resident bytes, open descriptors
	consul, agents time.Duration
	time           time.Duration
}

func (u usage) since(before usage) usage {
	return usage{u.bytes - before.bytes, u.memory - before.memory, u.files - before.files, u.consul - before.consul, u.agents - before.agents, u.time - before.time}
}

func usageOf(b *testing.B, s *consultest.Server) (u usage) {
	b.Helper()
	io := must.Get(os.ReadFile("/proc/self/io"))(b)
	for line := range strings.Lines(string(io)) {
		name, count, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if name == "rchar" || name == "wchar" {
			n, _ := strconv.ParseFloat(count, 64)
			u.bytes += n
		}
	}
	statm := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/statm", s.Pid())))(b)
	pages, _ := strconv.ParseFloat(strings.Fields(string(statm))[1], 64)
	u.memory = pages * float64(os.Getpagesize())
	files := must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.Pid())))(b)
	u.files = float64(len(files))
	u.consul = process.CPUTime(b, s.Pid())
	var self syscall.Rusage
	must.Succeed(b, syscall.Getrusage(syscall.RUSAGE_SELF, &self))
	u.agents = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	u.time = time.Since(benchmarkStarted)
	return u
}
