package conntrack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/kernel/host"
	"github.com/ironvip/ironvip/vip"
)

const (
	ctNew = unix.NFNL_SUBSYS_CTNETLINK << 8

	// Of an entry in which packets of both directions were seen.
	statusSeen, statusAssured, statusConfirmed = 1 << 1, 1 << 2, 1 << 3

	ctaProtoInfoFlagsOrig, ctaProtoInfoFlagsReply = 4, 5

	// The kernel's assumptions about a connection that it hasn't seen open: SACK, and a window that it doesn't know.
	flagSACK, flagLiberal = 1 << 1, 1 << 3
)

// TryEnterOpened calls EnterOpened unless the dataplane's table exists: connection tracking has seen the connections
// since. An error is only logged: the dataplane works without the entries.
func TryEnterOpened(ctx context.Context, table interface {
	Exists(ctx context.Context) (bool, error)
}, owns func(netip.Addr) bool, log *slog.Logger) {
	there, err := table.Exists(ctx)
	if there || err != nil { // whoever uses the table reports the error
		return
	}
	if err := EnterOpened(ctx, owns); err != nil {
		log.Warn("open connections of this host to backends may be reset by new clients", "err", err)
	}
}

// EnterOpened makes entries of the connections of TCP that processes of this host have opened. Without one, the kernel
// masquerades a new client to the port of such a connection if both have the same backend, and the backend resets it.
// Connections from an address of which owns returns true are taken for accepted. An entry that is there stays as it is. It
// costs one read of the host's sockets, and a message for each connection. Call it when connection tracking sees the packets of
// this host, and before the first client is masqueraded.
func EnterOpened(ctx context.Context, owns func(netip.Addr) bool) error {
	all, err := host.OpenedConnections()
	if err != nil {
		return fmt.Errorf("list the connections of this host: %w", err)
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Counters{})
	if err != nil {
		return err
	}
	defer c.Close()
	kept := all[:0]
	for _, x := range all {
		if !owns(x.Near.Addr()) {
			kept = append(kept, x)
		}
	}
	expires := establishedTimeout()
	var refused error
	err = c.Write(ctx, len(kept), func(b []byte, i int) []byte { return appendOpened(b, kept[i], expires) }, func(i int, err error) {
		if err != nil && err != unix.EEXIST {
			refused = fmt.Errorf("make a connection tracking entry of %s to %s: %w", kept[i].Near, kept[i].Far, err)
		}
	})
	return errors.Join(err, refused)
}

// appendOpened appends a message that makes the entry of a connection.
func appendOpened(b []byte, x host.Connection, expires uint32) []byte {
	b = beginConntrack(b, ctNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL, vip.FamilyOf(x.Near.Addr()))
	b = appendTuple(b, ctaTupleOrig, unix.IPPROTO_TCP, x.Near, x.Far)
	b = appendTuple(b, ctaTupleReply, unix.IPPROTO_TCP, x.Far, x.Near)
	b = netlink.AppendAttr32BE(b, ctaStatus, statusSeen|statusAssured|statusConfirmed)
	b = netlink.AppendAttr32BE(b, ctaTimeout, expires)
	b, info := netlink.BeginNest(b, ctaProtoInfo|unix.NLA_F_NESTED)
	b, tcp := netlink.BeginNest(b, ctaProtoInfoTCP|unix.NLA_F_NESTED)
	b = netlink.AppendAttr(b, ctaProtoInfoState, tcpEstablished)
	const flags = flagSACK | flagLiberal
	b = netlink.AppendAttr(b, ctaProtoInfoFlagsOrig, flags, flags) // the flags, and which ones to set
	b = netlink.AppendAttr(b, ctaProtoInfoFlagsReply, flags, flags)
	return netlink.EndNest(netlink.EndNest(b, tcp), info)
}

// establishedTimeout returns how many seconds connection tracking keeps an open connection of TCP without a packet.
func establishedTimeout() uint32 {
	const usual = 5 * 24 * 60 * 60
	text, err := os.ReadFile(filepath.Join(host.ProcSysNet, "netfilter/nf_conntrack_tcp_timeout_established"))
	if err != nil {
		return usual
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return usual
	}
	return uint32(n)
}
