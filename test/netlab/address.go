//go:build linux

package netlab

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/ironvip/ironvip/test/wait"
	"github.com/ironvip/ironvip/vip"
)

// ServeAddress starts a server of TCP or UDP that answers with its own address, and returns it. It ends
// with the test.
func (n *Node) ServeAddress(p vip.Protocol, f vip.Family) netip.AddrPort {
	own := n.Addr4
	if f == vip.IPv6 {
		own = n.Addr6
	}
	if p == vip.UDP {
		c := n.ListenPacket(netip.AddrPortFrom(own, 0))
		at := c.LocalAddr().(*net.UDPAddr).AddrPort()
		go func() {
			buf := make([]byte, 100)
			for {
				_, from, err := c.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				c.WriteToUDPAddrPort([]byte(at.String()+"\n"), from)
			}
		}()
		return at
	}
	l := n.Listen(netip.AddrPortFrom(own, 0))
	at := l.Addr().(*net.TCPAddr).AddrPort()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, at)
			c.Close()
		}
	}()
	return at
}

// AskAddress asks such a server over a new connection, and returns its answer.
func (n *Node) AskAddress(k vip.FrontendKey) (string, error) {
	c, err := n.Dial(k.Protocol.String(), k.AddrPort())
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(wait.Reply))
	if _, err := c.Write([]byte("?\n")); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c.Conn).ReadString('\n')
	return strings.TrimSpace(line), err
}
