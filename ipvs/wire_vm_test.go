//go:build linux && vm

package ipvs

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/ipvs/internal/kernel"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/test/netlab"
)

// wire is what the processes of a namespace sent to the kernel over netlink, one packet per send,
// as the kernel's monitor device captured it.
type wire []packet

// packet is one send: one or more messages of one netlink protocol.
type packet struct {
	protocol int
	data     []byte
}

// messages calls each with the flags and the type of every message.
func (p packet) messages(each func(typ, flags uint16, seq uint32)) {
	for b := p.data; len(b) >= unix.NLMSG_HDRLEN; {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.NLMSG_HDRLEN {
			return
		}
		each(binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]), binary.NativeEndian.Uint32(b[8:]))
		b = b[min(len(b), (n+3)&^3):]
	}
}

// awaited returns the sequence number of the last message that requests an answer, and whether
// the answer is a dump.
func (p packet) awaited() (seq uint32, dump, any bool) {
	p.messages(func(_, flags uint16, s uint32) {
		if flags&(unix.NLM_F_ACK|unix.NLM_F_DUMP) != 0 {
			seq, dump, any = s, flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP, true
		}
	})
	return seq, dump, any
}

// queries returns the sends that request a dump, and changes the others.
func (w wire) queries() wire { return w.pick(true) }
func (w wire) changes() wire { return w.pick(false) }

func (w wire) pick(dumps bool) wire {
	var out wire
	for _, p := range w {
		if _, dump, any := p.awaited(); any && dump == dumps {
			out = append(out, p)
		}
	}
	return out
}

func (w wire) count() int {
	n := 0
	for _, p := range w {
		p.messages(func(uint16, uint16, uint32) { n++ })
	}
	return n
}

// tap records what is sent in a node while do runs.
func tap(t testing.TB, node *netlab.Node, do func()) wire {
	t.Helper()
	monitor := &rtnl.GenericLink{LinkAttrs: rtnl.LinkAttrs{Name: "nlmon0"}, LinkType: "nlmon"}
	must.Succeed(t, node.Netlink.LinkAdd(monitor))
	must.Succeed(t, node.Netlink.LinkSetUp(monitor))
	link := must.Get(node.Netlink.LinkByName("nlmon0"))(t)
	defer func() {
		expect.Succeed(t, node.Netlink.LinkDel(link))
	}()
	all := uint16(unix.ETH_P_ALL)
	all = all<<8 | all>>8
	var fd int
	node.Do(func() { fd = must.Get(unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all)))(t) })
	defer unix.Close(fd)
	must.Succeed(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20))
	must.Succeed(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index}))
	do()
	var w wire
	for buf := make([]byte, 16<<20); ; {
		n, from, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			break
		}
		must.Succeed(t, err)
		// The device also sees answers and notifications.
		if n >= unix.NLMSG_HDRLEN && binary.NativeEndian.Uint16(buf[6:])&unix.NLM_F_REQUEST != 0 {
			protocol := from.(*unix.SockaddrLinklayer).Protocol
			w = append(w, packet{int(protocol<<8 | protocol>>8), slices.Clone(buf[:n])})
		}
	}
	stats := must.Get(unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS))(t)
	must.AtMost(t, stats.Drops, 0, "the monitor lost %d packets", stats.Drops)
	return w
}

