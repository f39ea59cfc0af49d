package registry

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

func openDB(t *testing.T) *store.DB {
	t.Helper()
	db := must.Get(store.Open(filepath.Join(t.TempDir(), store.FileName)))(t)
	t.Cleanup(func() { db.Close() })
	return db
}

// An edit is refused if a value that it requires has another version.
func TestLocalConditions(t *testing.T) {
	db := openDB(t)
	l := must.Get(NewLocal(store.NewBucket[int](db, "numbers")))(t)
	put := func(key string, requires ...Condition) error {
		b := &Batch[int]{Edits: []Edit[int]{{Key: key, Version: l.Version(key), Value: new(1), Requires: requires}}}
		must.Succeed(t, l.Commit(t.Context(), []*Batch[int]{b}))
		return b.Err
	}
	expect.Succeed(t, put("a", Condition{"b", 0}))
	expect.Succeed(t, put("b", Condition{"a", l.Version("a")}))
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
	l := must.Get(NewLocal(store.NewBucket[int](db, "numbers")))(t)
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
		expect.Equal(t, written[version], n, "version %d was read with the value %d, and written with", version, n)
	}
}
