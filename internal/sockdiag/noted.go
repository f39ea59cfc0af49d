package sockdiag

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// Socket is one end of a connection of TCP, or a connected UDP socket.
type Socket struct {
	From, To netip.AddrPort
	State    uint8  // as the kernel numbers those of TCP; of UDP StateEstablished
	Cookie   uint64 // SO_COOKIE

	request [requestSize]byte // names it to the kernel
}

// States of net/tcp_states.h. In the last ones, TCP only waits for the answer to its end.
const (
	StateEstablished, StateListening = 1, 10
	stateLastACK, stateClosing       = 9, 11
)

// listed are the states of sockets that listen or are connected, or were until a moment ago.
const listed = 1<<StateEstablished | 1<<2 | 1<<4 | 1<<5 | 1<<8 | 1<<stateLastACK | 1<<StateListening | 1<<stateClosing

// Ending reports whether both ends of a connection have ended it.
func (s *Socket) Ending() bool { return s.State == stateLastACK || s.State == stateClosing }

const requestSize = 8 + sizeOfID

// Values of linux/inet_diag.h and linux/sock_diag.h.
const (
	withNotes  = 2 // INET_DIAG_REQ_SK_BPF_STORAGES
	ofMap      = 1 // SK_DIAG_BPF_STORAGE_REQ_MAP_FD
	notes      = 20
	note       = 1
	valueOfMap = 3
	destroy    = 21 // SOCK_DESTROY
)

// Each calls each for the sockets of a protocol that are connected or listen in this network namespace, with their value in a BPF map of type
// sk_storage: nil if there is none, with UDP, and without a map (-1). The value is valid during the call only. It costs O(sockets of the
// host).
func Each(ctx context.Context, protocol uint8, noted int, each func(s Socket, value []byte)) error {
	c := netlink.NewConn(unix.NETLINK_SOCK_DIAG, &netlink.Counters{})
	if err := c.Open(); err != nil {
		return err
	}
	defer c.Close()
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		err := c.Query(ctx, func(b []byte) []byte {
			b = netlink.BeginMessage(b, unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
			b = append(b, family, protocol, 0, 0)
			b = binary.NativeEndian.AppendUint32(b, listed)
			b = append(b, make([]byte, sizeOfID)...)
			if noted < 0 {
				return b
			}
			b, at := netlink.BeginNest(b, withNotes)
			return netlink.EndNest(netlink.AppendAttr32(b, ofMap, uint32(noted)), at)
		}, func(_ uint16, data []byte) error {
			if len(data) < sizeOfMessage {
				return netlink.ErrMalformed
			}
			each(socketOf(protocol, data), valueOf(data[sizeOfMessage:]))
			return nil
		})
		if errors.Is(err, unix.ENOENT) {
			return lacks(protocol)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// valueOf returns the value of the map in the attributes of a socket, or nil.
func valueOf(attrs []byte) []byte {
	for _, wanted := range []uint16{notes, note, valueOfMap} {
		var found []byte
		for all := (netlink.Attrs{B: attrs}); ; {
			typ, value, ok := all.Next()
			if !ok {
				break
			}
			if typ == wanted {
				found = value
			}
		}
		if found == nil {
			return nil
		}
		attrs = found
	}
	return attrs
}

func socketOf(protocol uint8, data []byte) (s Socket) {
	id := data[answerHead:][:sizeOfID]
	end := func(addr, port int) netip.AddrPort {
		a := netip.AddrFrom16([16]byte(id[addr:]))
		if data[0] == unix.AF_INET {
			a = netip.AddrFrom4([4]byte(id[addr:]))
		}
		return netip.AddrPortFrom(a.Unmap(), binary.BigEndian.Uint16(id[port:]))
	}
	s.From, s.To, s.State = end(nearAddr, near), end(farAddr, far), data[1]
	s.Cookie = uint64(binary.NativeEndian.Uint32(id[cookie:])) | uint64(binary.NativeEndian.Uint32(id[cookie+4:]))<<32
	s.request[0], s.request[1] = data[0], protocol
	binary.NativeEndian.PutUint32(s.request[4:], ^uint32(0))
	copy(s.request[8:], id)
	return s
}

// Destroy ends connections: both ends of TCP get a reset, and the program that has a socket an error. It needs CAP_NET_ADMIN.
// A socket that is gone is no error.
func Destroy(ctx context.Context, all []Socket) error {
	c := netlink.NewConn(unix.NETLINK_SOCK_DIAG, &netlink.Counters{})
	if err := c.Open(); err != nil {
		return err
	}
	defer c.Close()
	var failed error
	err := c.Write(ctx, len(all), func(b []byte, i int) []byte {
		return append(netlink.BeginMessage(b, destroy, unix.NLM_F_ACK), all[i].request[:]...)
	}, func(_ int, err error) {
		if err != nil && !errors.Is(err, unix.ENOENT) {
			failed = err
		}
	})
	return errors.Join(err, failed)
}
