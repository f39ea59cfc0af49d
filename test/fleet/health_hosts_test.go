//go:build system

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/health/probe"
	"github.com/ironvip/ironvip/health/share"
	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/internal/fleet/consulkv"
	"github.com/ironvip/ironvip/internal/fleet/roster"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// The size of the fleet, the backends that fail at once in the test and in the benchmark, and some
// others. Each of the first backends runs on one of the hosts.
const (
	checkHosts       = 100
	checkFailing     = 200
	benchmarkFailing = 1000
	checkOthers      = 20
)

// checkBackends are all addresses of 127.45.0.0/16 at one port: one socket serves them. It
// counts their probes.
type checkBackends struct {
	listener net.Listener
	port     uint16
	mu       sync.Mutex
	down     map[netip.Addr]bool
	probes   map[netip.Addr]int
}

func serveCheckBackends(t testing.TB) *checkBackends {
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &checkBackends{listener: l, port: uint16(l.Addr().(*net.TCPAddr).Port), down: map[netip.Addr]bool{}, probes: map[netip.Addr]int{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			at := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
			b.mu.Lock()
			b.probes[at]++
			down := b.down[at]
			b.mu.Unlock()
			if !down {
				_, _ = io.WriteString(c, "ok") // the probe sees whether it has arrived
			}
			c.Close()
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	return b
}

// target returns the n-th backend with its check: it must answer "ok". The timeout is long, so that
// a busy machine makes no failures.
func (b *checkBackends) target(n int) probe.Target {
	return probe.NewTarget(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 45, byte(n >> 8), byte(n)}), b.port), vip.HealthCheck{Type: vip.CheckTCP, Expect: "ok", Timeout: 20 * time.Second})
}

func (b *checkBackends) setDown(down bool, targets ...probe.Target) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range targets {
		b.down[t.Addr.Addr()] = down
	}
}

// counts returns the number of probes of each backend so far.
func (b *checkBackends) counts(targets []probe.Target) []int {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]int, len(targets))
	for i, t := range targets {
		out[i] = b.probes[t.Addr.Addr()]
	}
	return out
}

// checkHost is the health part of an agent: its copy of the tree, and its probes.
type checkHost struct {
	name    string
	kv      *checkKV
	share   *share.Share
	engine  *probe.Engine
	results *table.Table[probe.Target, probe.Result]
	stop    func()
}

// checkKV counts the transactions of a host that write verdicts.
type checkKV struct {
	consulkv.Store
	verdicts atomic.Int64
	votes    atomic.Int64 // the verdicts in them
}

func (k *checkKV) Txn(ctx context.Context, ops []consulkv.Op) (consulkv.Outcome, error) {
	n := 0
	for _, op := range ops {
		if op.Verb == consulkv.Cas && strings.HasPrefix(op.Key, "ironvip/v2/tree/"+share.Folder+"/") {
			n++
		}
	}
	if n > 0 {
		k.verdicts.Add(1)
		k.votes.Add(int64(n))
	}
	return k.Store.Txn(ctx, ops)
}

// checkPath is the way to Consul of one host, which can be cut.
type checkPath struct {
	listener net.Listener
	to       string
	mu       sync.Mutex
	cut      bool
	conns    []net.Conn
}

func newCheckPath(t testing.TB, to string) *checkPath {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &checkPath{listener: l, to: to}
	t.Cleanup(func() { l.Close(); p.setCut(true) })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // the end of the test
			}
			out, err := net.Dial("tcp", to)
			if err != nil || !p.keep(in, out) {
				in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			go func() { _, _ = io.Copy(in, out); in.Close() }()
		}
	}()
	return p
}

// keep reports whether the path is not cut, and closes the connections when it is.
func (p *checkPath) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		for _, c := range conns {
			c.Close()
		}
		return false
	}
	p.conns = append(p.conns, conns...)
	return true
}

func (p *checkPath) setCut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut = cut; cut {
		for _, c := range p.conns {
			c.Close()
		}
		p.conns = nil
	}
}

