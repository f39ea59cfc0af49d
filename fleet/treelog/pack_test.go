package treelog

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ironvip/ironvip/fleet/consulkv"
)

func unpackAll(packed []byte) (pairs []consulkv.Pair, err error) {
	err = Unpack(packed, "p/", func(part []consulkv.Pair) { pairs = append(pairs, part...) })
	return pairs, err
}

func TestPack(t *testing.T) {
	for _, n := range []int{0, 1, packedChunk - 1, packedChunk, packedChunk + 1, 3 * packedChunk} {
		var pairs, want []consulkv.Pair
		for i := range n {
			p := consulkv.Pair{Key: fmt.Sprint("a/", i), Index: uint64(i) << (i % 50), Value: []byte(strings.Repeat("v", i))}
			pairs = append(pairs, p)
			p.Key = "p/" + p.Key
			want = append(want, p)
		}
		packed := Pack(pairs)
		got, err := unpackAll(packed)
		if err != nil || !slices.EqualFunc(got, want, func(a, b consulkv.Pair) bool {
			return a.Key == b.Key && a.Index == b.Index && bytes.Equal(a.Value, b.Value)
		}) {
			t.Errorf("%d pairs are %d: %v", n, len(got), err)
		}
		for _, cut := range []int{0, 5, len(packed) / 2, len(packed) - 1} {
			if _, err := unpackAll(packed[:cut]); err == nil {
				t.Errorf("%d of %d bytes are a snapshot of %d pairs", cut, len(packed), n)
			}
		}
	}
}

// Junk neither panics nor allocates without bounds.
func FuzzUnpack(f *testing.F) {
	f.Add(Pack([]consulkv.Pair{{Key: "a/x", Index: 7, Value: []byte("v")}, {Key: "b/y"}}))
	f.Add([]byte("junk"))
	f.Fuzz(func(_ *testing.T, packed []byte) {
		pairs, err := unpackAll(packed)
		if err == nil {
			_ = Pack(pairs)
		}
	})
}