// replay sends w again in another node in the plainest way: one socket per protocol, send, read
// the answers, next. The messages exist before, so nothing is built or allocated. Each, which may
// be nil, gets every message of the answers. It returns the total time and the part of each
// protocol.
func replay(t testing.TB, node *netlab.Node, w wire, each func(protocol int, typ uint16, data []byte)) (whole time.Duration, of map[int]time.Duration) {
	t.Helper()
	sockets := map[int]int{}
	for _, p := range w {
		if _, open := sockets[p.protocol]; open {
			continue
		}
		var fd int
		var err error
		node.Do(func() { fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, p.protocol) })
		must.Succeed(t, err)
		defer unix.Close(fd)
		for _, opt := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
			must.Succeed(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt, 32<<20))
		}
		must.Succeed(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}))
		sockets[p.protocol] = fd
	}
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	buf := make([]byte, 1<<20)
	of = map[int]time.Duration{}
	start := time.Now()
	for i, p := range w {
		fd, begun := sockets[p.protocol], time.Now()
		must.Succeed(t, unix.Sendto(fd, p.data, 0, kernel), "send %d of %d", i, len(w))
		last, dump, _ := p.awaited()
		for answered := false; !answered; {
			n, err := unix.Read(fd, buf)
			must.Succeed(t, err, "the answer to send %d of %d", i, len(w))
			for b := buf[:n]; len(b) >= unix.NLMSG_HDRLEN; {
				size, typ := int(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint16(b[4:])
				if typ == unix.NLMSG_ERROR {
					if errno := int32(binary.NativeEndian.Uint32(b[16:])); errno != 0 {
						t.Fatalf("send %d of %d, protocol %d: %v", i, len(w), p.protocol, unix.Errno(-errno))
					}
				}
				if binary.NativeEndian.Uint32(b[8:]) == last && (typ == unix.NLMSG_DONE || typ == unix.NLMSG_ERROR && !dump) {
					answered = true
				} else if each != nil && typ >= unix.NLMSG_MIN_TYPE {
					each(p.protocol, typ, b[unix.NLMSG_HDRLEN:size])
				}
				b = b[min(len(b), (size+3)&^3):]
			}
		}
		of[p.protocol] += time.Since(begun)
	}
	return time.Since(start), of
}

// plainly is the result of a bare read of a kernel: its objects as plain structs, in the order of
// arrival, without lookups, comparisons or joins. It is the unit for the cost of our own reader.
type plainly struct {
	services  []kernel.Service
	dests     []kernel.Dest
	addresses []netip.Addr
	rules     []struct{ chain, comment string }
	elements  []struct{ key, end, data []byte }
	others    int // number of tables, chains, sets, links
}

// keep decodes one message.
func (r *plainly) keep(protocol int, typ uint16, data []byte) {
	switch {
	case protocol == unix.NETLINK_GENERIC && data[0] == kernel.CmdNewDest:
		if d, err := kernel.DecodeDest(data, netip.IPv4Unspecified()); err == nil {
			r.dests = append(r.dests, d.Dest)
		}
	case protocol == unix.NETLINK_GENERIC:
		if s, _, err := kernel.DecodeService(data); err == nil {
			r.services = append(r.services, s)
		}
	case protocol == unix.NETLINK_ROUTE && typ == unix.RTM_NEWADDR:
		a := netlink.Attrs{B: data[unix.SizeofIfAddrmsg:]}
		for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
			if typ == unix.IFA_ADDRESS {
				addr, _ := netip.AddrFromSlice(v)
				r.addresses = append(r.addresses, addr)
			}
		}
	case typ == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE:
		var chain, comment string
		a := netlink.Attrs{B: data[4:]}
		for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
			switch typ {
			case unix.NFTA_RULE_CHAIN:
				chain = netlink.String(v)
			case unix.NFTA_RULE_USERDATA:
				comment = string(v)
			}
		}
		r.rules = append(r.rules, struct{ chain, comment string }{chain, comment})
	case typ == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWSETELEM:
		a := netlink.Attrs{B: data[4:]}
		for typ, list, ok := a.Next(); ok; typ, list, ok = a.Next() {
			if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			elements := netlink.Attrs{B: list}
			for _, one, ok := elements.Next(); ok; _, one, ok = elements.Next() {
				var e struct{ key, end, data []byte }
				parts := netlink.Attrs{B: one}
				for typ, v, ok := parts.Next(); ok; typ, v, ok = parts.Next() {
					switch typ {
					case unix.NFTA_SET_ELEM_KEY:
						e.key = slices.Clone(v[4:])
					case unix.NFTA_SET_ELEM_DATA:
						e.data = slices.Clone(v[4:])
					case nftables.NFTA_SET_ELEM_KEY_END:
						e.end = slices.Clone(v[4:])
					}
				}
				r.elements = append(r.elements, e)
			}
		}
	default:
		r.others++
	}
}
