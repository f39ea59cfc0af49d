// Package unnumbered finds the router at the other end of an interface, for a BGP session without a
// configured address ("BGP unnumbered"), and lets the router find this host: both send router
// advertisements (RFC 4861). FRR connects to and accepts an unnumbered peer only after it has
// received one.
//
// Its input is the name of an interface, which may be missing, down, or created again. Its output is
// the router's link-local address, or why it is unknown. The advertisements have a router lifetime
// of 0, so no host uses this one as its default router.
//
//	discovery.go  the sending and receiving of advertisements
//	icmp.go       the messages and the socket
package unnumbered
