package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
	"github.com/ironvip/ironvip/plane/reconcile"
	"github.com/ironvip/ironvip/vip"
)

const (
	ctaStatus, ctaProtoInfo, ctaTimeout = 3, 4, 7

	statusSrcNAT, statusDstNAT = 1 << 4, 1 << 5

	ctaProtoInfoTCP, ctaProtoInfoSCTP = 1, 3
	ctaProtoInfoState                 = 1 // of both

	tcpEstablished, tcpLastACK, tcpClosed = 3, 6, 8
	sctpEstablished                       = 4
)

// States as the kernel names them, by their numbers.
var (
	tcpStates  = [...]string{"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2"}
	sctpStates = [...]string{"NONE", "CLOSED", "COOKIE_WAIT", "COOKIE_ECHOED", "ESTABLISHED", "SHUTDOWN_SENT", "SHUTDOWN_RECD", "SHUTDOWN_ACK_SENT", "HEARTBEAT_SENT", "HEARTBEAT_ACKED"}
)

// Entry is one entry: a connection, or a client of UDP that sent something within the timeout.
type Entry struct {
	Flow    // its frontend has a single port, and no audience
	Client  netip.AddrPort
	Expires time.Duration // until it ends if nothing is sent
	// Translated means that nftables or iptables translate the destination. IPVS does it without connection tracking.
	Translated bool
	// Masqueraded means that nftables or iptables translate the source.
	Masqueraded bool

	state byte // of TCP and SCTP
}

// Forwarded reports whether it is one with another address than the client asked for, as those of frontends are. Others
// end at this host.
func (e *Entry) Forwarded() bool { return e.Backend.Addr() != e.Frontend.Addr }

// Open reports whether data may be exchanged: a TCP connection that both ends have closed isn't open.
func (e *Entry) Open() bool {
	return e.Frontend.Protocol != vip.TCP || e.state < tcpLastACK || e.state > tcpClosed
}

// Opening reports whether the two ends of a TCP or SCTP connection are still opening it.
func (e *Entry) Opening() bool {
	switch e.Frontend.Protocol {
	case vip.TCP:
		return e.state < tcpEstablished
	case vip.SCTP:
		return e.state < sctpEstablished
	}
	return false
}

// Established reports whether data is exchanged in both directions. UDP has no state, so it returns true.
func (e *Entry) Established() bool {
	switch e.Frontend.Protocol {
	case vip.TCP:
		return e.state == tcpEstablished
	case vip.SCTP:
		return e.state == sctpEstablished
	}
	return true
}

// StateName returns the kernel's name of the state, or reconcile.StateUDP.
func (e *Entry) StateName() string {
	var names []string
	switch e.Frontend.Protocol {
	case vip.TCP:
		names = tcpStates[:]
	case vip.SCTP:
		names = sctpStates[:]
	case vip.UDP:
		return reconcile.StateUDP
	}
	if int(e.state) < len(names) {
		return names[e.state]
	}
	return fmt.Sprintf("state %d", e.state)
}

// errEnough ends a dump that nobody reads further.
var errEnough = errors.New("enough")

// Each calls each for the entries of a family that match, or, without a family, for all entries of all families and
// protocols, until it returns false. It costs one dump, which the kernel filters by protocol, and as far as match has them, by
// port and address (of IPv4). Each must check what it needs: older kernels filter nothing but the protocol. The entry is valid
// during the call only.
func (t Table) Each(ctx context.Context, family vip.Family, match Flow, each func(*Entry) bool) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Counters{})
	if err != nil {
		return err
	}
	defer c.Close()
	return t.dump(ctx, c, family, match, func(e *Entry, _ []byte) error {
		if !each(e) {
			return errEnough
		}
		return nil
	})
}

// Sweep calls end for the entries of a family that match, or, without a family, for all entries of all families and
// protocols. It deletes those for which end returns true. End must check what it needs, see Each, and must not use the Table.
// Sweep costs one dump, and one message for each deletion.
func (t Table) Sweep(ctx context.Context, family vip.Family, match Flow, end func(*Entry) bool) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Counters{}) // not counted as IPVS messages
	if err != nil {
		return err
	}
	defer c.Close()
	var found [][]byte
	err = t.dump(ctx, c, family, match, func(e *Entry, data []byte) error {
		if !end(e) {
			return nil
		}
		id, err := identity(data)
		found = append(found, append(beginConntrack(nil, ctDelete, 0, vip.FamilyOf(e.Frontend.Addr)), id...))
		return err
	})
	if err != nil {
		return err
	}
	return t.delete(ctx, c, found)
}

// dump calls each for the entries that match, with their messages, until it returns an error.
func (t Table) dump(ctx context.Context, c *netlink.Conn, family vip.Family, match Flow, each func(e *Entry, data []byte) error) error {
	var e Entry
	t.Dumps.Add(1)
	err := c.Query(ctx, func(b []byte) []byte { return AppendFlowDump(b, family, match) }, func(_ uint16, data []byte) error {
		if err := e.Decode(data); err != nil || family != 0 && e.Frontend.Protocol != match.Frontend.Protocol {
			return err
		}
		return each(&e, data)
	})
	if err != nil && err != errEnough {
		return fmt.Errorf("list connection tracking entries: %w", err)
	}
	return nil
}

// Entries calls each for every entry of a frontend. It costs one dump, see Each.
func (t Table) Entries(ctx context.Context, k vip.FrontendKey, each func(*Entry)) error {
	match, _ := Flows{Flow{Frontend: k}: {}}.Common(vip.FamilyOf(k.Addr), k.Protocol)
	return t.Each(ctx, vip.FamilyOf(k.Addr), match, func(e *Entry) bool {
		if at := e.Frontend; at.Addr == k.Addr && at.Port >= k.Port && at.Port <= max(k.Port, k.LastPort) {
			each(e)
		}
		return true
	})
}

// Decode reads an entry of a dump.
func (e *Entry) Decode(data []byte) error {
	if len(data) < 4 {
		return netlink.ErrMalformed
	}
	*e = Entry{}
	a := netlink.Attrs{B: data[4:]}
	for typ, v, ok := a.Next(); ok && a.Err == nil; typ, v, ok = a.Next() {
		switch typ {
		case ctaTupleOrig:
			var dst netip.AddrPort
			var protocol byte
			e.Client, dst, protocol, a.Err = decodeTuple(v)
			e.Frontend = vip.FrontendKey{Addr: dst.Addr(), Port: dst.Port(), Protocol: vip.Protocol(protocol)}
		case ctaTupleReply:
			e.Backend, _, _, a.Err = decodeTuple(v)
		case ctaStatus:
			if len(v) == 4 {
				status := binary.BigEndian.Uint32(v)
				e.Translated, e.Masqueraded = status&statusDstNAT != 0, status&statusSrcNAT != 0
			}
		case ctaTimeout:
			if len(v) == 4 {
				e.Expires = time.Duration(binary.BigEndian.Uint32(v)) * time.Second
			}
		case ctaProtoInfo:
			info := netlink.Attrs{B: v}
			for of, v, ok := info.Next(); ok; of, v, ok = info.Next() {
				if of != ctaProtoInfoTCP && of != ctaProtoInfoSCTP {
					continue
				}
				state, err := netlink.Find(v, ctaProtoInfoState)
				if err != nil {
					return err
				}
				if len(state) > 0 {
					e.state = state[0]
				}
			}
			a.Err = info.Err
		}
	}
	return a.Err
}
