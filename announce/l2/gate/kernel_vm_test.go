//go:build linux && vm

package gate_test

import (
	"testing"

	"github.com/ironvip/ironvip/announce/l2/gate"
	"github.com/ironvip/ironvip/plane/kernel/linux"
	"github.com/ironvip/ironvip/test/expect"
)

// Adding an element again renews its timeout only since Linux 6.12. This is why Refresh deletes it in
// between, and why the dead-man switch is tested in the VM, too: its kernel is older.
func TestAddingAgainRenewsOnNewKernels(t *testing.T) {
	b := newBench(t)
	for _, timeout := range []string{"1h", "2h"} {
		b.nft("add", "element", "netdev", gate.TableName, "alive", "{ eth0 timeout "+timeout+" }")
	}
	list := b.nft("list", "set", "netdev", gate.TableName, "alive")
	want := "timeout 1h"
	if !linux.ParseVersion(linux.Release()).Before(6, 12) {
		want = "timeout 2h"
	}
	expect.Contains(t, list, want)
}

func TestDeadManSwitchOfAnOlderKernel(t *testing.T) { TestDeadManSwitch(t) }
