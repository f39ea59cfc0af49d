package server

import (
	"context"
	"net"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"
)

// peer is who opened the connection of a request.
type peer struct {
	uid    uint32 // of a unix socket's peer, when it connected
	isUnix bool
	remote string // the address of a TCP peer, without its port
}

type peerKey struct{}

// withPeer records the peer of a new connection in the context of its requests. It costs one system
// call per connection.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	p := peer{}
	switch c := c.(type) {
	case *net.UnixConn:
		raw, err := c.SyscallConn()
		if err != nil {
			return ctx
		}
		var cred *unix.Ucred
		var failed error
		if err := raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || failed != nil {
			return ctx
		}
		p.isUnix, p.uid = true, cred.Uid
	default:
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err != nil {
			return ctx
		}
		p.remote = host
	}
	return context.WithValue(ctx, peerKey{}, p)
}

// Caller returns who sent a request: the name of the user that connected to the unix socket, or
// "uid 1000" if it has no name, or "tcp 127.0.0.1". It returns "" if that is unknown. It reads the
// host's user database.
func Caller(ctx context.Context) string {
	p, known := ctx.Value(peerKey{}).(peer)
	switch {
	case !known:
		return ""
	case !p.isUnix:
		return "tcp " + p.remote
	}
	id := strconv.FormatUint(uint64(p.uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return "uid " + id
}
