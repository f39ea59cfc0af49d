package registry

import (
	"errors"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/fleet"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// newer makes the larger number win.
func newer(pending int, there Item[int]) bool { return pending > there.Value }

// A journal accepts values while the fleet's store is unavailable, keeps them on disk, and merges
// them by compare-and-set.
func TestJournal(t *testing.T) {
	db := openDB(t)
	there := newMemory()
	open := func() *Journal[int] {
		j := must.Get(NewJournal[int](there, store.NewBucket[int](db, "pending")))(t)
		return j
	}
	j := open()
	put := func(key string, version uint64, value *int, requires ...Condition) error {
		b := &Batch[int]{Edits: []Edit[int]{{Key: key, Version: version, Value: value, Requires: requires}}}
		if err := j.Commit(t.Context(), []*Batch[int]{b}); err != nil {
			return err
		}
		if b.Err == nil && b.Edits[0].Written != j.Version(key) {
			t.Errorf("%s: written as %d, is %d", key, b.Edits[0].Written, j.Version(key))
		}
		return b.Err
	}
	is := func(when, key string, value int, local bool) {
		t.Helper()
		if item := j.Get(key); item.Value != value || item.Local != local || item.Version != j.Version(key) {
			t.Errorf("%s: %s is %+v, want %d, local %v", when, key, item, value, local)
		}
	}
	var outdated *OutdatedError
	must.Succeed(t, put("a", 0, new(5)))
	is("reachable", "a", 5, false)
	there.set("c", 30)

	there.err = fleet.ErrUnavailable
	there.fetch = func(string) error { return &StoreError{Err: fleet.ErrUnavailable} }
	if err := put("a", 0, new(6)); !errors.As(err, &outdated) {
		t.Errorf("another version: %v", err)
	}
	expect.Is(t, put("a", j.Version("a"), nil), fleet.ErrUnavailable, "a removal")
	for key, value := range map[string]int{"a": 7, "b": 8, "c": 9} {
		expect.Succeed(t, put(key, j.Version(key), &value), key)
	}
	is("away", "a", 7, true)
	if err := put("d", 0, new(1), Condition{"b", 0}); !errors.As(err, &outdated) || !slices.Equal(outdated.Keys, []string{"b"}) {
		t.Errorf("a condition on a pending value: %v", err)
	}
	expect.Succeed(t, put("b", j.Version("b"), new(80), Condition{"a", j.Version("a")}), "again")
	j = open()
	is("after a restart", "b", 80, true)
	expect.Equal(t, len(j.Pending()), 3, "pending after a restart")
	if done, err := j.Merge(t.Context(), []string{"a", "b", "c"}, newer); err == nil || len(done) != 0 {
		t.Errorf("merged while away: %q, %v", done, err)
	}

	there.err = nil
	there.fetch = func(string) error { return nil }
	there.before = func(commit int) { // another host is faster
		there.set("b", 79)
		there.before = func(int) {}
	}
	if done, err := j.Merge(t.Context(), []string{"a", "b", "c", "none"}, newer); err != nil || !slices.Equal(done, []string{"a", "b", "c"}) {
		t.Errorf("merged %q, %v", done, err)
	}
	is("merged", "a", 7, false)
	is("merged over another value", "b", 80, false)
	is("older than the fleet's", "c", 30, false)
	if j = open(); len(j.Pending()) != 0 {
		t.Errorf("pending after the merge: %+v", j.Pending())
	}

	// With the store back, the next write replaces a value that is still pending.
	there.err = fleet.ErrUnavailable
	must.Succeed(t, put("a", j.Version("a"), new(10)))
	there.err = nil
	must.Succeed(t, put("a", j.Version("a"), new(3)))
	is("written over a pending value", "a", 3, false)
	expect.Equal(t, len(j.Pending()), 0, "pending")
}

// stuckBucket is a Bucket that can't be written while err is set.
type stuckBucket struct {
	Bucket[int]
	err error
}

func (b *stuckBucket) Batch(fill func(tx *store.Tx[int])) error {
	if b.err != nil {
		return b.err
	}
	return b.Bucket.Batch(fill)
}

// A value that is no longer pending is deleted from the disk as soon as that can be written again,
// and not only if the first attempt succeeds: after a restart it would be pending again, and could
// replace a value that was removed meanwhile.
func TestJournalDeletesWhatItCouldNotDelete(t *testing.T) {
	db := openDB(t)
	there, disk := newMemory(), &stuckBucket{Bucket: store.NewBucket[int](db, "pending")}
	open := func() *Journal[int] {
		j := must.Get(NewJournal[int](there, disk))(t)
		return j
	}
	j := open()
	put := func(key string, value int) {
		t.Helper()
		b := &Batch[int]{Edits: []Edit[int]{{Key: key, Version: j.Version(key), Value: &value}}}
		if err := j.Commit(t.Context(), []*Batch[int]{b}); err != nil || b.Err != nil {
			t.Fatal(err, b.Err)
		}
	}
	onDisk := func() int {
		all := must.Get(disk.All())(t)
		return len(all)
	}
	there.err = fleet.ErrUnavailable
	put("a", 7)
	put("b", 8)
	put("c", 9)
	there.err = nil

	full := errors.New("no space left on device")
	disk.err = full
	if done, err := j.Merge(t.Context(), []string{"a"}, newer); !errors.Is(err, ErrStore) || !errors.Is(err, full) || !slices.Equal(done, []string{"a"}) {
		t.Errorf("merged on a full disk: %q, %v", done, err)
	}
	put("b", 80) // reaches the fleet's store
	if !j.HasGarbage() || onDisk() != 3 || len(j.Pending()) != 1 || there.values["a"].Value != 7 || there.values["b"].Value != 80 {
		t.Errorf("on a full disk: %d values there, %d pending, %v", onDisk(), len(j.Pending()), there.values)
	}
	disk.err = nil
	there.err = fleet.ErrUnavailable
	put("b", 81) // pending again: it must stay on the disk
	if done, err := j.Merge(t.Context(), nil, newer); err != nil || len(done) != 0 || j.HasGarbage() || onDisk() != 2 {
		t.Errorf("merged nothing: %q, %v; %d on the disk", done, err, onDisk())
	}
	there.err = nil
	delete(there.values, "a")
	j = open()
	if _, err := j.Merge(t.Context(), []string{"a", "b", "c"}, newer); err != nil || onDisk() != 0 {
		t.Errorf("%v; %d on the disk", err, onDisk())
	}
	if _, back := there.values["a"]; back || there.values["b"].Value != 81 || there.values["c"].Value != 9 {
		t.Errorf("after a restart: %v", there.values)
	}
}
