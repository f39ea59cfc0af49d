//go:build linux

package nftwire

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/test/must"
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
			must.Succeed(t, conn.Open(t.Context()))
			defer conn.Close()
			ok, err := conn.TableExists(t.Context(), table)
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
				need.Lack(t, need.ReasonModule, "nf_tables")
			}
			must.Succeed(t, err)
			return ok
		}
		commit := func(put func(x *Transaction), want ...error) {
			t.Helper()
			var x Transaction
			x.Begin()
			put(&x)
			err := conn.Commit(t.Context(), &x)
			must.Equal(t, err == nil, want == nil, "%v, want %v", err, want)
			for _, w := range want {
				must.Is(t, err, w)
			}
		}
		must.False(t, exists(), "the namespace has the table at the start")
		commit(func(x *Transaction) { x.AddScratchTable(table); x.DeleteTable(table) })
		commit(func(x *Transaction) { x.DeleteTable(table) }, unix.ENOENT)
		commit(func(x *Transaction) { x.AddTable(table); x.Flush(table.Name, "none") }, unix.ENOENT)
		must.False(t, exists(), "a failed transaction created the table")
		commit(func(x *Transaction) { x.AddTable(table); x.AddChain(chain) })
		commit(func(x *Transaction) { x.AddTable(table) })
		commit(func(x *Transaction) { x.AddScratchTable(table); x.Flush(table.Name, "none") }, unix.EEXIST, unix.ENOENT)
		commit(func(x *Transaction) {
			verdict := &expr.Verdict{Kind: expr.VerdictAccept}
			for _, comment := range []string{"first", "second"} {
				must.Succeed(t, x.AddRule(table.Name, chain.Name, []expr.Any{verdict}, []byte(comment)))
			}
		})
		must.True(t, exists(), "the table is missing")
		must.Succeed(t, conn.Open(t.Context()))
		defer conn.Close()
		var got []string
		err := conn.Rules(t.Context(), table.Name, func(chain string, userData []byte) { got = append(got, chain+" "+string(userData)) })
		if want := []string{"empty first", "empty second"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("rules %q, %v, want %q", got, err, want)
		}
	})
}

// A dump during which the tables of the namespace change is repeated until it is whole, and only the whole one is seen.
func TestDumpDuringAChangeIsRepeated(t *testing.T) {
	netlab.New(t).Director.Do(func() {
		conn, other := NewConn(), NewConn()
		defer conn.Close()
		commit := func(put func(x *Transaction)) {
			t.Helper()
			var x Transaction
			x.Begin()
			put(&x)
			must.Succeed(t, other.Commit(t.Context(), &x))
		}
		// The foreign chains come before ours in the kernel's list. Without them, those of ours have other numbers in it.
		foreign, ours := &nftables.Table{Name: "theirs", Family: nftables.TableFamilyINet}, &nftables.Table{Name: "ours", Family: nftables.TableFamilyINet}
		const chains = 2000
		commit(func(x *Transaction) {
			for _, table := range []*nftables.Table{foreign, ours} {
				x.AddTable(table)
				for i := range chains {
					x.AddChain(&nftables.Chain{Name: fmt.Sprintf("chain%d", i), Table: table})
				}
			}
		})
		changes, dumps := 0, 0
		ctx := netlink.Intercept(t.Context(), func(b []byte, write bool, send func([]byte) error) error {
			dumps++
			err := send(b) // the kernel reads the first part of the dump now, and the others later
			if changes > 0 {
				changes--
				commit(func(x *Transaction) { x.AddTable(foreign); x.DeleteTable(foreign) })
			}
			return err
		})
		must.Succeed(t, conn.Open(t.Context()))
		list := func() (names map[string]bool, err error) {
			names = map[string]bool{}
			err = conn.Chains(ctx, ours.Name, func(c nftables.Chain) {
				if names[c.Name] {
					t.Errorf("%s is listed twice", c.Name)
				}
				names[c.Name] = true
			})
			return names, err
		}
		changes = 2
		if names, err := list(); err != nil || len(names) != chains || dumps != 3 {
			t.Errorf("%d chains after %d dumps, %v, want %d after 3", len(names), dumps, err, chains)
		}
		changes, dumps = 1000, 0
		if names, err := list(); err != netlink.ErrInterrupted || len(names) != 0 || dumps != dumpTries {
			t.Errorf("%d chains after %d dumps, %v, want an error after %d", len(names), dumps, err, dumpTries)
		}
	})
}
