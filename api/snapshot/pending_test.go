package snapshot

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironvip/ironvip/fleet/registry"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/pipeline/overrides"
	"github.com/ironvip/ironvip/test/bubble"
	"github.com/ironvip/ironvip/test/fleettest"
)

// A snapshot of a host has the overrides that wait on it for their merge with the fleet's store. As in
// a merge, the later decision wins, also if it ends an override.
func TestPendingOverridesAreSaved(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		db, err := store.Open(filepath.Join(t.TempDir(), "ironvip.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		at := func(minute int, state string) overrides.Override {
			return overrides.Override{State: state, Since: noon.Add(time.Duration(minute) * time.Minute), Node: "lb9"}
		}
		const prefix = "default/db/10.1.0."
		there := map[string]overrides.Override{"1": at(0, "drain"), "2": at(0, "drain"), "3": at(9, "maint"), "4": at(0, "maint")}
		pending := map[string]overrides.Override{"2": at(5, "ready"), "3": at(5, "drain"), "4": at(5, "drain"), "5": at(5, "maint"), "6": at(5, "ready")}
		want := map[string]overrides.Override{prefix + "1": there["1"], prefix + "3": there["3"], prefix + "4": pending["4"], prefix + "5": pending["5"]}

		from := fleetStores(t, fleettest.NewMemory())
		var batches []*registry.Batch[overrides.Override]
		for key, value := range there {
			batches = append(batches, &registry.Batch[overrides.Override]{Edits: []registry.Edit[overrides.Override]{{Key: prefix + key, Value: &value}}})
		}
		if err := from.States.Commit(t.Context(), batches); err != nil {
			t.Fatal(err)
		}
		for _, b := range batches {
			if b.Err != nil {
				t.Fatal(b.Err)
			}
		}
		bucket := store.NewBucket[overrides.Override](db, "pending")
		for key, value := range pending {
			if err := bucket.Put(prefix+key, value); err != nil {
				t.Fatal(err)
			}
		}
		if from.Pending, err = registry.NewJournal(from.States, bucket); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, NewDocument(contentsOf(t, from)).States); diff != "" {
			t.Errorf("saved: %s", diff)
		}
		if n := len(from.Pending.Pending()); n != len(pending) {
			t.Errorf("%d of %d overrides still wait", n, len(pending))
		}
	})
}
