//go:build linux

package drift_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/kernel/drift"
	"github.com/ironvip/ironvip/plane/kernel/filter"
	"github.com/ironvip/ironvip/plane/kernel/usage"
	"github.com/ironvip/ironvip/test/expect"
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
		route := must.Get(netlink.Dial(unix.NETLINK_ROUTE, &netlink.Counters{}))(t)
		defer route.Close()
		w := drift.Open(ctx, "ironvip0", "ironvip", route.Port(), table.Open, slog.New(slog.DiscardHandler))
		if w == nil {
			t.Fatal("not watched")
		}
		defer table.Close()
		defer w.Close()
		records := usage.NewRecords(&netipx.IPSet{})
		records.Set(key, &vip.Frontend{Key: key, Kind: vip.OnVIP})

		var addresses usage.Addresses
		reads, state, failure := 0, drift.Broken, error(nil)
		look := func(what string, wantReads, wantDamaged int, wantUnknown bool) string {
			t.Helper()
			reads = 0
			s, err := w.Check(ctx, records, &addresses, nil, func(context.Context) (drift.TableState, error) {
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

// Thousands of deleted addresses are one change of one frontend, always the same one, and the next repair restores all.
func TestManyAddressesAreOneChange(t *testing.T) {
	node := netlab.NewLAN(t, "host").Nodes[0]
	node.Run("ip", "link", "add", "ironvip0", "type", "bridge")
	node.Run("ip", "link", "set", "ironvip0", "arp", "off", "up")
	node.Do(func() {
		ctx := context.Background()
		var messages atomic.Uint64
		table := filter.New("ironvip", 0x1000, &messages)
		defer table.Close()
		w := drift.Open(ctx, "ironvip0", "ironvip", netlink.NoPort, table.Open, slog.New(slog.DiscardHandler))
		if w == nil {
			t.Fatal("not watched")
		}
		defer w.Close()
		records := usage.NewRecords(&netipx.IPSet{})
		var addresses usage.Addresses
		var commands strings.Builder
		const many = 100
		for i := range many {
			k := key
			k.Addr = netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})
			records.Set(k, &vip.Frontend{Key: k, Kind: vip.OnVIP})
			fmt.Fprintf(&commands, "route replace local %s scope host table local dev ironvip0 proto 178 metric 178\n", k.Addr)
		}
		reported := map[vip.FrontendKey]bool{}
		look := func(command string, want int) (what string) {
			t.Helper()
			if out, err := node.Feed(commands.String(), "ip", "-batch", "-"); err != nil {
				t.Fatal(err, out)
			}
			addresses.Lost = false
			node.Run("sh", "-c", command)
			s, err := w.Check(ctx, records, &addresses, nil, func(context.Context) (drift.TableState, error) { return drift.Whole, nil })
			if err != nil || len(s.Damaged) != want || s.Unknown || addresses.Lost != (want == 1) {
				t.Fatalf("%s: %d found, %v, lost %v", command, len(s.Damaged), err, addresses.Lost)
			}
			if want == 1 {
				reported[s.Damaged[0].Key] = true
			}
			return s.Damaged[0].What
		}
		for range 10 {
			if what := look("ip route flush table local proto 178", 1); what != "100 addresses missing from ironvip0" {
				t.Error(what)
			}
		}
		expect.Equal(t, len(reported), 1, "frontends with a report")
		look("ip route del local 10.96.1.1 table local proto 178; ip route del local 10.96.1.2 table local proto 178", 2)
		look("ip link set ironvip0 down; ip link set ironvip0 up", 1)
		look("ip addr add 10.96.2.1/32 dev ironvip0; ip addr del 10.96.2.1/32 dev ironvip0", 1)
	})
}
