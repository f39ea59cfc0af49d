package nft

import (
	"fmt"
	"math/bits"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/test/planetest"
	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// asked is what a Target has asked nftables for: lists of the elements of a set, lists of rules, and single elements.
type asked struct{ lists, rules, elements, rebuilds int }

type asking struct {
	mu sync.Mutex
	asked
}

// intercept is a netlink.Interceptor.
func (a *asking) intercept(b []byte, _ bool, send func([]byte) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for rest := b; len(rest) > 0; {
		h, _, next, err := netlink.NextMessage(rest)
		if err != nil {
			break
		}
		switch dump := h.Flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP; {
		case h.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM && dump:
			a.lists++
		case h.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM:
			a.elements++
		case h.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE:
			a.rules++
		case h.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE:
			a.rebuilds++
		}
		rest = next
	}
	return send(b)
}

func (a *asking) take() asked {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.asked
	a.asked = asked{}
	return out
}

// Among 600 services, the repair of an element asks for this element, and that of an address for nothing of the table. No
// set is listed, and the table isn't rebuilt.
func TestRepairCostsWhatWasTouched(t *testing.T) {
	need.Root(t)
	need.Program(t, "nft")
	lab := netlab.New(t)
	p := newPlane(t, lab.Director)
	count := &asking{}
	p.Faults = count.intercept
	var want []*vip.Frontend
	for _, u := range fleet(600) {
		want = append(want, u.New)
	}
	f, sticky := want[7], *want[8]
	sticky.Affinity = 1e9
	want[8] = &sticky
	limited := *want[9]
	limited.SourceRanges = append(limited.SourceRanges, pool4)
	want[9] = &limited
	l := planetest.NewLoop(t, p, -1, want...)
	<-l.Synced()
	o, s := originOf(f.Key), p.content.services[f.Key]
	other := p.content.services[sticky.Key]
	number := func(s *service) string { return fmt.Sprintf("0x%08x", bits.ReverseBytes32(s.number)) }
	slot := func(i int) string { return fmt.Sprintf("%s . 0x%08x", number(s), i) }
	listener := fmt.Sprintf("%s . tcp . %d", f.Key.Addr, f.Key.Port)
	do := func(what, set, element string) string {
		return fmt.Sprintf("%s element inet ironvip_nft %s { %s }", what, set, element)
	}
	services, slots := "services4_"+o.String(), "slots4_"+o.String()
	for _, c := range []struct {
		command  string
		elements int
	}{
		{do("delete", services, listener), 1},
		{do("delete", slots, slot(0)), 1},
		{do("delete", slots, slot(0)) + "; " + do("add", slots, slot(0)+" : 192.0.2.1 . 80"), 1},
		{do("add", slots, slot(100)+" : 192.0.2.1 . 80"), 1},
		{do("add", services, "192.0.2.1 . tcp . 80 : 0x00200001"), 1},
		{do("delete", "totals4_in", listener), 1},
		{"flush set inet ironvip_nft vips4", 3},
		{do("add", "vips4", "192.0.2.1"), 1},
		{"flush map inet ironvip_nft members4", 10},
		{"flush set inet ironvip_nft allowed4", 1},
		{do("delete", "choices4_"+originOf(sticky.Key).String(), number(other)+" . 0x00000000"), 1},
		{"", 0},
	} {
		before := l.Stats()
		count.take()
		if c.command == "" {
			lab.Director.Bounce("ironvip0", netip.MustParsePrefix("10.96.0.1/32"))
		} else {
			lab.Director.Run("nft", c.command)
		}
		wait.For(t, c.command, func() error {
			if l.Stats().DriftRepairs == before.DriftRepairs {
				return fmt.Errorf("nothing is repaired")
			}
			return nil
		})
		got := count.take()
		// Apply asks again if the kernel has sent the rest of the events meanwhile.
		if got.lists+got.rules+got.rebuilds > 0 || got.elements < c.elements || got.elements > 3*c.elements {
			t.Errorf("%s: %d lists, %d lists of rules, %d elements and %d rebuilds", c.command, got.lists, got.rules, got.elements, got.rebuilds)
		}
		if now := l.Stats(); now.LastResync != before.LastResync {
			t.Errorf("%s: everything was read", c.command)
		}
	}
	l.Stop()
	p.Node.Do(func() {
		expect.Equal(t, must.Get(p.compare(t.Context()))(t).State, drift.Whole, "in the end")
	})
}
