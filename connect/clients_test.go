package connect

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/need"
	"github.com/ironvip/ironvip/vip"
)

// A program reaches the backend by each kind of socket, and is told that it has reached the virtual address.
func TestClients(t *testing.T) {
	l := newLab(t)
	l.set(l.frontend("[2001:db8::2]:80", vip.UDP, 1)) // of severalPeers
	for _, protocol := range []vip.Protocol{vip.TCP, vip.UDP} {
		l.set(l.frontend("192.0.2.1:80", protocol, 0), l.frontend("[2001:db8::1]:80", protocol, 0))
		for _, at := range []string{"192.0.2.1:80", "[2001:db8::1]:80"} {
			c := l.dial(protocol.String(), at)
			a := must.Get(c.Ask())(t)
			expect.Equal(t, a.Name, first, "%s %s", protocol, at)
			expect.Equal(t, c.RemoteAddr().String(), at, "getpeername")
			expect.Equal(t, a.Client.String(), c.LocalAddr().String(), "the client as the backend sees it")
			var buf [100]byte
			if u, is := c.Conn.(*net.UDPConn); is { // the sender of an answer
				must.Get(u.Write([]byte("?")))(t)
				_, from, err := u.ReadFromUDPAddrPort(buf[:])
				must.Succeed(t, err)
				expect.Equal(t, from.String(), at, "recvfrom of a connected socket")
			}
		}
	}
	l.Director.Do(func() {
		l.unconnected(t)
		l.mapped(t)
		l.fastOpen(t)
		l.boundPort(t)
		l.boundAddress(t)
		l.severalPeers(t)
		l.ring(t)
	})
	expect.Equal(t, l.ask("tcp", "192.0.2.1:81"), "dial tcp 192.0.2.1:81: connect: network is unreachable", "another port")
}

// unconnected asks by sendto, and then connects the same socket.
func (l *lab) unconnected(t *testing.T) {
	for network, at := range map[string]string{"udp4": "192.0.2.1:80", "udp6": "[2001:db8::1]:80", "udp": "192.0.2.1:80"} {
		c := must.Get(net.ListenUDP(network, nil))(t)
		defer c.Close()
		var buf [100]byte
		must.Succeed(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		for range 2 {
			must.Get(c.WriteToUDPAddrPort([]byte("?"), netip.MustParseAddrPort(at)))(t)
			n, from, err := c.ReadFromUDPAddrPort(buf[:])
			must.Succeed(t, err, "%s", network)
			expect.Equal(t, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()).String(), at, "%s: the sender", network)
			expect.Contains(t, string(buf[:n]), first)
		}
	}
	fd := must.Get(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	to := &unix.SockaddrInet4{Addr: [4]byte{192, 0, 2, 1}, Port: 80}
	must.Succeed(t, unix.Sendto(fd, []byte("?"), 0, to))
	must.Succeed(t, unix.Connect(fd, to))
	must.Get(unix.Write(fd, []byte("?")))(t)
	name := must.Get(unix.Getpeername(fd))(t)
	expect.Equal(t, name.(*unix.SockaddrInet4).Addr, to.Addr, "getpeername")
	var buf [100]byte
	for range 2 { // of both datagrams
		n, from, err := unix.Recvfrom(fd, buf[:], 0)
		must.Succeed(t, err)
		expect.Contains(t, string(buf[:n]), first)
		expect.Equal(t, from.(*unix.SockaddrInet4).Addr, to.Addr, "the sender")
	}
}

var vip4 = [16]byte{10: 0xff, 11: 0xff, 12: 192, 14: 2, 15: 1}

// mapped connects a socket of IPv6 to an address of IPv4, as Java does.
func (l *lab) mapped(t *testing.T) {
	fd := must.Get(unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	must.Succeed(t, unix.Connect(fd, &unix.SockaddrInet6{Addr: vip4, Port: 80}))
	must.Get(unix.Write(fd, []byte("?\n")))(t)
	var buf [100]byte
	n := must.Get(unix.Read(fd, buf[:]))(t)
	expect.Contains(t, string(buf[:n]), first)
	name := must.Get(unix.Getpeername(fd))(t)
	expect.Equal(t, name.(*unix.SockaddrInet6).Addr, vip4, "getpeername")
}

func (l *lab) fastOpen(t *testing.T) {
	fd := must.Get(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	must.Succeed(t, unix.Sendto(fd, []byte("?\n"), unix.MSG_FASTOPEN, &unix.SockaddrInet4{Addr: [4]byte{192, 0, 2, 1}, Port: 80}))
	var buf [100]byte
	n := must.Get(unix.Read(fd, buf[:]))(t)
	expect.Contains(t, string(buf[:n]), first)
}

func (l *lab) boundPort(t *testing.T) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{Port: 12345}}
	c := must.Get(d.DialContext(t.Context(), "tcp4", "192.0.2.1:80"))(t)
	defer c.Close()
	expect.Equal(t, c.LocalAddr().(*net.TCPAddr).Port, 12345)
}

// boundAddress is left to the dataplane, which isn't there.
func (l *lab) boundAddress(t *testing.T) {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(l.Director.Addr4, 0))}
	if c, err := d.DialContext(t.Context(), "tcp4", "192.0.2.1:80"); err == nil {
		c.Close()
		t.Error("a program with an address of its choice was balanced")
	}
}

