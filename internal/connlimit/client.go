package connlimit

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/ironvip/ironvip/internal/sockdiag"
	"github.com/ironvip/ironvip/internal/sockopt"
)

// Client is who shares a limit: a user of this host, an IPv4 address, or the /64 of an IPv6 address, because a
// host can use every address of its network; or a caller with a name, wherever it is. The zero value is an unknown
// client, which only the limits of all clients apply to.
type Client struct {
	Network netip.Prefix
	Local   bool // a user of this host, with UID and no Network
	UID     uint32
	Name    string // of a caller, with nothing else
}

// ClientOf returns the client of a new connection. On a connection from this host by TCP, the kernel says which user
// has its other end. Where it doesn't, because the module tcp_diag is missing or that end is gone, all users of an
// address are one client.
func ClientOf(c net.Conn) Client {
	switch c := c.(type) {
	case *net.UnixConn:
		cred, err := sockopt.PeerOf(c)
		if err != nil {
			return Client{}
		}
		return Client{Local: true, UID: cred.Uid}
	default:
		far, is := c.RemoteAddr().(*net.TCPAddr)
		if !is {
			return Client{}
		}
		near, is := c.LocalAddr().(*net.TCPAddr)
		if !is || !far.IP.IsLoopback() && !far.IP.Equal(near.IP) {
			return OfAddress(far.AddrPort().Addr())
		}
		if uid, known := sockdiag.UserOf(far.AddrPort(), near.AddrPort()); known {
			return Client{Local: true, UID: uid}
		}
		return OfAddress(far.AddrPort().Addr())
	}
}

// OfAddress returns the client with an address of another host.
func OfAddress(addr netip.Addr) Client {
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	network, _ := addr.Prefix(bits) // the length is valid
	return Client{Network: network}
}

// String names the client for a message to it.
func (c Client) String() string {
	if c.Name != "" {
		return c.Name
	}
	if c.Local {
		return fmt.Sprintf("uid %d", c.UID)
	}
	if c.Network.IsSingleIP() {
		return c.Network.Addr().String()
	}
	return c.Network.String()
}

// Tally counts what is open. It is not safe for concurrent use.
type Tally struct {
	Open int
	of   map[Client]int // of each known client
}

// Of returns what a known client has open.
func (t *Tally) Of(who Client) int { return t.of[who] }

// Add adds n to what a client has open.
func (t *Tally) Add(who Client, n int) {
	t.Open += n
	if who == (Client{}) {
		return
	}
	if t.of == nil {
		t.of = map[Client]int{}
	}
	if t.of[who] += n; t.of[who] == 0 {
		delete(t.of, who)
	}
}
