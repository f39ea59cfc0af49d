package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/ipam/fleetstore"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/sources/rest"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/fleettest"
	"github.com/ironvip/ironvip/test/must"
)

const tree = "ironvip/v2/tree/"

// fleetStores returns the stores of a host of a fleet.
func fleetStores(t *testing.T, m *fleettest.Memory) Stores {
	s := Stores{Node: "lb9"}
	m.Start(t, "lb9", append(fleetstore.Folders(), rest.Folder, overrides.Folder), func(tree *fleet.Tree) {
		s.Leases, s.Services, s.States = fleetstore.New(tree), rest.Shared(tree), overrides.Shared(tree)
	})
	return s
}

func contentsOf(t *testing.T, s Stores) Contents {
	t.Helper()
	c := must.Get(ContentsOf(context.Background(), s))(t)
	return c
}

// A snapshot lists unreadable values by key, and a restore reports them. A service with an
// unreadable lease doesn't get another one by a restore.
func TestWhatCantBeRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := fleettest.NewMemory()
		m.Put(tree+"leases/192.0.2.1", `{"v":1,"value":{"resource":"192.0`)
		m.Put(tree+"holdings/default/web", `{"v":1,"value":{"holds":["192.0.2.1"]}}`)
		m.Put(tree+"services/default/db", `{"v":7,"value":{}}`)
		m.Put(tree+"states/default/db/10.1.0.1:5432", "junk")
		from := fleetStores(t, m)
		present := contentsOf(t, from)
		text := must.Get(json.Marshal(NewDocument(present)))(t)
		in, problems := Read(text)
		must.Empty(t, problems)
		var named []string
		for _, u := range in.Unreadable {
			named = append(named, u.Kind+" "+u.Key)
			expect.Contains(t, u.Message, "consul:"+tree, "%+v names no key", u)
		}
		if want := []string{"lease 192.0.2.1", "registration default/db", "state default/db/10.1.0.1:5432"}; !slices.Equal(named, want) {
			t.Errorf("unreadable are %v, want %v", named, want)
		}
		expect := func(what string, r Result, want ...string) {
			t.Helper()
			got := said(r)
			for i := range got {
				got[i], _, _ = strings.Cut(got[i], ": consul:")
			}
			expect.NoDiff(t, cmp.Diff(want, got), what)
		}
		expect("into an empty store", Compare(in, Contents{}, "", noon),
			"lease 192.0.2.1 of web: unreadable when saved", "registration db: unreadable when saved", "state db/10.1.0.1:5432: unreadable when saved")
		repaired := in
		repaired.Unreadable = in.Unreadable[:1]
		expect("after the repair", Compare(repaired, Contents{Leases: leases(lease(addr("192.0.2.1"), "web"))}, "", noon))

		other := Contents{Leases: leases(lease(addr("192.0.2.1"), "other"), lease(addr("192.0.2.2"), "web"))}
		want := []string{
			"lease 192.0.2.1 of other", // with its key
			"lease 192.0.2.2 of web: in the store, web holds 192.0.2.1, whose lease can't be read",
		}
		expect("beforehand", Compare(other, present, "lb9", noon), want...)
		done, err := Restore(t.Context(), other, present, from, true, noon)
		if err != nil || done.Leases != 0 {
			t.Errorf("%+v, %v", done, err)
		}
		expect("imported", done, want...)
	})
}

// refusing is a store that rejects every op with an error.
type refusing struct {
	ipam.Store
	why error
}

func (s refusing) Commit(_ context.Context, ops []ipam.Op) error {
	for i := range ops {
		ops[i].Err = s.why
	}
	return nil
}

// A lease that the store rejects is a conflict with the reason, without repetition.
func TestRefusedMeanwhile(t *testing.T) {
	for want, why := range map[string]error{
		"lease 192.0.2.1 of web: not written: 192.0.2.1 changed meanwhile":                               &ipam.ConflictError{Resource: addr("192.0.2.1")},
		"lease 192.0.2.1 of web: not written: what service web holds can't be changed now: it is edited": &ipam.FencedError{Service: key("web"), Why: "it is edited"},
	} {
		b := newBench(t, "")
		b.Leases = refusing{b.Leases, why}
		done, err := Restore(t.Context(), Contents{Leases: leases(lease(addr("192.0.2.1"), "web"))}, Contents{}, b.Stores, false, noon)
		if got := said(done); err != nil || !slices.Equal(got, []string{want}) || done.Leases != 0 {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	b := newBench(t, "")
	b.Leases = refusing{b.Leases, errors.New("no disk")}
	if _, err := Restore(t.Context(), Contents{Leases: leases(lease(addr("192.0.2.1"), "web"))}, Contents{}, b.Stores, false, noon); err == nil {
		t.Error("a store that fails is no error")
	}
}