// severalPeers asks two virtual addresses from one socket by sendmsg with control data, as QUIC does. Each datagram is cut
// into two by the kernel.
func (l *lab) severalPeers(t *testing.T) {
	fd := must.Get(unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	must.Succeed(t, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1))
	oob := unix.PktInfo6(&unix.Inet6Pktinfo{})
	segment := make([]byte, unix.CmsgSpace(2))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&segment[0]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(segment[unix.CmsgLen(0):], 1)
	oob = append(oob, segment...)
	peers := map[[16]byte]string{netip.MustParseAddr("2001:db8::1").As16(): first, netip.MustParseAddr("2001:db8::2").As16(): second}
	for range 2 {
		for a := range peers {
			must.Succeed(t, unix.Sendmsg(fd, []byte("??"), oob, &unix.SockaddrInet6{Addr: a, Port: 80}, 0))
		}
		for range 2 * len(peers) {
			var buf, control [100]byte
			n, _, _, from, err := unix.Recvmsg(fd, buf[:], control[:], 0)
			must.Succeed(t, err)
			name := peers[from.(*unix.SockaddrInet6).Addr]
			expect.Equal(t, strings.Fields(string(buf[:n]))[0], name, "the answer of %v", from)
		}
	}
}

// ring connects by io_uring, whose system call isn't connect.
func (l *lab) ring(t *testing.T) {
	var p struct {
		sqEntries, cqEntries, flags, cpu, idle, features, wq uint32
		_                                                    [3]uint32
		sq                                                   struct{ head, tail, mask, entries, flags, dropped, array, _, _, _ uint32 }
		cq                                                   struct{ head, tail, mask, entries, overflow, cqes, _, _, _, _ uint32 }
	}
	ring, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&p)), 0)
	must.Equal(t, errno, 0, "io_uring_setup, see the sysctl kernel.io_uring_disabled")
	defer unix.Close(int(ring))
	part := func(offset int64) []byte {
		b := must.Get(unix.Mmap(int(ring), offset, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
		t.Cleanup(func() { _ = unix.Munmap(b) })
		return b
	}
	submissions, completions, entry := part(0), part(0x8000000), part(0x10000000)
	fd := must.Get(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	to := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: 80 << 8, Addr: [4]byte{192, 0, 2, 1}}
	entry[0] = 16 // IORING_OP_CONNECT
	binary.NativeEndian.PutUint32(entry[4:], uint32(fd))
	binary.NativeEndian.PutUint64(entry[8:], unix.SizeofSockaddrInet4)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&to)
	binary.NativeEndian.PutUint64(entry[16:], uint64(uintptr(unsafe.Pointer(&to))))
	binary.NativeEndian.PutUint32(submissions[p.sq.array:], 0)
	binary.NativeEndian.PutUint32(submissions[p.sq.tail:], 1)
	_, _, errno = unix.Syscall6(unix.SYS_IO_URING_ENTER, ring, 1, 1, 1, 0, 0) // IORING_ENTER_GETEVENTS
	must.Equal(t, errno, 0, "io_uring_enter")
	must.Equal(t, int32(binary.NativeEndian.Uint32(completions[p.cq.cqes+8:])), 0, "the result of connect")
	must.Get(unix.Write(fd, []byte("?\n")))(t)
	var buf [100]byte
	n := must.Get(unix.Read(fd, buf[:]))(t)
	expect.Contains(t, string(buf[:n]), first)
	name := must.Get(unix.Getpeername(fd))(t)
	expect.Equal(t, name.(*unix.SockaddrInet4).Addr, to.Addr, "getpeername")
}

