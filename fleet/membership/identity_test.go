package membership_test

import (
	"testing"

	"github.com/ironvip/ironvip/fleet/membership"
	"github.com/ironvip/ironvip/internal/store"
	"github.com/ironvip/ironvip/test/must"
)

// The id stays with the state file until it is replaced.
func TestIdentityIsInTheStateFile(t *testing.T) {
	db := open(t)
	first, err := membership.LoadIdentity(db)
	if err != nil || len(first.ID) != 36 || first.File == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := membership.LoadIdentity(db); err != nil || again.ID != first.ID || again.File != first.File {
		t.Errorf("%+v, %v", again, err)
	}
	before, after, err := membership.NewIdentity(db)
	if err != nil || before != first.ID || after == before {
		t.Errorf("%q, %q, %v", before, after, err)
	}
	if again, err := membership.LoadIdentity(db); err != nil || again.ID != after {
		t.Errorf("%+v, %v", again, err)
	}
	other := open(t)
	if id, err := membership.LoadIdentity(other); err != nil || id.ID == after || id.File == first.File {
		t.Errorf("%+v, %v", id, err)
	}
}

func open(t *testing.T) *store.DB {
	t.Helper()
	db := must.Get(store.Open(t.TempDir() + "/" + store.FileName))(t)
	t.Cleanup(func() { db.Close() })
	return db
}
