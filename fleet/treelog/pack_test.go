package treelog

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/fleet/kv"
)

func TestPack(t *testing.T) {
	for _, n := range []int{0, 1, 1000} {
		var pairs []kv.Pair
		for i := range n {
			pairs = append(pairs, kv.Pair{Key: fmt.Sprint("a/", i), Index: uint64(i) << (i % 50), Value: []byte(strings.Repeat("v\xff", i))})
		}
		packed := Pack(pairs)
		got, err := Unpack(packed)
		if err != nil || !slices.EqualFunc(got, pairs, func(a, b kv.Pair) bool {
			return a.Key == b.Key && a.Index == b.Index && bytes.Equal(a.Value, b.Value)
		}) {
			t.Errorf("%d pairs are %d: %v", n, len(got), err)
		}
	}
}

// Junk never panics.
func FuzzUnpack(f *testing.F) {
	f.Add(Pack([]kv.Pair{{Key: "a/x", Index: 7, Value: []byte("v")}, {Key: "b/y"}}))
	f.Add([]byte("junk"))
	f.Fuzz(func(_ *testing.T, packed []byte) {
		pairs, err := Unpack(packed)
		if err == nil {
			_ = Pack(pairs)
		}
	})
}
