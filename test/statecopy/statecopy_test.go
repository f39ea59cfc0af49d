package statecopy

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/ironvip/ironvip/internal/store"
)

// An open state file can be read repeatedly, without any change to it.
func TestLookAtAnOpenState(t *testing.T) {
	dir := t.TempDir()
	db, err := store.Open(filepath.Join(dir, "ironvip.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	bucket := store.NewBucket[int](db, "numbers")
	for want := range 3 {
		if err := bucket.Put("n", want); err != nil {
			t.Fatal(err)
		}
		err := Look(dir, func(copied *store.DB) error {
			there := store.NewBucket[int](copied, "numbers")
			if got, _, err := there.Get("n"); err != nil || got != want {
				t.Errorf("%d, %v, want %d", got, err, want)
			}
			return there.Put("n", -1)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n, _, err := bucket.Get("n"); n != 2 || err != nil {
		t.Errorf("the state has %d after the looks, %v", n, err)
	}
	wrong := errors.New("not yet")
	if err := Look(dir, func(*store.DB) error { return wrong }); !errors.Is(err, wrong) {
		t.Errorf("%v", err)
	}
	if Look(t.TempDir(), func(*store.DB) error { return nil }) == nil {
		t.Error("there is no state in an empty directory")
	}
}
