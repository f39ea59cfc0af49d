package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/proxy/balance"
	"github.com/ironvip/ironvip/proxy/proxyproto"
)

// announced reports whether a connection from peer must begin with a PROXY header, because peer is
// one of the balancers that the service accepts it from. It costs O(balancers).
func (f *frontend) announced(peer netip.Addr) bool {
	peer = peer.Unmap()
	return slices.ContainsFunc(f.Settings().AcceptProxyFrom, func(p netip.Prefix) bool { return p.Contains(peer) })
}

// readHeader reads the PROXY header of a client, and goes on with connect. The client and the address
// that it has connected to are those in the header; a client that the balancer doesn't know, or the
// balancer itself, has the connection's own. The client is reset, and the reason counted, if there is
// no valid header or source ranges don't allow the client.
func (c *connection) readHeader() step {
	f, a := c.f, c.attempt
	switch h, err := c.header(); {
	case err != nil:
		f.headerFailed(c.owner, a.Client, err)
		c.Abort()
		return over
	case h.Known():
		a.Client, c.to = h.Source, h.Destination
	}
	if !f.Accepts(a.Client.Addr()) {
		f.target.balance.Refuse(c.owner, balance.OutsideRanges)
		c.Abort()
		return over
	}
	return c.connect()
}

// header reads the header, and ends when the frontend does. It waits with Go's poller, by a second
// descriptor of the socket, instead of the one that the connect will have.
func (c *connection) header() (proxyproto.Header, error) {
	fd, err := unix.FcntlInt(uintptr(c.client.FD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return proxyproto.Header{}, os.NewSyscallError("fcntl", err)
	}
	client := os.NewFile(uintptr(fd), "client")
	defer client.Close()
	if err := client.SetReadDeadline(time.Now().Add(c.f.target.opts.HeaderTimeout)); err != nil {
		return proxyproto.Header{}, err
	}
	stop := context.AfterFunc(c.f.Life, func() { client.Close() })
	defer stop()
	h, err := proxyproto.Read(client)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w within %s", errHeaderLate, c.f.target.opts.HeaderTimeout)
	}
	return h, err
}

var errHeaderLate = errors.New("the header is not complete")

// headerReasons are the errors of readHeader and their reasons. An error that is not in the list
// has none: this side has closed the connection.
var headerReasons = []struct {
	err error
	why balance.Reason
}{
	{io.EOF, balance.HeaderAbsent},
	{proxyproto.ErrTruncated, balance.HeaderTruncated},
	{errHeaderLate, balance.HeaderLate},
	{proxyproto.ErrTooLong, balance.HeaderTooLong},
	{proxyproto.ErrMalformed, balance.HeaderMalformed},
}

// headerFailed counts the reason why the connection of peer has no header, and logs it at most once
// a second for all frontends. It doesn't log an absent header: balancers check ports frequently.
func (f *frontend) headerFailed(s *balance.Service, peer netip.AddrPort, err error) {
	for _, r := range headerReasons {
		if !errors.Is(err, r.err) {
			continue
		}
		f.target.balance.Refuse(s, r.why)
		if r.why != balance.HeaderAbsent && f.target.headerLog.Pass(f.target.balance.Now(), time.Second) {
			f.target.log.Warn("connection of a balancer reset: no valid PROXY header", "frontend", f.Key.String(), "peer", peer, "reason", r.why.String(), "err", err)
		}
		return
	}
}
