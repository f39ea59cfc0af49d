//go:build !vm

package ipvs

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables/expr"

	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/vip"
)

// A trial exists for each module that an expression or a chain of the rules
// needs. The other expressions are part of nf_tables itself.
func TestTrialsCoverTheRules(t *testing.T) {
	inNFTables := []expr.Any{&expr.Meta{}, &expr.Cmp{}, &expr.Bitwise{}, &expr.Byteorder{}, &expr.Payload{}, &expr.Lookup{}, &expr.Immediate{}, &expr.Verdict{}}
	covered := map[reflect.Type]bool{}
	for _, e := range inNFTables {
		covered[reflect.TypeOf(e)] = true
	}
	for _, m := range nftModules {
		if m.rule != nil {
			covered[reflect.TypeOf(m.rule)] = true
		}
	}
	for _, r := range newLayout(DefaultTable, DefaultMark).rules {
		for _, e := range r.exprs {
			if !covered[reflect.TypeOf(e)] {
				t.Errorf("no trial covers %T of rule %q", e, r.comment)
			}
		}
	}
}

// While a module is missing that the rules need, the dataplane's error names it.
// The error doesn't end before the module is there: a successful read of the kernel
// says nothing about writes. Then the table is rebuilt.
func TestMissingModuleIsReportedUntilLoaded(t *testing.T) {
	var w *world
	bubble.Test(t, func(*testing.T) {
		w = newWorld()
		w.resync = time.Second
		w.start()
		w.k.alter(func() { w.k.noModule = "nft_masq" })
		w.put(listener("10.96.0.1:80", vip.TCP, "10.1.0.1:80"))
		w.settle()
		for range 20 {
			if got := w.r.Stats().TargetError; !strings.Contains(got, "ipvs needs kernel module nft_masq") {
				w.errorf("the dataplane's error is %q", got)
			}
			time.Sleep(testBackoff / 3)
			w.settle()
		}
		w.k.alter(func() { w.k.noModule = "" })
		time.Sleep(2 * time.Second)
		w.settle()
		w.right()
		w.stop()
	})
	report(t, w, "a missing module")
}
