package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/ironvip/ironvip/proxy/proxyproto"
)

// announced reports whether a connection from peer must begin with a PROXY header, because peer is
// one of the balancers that the service accepts it from. It costs O(balancers).
func (f *frontend) announced(peer netip.Addr) bool {
	peer = peer.Unmap()
	return slices.ContainsFunc(f.backends.Load().relay.AcceptProxyFrom, func(p netip.Prefix) bool { return p.Contains(peer) })
}

// ends returns the two ends of the client's connection. If it is announced, they are those in its
// header; a client that the balancer doesn't know, or the balancer itself, has the connection's own.
// It returns false, and counts the reason in s, if there is no valid header or source ranges don't
// allow the client.
func (f *frontend) ends(client *net.TCPConn, announced bool, s *service) (proxyproto.Header, bool) {
	h := proxyproto.Header{Source: addrPort(client.RemoteAddr()), Destination: addrPort(client.LocalAddr())}
	if !announced {
		return h, true
	}
	switch in, err := f.readHeader(client); {
	case err != nil:
		f.headerFailed(s, h.Source, err)
		return h, false
	case in.Known():
		h = in
	}
	if !f.accepts(f.backends.Load().sources, h.Source.Addr()) {
		f.target.refuse(s, outsideRanges)
		return h, false
	}
	return h, true
}

func addrPort(a net.Addr) netip.AddrPort {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// readHeader reads the header, and ends when the frontend does.
func (f *frontend) readHeader(client *net.TCPConn) (proxyproto.Header, error) {
	if err := client.SetReadDeadline(time.Now().Add(f.target.opts.HeaderTimeout)); err != nil {
		return proxyproto.Header{}, err
	}
	stop := context.AfterFunc(f.ctx, func() { reset(client) })
	defer stop()
	h, err := proxyproto.Read(client)
	switch {
	case err == nil:
		err = client.SetReadDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = fmt.Errorf("%w within %s", errHeaderLate, f.target.opts.HeaderTimeout)
	}
	return h, err
}

var errHeaderLate = errors.New("the header is not complete")

// headerReasons are the errors of readHeader and their reasons. An error that is not in the list
// has none: this side has closed the connection.
var headerReasons = []struct {
	err error
	why reason
}{
	{io.EOF, headerAbsent},
	{proxyproto.ErrTruncated, headerTruncated},
	{errHeaderLate, headerLate},
	{proxyproto.ErrTooLong, headerTooLong},
	{proxyproto.ErrMalformed, headerMalformed},
	{proxyproto.ErrChecksum, headerChecksum},
}

// headerFailed counts the reason why the connection of peer has no header, and logs it at most once
// a second for all frontends. It doesn't log an absent header: balancers check ports frequently.
func (f *frontend) headerFailed(s *service, peer netip.AddrPort, err error) {
	for _, r := range headerReasons {
		if !errors.Is(err, r.err) {
			continue
		}
		f.target.refuse(s, r.why)
		if r.why != headerAbsent && f.target.headerLog.pass(f.target.now(), time.Second) {
			f.log().Warn("connection of a balancer reset: no valid PROXY header", "peer", peer, "reason", r.why.String(), "err", err)
		}
		return
	}
}
