package fleet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/internal/event"
	"github.com/ironvip/ironvip/internal/fleet"
	"github.com/ironvip/ironvip/internal/fleet/fleettest"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/vip"
)

// life is one agent of a host, with a way to the store of its own.
func life(t *testing.T, kv *fleettest.Memory, name, way string) (*fleettest.Host, *fleettest.Client, *event.Log) {
	t.Helper()
	events, client := event.NewLog(100, time.Now), kv.Client(way)
	h := kv.Run(t, fleet.Options{Node: name, Folders: folders, KV: client, Events: events}, nil)
	started := time.Now().UnixMilli()
	h.SetNode(func() fleet.Node { return fleet.Node{Since: started} })
	return h, client, events
}

func kinds(events *event.Log, kind string) (n int) {
	all, _ := events.Since(0)
	for _, e := range all {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func twinOf(h *fleettest.Host) vip.Problem {
	for _, p := range h.Problems() {
		if p.Code == vip.CodeNameTaken {
			return p
		}
	}
	return vip.Problem{}
}

// Two hosts of one name are told of on both, once each, and neither takes the
// name for its own; when one goes, the other has it.
func TestTwoHostsOfOneName(t *testing.T) {
	for _, first := range []bool{true, false} {
		bubble.Test(t, func(t *testing.T) {
			kv := fleettest.NewMemory()
			one, _, ones := life(t, kv, "lb/1", "a")
			other, _, _ := life(t, kv, "lb2", "c")
			time.Sleep(20 * time.Second)
			if !one.OwnName() {
				t.Error("alone, the name is not its own")
			}
			two, _, twos := life(t, kv, "lb/1", "b")
			for range 300 {
				time.Sleep(100 * time.Millisecond)
				if two.OwnName() {
					t.Fatal("the second takes the name for its own")
				}
			}
			if one.OwnName() {
				t.Error("after 30 s, the first still takes the name for its own")
			}
			time.Sleep(10 * time.Minute)
			for i, h := range []*fleettest.Host{one, two} {
				p := twinOf(h)
				if !strings.Contains(p.Message, `"lb/1"`) || !strings.Contains(p.Message, "started at") || !strings.Contains(p.Hint, "node.name") {
					t.Errorf("host %d: %+v", i, p)
				}
				if n := kinds([]*event.Log{ones, twos}[i], "fleet_name_taken"); n != 1 {
					t.Errorf("host %d: %d events", i, n)
				}
				if h.OwnName() {
					t.Errorf("host %d: the name is its own", i)
				}
			}
			if nodes, err := other.Nodes(t.Context()); err != nil || len(nodes) != 2 {
				t.Errorf("%v, %v", nodes, err)
			}
			if !other.OwnName() || len(other.Problems()) != 0 {
				t.Errorf("a host of another name: %v", other.Problems())
			}
			goes, stays, log := one, two, twos
			if !first {
				goes, stays, log = two, one, ones
			}
			goes.End()
			time.Sleep(30 * time.Second)
			if p := twinOf(stays); p.Message != "" || !stays.OwnName() || kinds(log, "fleet_name_free") != 1 {
				t.Errorf("30 s after the other's end: %v, own %v", p, stays.OwnName())
			}
			if left := kv.Pairs("ironvip/v1/nodes/lb%2F1?"); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// A host that starts anew and doesn't know its former session isn't taken for a
// second one, however often it does.
func TestRestartsAreNoTwin(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		h, client, events := life(t, kv, "lb1", "0")
		time.Sleep(20 * time.Second)
		for i, after := range []time.Duration{100 * time.Millisecond, 3 * time.Second, 8 * time.Second, 14 * time.Second} {
			client.SetDown(true) // nobody hears of its end
			h.End()
			h, client, events = life(t, kv, "lb1", string(rune('1'+i)))
			for range after / (100 * time.Millisecond) {
				time.Sleep(100 * time.Millisecond)
				if p := twinOf(h); p.Message != "" {
					t.Fatalf("restart %d: %v", i, p)
				}
			}
		}
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			if p := twinOf(h); p.Message != "" {
				t.Fatal(p)
			}
		}
		if !h.OwnName() || kinds(events, "fleet_name_taken") != 0 {
			t.Errorf("own %v a minute after the last start", h.OwnName())
		}
	})
}

// A host that was away for longer than its session lives finds its name taken.
func TestTheNameIsTakenMeanwhile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		kv := fleettest.NewMemory()
		one, client, _ := life(t, kv, "lb1", "a")
		time.Sleep(20 * time.Second)
		client.SetDown(true)
		time.Sleep(20 * time.Second)
		if one.OwnName() {
			t.Error("the name is its own when its session is over")
		}
		two, _, _ := life(t, kv, "lb1", "b")
		time.Sleep(20 * time.Second)
		if !two.OwnName() {
			t.Error("the second has the name to itself and doesn't know")
		}
		client.SetDown(false)
		for range 1000 {
			time.Sleep(100 * time.Millisecond)
			if one.OwnName() {
				t.Fatal("the name is its own again")
			}
		}
		if two.OwnName() || twinOf(one).Message == "" || twinOf(two).Message == "" {
			t.Errorf("%v, %v", one.Problems(), two.Problems())
		}
	})
}
