package filter

import (
	"reflect"
	"testing"

	"github.com/google/nftables/expr"
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
	for _, r := range newLayout("ironvip", 0x1000).rules {
		for _, e := range r.exprs {
			if !covered[reflect.TypeOf(e)] {
				t.Errorf("no trial covers %T of rule %q", e, r.comment)
			}
		}
	}
}
