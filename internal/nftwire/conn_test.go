//go:build linux

package nftwire

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/test/netlab"
)

// Commit reports each error of a transaction, in a namespace of this machine's kernel. A
// transaction with an error changes nothing, and what a transaction created is listed.
func TestCommitInKernel(t *testing.T) {
	netlab.New(t).Director.Do(func() {
		conn := NewConn()
		table := &nftables.Table{Name: "mine", Family: nftables.TableFamilyINet}
		chain := &nftables.Chain{Name: "empty", Table: table}
		exists := func() bool {
			t.Helper()
			if err := conn.Open(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			ok, err := conn.TableExists(t.Context(), table)
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
				need.Lack(t, need.ReasonModule, "nf_tables")
			}
			if err != nil {
				t.Fatal(err)
			}
			return ok
		}
		commit := func(put func(x *Transaction), want ...error) {
			t.Helper()
			var x Transaction
			x.Begin()
			put(&x)
			err := conn.Commit(t.Context(), &x)
			if (err == nil) != (want == nil) {
				t.Fatalf("%v, want %v", err, want)
			}
			for _, w := range want {
				if !errors.Is(err, w) {
					t.Fatalf("%v, want %v", err, w)
				}
			}
		}
		if exists() {
			t.Fatal("the namespace has the table at the start")
		}
		commit(func(x *Transaction) { x.AddScratchTable(table); x.DeleteTable(table) })
		commit(func(x *Transaction) { x.DeleteTable(table) }, unix.ENOENT)
		commit(func(x *Transaction) { x.AddTable(table); x.Flush(table.Name, "none") }, unix.ENOENT)
		if exists() {
			t.Fatal("a failed transaction created the table")
		}
		commit(func(x *Transaction) { x.AddTable(table); x.AddChain(chain) })
		commit(func(x *Transaction) { x.AddTable(table) })
		commit(func(x *Transaction) { x.AddScratchTable(table); x.Flush(table.Name, "none") }, unix.EEXIST, unix.ENOENT)
		commit(func(x *Transaction) {
			verdict := &expr.Verdict{Kind: expr.VerdictAccept}
			for _, comment := range []string{"first", "second"} {
				if err := x.AddRule(table.Name, chain.Name, []expr.Any{verdict}, []byte(comment)); err != nil {
					t.Fatal(err)
				}
			}
		})
		if !exists() {
			t.Fatal("the table is missing")
		}
		if err := conn.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var got []string
		err := conn.Rules(t.Context(), table.Name, func(chain string, userData []byte) { got = append(got, chain+" "+string(userData)) })
		if want := []string{"empty first", "empty second"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("rules %q, %v, want %q", got, err, want)
		}
	})
}