// Programs reach names by virtual addresses of a resolver and of a server: curl with the C library's resolver, and Go with
// its own.
func TestNames(t *testing.T) {
	need.Program(t, "curl")
	l := newLab(t)
	b := l.Backends[0]
	resolver := &dns.Server{PacketConn: b.ListenPacket(netip.AddrPortFrom(b.Addr4, 0)), Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg).SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			r.Answer = append(r.Answer, must.Get(dns.NewRR(q.Question[0].Name+" A 192.0.2.1"))(t))
		}
		_ = w.WriteMsg(r)
	})}
	go resolver.ActivateAndServe()
	t.Cleanup(func() { _ = resolver.Shutdown() })
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s by %s", r.Host, r.Proto) })}
	pages := b.Listen(netip.AddrPortFrom(b.Addr4, 0))
	go web.Serve(pages)
	t.Cleanup(func() { _ = web.Close() })
	names, site := l.frontend("192.0.2.53:53", vip.UDP), l.frontend("192.0.2.1:80", vip.TCP)
	names.Backends = []vip.Endpoint{{Addr: resolver.PacketConn.LocalAddr().(*net.UDPAddr).AddrPort(), Weight: 1}}
	site.Backends = []vip.Endpoint{{Addr: pages.Addr().(*net.TCPAddr).AddrPort(), Weight: 1}}
	l.set(names, site)

	conf := filepath.Join(t.TempDir(), "resolv.conf")
	must.Succeed(t, os.WriteFile(conf, []byte("nameserver 192.0.2.53\n"), 0o644))
	out := l.Director.Run("unshare", "-m", "sh", "-c", "mount --bind "+conf+" /etc/resolv.conf && exec curl -sS --max-time 10 -w ' from %{remote_ip}:%{remote_port}' http://web.test.")
	expect.Equal(t, out, "web.test. by HTTP/1.1 from 192.0.2.1:80")
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return l.Director.DialContext(ctx, network, "192.0.2.53:53")
	}}
	expect.Equal(t, fmt.Sprint(must.Get(r.LookupHost(t.Context(), "web.test."))(t)), "[192.0.2.1]")
}

// Programs in other network namespaces are left to the dataplane, unless all are to be served. Their loopback addresses are
// their own.
func TestOtherNamespaces(t *testing.T) {
	l := newLab(t)
	l.set(l.frontend("192.0.2.1:80", vip.TCP, 0), l.nodePort(l.Director.Addr4, vip.TCP, 0))
	ask := func(at string) string {
		a, err := l.Client.Ask("tcp", netip.MustParseAddrPort(at))
		return fmt.Sprint(a.Name, err)
	}
	own := ask("192.0.2.1:80")
	expect.False(t, strings.Contains(own, first), "%s", own)
	l.all = true
	l.next()
	expect.Equal(t, ask("192.0.2.1:80"), first+"<nil>")
	expect.Equal(t, l.ask("tcp", "192.0.2.1:80"), first, "in the own namespace")
	expect.Contains(t, ask("127.0.0.1:30080"), "refused")
	for at, backend := range map[string]string{"192.0.2.3:80": "127.0.0.9:7000", "[2001:db8::3]:80": "[::1]:7000"} {
		f := l.frontend(at, vip.TCP)
		f.Backends = []vip.Endpoint{{Addr: netip.MustParseAddrPort(backend), Weight: 1}}
		l.set(f)
		l.Client.Serve("tcp", f.Backends[0].Addr)
		l.Director.Serve("tcp", f.Backends[0].Addr)
		got := ask(at)
		expect.False(t, strings.HasPrefix(got, l.Client.Name), "a client of %s has reached its own %s: %s", at, backend, got)
		expect.Equal(t, l.ask("tcp", at), l.Director.Name, "in the own namespace")
	}
	l.all = false
	l.next()
	expect.Equal(t, ask("192.0.2.1:80"), own, "afterwards")
}

