//go:build system

package announce

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/wait"
)

// node waits until a host's list of nodes has another one in a state.
func (h *host) node(name, state string) v1.Node {
	h.t.Helper()
	var found v1.Node
	wait.For(h.t, h.Name+": "+name+" is "+state, func() error {
		list, err := h.api.Nodes(h.t.Context())
		for _, n := range list.Items {
			if n.Name == name && n.State == state {
				found = n
				return nil
			}
		}
		return fmt.Errorf("%v: %s", err, text(list))
	})
	return found
}

// A host of a pair that fails is lost on the other one, with the VIPs that it announced, until it
// returns. The other one takes its VIPs over.
// Slow: a host is lost after 3 s of silence.
func TestLostPeer(t *testing.T) {
	t.Parallel()
	l := newLab(t, 2, "missed = 30") // a busy machine moves no VIP
	a, b := l.hosts[0], l.hosts[1]
	owners := l.settled()
	owned := 0
	for _, owner := range owners {
		if owner == b.Name {
			owned++
		}
	}
	wait.For(t, "the number of its VIPs", func() error {
		if n := a.node(b.Name, v1.NodePresent); n.VIPCount == nil || *n.VIPCount != owned {
			return fmt.Errorf("%s", text(n))
		}
		return nil
	})
	began := time.Now()
	b.announcer.Kill()
	b.agent.Kill()
	a.awaitAll()
	n := a.node(b.Name, v1.NodeLost)
	if n.VIPCount == nil || *n.VIPCount != owned || len(n.VIPs) != owned || n.Since == nil || n.Since.Before(began.Add(-time.Second)) {
		t.Errorf("%s", text(n))
	}
	for _, vip := range n.VIPs {
		expect.Equal(t, owners[vip], b.Name, "%s was announced by", vip)
	}
	if out, err := a.run("status"); err == nil || !strings.Contains(out, "lb2 is lost: silent for") {
		t.Error(out)
	}
	if out, err := a.run("node", "forget", b.Name); err == nil || !strings.Contains(out, "announce.peers") {
		t.Error(out)
	}
	b.start()
	a.node(b.Name, v1.NodePresent)
	l.awaitThese(owners)
	wait.For(t, "its events", func() error {
		if out := a.must("events"); !strings.Contains(out, "node_lost") || !strings.Contains(out, "node_returned") || strings.Contains(out, "node_forgotten") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}

// moves returns how many moves the host has reported as events.
func (h *host) moves() int {
	h.t.Helper()
	out := h.must("events")
	return strings.Count(out, "vip_announced") + strings.Count(out, "vip_withdrawn")
}
