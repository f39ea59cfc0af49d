package fleet

import (
	"testing"
)

func FuzzMark(f *testing.F) {
	f.Add([]byte(encodeMark("ABC")))
	f.Add([]byte(`{"v":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := decodeMark(text)
		if err == nil && m.Fleet == "" {
			t.Error("a fleet without a name")
		}
	})
}

func TestTombstonesAreDropped(t *testing.T) {
	g := tombstones{index: map[string]uint64{}}
	g.add("a", 1)
	g.add("b", 2)
	g.add("a", 3)
	g.drop(2)
	if len(g.index) != 1 || g.index["a"] != 3 || len(g.queue) != 1 {
		t.Errorf("%+v", g)
	}
	g.drop(3)
	if len(g.index) != 0 || len(g.queue) != 0 {
		t.Errorf("%+v", g)
	}
}
