package registry

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/internal/store"
)

func openDB(t *testing.T) *store.DB {
	t.Helper()
	db, err := store.Open(filepath.Join(t.TempDir(), store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// An edit is refused if a value that it requires has another version.
func TestLocalConditions(t *testing.T) {
	db := openDB(t)
	l, err := NewLocal(store.NewBucket[int](db, "numbers"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string, requires ...Condition) error {
		b := &Batch[int]{Edits: []Edit[int]{{Key: key, Version: l.Version(key), Value: new(1), Requires: requires}}}
		if err := l.Commit(t.Context(), []*Batch[int]{b}); err != nil {
			t.Fatal(err)
		}
		return b.Err
	}
	if err := put("a", Condition{"b", 0}); err != nil {
		t.Error(err)
	}
	if err := put("b", Condition{"a", l.Version("a")}); err != nil {
		t.Error(err)
	}
	var outdated *OutdatedError
	for _, c := range []Condition{{"a", 0}, {"a", l.Version("a") + 7}, {"none", 1}} {
		if err := put("c", c); !errors.As(err, &outdated) || !slices.Equal(outdated.Keys, []string{c.Key}) || l.Version("c") != 0 {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A value that is read during writes has its own version, not that of the value before.
func TestLocalGetDuringWrites(t *testing.T) {
	db := openDB(t)
	l, err := NewLocal(store.NewBucket[int](db, "numbers"))
	if err != nil {
		t.Fatal(err)
	}
	written := map[uint64]int{} // values by version
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 1; n <= 30; n++ {
			b := &Batch[int]{Edits: []Edit[int]{{Key: "a", Version: l.Version("a"), Value: &n}}}
			if err := l.Commit(t.Context(), []*Batch[int]{b}); err != nil || b.Err != nil {
				t.Error(err, b.Err)
			}
			written[b.Edits[0].Written] = n
		}
	}()
	read := map[uint64]int{}
	for open := true; open; {
		select {
		case <-done:
			open = false
		default:
		}
		if item := l.Get("a"); item.Version != 0 {
			read[item.Version] = item.Value
		}
	}
	for version, n := range read {
		if written[version] != n {
			t.Errorf("version %d was read with the value %d, and written with %d", version, n, written[version])
		}
	}
}
