package fleet_test

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
)

func TestNodesInAStorm(t *testing.T) { nodesStorm(t, 0, 30) }

// nodesStorm causes random faults. Despite failing sessions, calls and answers, hosts with different names never treat each other as
// duplicates by name. Some time after the last fault, all know which hosts are present, what each
// publishes, and which one is elected.
func nodesStorm(t *testing.T, seed uint64, faults int) {
	bubble.Test(t, func(t *testing.T) { nodesStormInBubble(t, seed, faults) })
}

func nodesStormInBubble(t *testing.T, seed uint64, faults int) {
	kv := fleettest.NewMemory()
	hosts := startThree(t, kv)
	names := []string{"one", "two", "three"}
	revision := &atomic.Uint64{}
	for _, h := range hosts {
		h.SetNode(func() membership.Node { return membership.Node{Revision: revision.Load()} })
	}
	time.Sleep(30 * time.Second)
	r := rand.New(rand.NewPCG(seed, 0))
	watch := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			for i, h := range hosts {
				if h.Duplicate() != nil || h.Ended() != nil {
					t.Fatalf("%s takes itself for another: %v, %v", names[i], h.Problems(), h.Ended())
				}
			}
		}
	}
	for range faults {
		revision.Add(1)
		nodesTrouble(r, kv, hosts[r.IntN(len(hosts))], watch)
		watch(time.Duration(r.IntN(8000)) * time.Millisecond)
	}
	revision.Add(1)
	watch(2 * time.Minute) // longer than between two writes of a row
	for i, h := range hosts {
		nodes, err := h.Nodes(t.Context())
		if err != nil || len(nodes) != len(hosts) {
			t.Fatalf("%s: %d nodes, %v", names[i], len(nodes), err)
		}
		leaders := 0
		for _, n := range nodes {
			if n.Elected {
				leaders++
			}
			if n.Elected != (n.Name == h.Elected()) {
				t.Errorf("%s takes %q for elected, and of %s the row says %v", names[i], h.Elected(), n.Name, n.Elected)
			}
			expect.Equal(t, n.Revision, revision.Load(), "%s says revision %d of itself", n.Name, n.Revision)
			if away := h.AwayFor(n.Name); away != 0 {
				t.Errorf("%s takes %s for away since %v", names[i], n.Name, away)
			}
		}
		if leaders != 1 || h.Mine() != (h.Elected() == names[i]) || !h.OwnName() {
			t.Errorf("%s: %d elected, its turn %v with %q elected, its own name %v", names[i], leaders, h.Mine(), h.Elected(), h.OwnName())
		}
	}
	if kv.Sessions() != len(hosts) {
		t.Errorf("%d sessions of %d hosts", kv.Sessions(), len(hosts))
	}
}

// nodesTrouble causes a fault for one host, or for all, and ends it.
func nodesTrouble(r *rand.Rand, kv *fleettest.Memory, h *fleettest.Host, watch func(time.Duration)) {
	short, long := time.Duration(r.IntN(4000))*time.Millisecond, time.Duration(r.IntN(40))*time.Second
	switch r.IntN(8) {
	case 0:
		h.SetDown(true)
		watch(long)
		h.SetDown(false)
	case 1:
		kv.SetDown(true)
		watch(long)
		kv.SetDown(false)
	case 2:
		h.LoseAnswers(1 + r.IntN(4))
		watch(long)
		h.LoseAnswers(0)
	case 3:
		h.SetSlow(short)
		watch(long)
		h.SetSlow(0)
	case 4:
		h.SetLate(short)
		watch(long)
		h.SetLate(0)
	case 5:
		kv.ExpireSessions()
	case 6:
		kv.Restore(kv.Snapshot(), r.IntN(2) == 0)
	case 7: // some calls fail
		var calls atomic.Int32
		every := 2 + r.Int32N(3)
		h.Before(func(fleettest.Call) error {
			if calls.Add(1)%every == 0 {
				return fleettest.ErrDown
			}
			return nil
		})
		watch(long)
		h.Before(nil)
	}
}
