// Package link follows the interfaces on which addresses are announced.
//
// It reads links and addresses over routing netlink, first all of them and then each change, and
// publishes the few facts that announcing needs: which of the configured interfaces are there, their
// index, MAC and carrier, and which addresses of the pools are the host's own. An interface is known
// by its name only: one that is renamed, or deleted and created again, vanishes and appears. The one
// thing that it writes is the interface's arp_announce setting. It records the former value and
// restores it.
package link
