//go:build linux

package drift_test

import (
	"context"
	"log/slog"
	"net/netip"
	"os/exec"
	"sync/atomic"
	"testing"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/internal/netlink/watch"
	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

var key = vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: vip.TCP}

// A table that another program changes asks for a read, with the program. Own transactions don't, also after an error has
// closed the table's socket.
func TestLooksAtTheTable(t *testing.T) {
	need.Program(t, "nft")
	node := netlab.NewLAN(t, "host").Nodes[0]
	node.Do(func() {
		ctx := context.Background()
		var messages atomic.Uint64
		table := filter.New("ironvip", &messages)
		w := drift.Open(ctx, watch.Options{Table: "ironvip"}, table.Open, slog.New(slog.DiscardHandler))
		must.True(t, w.Watcher != nil, "not watched")
		defer table.Close()
		defer w.Close()
		look := func(what string, want bool) string {
			t.Helper()
			s, err := drift.Check[vip.FrontendKey, vip.Frontend](ctx, &w)
			if err != nil || s.Unknown != want {
				t.Fatalf("%s: %+v, %v", what, s, err)
			}
			return s.By
		}
		run := func(args ...string) {
			t.Helper()
			if out, err := exec.Command("nft", args...).CombinedOutput(); err != nil {
				t.Fatalf("nft %v: %v: %s", args, err, out)
			}
		}
		change := filter.Change{filter.AddrElement(filter.SetVIPs, key.Addr): true}
		rebuild := func() {
			t.Helper()
			must.Succeed(t, table.Rebuild(ctx, &netipx.IPSet{}, change))
		}
		rebuild()
		must.Succeed(t, table.Apply(ctx, change))
		look("own changes", false)
		run("flush", "ruleset")
		if by := look("flush", true); len(by) < 4 || by[:3] != "nft" {
			t.Errorf("changed by %q", by)
		}
		rebuild()
		look("the repair", false)
		run("flush", "set", "inet", "ironvip", "vips4")
		look("an altered element", true)
		run("add", "table", "inet", "other")
		look("another table", false)

		table.Close()
		rebuild() // on a new socket, which the filter in the kernel doesn't know
		look("the first transaction on a new socket", true)
		rebuild()
		look("the second one", false)
	})
}
