package filter

import (
	"reflect"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/ironvip/ironvip/internal/nftwire"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// A trial exists for each module that an expression or a chain of the rules
// needs. The other expressions are part of nf_tables itself.
func TestTrialsCoverTheRules(t *testing.T) {
	inNFTables := []expr.Any{&expr.Meta{}, &expr.Cmp{}, &expr.Bitwise{}, &expr.Byteorder{}, &expr.Payload{}, &expr.Lookup{}, &expr.Immediate{}, &expr.Verdict{}}
	covered := map[reflect.Type]bool{}
	for _, e := range inNFTables {
		covered[reflect.TypeOf(e)] = true
	}
	for _, m := range baseTrials {
		for _, e := range m.Rule {
			covered[reflect.TypeOf(e)] = true
		}
	}
	for _, l := range layouts() {
		for _, r := range l.rules {
			for _, e := range r.exprs {
				if !covered[reflect.TypeOf(e)] {
					t.Errorf("no trial covers %T of rule %q", e, r.comment)
				}
			}
		}
	}
}

// Trials work in a namespace of this machine's kernel, also if a foreign table has the name of
// their table. They don't change the foreign table, and leave none of their own.
func TestTrialsBesideAForeignTable(t *testing.T) {
	netlab.New(t).Director.Do(func() {
		conn := nftwire.NewConn()
		outcomes := func() (out []error) {
			for _, f := range TryNFTables(t.Context()) {
				if f.Name == "nf_tables" && !f.OK {
					need.Lack(t, need.ReasonModule, "nf_tables")
				}
				var err error
				if !f.OK {
					err = f.Err()
				}
				out = append(out, err)
			}
			return out
		}
		before := outcomes()
		table := &nftables.Table{Name: ScratchTable, Family: nftables.TableFamilyINet}
		var x nftwire.Transaction
		x.Begin()
		x.AddTable(table)
		x.AddChain(&nftables.Chain{Name: "foreign", Table: table})
		must.Succeed(t, conn.Commit(t.Context(), &x))
		got := outcomes()
		expect.True(t, reflect.DeepEqual(got, before), "with a foreign table %v, without %v", got, before)
		must.Succeed(t, conn.Open(t.Context()))
		defer conn.Close()
		var chains []string
		err := conn.Chains(t.Context(), ScratchTable, func(c nftables.Chain) { chains = append(chains, c.Name) })
		if err != nil || !slices.Equal(chains, []string{"foreign"}) {
			t.Errorf("the foreign table has the chains %q, %v", chains, err)
		}
		if left, err := conn.TableExists(t.Context(), &nftables.Table{Name: ScratchTable + "_", Family: nftables.TableFamilyINet}); left || err != nil {
			t.Errorf("a table of the trials is left: %v, %v", left, err)
		}
	})
}
