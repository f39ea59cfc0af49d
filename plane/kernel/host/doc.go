// Package host changes and checks what a dataplane in the kernel needs of a host besides
// IPVS and nftables: the local routes of virtual addresses and the
// device that they lead to, the tunnel devices of a real server, sysctls, free ports for node ports, and the connections
// that this host has opened. Finding describes one requirement and its state.
//
// All functions work in the network namespace of the calling thread. The package
// owns the device of the given name and the tunnel devices named after it, and
// never changes others. The dataplane decides which addresses and values they get.
package host
