package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os/user"
	"strconv"
	"strings"
	"sync"

	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/internal/access"
	"github.com/ironvip/ironvip/internal/connlimit"
	"github.com/ironvip/ironvip/internal/sockopt"
)

// peer is who opened the connection of a request.
type peer struct {
	isUnix   bool
	uid      uint32   // of a unix socket's peer, when it connected
	groups   []uint32 // of the same process
	remote   string   // the address of a TCP peer, without its port
	loopback bool     // the connection is from a loopback address to a loopback address
	who      func() string
	client   connlimit.Client // whose limits apply
	conn     *connlimit.Conn
}

type peerKey struct{}

// peerOf returns the peer of the connection that a context is of, or nil.
func peerOf(ctx context.Context) *peer {
	p, _ := ctx.Value(peerKey{}).(*peer)
	return p
}

// newPeer returns the peer of a new connection, or nil if it is gone.
func newPeer(of *connlimit.Conn) *peer {
	p := &peer{client: of.Client, conn: of}
	p.who = sync.OnceValue(p.find) // the user database is read once for a connection
	if c, is := of.Conn.(*net.UnixConn); is {
		cred, err := sockopt.PeerOf(c)
		if err != nil {
			return nil
		}
		raw, err := c.SyscallConn()
		if err != nil {
			return nil
		}
		if raw.Control(func(fd uintptr) { p.groups = append(peerGroups(int(fd)), cred.Gid) }) != nil {
			return nil
		}
		p.isUnix, p.uid = true, cred.Uid
		return p
	}
	host, _, err := net.SplitHostPort(of.RemoteAddr().String())
	if err != nil {
		return nil
	}
	p.remote, p.loopback = host, isLoopback(of.RemoteAddr()) && isLoopback(of.LocalAddr())
	return p
}

func isLoopback(a net.Addr) bool {
	t, is := a.(*net.TCPAddr)
	return is && t.IP.IsLoopback()
}

// find returns who a peer without a token or certificate is. It reads the host's user database.
func (p *peer) find() string {
	if !p.isUnix {
		return "tcp " + p.remote
	}
	id := strconv.FormatUint(uint64(p.uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return "uid " + id
}

// Caller returns who sent a request: the name of the user that connected to the unix socket, or
// "uid 1000" if it has no name, "token deploy", "certificate deploy.example", or "tcp 127.0.0.1". It
// returns "" if that is unknown.
func Caller(ctx context.Context) string {
	r := requestOf(ctx)
	if r.caller.Name != "" || r.peer == nil {
		return r.caller.Name
	}
	return r.peer.who()
}

// GrantOf returns what the caller of a request may do.
func GrantOf(ctx context.Context) access.Grant { return requestOf(ctx).caller.Grant }

// identify returns who sent a request and what they may do, or why they can't be identified. A token
// in a header counts before one in a cookie, a token before a certificate, and a certificate before the process. A token that is not valid is
// an error, also for a caller that needs none.
func (s *Server) identify(r *http.Request, policy *access.Policy) (access.Caller, *Problem) {
	p := requestOf(r.Context()).peer
	if header := r.Header.Get("Authorization"); header != "" {
		return holder(policy, bearer(header))
	}
	if token, has := sessionToken(r); has {
		if p := crossOrigin(r); p != nil {
			return access.Caller{}, p
		}
		caller, p := holder(policy, token)
		if p != nil && p.Status == http.StatusUnauthorized { // the browser would send it forever
			p.header.Set("Set-Cookie", sessionCookie(r, ""))
		}
		return caller, p
	}
	var caller access.Caller
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		subject := r.TLS.VerifiedChains[0][0].Subject.CommonName
		caller = access.Caller{Name: "certificate " + subject, Grant: policy.OfCertificate(subject)}
	}
	switch {
	case policy.Everyone:
		caller.Role = access.Admin
	case p == nil || caller.Role != access.None:
	case p.isUnix:
		caller = access.Caller{Name: p.who(), Grant: policy.OfProcess(p.uid, p.groups)}
	case p.loopback && policy.InsecureLoopback && r.TLS == nil:
		caller = access.Caller{Name: p.who(), Grant: access.Grant{Role: access.Admin}}
	}
	return caller, nil
}

// holder returns who has a token; "" is none.
func holder(policy *access.Policy, token string) (access.Caller, *Problem) {
	if token == "" || policy.Tokens == nil {
		return access.Caller{}, unauthorized("only tokens of this agent are accepted", "send \"Authorization: Bearer TOKEN\"")
	}
	caller, err := policy.Tokens(token)
	switch {
	case errors.Is(err, access.ErrNotReady):
		return access.Caller{}, Refuse(http.StatusServiceUnavailable, v1.CodeStoreUnavailable, err.Error(), "try again later").RetryAfter(1)
	case err != nil:
		return access.Caller{}, unauthorized(err.Error(), "create one with ironvip token create")
	}
	return caller, nil
}

// bearer returns the token of an Authorization header, or "".
func bearer(header string) string {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return token
}
