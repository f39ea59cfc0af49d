package wire

import (
	"errors"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Groups is the membership of this host in multicast groups on interfaces. It exists so that network
// interfaces and switches that follow MLD deliver neighbor solicitations. It is not safe for
// concurrent use. The zero value is ready.
type Groups struct {
	sockets []*memberships
	members map[member]*membership
}

type member struct {
	index int
	group netip.Addr
}

type membership struct {
	on    *memberships
	users int // addresses share a group if their last 24 bits are equal
}

// memberships is one socket. The kernel bounds the memberships of a socket by its option memory, to
// about 300 before Linux 6.9.
type memberships struct {
	fd   int
	n    int
	full bool
}

// Join joins a group on an interface, once for each user. Its cost is a system call for the first
// user of a group.
func (g *Groups) Join(index int, group netip.Addr) error {
	m := member{index, group}
	if x := g.members[m]; x != nil {
		x.users++
		return nil
	}
	for {
		on, err := g.socket()
		if err != nil {
			return err
		}
		err = unix.SetsockoptIPv6Mreq(on.fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)})
		if (errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)) && on.n > 0 {
			on.full = true // try another one
			continue
		}
		if err != nil && !errors.Is(err, unix.EADDRINUSE) {
			return os.NewSyscallError("join an IPv6 group", err)
		}
		on.n++
		if g.members == nil {
			g.members = map[member]*membership{}
		}
		g.members[m] = &membership{on: on, users: 1}
		return nil
	}
}

// Leave ends the membership of one user.
func (g *Groups) Leave(index int, group netip.Addr) {
	m := member{index, group}
	x := g.members[m]
	if x == nil {
		return
	}
	if x.users--; x.users > 0 {
		return
	}
	delete(g.members, m)
	// After the interface has vanished, there is nothing to leave.
	_ = unix.SetsockoptIPv6Mreq(x.on.fd, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(index)})
	x.on.n--
	x.on.full = false
}

// Forget drops the memberships on an interface that has vanished.
func (g *Groups) Forget(index int) {
	for m, x := range g.members {
		if m.index == index {
			x.users = 1
			g.Leave(index, m.group)
		}
	}
}

// Close leaves all groups.
func (g *Groups) Close() {
	for _, s := range g.sockets {
		unix.Close(s.fd)
	}
	*g = Groups{}
}

// socket returns a socket with room.
func (g *Groups) socket() (*memberships, error) {
	if n := len(g.sockets); n > 0 && !g.sockets[n-1].full {
		return g.sockets[n-1], nil
	}
	for _, s := range g.sockets {
		if !s.full {
			return s, nil
		}
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("open a socket for IPv6 groups", err)
	}
	s := &memberships{fd: fd}
	g.sockets = append(g.sockets, s)
	return s, nil
}
