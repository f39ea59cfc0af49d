//go:build linux && vm

package gate_test

import (
	"strings"
	"testing"

	"github.com/ironvip/ironvip/announce/l2/gate"
	"github.com/ironvip/ironvip/internal/kernelplane/linux"
)

// Adding an element again renews its timeout only since Linux 6.12. This is why Refresh deletes it in
// between, and why the tests of this package run in the VM, too: its kernel is older.
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
	if !strings.Contains(list, want) {
		t.Errorf("after adding an element again, with 2h for 1h, the set has not %s:\n%s", want, list)
	}
}
