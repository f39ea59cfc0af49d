package watch

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

// Author is the program that committed a transaction. The zero value is unknown.
type Author struct {
	Name string // of the process, at most 15 bytes
	PID  int
}

// String returns the program in a message, or "" if it is unknown.
func (a Author) String() string {
	if a == (Author{}) {
		return ""
	}
	return fmt.Sprintf("%s (pid %d)", a.Name, a.PID)
}

// touch records that a transaction has touched the table. A transaction of an unknown program doesn't hide a known one.
func (s *Seen) touch(by Author) {
	if s.Table == nil || by != (Author{}) {
		s.Table = &by
	}
}

// readTable reads an event of nftables. The kernel sends the events of a transaction together, and then one that names
// the program.
func (w *Watcher) readTable(e netlink.Event) {
	if e.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(e.Data) < 4 {
		return
	}
	message := e.Type & 0xff
	if message == unix.NFT_MSG_NEWGEN {
		if w.touched {
			w.seen.touch(committer(e))
			w.touched = false
		}
		return
	}
	if e.Data[0] != unix.NFPROTO_INET {
		return
	}
	// The name of the table has the same number in messages about tables, chains, rules, sets and elements.
	name, err := netlink.Find(e.Data[4:], unix.NFTA_TABLE_NAME)
	if err != nil {
		w.seen.Lost = true
		return
	}
	w.touched = w.touched || netlink.String(name) == w.o.Table
}

// committer returns the author of a transaction.
func committer(e netlink.Event) (a Author) {
	attrs := netlink.Attrs{B: e.Data[4:]}
	for typ, v, ok := attrs.Next(); ok; typ, v, ok = attrs.Next() {
		switch {
		case typ == nftaGenProcPID && len(v) >= 4:
			a.PID = int(binary.BigEndian.Uint32(v))
		case typ == nftaGenProcName:
			a.Name = netlink.String(v)
		}
	}
	return a
}

// From linux/netfilter/nf_tables.h.
const (
	nftaGenProcPID  = 2
	nftaGenProcName = 3
)