// startCheckHost starts a host that has all targets.
func startCheckHost(t testing.TB, config consulkv.Config, number int, targets []probe.Target) *checkHost {
	t.Helper()
	kv, err := consulkv.New(config)
	if err != nil {
		t.Fatal(err)
	}
	clock := &table.Clock{}
	h := &checkHost{name: fmt.Sprintf("host%d", number), kv: &checkKV{Store: kv}, results: probe.NewResults(clock)}
	tree := fleet.New(fleet.Options{KV: h.kv, Clock: clock, Node: h.name, Folders: append(roster.Folders(), share.Folder)})
	hosts, verdicts, own := roster.New(tree, h.name, roster.Member{}, nil), share.Verdicts(tree), probe.NewResults(clock)
	h.share = share.New(share.Options{Node: h.name, Probers: share.ProbersAuto, Own: own, Results: h.results,
		Members: hosts.Rows(), WasThere: hosts.WasThere, Verdicts: verdicts, Tree: tree,
		NewEngine: func(restored func(probe.Target) (probe.Result, bool)) share.Engine {
			h.engine = probe.New(probe.Options{Results: own, Restored: restored, Sockets: 200, Requests: 1})
			return h.engine
		}})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = tree.Run(ctx) })
	running.Go(func() {
		select {
		case <-tree.Folder(share.Folder).Ready():
		case <-ctx.Done():
			return
		}
		for i, one := range targets {
			h.share.Start(one, i == number)
		}
		running.Go(func() { _ = hosts.Run(ctx) })
		_ = h.share.Run(ctx)
	})
	h.stop = sync.OnceFunc(func() { stop(); running.Wait(); kv.Close() })
	t.Cleanup(h.stop)
	return h
}

// probes returns how many of the targets the host probes.
func (h *checkHost) probes(targets ...probe.Target) (n int) {
	for _, t := range targets {
		if _, ok := h.engine.Detail(t); ok {
			n++
		}
	}
	return n
}

// awaitOnHosts waits until targets have a health on all hosts.
func awaitOnHosts(t testing.TB, hosts []*checkHost, health vip.Health, targets ...probe.Target) time.Duration {
	t.Helper()
	began := time.Now()
	wait.For(t, fmt.Sprintf("%d targets are %s on %d hosts", len(targets), health, len(hosts)), func() error {
		for _, h := range hosts {
			for _, one := range targets {
				if r, _, _ := h.results.Get(one); r.Health != health {
					return fmt.Errorf("%s is %s on %s: %s", one, healthWord(r.Health), h.name, r.Reason)
				}
			}
		}
		return nil
	})
	return time.Since(began)
}

func healthWord(h vip.Health) string {
	if h == 0 {
		return "not there"
	}
	return h.String()
}

// entriesOf returns the number of entries in the fleet's log.
func entriesOf(t testing.TB, s *consultest.Server) (n uint64) {
	t.Helper()
	pair, _, err := s.Client.KV().Get("ironvip/v2/log/head", nil)
	if err == nil && pair == nil {
		err = errors.New("there is none")
	}
	var head struct{ Seq uint64 }
	if err == nil {
		err = json.Unmarshal(pair.Value, &head)
	}
	if err != nil {
		t.Fatalf("head of the log: %v", err)
	}
	return head.Seq
}

// A fleet of 100 hosts with a real Consul and real probes. A backend gets the probes of at most four
// of them, and a change of its health reaches all through the log, with few transactions.
func TestHealthOfHundredHosts(t *testing.T) {
	t.Parallel()
	hundredHosts(t, checkFailing)
}

// BenchmarkHealthOfHundredHosts has more backends that fail.
func BenchmarkHealthOfHundredHosts(b *testing.B) {
	for range b.N {
		hundredHosts(b, benchmarkFailing)
	}
}

