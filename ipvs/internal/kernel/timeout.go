package kernel

import (
	"context"
	"fmt"
	"time"

	"github.com/ironvip/ironvip/internal/netlink"
)

// genlHeader is the size of struct genlmsghdr.
const genlHeader = 4

// IdleTimeout reads how long the kernel remembers an open TCP connection without packets, in whole seconds: of all
// services in the network namespace.
func (k *Conn) IdleTimeout(ctx context.Context) (d time.Duration, err error) {
	err = k.Query(ctx, func(b []byte) []byte { return AppendCommand(b, k.Family, CmdGetConfig, 0) }, func(_ uint16, data []byte) error {
		d, err = DecodeIdleTimeout(data)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read the timeout of ipvs connections: %w", err)
	}
	return d, nil
}

// SetIdleTimeout sets it, rounded up to seconds. The other timeouts of ipvs stay.
func (k *Conn) SetIdleTimeout(ctx context.Context, d time.Duration) error {
	var failed error
	err := k.Run(ctx, 1, func(b []byte, _ int, family uint16) []byte {
		return AppendIdleTimeout(AppendCommand(b, family, CmdSetConfig, 0), d)
	}, func(_ int, err error) { failed = err })
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("set the timeout of ipvs connections: %w", err)
	}
	return nil
}

// AppendIdleTimeout appends the timeout's attribute.
func AppendIdleTimeout(b []byte, d time.Duration) []byte {
	return netlink.AppendAttr32(b, attrTimeoutTCP, uint32((d+time.Second-1)/time.Second))
}

// DecodeIdleTimeout decodes a message of the command CmdGetConfig or CmdSetConfig.
func DecodeIdleTimeout(data []byte) (time.Duration, error) {
	if len(data) < genlHeader {
		return 0, netlink.ErrMalformed
	}
	v, err := netlink.Find(data[genlHeader:], attrTimeoutTCP)
	if err != nil || len(v) != 4 {
		return 0, netlink.ErrMalformed
	}
	a := netlink.Attrs{}
	return time.Duration(a.Uint32(v)) * time.Second, nil
}
