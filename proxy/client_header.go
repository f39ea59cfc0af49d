package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
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
// It returns false, and counts the reason, if there is no valid header or source ranges don't allow
// the client.
func (f *frontend) ends(client *net.TCPConn, announced bool) (proxyproto.Header, bool) {
	h := proxyproto.Header{Source: addrPort(client.RemoteAddr()), Destination: addrPort(client.LocalAddr())}
	if !announced {
		return h, true
	}
	switch in, err := f.readHeader(client); {
	case err != nil:
		f.headerFailed(h.Source, err)
		return h, false
	case in.Known():
		h = in
	}
	if !f.accepts(f.backends.Load().sources, h.Source.Addr()) {
		f.target.stats.strangers.Add(1)
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
	if err == nil {
		err = client.SetReadDeadline(time.Time{})
	}
	return h, err
}

// headerFault is a reason to reset a connection that must begin with a PROXY header.
type headerFault int

const (
	headerAbsent    headerFault = iota // closed before the first byte, such as a port check of the balancer
	headerTruncated                    // closed inside the header
	headerLate
	headerTooLong
	headerMalformed
	headerChecksum
	headerFaults
)

func (h headerFault) String() string {
	return [...]string{"absent", "truncated", "late", "too long", "malformed", "wrong checksum"}[h]
}

// faultOf returns the reason for an error of readHeader, or false for an error without one: this
// side has closed the connection.
func faultOf(err error) (headerFault, bool) {
	for _, f := range []struct {
		err   error
		fault headerFault
	}{
		{io.EOF, headerAbsent},
		{proxyproto.ErrTruncated, headerTruncated},
		{os.ErrDeadlineExceeded, headerLate},
		{proxyproto.ErrTooLong, headerTooLong},
		{proxyproto.ErrMalformed, headerMalformed},
		{proxyproto.ErrChecksum, headerChecksum},
	} {
		if errors.Is(err, f.err) {
			return f.fault, true
		}
	}
	return 0, false
}

// headerFailed counts the reason why the connection of peer has no header, and logs it at most once
// a second for all frontends. It doesn't log an absent header: balancers check ports frequently.
func (f *frontend) headerFailed(peer netip.AddrPort, err error) {
	fault, ok := faultOf(err)
	if !ok {
		return
	}
	f.target.stats.headers[fault].Add(1)
	if fault != headerAbsent && f.target.headerLog.pass(f.target.now()) {
		f.log().Warn("connection of a balancer reset: no valid PROXY header", "peer", peer, "reason", fault, "err", err)
	}
}

// headerCounts counts resets by their reasons.
type headerCounts [headerFaults]atomic.Uint64

// byReason returns the counts that are not 0.
func (c *headerCounts) byReason() map[string]uint64 {
	var out map[string]uint64
	for i := range c {
		if n := c[i].Load(); n > 0 {
			if out == nil {
				out = map[string]uint64{}
			}
			out[headerFault(i).String()] = n
		}
	}
	return out
}
