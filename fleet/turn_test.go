package fleet_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

// busyWriters has hosts write, in total at that rate per second, until the context ends.
func busyWriters(ctx context.Context, seed uint64, hosts []*fleettest.Host, rate int, running *sync.WaitGroup) {
	for i, h := range hosts {
		running.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for n := 0; ctx.Err() == nil; n++ {
				write(ctx, h, fmt.Sprint("busy", i), n)
				time.Sleep(time.Duration(r.Int64N(2 * int64(len(hosts)) * int64(time.Second) / int64(rate))))
			}
		})
	}
}

func write(ctx context.Context, h *fleettest.Host, key string, n int) error {
	e, _, _ := h.Folder("a").Get(key)
	b := &fleet.Batch{Writes: []fleet.Write{set("a", key, fmt.Sprint(n), e.Index)}}
	if err := h.Commit(ctx, []*fleet.Batch{b}); err != nil {
		return err
	}
	return b.Err
}

// fast is how often five hosts write, and how long a packet of the slow one takes.
type fast struct {
	rate   int // per second
	oneWay time.Duration
}

var fastWriters = []fast{{20, 20 * time.Millisecond}, {40, 50 * time.Millisecond}, {100, 20 * time.Millisecond}}

// A host that is slower than the others can write, however often they do.
func TestSlowWriterGetsItsTurn(t *testing.T) {
	for _, f := range fastWriters {
		slowWriter(t, 1, f, 6)
	}
}

func slowWriter(t *testing.T, seed uint64, f fast, writes int) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		slow := kv.Start(t, "slow", folders, nil)
		var hosts []*fleettest.Host
		for i := range 5 {
			h := kv.Start(t, fmt.Sprint("fast", i), folders, nil)
			h.SetLate(time.Millisecond)
			h.SetSlow(time.Millisecond)
			hosts = append(hosts, h)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		busyWriters(ctx, seed, hosts, f.rate, &running)
		slow.SetLate(f.oneWay)
		slow.SetSlow(f.oneWay)
		r := rand.New(rand.NewPCG(seed, 99))
		for n := range writes {
			began := time.Now()
			must.Succeed(t, write(ctx, slow, "slow", n), "%+v", f)
			expect.AtMost(t, time.Since(began), 5*time.Second, "%+v: a write took", f)
			time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
		}
		cancel()
		running.Wait()
		time.Sleep(time.Second)
		wantSame(t, kv, append(hosts, slow)...)
	})
}

// A host that has taken the turn and is gone doesn't keep the others from writing.
func TestOwnerOfTheTurnIsGone(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		time.Sleep(5 * time.Second)
		kv.Put("ironvip/v2/log/turn", "of a host that is gone")
		for i, h := range hosts {
			began := time.Now()
			if err := write(t.Context(), h, fmt.Sprint("of", i), 1); err != nil || time.Since(began) > 10*time.Second {
				t.Errorf("host %d: %v after %v", i, err, time.Since(began))
			}
		}
		turn, exists := kv.Get("ironvip/v2/log/turn")
		expect.False(t, exists, "the turn is still there: %q", turn)
	})
}

// A writer that took the turn without an answer uses it.
func TestTurnWithLostAnswer(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		time.Sleep(time.Minute)
		var n, lost atomic.Int32
		hosts[0].Before(func(call fleettest.Call) error {
			switch {
			case call.Method != "Txn" || lost.Load() > 0:
			case call.Ops[0].Key == "ironvip/v2/log/turn":
				lost.Add(1)
				hosts[0].LoseAnswers(1)
			case call.Ops[0].Key == "ironvip/v2/log/head": // another host is quicker
				return write(t.Context(), hosts[1], "other", int(n.Add(1)))
			}
			return nil
		})
		began := time.Now()
		mustCommit(t, hosts[0], set("a", "x", "1", 0))
		if took := time.Since(began); took > 2*time.Second || lost.Load() == 0 {
			t.Errorf("a write took %v; lost: %v", took, lost.Load() > 0)
		}
		_, exists := kv.Get("ironvip/v2/log/turn")
		expect.False(t, exists, "the turn is still there")
	})
}

// A writer that has lost its turn to others, because it was slow, takes another one.
func TestTurnThatOthersHaveEnded(t *testing.T) {
	withThree(t, func(t *testing.T, kv *fleettest.Memory, hosts []*fleettest.Host) {
		time.Sleep(time.Minute)
		var n, turns atomic.Int32
		hosts[0].Before(func(call fleettest.Call) error {
			switch {
			case call.Method != "Txn":
			case call.Ops[0].Key == "ironvip/v2/log/turn":
				turns.Add(1)
			case call.Ops[0].Key == "ironvip/v2/log/head" && turns.Load() < 2:
				kv.Delete("ironvip/v2/log/turn")
				return write(t.Context(), hosts[1], "other", int(n.Add(1)))
			}
			return nil
		})
		mustCommit(t, hosts[0], set("a", "x", "1", 0))
		expect.Equal(t, turns.Load(), 2, "turns")
	})
}
