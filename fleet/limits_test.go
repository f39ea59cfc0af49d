//go:build system

package fleet_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/fleet/consul"
	"github.com/ironvip/ironvip/fleet/kv"
	"github.com/ironvip/ironvip/internal/table"
	"github.com/ironvip/ironvip/test/consultest"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/wait"
)

// limitRequests has a running server accept that many reads, and as many writes, per second.
func limitRequests(s *consultest.Server, rate float64) {
	s.Reload(map[string]any{"limits": map[string]any{
		"request_limits": map[string]any{"mode": "enforcing", "read_rate": rate, "write_rate": rate},
	}})
}

func unlimitRequests(s *consultest.Server) {
	s.Reload(map[string]any{"limits": map[string]any{"request_limits": map[string]any{"mode": "disabled"}}})
}

// counted is a connection to Consul that counts the calls, and has the times of the reads of the
// head.
type counted struct {
	*consul.Client
	mu    sync.Mutex
	calls int
	heads []time.Time
}

func (c *counted) count(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls++; key == "ironvip/v2/log/head" {
		c.heads = append(c.heads, time.Now())
	}
}

func (c *counted) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls, c.heads = 0, nil
}

func (c *counted) counts() (calls int, heads []time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls, c.heads
}

func (c *counted) Get(ctx context.Context, key string, q kv.Query) (*kv.Pair, uint64, error) {
	c.count(key)
	return c.Client.Get(ctx, key, q)
}

func (c *counted) List(ctx context.Context, prefix string, q kv.Query) ([]kv.Pair, uint64, error) {
	c.count(prefix)
	return c.Client.List(ctx, prefix, q)
}

func (c *counted) Txn(ctx context.Context, ops []kv.Op) (kv.Outcome, error) {
	c.count("")
	return c.Client.Txn(ctx, ops)
}

func (c *counted) NewSession(ctx context.Context, name string, ttl, lockDelay time.Duration) (string, error) {
	c.count("")
	return c.Client.NewSession(ctx, name, ttl, lockDelay)
}

func (c *counted) Renew(ctx context.Context, id string) (bool, error) {
	c.count("")
	return c.Client.Renew(ctx, id)
}

// While Consul refuses every request, a write fails with Consul's reason, and a host asks less and
// less often.
// Slow: it waits for a pause of more than two seconds between two attempts.
func TestBackOffFromRateLimit(t *testing.T) {
	t.Parallel()
	s := consultest.Start(t, consultest.Options{Memory: true})
	store := must.Get(consul.New(config(s)))(t)
	t.Cleanup(store.Close)
	link := &counted{Client: store}
	one := fleet.New(fleet.Options{KV: link, Clock: &table.Clock{}, Node: "one", Folders: folders})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = one.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	<-one.Folder("a").Ready()
	two := join(t, config(s), "two")
	put(t, one, "x", "1")

	limitRequests(s, 0.001)
	link.reset()
	b := &fleet.Batch{Writes: []fleet.Write{set("a", "y", "1", 0)}}
	if err := one.Commit(t.Context(), []*fleet.Batch{b}); !errors.Is(err, fleet.ErrUnavailable) || !strings.Contains(err.Error(), "rate limit exceeded") {
		t.Errorf("a write under the limit: %v, %v", err, b.Err)
	}
	wait.Until(t, "stale for the limit", func() bool { return strings.Contains(one.Stale(), "rate limit exceeded") })
	wait.Until(t, "two attempts are seconds apart", func() bool {
		_, heads := link.counts()
		n := len(heads)
		return n > 1 && heads[n-1].Sub(heads[n-2]) > 2*time.Second
	})
	if calls, heads := link.counts(); calls > 50 {
		t.Errorf("%d calls, %d of them for the head of the log, until the pauses were seconds", calls, len(heads))
	}
	expect.Equal(t, at(one, "a", "x"), "1", "what was known is gone")

	unlimitRequests(s)
	put(t, two, "x", "2")
	put(t, one, "y", "2")
	wantSameOn(t, s, one, two)
}