func hundredHosts(t testing.TB, fail int) {
	s := consultest.Start(t, consultest.Options{Config: map[string]any{"limits": map[string]any{"http_max_conns_per_client": 8000}}})
	backends := serveCheckBackends(t)
	var targets []probe.Target
	for n := range fail + checkOthers {
		targets = append(targets, backends.target(n))
	}
	failing, others := targets[:fail], targets[fail:]
	path := newCheckPath(t, s.Addr.String()) // of the last host
	var hosts []*checkHost
	for i := range checkHosts {
		config := consulkv.Config{Address: s.URL, Token: s.Token}
		if i == checkHosts-1 {
			config.Address = path.listener.Addr().String()
		}
		hosts = append(hosts, startCheckHost(t, config, i, targets))
	}
	writes := func() (transactions, votes int64) {
		for _, h := range hosts {
			transactions += h.kv.verdicts.Load()
			votes += h.kv.votes.Load()
		}
		return transactions, votes
	}
	awaitOnHosts(t, hosts, vip.Healthy, targets...)

	// The probes of each backend.
	probers := func(target probe.Target) (list []*checkHost) {
		for _, h := range hosts {
			if h.probes(target) > 0 {
				list = append(list, h)
			}
		}
		return list
	}
	wait.For(t, "each backend has its probers only", func() error {
		for i, one := range targets {
			list := probers(one)
			if len(list) < 3 || len(list) > 4 || len(list) == 4 && !slices.Contains(list, hosts[i]) {
				return fmt.Errorf("%s is probed by %d hosts", one, len(list))
			}
		}
		return nil
	})
	interval, entries, began := targets[0].Check().Interval, entriesOf(t, s), time.Now()
	before := backends.counts(targets)
	time.Sleep(10 * time.Second)
	most := int(float64(time.Since(began))/(0.8*float64(interval)) + 2) // of one prober
	for i, n := range backends.counts(targets) {
		if n -= before[i]; n == 0 || n > 4*most {
			t.Errorf("%s got %d probes, at most %d from each prober", targets[i], n, most)
		}
	}
	if n := entriesOf(t, s) - entries; n > 1 { // the leader may have written digests
		t.Errorf("%d entries of the log at rest", n)
	}

	// One backend fails.
	transactions, _ := writes()
	backends.setDown(true, others[0])
	took := awaitOnHosts(t, hosts, vip.Unhealthy, others[0])
	after, _ := writes()
	t.Logf("one backend: all hosts after %v, %d transactions", took.Round(time.Millisecond), after-transactions)
	if after-transactions > 4 {
		t.Errorf("a change took %d transactions", after-transactions)
	}

	// Many backends fail.
	entries = entriesOf(t, s)
	transactions, votes := writes()
	backends.setDown(true, failing...)
	took = awaitOnHosts(t, hosts, vip.Unhealthy, failing...)
	after, afterVotes := writes()
	committed := entriesOf(t, s) - entries
	t.Logf("%d backends: all hosts after %v, %d entries of the log, %d transactions sent with %d votes", len(failing), took.Round(time.Millisecond), committed, after-transactions, afterVotes-votes)
	if committed > 200 { // one for each two votes
		t.Errorf("%d entries of the log for %d backends", committed, len(failing))
	}
	awaitOnHosts(t, hosts, vip.Healthy, others[1:]...)
	backends.setDown(false, failing...)
	awaitOnHosts(t, hosts, vip.Healthy, failing...)

	// One host is cut off from Consul, and a prober is killed. A backend of it fails before anybody
	// else probes it.
	alone := hosts[checkHosts-1]
	own := alone.probes(targets...)
	path.setCut(true)
	lost := others[slices.IndexFunc(others, func(one probe.Target) bool { return one != others[0] && !slices.Contains(probers(one), alone) })]
	killed := probers(lost)[0]
	killed.stop()
	rest := slices.DeleteFunc(slices.Clone(hosts), func(h *checkHost) bool { return h == killed })
	backends.setDown(true, lost)
	took = awaitOnHosts(t, rest, vip.Unhealthy, lost)
	t.Logf("with one prober killed: all hosts after %v, also the one that is cut off", took.Round(time.Millisecond))
	if n := alone.probes(targets...); n != len(targets) {
		t.Errorf("the host that is cut off probes %d of %d targets", n, len(targets))
	}
	path.setCut(false)
	wait.For(t, "the host that was cut off follows the verdicts again", func() error {
		if n := alone.probes(targets...); n > own+len(targets)/5 { // it has some groups more than before
			return fmt.Errorf("it probes %d targets, %d before", n, own)
		}
		return nil
	})
	backends.setDown(false, lost, others[0])
	awaitOnHosts(t, rest, vip.Healthy, targets...)
}
