//go:build linux && vm

package gate_test

import (
	"testing"
	"time"

	"github.com/ironvip/ironvip/announce/l2/gate"
)

// The VM's kernel is older than 6.12: adding an element again doesn't renew its timeout. This is why
// Refresh deletes it in between, and why the tests of this package run in the VM, too.
func TestAddingAgainDoesNotRefresh(t *testing.T) {
	b := newBench(t)
	b.open(vip4)
	const life = 2 * time.Second
	add := []string{"add", "element", "netdev", gate.TableName, "alive", "{ eth0 timeout 2s }"}
	b.nft(add...)
	added := time.Now()
	if !b.announce(vip4) {
		t.Fatal("the gate is closed after the first addition")
	}
	b.nft(add...)
	again := time.Now()
	for b.announce(vip4) {
		if time.Since(again) > 2*life {
			t.Fatal("the element doesn't expire")
		}
		time.Sleep(time.Millisecond)
	}
	if took := time.Since(added); took > life+life/4 && time.Since(again) >= life {
		t.Errorf("the element expired after %v: this kernel renews timeouts", took)
	}
}
