// Package netlink sends and reads netlink messages.
//
// Conn packs many messages into one send and reads one outcome for each of
// them. Messages are built in a byte slice (BeginMessage, AppendAttr...) and
// read in place (NextMessage, Attrs), so that a change costs no allocation per
// attribute. The package knows generic netlink's family lookup and nothing of
// IPVS, routes or nftables: their packages encode their own messages. It keeps
// no state of the kernel and retries nothing.
package netlink
