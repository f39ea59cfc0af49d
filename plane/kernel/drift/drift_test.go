//go:build linux

package drift_test

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os/exec"
	"sync/atomic"
	"testing"

	"go4.org/netipx"

	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
	"github.com/ironvip/ironvip/vip"
)

var key = vip.FrontendKey{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: vip.TCP}

// A table that another program changes is read once and reported with the program. Own transactions are not read, also after
// an error has closed the table's socket. An error of the reading makes the rest unknown.
func TestLooksAtTheTable(t *testing.T) {
	need.Program(t, "nft")
	node := netlab.NewLAN(t, "host").Nodes[0]
	node.Do(func() {
		ctx := context.Background()
		var messages atomic.Uint64
		table := filter.New("ironvip", 0x1000, &messages)
		w := drift.Open(ctx, "ironvip", table.Open, slog.New(slog.DiscardHandler))
		if w.Watcher == nil {
			t.Fatal("not watched")
		}
		defer table.Close()
		defer w.Close()
		records := usage.NewRecords(&netipx.IPSet{})
		records.Set(key, &vip.Frontend{Key: key, Kind: vip.OnVIP})

		reads, state, failure := 0, drift.Broken, error(nil)
		look := func(what string, wantReads, wantDamaged int, wantUnknown bool) string {
			t.Helper()
			reads = 0
			s, err := w.Check(ctx, records, nil, func(context.Context) (drift.TableState, error) {
				reads++
				return state, failure
			})
			if err != failure || reads != wantReads || len(s.Damaged) != wantDamaged || s.Unknown != wantUnknown {
				t.Fatalf("%s: %+v with %d reads, %v", what, s, reads, err)
			}
			if wantDamaged == 0 {
				return ""
			}
			return s.Damaged[0].By
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
			must.Succeed(t, table.Rebuild(ctx, records.Pods, change))
		}
		rebuild()
		must.Succeed(t, table.Apply(ctx, change))
		look("own changes", 0, 0, false)
		run("flush", "ruleset")
		if by := look("flush", 1, 1, false); len(by) < 4 || by[:3] != "nft" {
			t.Errorf("changed by %q", by)
		}
		rebuild()
		look("the repair", 0, 0, false)
		state = drift.Altered
		run("flush", "set", "inet", "ironvip", "vips4")
		look("an altered element", 1, 0, true)
		state = drift.Whole
		run("add", "chain", "inet", "ironvip", "other")
		look("nothing of ours", 1, 0, false)
		run("add", "table", "inet", "other")
		look("another table", 0, 0, false)
		failure = errors.New("no memory")
		run("delete", "chain", "inet", "ironvip", "other")
		look("a failed read", 1, 0, false)
		failure = nil

		table.Close()
		rebuild() // on a new socket, which the filter in the kernel doesn't know
		look("the first transaction on a new socket", 1, 0, false)
		rebuild()
		look("the second one", 0, 0, false)
	})
}
