//go:build linux

package netlab

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/ironvip/ironvip/proxy/proxyproto"
	"github.com/ironvip/ironvip/test/wait"
)

// Answer is a server's answer: its name and the client address that it sees.
type Answer struct {
	Name   string         // the node's
	Client netip.AddrPort // the connection's other end, as the server sees it
}

// Serve starts a server of the network "tcp", "udp" or "sctp" at an address of the node, and
// returns its address. With port 0 it uses a free port. The server answers every line or datagram
// with its node's name and the client's address. It ends with the test. The address may be a VIP
// that the node holds.
func (n *Node) Serve(network string, at netip.AddrPort) netip.AddrPort {
	n.t.Helper()
	switch network {
	case "tcp", "sctp":
		return n.answer(network, at, func(c net.Conn) (netip.AddrPort, error) { return c.RemoteAddr().(*net.TCPAddr).AddrPort(), nil })
	case "udp":
		c := n.ListenPacket(at)
		var done sync.WaitGroup
		done.Go(func() { n.answerDatagrams(c) })
		n.t.Cleanup(func() { c.Close(); done.Wait() })
		return c.LocalAddr().(*net.UDPAddr).AddrPort()
	}
	n.t.Fatalf("netlab: %s: serve %q: want tcp, udp or sctp", n.Name, network)
	panic("unreachable")
}

// ServeBehindProxy starts a TCP server like Serve, for connections that begin with a header of the
// PROXY protocol. The client that it answers with is the one in the header.
func (n *Node) ServeBehindProxy(at netip.AddrPort) netip.AddrPort {
	n.t.Helper()
	return n.answer("tcp", at, func(c net.Conn) (netip.AddrPort, error) {
		h, err := proxyproto.Read(c.(*net.TCPConn))
		return h.Source, err
	})
}

// answer starts a server that answers every line with its node's name and the client.
func (n *Node) answer(network string, at netip.AddrPort, client func(net.Conn) (netip.AddrPort, error)) netip.AddrPort {
	n.t.Helper()
	l := n.listen(network, at)
	var conns sync.WaitGroup
	conns.Go(func() { n.accept(l, &conns, client) })
	n.t.Cleanup(func() { l.Close(); conns.Wait() })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// Listen listens for TCP inside the namespace, until the test ends.
func (n *Node) Listen(at netip.AddrPort) net.Listener {
	n.t.Helper()
	return n.listen("tcp", at)
}

func (n *Node) listen(network string, at netip.AddrPort) net.Listener {
	n.t.Helper()
	var l net.Listener
	var err error
	n.Do(func() {
		if network == "sctp" {
			l, err = listenSCTP(at)
		} else {
			c := net.ListenConfig{KeepAlive: -1} // a test decides when a packet is sent
			l, err = c.Listen(context.Background(), network, at.String())
		}
	})
	must(n.t, n.Name+": listen", err)
	n.t.Cleanup(func() { l.Close() })
	return l
}

// ListenPacket listens for UDP inside the namespace, until the test ends.
func (n *Node) ListenPacket(at netip.AddrPort) *net.UDPConn {
	n.t.Helper()
	var c *net.UDPConn
	var err error
	n.Do(func() { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)) })
	must(n.t, n.Name+": listen", err)
	n.t.Cleanup(func() { c.Close() })
	return c
}

func (n *Node) accept(l net.Listener, conns *sync.WaitGroup, clientOf func(net.Conn) (netip.AddrPort, error)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		conns.Go(func() {
			defer c.Close()
			// A silent client must not delay the end of the test.
			stop := context.AfterFunc(n.t.Context(), func() { c.Close() })
			defer stop()
			client, err := clientOf(c)
			if err != nil {
				return
			}
			for r := bufio.NewReader(c); ; {
				if _, err := r.ReadString('\n'); err != nil {
					return
				}
				if _, err := fmt.Fprintln(c, n.Name, client); err != nil {
					return
				}
			}
		})
	}
}

func (n *Node) answerDatagrams(c *net.UDPConn) {
	buf := make([]byte, 2048)
	for {
		_, client, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			return // closed
		}
		// An error means that the client is gone or that the test's own firewall blocks it. The
		// client notices.
		c.WriteToUDPAddrPort(fmt.Appendln(nil, n.Name, client), client)
	}
}

// DialContext dials from inside the namespace. The address must be literal, because a resolver
// would run outside of it. The signature fits an http.Transport.
func (n *Node) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("dial from %s: %w", n.Name, err)
	}
	var c net.Conn
	var err error
	n.Do(func() { c, err = new(net.Dialer).DialContext(ctx, network, address) })
	return c, err
}

// DialFrom is Dial from one of the node's addresses. With the zero Addr the kernel selects it.
func (n *Node) DialFrom(network string, from netip.Addr, to netip.AddrPort) (*Conn, error) {
	return n.DialFromPort(network, netip.AddrPortFrom(from, 0), to)
}

// DialFromPort is DialFrom with a port. With port 0 the kernel selects it. SCTP has no port.
func (n *Node) DialFromPort(network string, from, to netip.AddrPort) (*Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Reply)
	defer cancel()
	var c net.Conn
	var err error
	n.Do(func() {
		d := &net.Dialer{KeepAlive: -1} // a test decides when a packet is sent
		switch {
		case network == "sctp":
			c, err = dialSCTP(ctx, from.Addr(), to)
			return
		case from.Addr().IsValid() && network == "udp":
			d.LocalAddr = net.UDPAddrFromAddrPort(from)
		case from.Addr().IsValid():
			d.LocalAddr = net.TCPAddrFromAddrPort(from)
		}
		c, err = d.DialContext(ctx, network, to.String())
	})
	if err != nil {
		return nil, err
	}
	conn := &Conn{c, bufio.NewReader(c)}
	n.t.Cleanup(func() { conn.Close() })
	return conn, nil
}

// Conn is a connection to a server started by Serve. It ends with the test.
type Conn struct {
	net.Conn
	r *bufio.Reader
}

// Dial connects from inside the namespace, and waits for at most wait.Reply.
func (n *Node) Dial(network string, to netip.AddrPort) (*Conn, error) {
	c, err := n.dial(network, to)
	if err == nil {
		n.t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func (n *Node) dial(network string, to netip.AddrPort) (*Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait.Reply)
	defer cancel()
	c, err := n.DialContext(ctx, network, to.String())
	if err != nil {
		return nil, err
	}
	return &Conn{c, bufio.NewReader(c)}, nil
}

// Ask sends one request to the server, and waits for at most wait.Reply.
func (c *Conn) Ask() (Answer, error) {
	if err := c.SetDeadline(time.Now().Add(wait.Reply)); err != nil {
		return Answer{}, err
	}
	if _, err := c.Write([]byte("?\n")); err != nil {
		return Answer{}, err
	}
	line, err := c.r.ReadString('\n')
	if err != nil {
		return Answer{}, err
	}
	name, client, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	a := Answer{Name: name}
	if a.Client, err = netip.ParseAddrPort(client); err != nil {
		return Answer{}, fmt.Errorf("the answer %q: %w", line, err)
	}
	return a, nil
}

// Ask opens a connection, sends one request and closes the connection.
func (n *Node) Ask(network string, to netip.AddrPort) (Answer, error) {
	c, err := n.dial(network, to)
	if err != nil {
		return Answer{}, err
	}
	defer c.Close()
	return c.Ask()
}
