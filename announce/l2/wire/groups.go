package wire

import (
	"errors"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/announce/l2/frame"
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
	users []netip.Addr // addresses share a group if their last 24 bits are equal
}

// memberships is one socket. The kernel bounds the memberships of a socket by its option memory, to
// about 300 before Linux 6.9.
type memberships struct {
	fd   int
	n    int
	full bool
}

// Join joins the group of an IPv6 address on an interface. It does nothing if the address has joined.
// Its cost is a system call for the first address of a group.
func (g *Groups) Join(index int, addr netip.Addr) error {
	group := frame.SolicitedNode(addr)
	m := member{index, group}
	if x := g.members[m]; x != nil {
		if !slices.Contains(x.users, addr) {
			x.users = append(x.users, addr)
		}
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
		g.members[m] = &membership{on, []netip.Addr{addr}}
		return nil
	}
}

// Leave ends the membership of one address, if it has joined.
func (g *Groups) Leave(index int, addr netip.Addr) {
	m := member{index, frame.SolicitedNode(addr)}
	if x := g.members[m]; x != nil {
		if x.users = slices.DeleteFunc(x.users, func(a netip.Addr) bool { return a == addr }); len(x.users) == 0 {
			g.leave(m, x)
		}
	}
}

func (g *Groups) leave(m member, x *membership) {
	delete(g.members, m)
	// After the interface has vanished, there is nothing to leave.
	_ = unix.SetsockoptIPv6Mreq(x.on.fd, unix.IPPROTO_IPV6, unix.IPV6_LEAVE_GROUP, &unix.IPv6Mreq{Multiaddr: m.group.As16(), Interface: uint32(m.index)})
	x.on.n--
	x.on.full = false
}

// Forget drops the memberships on an interface that has vanished.
func (g *Groups) Forget(index int) {
	for m, x := range g.members {
		if m.index == index {
			g.leave(m, x)
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
