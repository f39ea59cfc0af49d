package nftwire

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// sendBuffer bounds the size of one transaction, because it is one send.
const sendBuffer = 8 << 20

// Conn is a netlink socket to nf_tables. It is not safe for concurrent use.
type Conn struct {
	nl      *netlink.Conn
	element Element // reused by Elements
}

// NewConn returns a closed socket.
func NewConn() *Conn {
	// The callers count messages, see Transaction.Messages.
	return &Conn{nl: netlink.NewConn(unix.NETLINK_NETFILTER, &netlink.Counters{})}
}

// Open opens the socket in the calling thread's network namespace.
func (c *Conn) Open(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.nl.Open()
}

// Close closes the socket.
func (c *Conn) Close() { c.nl.Close() }

// Commit opens the socket, sends a transaction, and closes the socket. The error
// joins those that the kernel reported for the messages.
func (c *Conn) Commit(ctx context.Context, x *Transaction) error {
	if err := c.Open(ctx); err != nil {
		return err
	}
	defer c.Close()
	c.nl.SetSendBuffer(sendBuffer)
	return c.nl.Transact(x)
}

// Send sends a transaction on the open socket, and opens it if it is closed. It is Commit for owners
// of a table that recognize their own events by the socket's port.
func (c *Conn) Send(ctx context.Context, x *Transaction) error {
	if c.nl.FD() < 0 {
		if err := c.Open(ctx); err != nil {
			return err
		}
		c.nl.SetSendBuffer(sendBuffer)
	}
	return c.nl.Transact(x)
}

// Port returns the port of the open socket, see netlink.Event.
func (c *Conn) Port() uint32 { return c.nl.Port() }

// query sends a request about an inet table; see queryFamily.
func (c *Conn) query(ctx context.Context, typ, flags uint16, put func(b []byte) []byte, each func(data []byte) error) error {
	return c.queryFamily(ctx, nftables.TableFamilyINet, typ, flags, put, each)
}

// queryFamily sends a request about a table of a family. It ignores that a change interrupted a
// dump: the owner of a table is its only writer, and the next resync finds what a
// dump missed.
func (c *Conn) queryFamily(ctx context.Context, family nftables.TableFamily, typ, flags uint16, put func(b []byte) []byte, each func(data []byte) error) error {
	err := c.nl.Query(ctx, func(b []byte) []byte {
		return put(appendTableMessage(b, byte(family), typ, flags))
	}, func(got uint16, data []byte) error {
		if got>>8 != unix.NFNL_SUBSYS_NFTABLES || len(data) < 4 {
			return netlink.ErrMalformed
		}
		return each(data)
	})
	if err == netlink.ErrInterrupted {
		return nil
	}
	return err
}

// TableExists reports whether a table with the name and family of t exists.
func (c *Conn) TableExists(ctx context.Context, t *nftables.Table) (bool, error) {
	err := c.queryFamily(ctx, t.Family, unix.NFT_MSG_GETTABLE, 0, func(b []byte) []byte {
		return netlink.AppendAttrString(b, unix.NFTA_TABLE_NAME, t.Name)
	}, func([]byte) error { return nil })
	if err == unix.ENOENT {
		return false, nil
	}
	return err == nil, err
}

// Sets calls each for each set of a table, with the length of its keys in bytes.
func (c *Conn) Sets(ctx context.Context, table string, each func(name string, keyLen uint32)) error {
	return c.query(ctx, unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, func(b []byte) []byte {
		return netlink.AppendAttrString(b, unix.NFTA_SET_TABLE, table)
	}, func(data []byte) error {
		var name string
		var size uint32
		a := netlink.Attrs{B: data[4:]}
		for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
			switch typ {
			case unix.NFTA_SET_NAME:
				name = netlink.String(v)
			case unix.NFTA_SET_KEY_LEN:
				if len(v) >= 4 {
					size = binary.BigEndian.Uint32(v)
				}
			}
		}
		each(name, size)
		return a.Err
	})
}

// Elements calls each for each element of a set. The element is valid during the
// call only.
func (c *Conn) Elements(ctx context.Context, table, set string, each func(x *Element)) error {
	err := c.query(ctx, unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, func(b []byte) []byte {
		b = netlink.AppendAttrString(b, unix.NFTA_SET_ELEM_LIST_TABLE, table)
		return netlink.AppendAttrString(b, unix.NFTA_SET_ELEM_LIST_SET, set)
	}, func(data []byte) error {
		list, err := elementList(data)
		for err == nil && c.element.next(&list) {
			each(&c.element)
		}
		return errors.Join(err, list.Err)
	})
	c.element = Element{} // its slices point into the socket's buffer
	return err
}

// Chains calls each for each chain of a table. Only the name is set, and the hook
// and priority of base chains.
func (c *Conn) Chains(ctx context.Context, table string, each func(nftables.Chain)) error {
	return c.query(ctx, unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, func(b []byte) []byte { return b }, func(data []byte) error {
		if in, err := netlink.Find(data[4:], unix.NFTA_CHAIN_TABLE); err != nil || netlink.String(in) != table {
			return err
		}
		ch, err := decodeChain(data)
		each(ch)
		return err
	})
}

// Rules calls each for each rule of a table, in the order of each chain. UserData
// is valid during the call only.
func (c *Conn) Rules(ctx context.Context, table string, each func(chain string, userData []byte)) error {
	return c.query(ctx, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, func(b []byte) []byte {
		return netlink.AppendAttrString(b, unix.NFTA_RULE_TABLE, table)
	}, func(data []byte) error {
		chain, err := netlink.Find(data[4:], unix.NFTA_RULE_CHAIN)
		userData, err2 := netlink.Find(data[4:], unix.NFTA_RULE_USERDATA)
		each(netlink.String(chain), userData)
		return cmp.Or(err, err2)
	})
}

// decodeChain reads a chain's name, and its hook if it has one.
func decodeChain(data []byte) (c nftables.Chain, err error) {
	a := netlink.Attrs{B: data[4:]}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		switch typ {
		case unix.NFTA_CHAIN_NAME:
			c.Name = netlink.String(v)
		case unix.NFTA_CHAIN_HOOK:
			hook := netlink.Attrs{B: v}
			for typ, v, ok := hook.Next(); ok; typ, v, ok = hook.Next() {
				if len(v) < 4 {
					continue
				}
				switch n := binary.BigEndian.Uint32(v); typ {
				case unix.NFTA_HOOK_HOOKNUM:
					c.Hooknum = nftables.ChainHookRef(nftables.ChainHook(n))
				case unix.NFTA_HOOK_PRIORITY:
					c.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(int32(n)))
				}
			}
			if hook.Err != nil {
				return c, hook.Err
			}
		}
	}
	return c, a.Err
}
