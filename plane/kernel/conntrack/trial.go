package conntrack

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/kernel/host"
)

// Try asks for the statistics of connection tracking.
func Try(ctx context.Context) host.Finding {
	err := host.TryMessage(ctx, unix.NETLINK_NETFILTER, func(b []byte) []byte {
		return append(netlink.BeginMessage(b, ctGetStats, 0), unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0)
	})
	if IsMissing(err) {
		return NoNetlink
	}
	return host.TrialOf("nf_conntrack_netlink", NoNetlink.Detail, false, err)
}

var NoNetlink = host.MissingModule("nf_conntrack_netlink",
	"the kernel can't delete connection tracking entries: udp clients stay with a removed backend while they keep sending", false)

// IsMissing reports whether err is the kernel's answer without
// ctnetlink.
func IsMissing(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT)
}
