package nftwire

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/test/must"
)

// body returns the body of the last message of a transaction that is not its end.
func body(t *testing.T, x *Transaction) []byte {
	t.Helper()
	for b := x.End(1, 2, 3); ; {
		h, data, rest, err := netlink.NextMessage(b)
		must.Succeed(t, err)
		if h.Seq == 2 {
			return data
		}
		b = rest
	}
}

// Elements are read back as written. Malformed lists give an error or fewer
// elements, never a panic.
func FuzzElements(f *testing.F) {
	f.Add([]byte{10, 0, 0, 1}, []byte{}, []byte{}, true, uint8(3))
	f.Add([]byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0}, []byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 90, 0, 0}, []byte{1, 0, 0, 5}, false, uint8(0))
	f.Fuzz(func(t *testing.T, key, end, value []byte, edge bool, flip uint8) {
		if len(key)+len(end)+len(value) > 1<<10 || len(key) == 0 {
			return
		}
		var x Transaction
		x.Begin()
		list := x.BeginElements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, "t", "s")
		x.AddElement(&Element{Key: key, End: end, Value: value, edge: edge})
		x.EndElements(list)
		data := body(t, &x)
		all, err := elementList(data)
		var got Element
		if err != nil || !got.next(&all) {
			t.Fatalf("no element: %v, %v", err, all.Err)
		}
		if !bytes.Equal(got.Key, key) || !bytes.Equal(got.End, end) || !bytes.Equal(got.Value, value) || got.edge != edge {
			t.Errorf("read %+v", got)
		}
		if got.next(&all) || all.Err != nil {
			t.Errorf("a second element %+v, %v", got, all.Err)
		}
		data[int(flip)%len(data)] ^= 0xff
		if all, err := elementList(data); err == nil {
			for got.next(&all) {
			}
		}
	})
}
