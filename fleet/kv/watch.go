package kv

import (
	"context"
	"sync"
	"time"

	"github.com/ironvip/ironvip/internal/backoff"
)

const (
	// HeldFor is how long a blocking query waits for a change.
	HeldFor = 5 * time.Minute
	// CallTimeout is the timeout of any other request.
	CallTimeout = 5 * time.Second
	// EndTimeout is the timeout for giving back what a host holds, at its end.
	EndTimeout = 2 * time.Second
	// MaxPause bounds the pause after repeated failures.
	MaxPause = 10 * time.Second

	// noNewsPause is the pause after a blocking query that has returned early without a change.
	noNewsPause = 100 * time.Millisecond
)

// NewBackoff returns the pauses between requests to a store that fails.
func NewBackoff() backoff.Backoff {
	return backoff.Backoff{Lo: 100 * time.Millisecond, Hi: MaxPause}
}

// Watch reads one key. With q.After, it is a blocking query. Early says that it has returned before
// its time without a change. Consul does that when a snapshot is restored; the next blocking query
// would wait until the index has passed the former one, so read without one.
func Watch(ctx context.Context, s Store, key string, q Query) (pair *Pair, index uint64, early bool, err error) {
	timeout := CallTimeout
	if q.After > 0 {
		timeout += q.Wait + q.Wait/8 // Consul adds up to a sixteenth
	}
	call, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	began := time.Now()
	pair, index, err = s.Get(call, key, q)
	if early = err == nil && q.After > 0 && index == q.After && time.Since(began) < q.Wait; early {
		backoff.Sleep(ctx, noNewsPause)
	}
	return pair, index, early, err
}

// Trust is whether any of Consul's servers may answer the blocking queries of this host. Otherwise
// only Consul's leader may. The zero Trust is that any may. It is safe for concurrent use.
type Trust struct {
	mu    sync.Mutex
	until time.Time // when any may answer again
}

const (
	lagFor   = time.Second
	doubtFor = 10 * time.Minute
)

// Any reports whether any server may answer.
func (t *Trust) Any() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().After(t.until)
}

// Lagged notes that the answer of a server was too old to be used. Consul's leader answers for a
// second.
func (t *Trust) Lagged() { t.suspend(lagFor) }

// Doubt notes that a server has kept this host behind. Consul's leader answers for ten minutes.
func (t *Trust) Doubt() { t.suspend(doubtFor) }

func (t *Trust) suspend(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if until := time.Now().Add(d); until.After(t.until) {
		t.until = until
	}
}
