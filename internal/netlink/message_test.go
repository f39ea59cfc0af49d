package netlink

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

func FuzzNextMessage(f *testing.F) {
	m := getFamily(nil, "IPVS")
	EndMessage(m, 1, 2)
	f.Add(m)
	f.Add(append(bytes.Clone(m), m...))
	f.Fuzz(func(t *testing.T, b []byte) {
		for len(b) > 0 {
			_, data, rest, err := NextMessage(b)
			if err != nil {
				return
			}
			if len(data)+len(rest) >= len(b) {
				t.Fatal("no progress")
			}
			b = rest
		}
	})
}

func FuzzDecodeFamily(f *testing.F) {
	f.Add(AppendAttr16([]byte{unix.CTRL_CMD_NEWFAMILY, 2, 0, 0}, unix.CTRL_ATTR_FAMILY_ID, 33))
	f.Add(AppendAttr16([]byte{unix.CTRL_CMD_NEWFAMILY, 2, 0, 0}, unix.CTRL_ATTR_FAMILY_ID, 0))
	f.Add(AppendAttrString([]byte{1, 2, 0, 0}, unix.CTRL_ATTR_FAMILY_NAME, "IPVS"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, err := decodeFamily(b); err == nil && id < unix.NLMSG_MIN_TYPE {
			t.Errorf("family %d is one of netlink's own", id)
		}
	})
}