// nodePort returns the frontend of node port 30080 at an address.
func (l *lab) nodePort(a netip.Addr, protocol vip.Protocol, backend int) *vip.Frontend {
	f := l.frontend(netip.AddrPortFrom(a, 30080).String(), protocol, backend)
	f.Kind = vip.OnHost
	return f
}

// Node ports are those of 127.0.0.1 and ::1, too, which no packet could leave.
func TestNodePortsAtLoopback(t *testing.T) {
	l := newLab(t)
	d := l.Director
	l.set(l.frontend(netip.AddrPortFrom(d.Addr4, 30081).String(), vip.TCP, 0)) // no node port
	for _, p := range []vip.Protocol{vip.TCP, vip.UDP} {
		l.set(l.nodePort(d.Addr4, p, 0), l.nodePort(d.Addr6, p, 1))
		for at, want := range map[string]string{"127.0.0.1:30080": first, "[::1]:30080": second, l.nodePort(d.Addr4, p, 0).Key.AddrPort().String(): first} {
			c := l.dial(p.String(), at)
			a := must.Get(c.Ask())(t)
			expect.Equal(t, a.Name, want, "%s %s", p, at)
			expect.Equal(t, c.RemoteAddr().String(), at, "getpeername")
			l.Suspect()
			l.clean()
			_, err := c.Ask()
			expect.Succeed(t, err, "%s %s: a connection after a cleanup", p, at)
		}
	}
	k := l.nodePort(d.Addr4, vip.UDP, 0).Key
	expect.Equal(t, l.open(k)[l.backend(0, k.Addr)], 2, "open connections of the node port")
	for _, at := range []string{"127.0.0.2:30080", "127.0.0.1:30081", "127.0.0.1:30082", "[::1]:30082"} {
		expect.Contains(t, l.ask("tcp", at), "refused", "%s", at)
	}
	server := d.Serve("tcp", netip.MustParseAddrPort("127.0.0.1:30080"))
	expect.Equal(t, l.ask("tcp", server.String()), d.Name, "where a program of the host listens")
	expect.Equal(t, l.ask("udp", server.String()), first, "where no program listens")
	expect.Equal(t, l.ask("tcp", "[::1]:30080"), second, "where no program listens")

	for server, client := range map[string]string{"0.0.0.0:30090": "127.0.0.1", "[::]:30091": "::1"} {
		a := netip.MustParseAddr(client)
		to := netip.AddrPortFrom(a, d.Serve("udp", netip.MustParseAddrPort(server)).Port())
		d.Do(func() {
			c := must.Get(net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 30080)), net.UDPAddrFromAddrPort(to)))(t)
			defer c.Close()
			must.Succeed(t, c.SetDeadline(time.Now().Add(5*time.Second)))
			must.Get(c.Write([]byte("?")))(t)
			var buf [100]byte
			n, err := c.Read(buf[:])
			expect.Succeed(t, err, "the answer to a connected client at the port, of a server at all addresses")
			expect.Contains(t, string(buf[:n]), d.Name)
		})
	}

	l.next()
	for _, g := range l.actual() {
		expect.True(t, l.Same(l.have[g.Key], &g), "%s after a restart: %+v", g.Key, g)
	}
	expect.Equal(t, l.ask("udp", "127.0.0.1:30080"), first, "with the next process")
	l.set(l.nodePort(netip.MustParseAddr("192.0.2.9"), vip.UDP, 1)) // the host gets another address
	l.apply(k, nil)
	l.apply(l.nodePort(d.Addr4, vip.TCP, 0).Key, nil)
	expect.Equal(t, l.ask("udp", "127.0.0.1:30080"), second, "by another address of the host")
	l.apply(l.nodePort(netip.MustParseAddr("192.0.2.9"), vip.UDP, 0).Key, nil)
	expect.Contains(t, l.ask("udp", "127.0.0.1:30080"), "refused", "without a node port")
}
