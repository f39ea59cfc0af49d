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

// sendBuffer bounds the size of one transaction, because it is one send. The kernel takes no memory
// of it before.
const sendBuffer = 64 << 20

// Conn is a netlink socket to nf_tables. It is not safe for concurrent use.
type Conn struct {
	nl      *netlink.Conn
	element Element // reused by Elements
	dump    []byte  // reused while the socket is open: the messages of a dump, each after its length
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
func (c *Conn) Close() {
	c.nl.Close()
	c.dump = nil
}

// Commit opens the socket, sends a transaction, and closes the socket. The error
// joins those that the kernel reported for the messages.
func (c *Conn) Commit(ctx context.Context, x *Transaction) error {
	if err := c.Open(ctx); err != nil {
		return err
	}
	defer c.Close()
	c.nl.SetSendBuffer(sendBuffer)
	return c.nl.Transact(ctx, x)
}

// Send sends a transaction on the open socket, and opens it if it is closed. It is Commit for owners
// of a table that recognize their own events by the socket's port.
func (c *Conn) Send(ctx context.Context, x *Transaction) error {
	if err := c.Ensure(ctx); err != nil {
		return err
	}
	return c.nl.Transact(ctx, x)
}

// Ensure opens the socket for Send if it is closed.
func (c *Conn) Ensure(ctx context.Context) error {
	if c.nl.FD() >= 0 {
		return nil
	}
	if err := c.Open(ctx); err != nil {
		return err
	}
	c.nl.SetSendBuffer(sendBuffer)
	return nil
}

// Port returns the port of the open socket, see netlink.Event.
func (c *Conn) Port() uint32 { return c.nl.Port() }

// query sends a request about an inet table; see queryFamily.
func (c *Conn) query(ctx context.Context, typ, flags uint16, put func(b []byte) []byte, each func(data []byte) error) error {
	return c.queryFamily(ctx, nftables.TableFamilyINet, typ, flags, put, each)
}

// dumpTries bounds the tries of a dump. Each takes milliseconds, so they all fail only while others change the tables
// hundreds of times in a second.
const dumpTries = 20

// queryFamily sends a request about a table of a family. Any change of the tables of this namespace during a dump can
// make it miss or repeat objects. Then it is repeated, so each sees only whole dumps. The error after dumpTries is
// netlink.ErrInterrupted.
func (c *Conn) queryFamily(ctx context.Context, family nftables.TableFamily, typ, flags uint16, put func(b []byte) []byte, each func(data []byte) error) error {
	err := netlink.ErrInterrupted
	for try := 0; try < dumpTries && err == netlink.ErrInterrupted; try++ {
		c.dump = c.dump[:0]
		err = c.nl.Query(ctx, func(b []byte) []byte {
			return put(appendTableMessage(b, byte(family), typ, flags))
		}, func(got uint16, data []byte) error {
			if got>>8 != unix.NFNL_SUBSYS_NFTABLES || len(data) < 4 {
				return netlink.ErrMalformed
			}
			c.dump = append(binary.NativeEndian.AppendUint32(c.dump, uint32(len(data))), data...)
			return nil
		})
	}
	if err != nil {
		return err
	}
	for b := c.dump; len(b) > 0; {
		end := 4 + binary.NativeEndian.Uint32(b)
		if err := each(b[4:end]); err != nil {
			return err
		}
		b = b[end:]
	}
	return nil
}

// TableExists reports whether a table with the name and family of t exists.
func (c *Conn) TableExists(ctx context.Context, t *nftables.Table) (bool, error) {
	there, _, err := c.Table(ctx, t)
	return there, err
}

// Table reports whether a table with the name and family of t exists, and whether it is dormant: packets then pass none
// of its chains.
func (c *Conn) Table(ctx context.Context, t *nftables.Table) (there, dormant bool, err error) {
	err = c.queryFamily(ctx, t.Family, unix.NFT_MSG_GETTABLE, 0, func(b []byte) []byte {
		return netlink.AppendAttrString(b, unix.NFTA_TABLE_NAME, t.Name)
	}, func(data []byte) error {
		flags, err := netlink.Find(data[4:], unix.NFTA_TABLE_FLAGS)
		dormant = len(flags) >= 4 && binary.BigEndian.Uint32(flags)&unix.NFT_TABLE_F_DORMANT != 0
		return err
	})
	if err == unix.ENOENT {
		return false, false, nil
	}
	return err == nil, dormant, err
}

// Generation returns the number of the last transaction that changed any table of the network namespace.
func (c *Conn) Generation(ctx context.Context) (n uint32, err error) {
	err = c.queryFamily(ctx, nftables.TableFamilyUnspecified, unix.NFT_MSG_GETGEN, 0, func(b []byte) []byte { return b }, func(data []byte) error {
		id, err := netlink.Find(data[4:], nftaGenID)
		if err == nil && len(id) < 4 {
			err = netlink.ErrMalformed
		}
		if err == nil {
			n = binary.BigEndian.Uint32(id)
		}
		return err
	})
	return n, err
}

const nftaGenID = 1

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

// Element calls each for the element of a set with a key, and an end if it is an interval of a concatenation. It reports
// whether there is one. The element is valid during the call only.
func (c *Conn) Element(ctx context.Context, table, set string, key, end []byte, each func(x *Element)) (bool, error) {
	err := c.query(ctx, unix.NFT_MSG_GETSETELEM, 0, func(b []byte) []byte {
		b, list := netlink.BeginNest(appendSet(b, table, set), unix.NFTA_SET_ELEM_LIST_ELEMENTS|nftNested)
		b, one := netlink.BeginNest(b, unix.NFTA_LIST_ELEM|nftNested)
		return netlink.EndNest(netlink.EndNest(appendKey(b, key, end), one), list)
	}, func(data []byte) error { return c.eachOf(data, each) })
	c.element = Element{}
	if err == unix.ENOENT {
		return false, nil
	}
	return err == nil, err
}

// eachOf calls each for the elements of a message.
func (c *Conn) eachOf(data []byte, each func(x *Element)) error {
	list, err := elementList(data)
	for err == nil && c.element.next(&list) {
		each(&c.element)
	}
	return errors.Join(err, list.Err)
}

// Counters calls each for the elements of a set whose counters run, as far as it can while others change the tables: it
// may miss elements, and repeat them. The element is valid during the call only.
func (c *Conn) Counters(ctx context.Context, table, set string, each func(x *Element)) error {
	err := netlink.ErrInterrupted
	for try := 0; try < counterTries && err == netlink.ErrInterrupted; try++ {
		err = c.nl.Query(ctx, func(b []byte) []byte {
			return appendSet(appendTableMessage(b, unix.NFPROTO_INET, unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP), table, set)
		}, func(_ uint16, data []byte) error { return c.eachOf(data, each) })
	}
	c.element = Element{}
	if err == netlink.ErrInterrupted {
		return nil
	}
	return err
}

// counterTries bounds the tries of Counters. Each adds what the others have missed.
const counterTries = 3

// appendSet appends the name of a set, and that of its table.
func appendSet(b []byte, table, set string) []byte {
	b = netlink.AppendAttrString(b, unix.NFTA_SET_ELEM_LIST_TABLE, table)
	return netlink.AppendAttrString(b, unix.NFTA_SET_ELEM_LIST_SET, set)
}

// Elements calls each for each element of a set. The element is valid during the
// call only.
func (c *Conn) Elements(ctx context.Context, table, set string, each func(x *Element)) error {
	err := c.query(ctx, unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, func(b []byte) []byte { return appendSet(b, table, set) }, func(data []byte) error { return c.eachOf(data, each) })
	c.element = Element{} // its slices point into the dump
	return err
}

// Chains calls each for each chain of a table. Only the name is set, and the hook,
// priority and policy of base chains.
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

// decodeChain reads a chain's name, and its hook and policy if it has them.
func decodeChain(data []byte) (c nftables.Chain, err error) {
	a := netlink.Attrs{B: data[4:]}
	for typ, v, ok := a.Next(); ok; typ, v, ok = a.Next() {
		switch typ {
		case unix.NFTA_CHAIN_NAME:
			c.Name = netlink.String(v)
		case unix.NFTA_CHAIN_POLICY:
			if len(v) >= 4 {
				policy := nftables.ChainPolicy(binary.BigEndian.Uint32(v))
				c.Policy = &policy
			}
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
