package conntrack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/internal/sockdiag"
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
	all, err := opened(ctx, owns)
	if err != nil {
		return fmt.Errorf("list the connections of this host: %w", err)
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Counters{})
	if err != nil {
		return err
	}
	defer c.Close()
	expires := establishedTimeout()
	var refused error
	err = c.Write(ctx, len(all), func(b []byte, i int) []byte { return appendOpened(b, &all[i], expires) }, func(i int, err error) {
		if err != nil && err != unix.EEXIST {
			refused = fmt.Errorf("make a connection tracking entry of %s to %s: %w", all[i].From, all[i].To, err)
		}
	})
	return errors.Join(err, refused)
}

// opened returns the connections of TCP that processes of this network namespace have opened and in which this host may still
// send or receive, except those over loopback addresses. A connection with the port of a listener, or from an address of which
// owns returns true, counts as accepted. So the result may have one that was accepted by a listener that is closed, or that
// has its clients from a program of type sk_lookup. It costs O(sockets).
func opened(ctx context.Context, owns func(netip.Addr) bool) (all []sockdiag.Socket, err error) {
	listeners := map[uint16]bool{}
	err = sockdiag.Each(ctx, unix.IPPROTO_TCP, -1, func(s sockdiag.Socket, _ []byte) {
		if s.State == sockdiag.StateListening {
			listeners[s.From.Port()] = true
		} else if !s.Ending() && !s.To.Addr().IsLoopback() && !owns(s.From.Addr()) {
			all = append(all, s)
		}
	})
	return slices.DeleteFunc(all, func(s sockdiag.Socket) bool { return listeners[s.From.Port()] }), err
}

// appendOpened appends a message that makes the entry of a connection.
func appendOpened(b []byte, x *sockdiag.Socket, expires uint32) []byte {
	b = beginConntrack(b, ctNew, unix.NLM_F_CREATE|unix.NLM_F_EXCL, vip.FamilyOf(x.From.Addr()))
	b = appendTuple(b, ctaTupleOrig, unix.IPPROTO_TCP, x.From, x.To)
	b = appendTuple(b, ctaTupleReply, unix.IPPROTO_TCP, x.To, x.From)
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
