package registry

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ironvip/ironvip/internal/store"
)

// An edit is refused if a value that it requires has another version.
func TestLocalConditions(t *testing.T) {
	db, err := store.Open(filepath.Join(t.TempDir(), "ironvip.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
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
