package netlink

import (
	"cmp"
	"context"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// FamilyID returns the number of a generic netlink family. The request makes the
// kernel load the family's module if it can. ENOENT means that the kernel has no
// such family.
func FamilyID(ctx context.Context, c Socket, name string) (uint16, error) {
	var id uint16
	err := c.Query(ctx, func(b []byte) []byte {
		b = append(BeginMessage(b, unix.GENL_ID_CTRL, 0), unix.CTRL_CMD_GETFAMILY, 1, 0, 0)
		return AppendAttrString(b, unix.CTRL_ATTR_FAMILY_NAME, name)
	}, func(_ uint16, data []byte) (err error) {
		id, err = decodeFamily(data)
		return err
	})
	return id, err
}

// decodeFamily reads a family's number. It rejects the numbers of netlink's own
// message types, because the kernel doesn't answer those.
func decodeFamily(data []byte) (id uint16, err error) {
	if len(data) < 4 {
		return 0, ErrMalformed
	}
	v, err := Find(data[4:], unix.CTRL_ATTR_FAMILY_ID)
	if err != nil || len(v) < 2 {
		return 0, cmp.Or(err, ErrMalformed)
	}
	if id = binary.NativeEndian.Uint16(v); id < unix.NLMSG_MIN_TYPE {
		return 0, ErrMalformed
	}
	return id, nil
}
