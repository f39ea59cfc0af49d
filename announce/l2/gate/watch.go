package gate

import (
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/ironvip/ironvip/internal/netlink"
)

var tables = []*nftables.Table{tableARP, tableNetdev}

// Watch subscribes to the changes of nftables in the network namespace of the calling thread.
func Watch() (*netlink.Events, error) {
	return netlink.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
}

// Touches reports whether an event is a change of the gate's tables. Events of all processes have
// the port of their socket. The kernel's own have port 0, for example when an interface vanishes.
func Touches(e netlink.Event) bool {
	if e.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(e.Data) < 4 {
		return false
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return byte(t.Family) == e.Data[0] }) {
		return false
	}
	// The name of the table has the same number in messages about tables, chains, rules and sets.
	name, err := netlink.Find(e.Data[4:], unix.NFTA_TABLE_NAME)
	return err == nil && netlink.String(name) == TableName
}
