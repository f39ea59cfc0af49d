package memstore

import (
	"errors"
	"testing"

	"github.com/ironvip/ironvip/ipam"
	"github.com/ironvip/ironvip/test/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) ipam.Store { return New() },
		storetest.Fault(func(t *testing.T, s ipam.Store) func() {
			s.(*Store).Fail(errors.New("no space left on device"))
			return func() { s.(*Store).Fail(nil) }
		}))
}

// Old tombstones are dropped, and Changes since an older version returns ErrCompacted.
func TestTombstonesAreCompacted(t *testing.T) {
	s := New()
	l := storetest.Lease(1, "a")
	ops := []ipam.Op{{New: &l}}
	if err := s.Commit(t.Context(), ops); err != nil {
		t.Fatal(err)
	}
	_, version, _ := s.Changes(t.Context(), 0)
	for i := range 5_000 {
		m := l
		m.Resource = ipam.Resource{NodePort: uint16(i + 1), Protocol: 6}
		if err := s.Commit(t.Context(), []ipam.Op{{New: &m}, {Old: &m}}); err != nil {
			t.Fatal(err)
		}
		n := m
		n.Resource.Protocol = 17
		if err := s.Commit(t.Context(), []ipam.Op{{New: &n}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Commit(t.Context(), []ipam.Op{{Old: &n}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.Changes(t.Context(), version); !errors.Is(err, ipam.ErrCompacted) {
		t.Errorf("changes from long ago: %v", err)
	}
	changes, version, err := s.Changes(t.Context(), 0)
	if err != nil || len(changes) != 1 {
		t.Errorf("changes from the start: %d, %v", len(changes), err)
	}
	m := storetest.Lease(2, "b")
	if err := s.Commit(t.Context(), []ipam.Op{{New: &m}}); err != nil {
		t.Fatal(err)
	}
	if changes, _, err := s.Changes(t.Context(), version); err != nil || len(changes) != 1 {
		t.Errorf("changes from now: %d, %v", len(changes), err)
	}
}
